"""Plans as pages and tables that people read."""
