"""Another name of `schedopt.bench.records.describe_machine`."""

from schedopt.bench.records import describe_machine

__all__ = ["describe_machine"]
