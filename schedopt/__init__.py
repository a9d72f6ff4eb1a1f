"""schedopt."""
