"""CP-SAT models of the order of operations, and of the allocation with it."""
