"""Benchmarks: suites of cases, each measured into a record, with goals, tables and pictures."""
