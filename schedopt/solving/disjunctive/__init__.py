"""Whether operations that GPUs run one at a time have an order: distances, and their branching."""
