"""Every system and our best plans on the same GPUs, side by side."""
