"""Whether all GPUs together have an order for their operations, and which layers each holds."""
