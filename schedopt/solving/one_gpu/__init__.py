"""Whether a GPU has an order for the operations of some layers, and which layers it may hold."""
