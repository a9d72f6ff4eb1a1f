"""The best step that an engine can run: grids, layouts, rank tables, and bounds over all."""
