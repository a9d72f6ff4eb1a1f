"""The compiled search for steps with a flush, whose layers lie on any GPU."""
