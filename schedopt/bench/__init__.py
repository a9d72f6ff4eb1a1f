"""Benchmarks: what the solvers take, measured side by side in one run."""
