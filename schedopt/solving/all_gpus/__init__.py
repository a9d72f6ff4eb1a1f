"""Whether all GPUs together have an order for their operations, and which layers each holds."""

from typing import Final

MOST_LAYERS: Final = 72
"""Of chains, all of whose GPUs are looked at together: distances are those of all operations."""
