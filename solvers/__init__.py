"""The solvers, one algorithm a file: ``solve(problem, run)``."""
