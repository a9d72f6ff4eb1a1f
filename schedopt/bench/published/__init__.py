"""Predictions held against what others measured and published."""
