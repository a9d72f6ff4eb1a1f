"""Whole programs to read, run and start from."""
