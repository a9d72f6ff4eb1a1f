"""The compiled search for general allocations."""
