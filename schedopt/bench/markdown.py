"""Another name of `schedopt.bench.tables.table`."""

from schedopt.bench.tables import table

__all__ = ["table"]
