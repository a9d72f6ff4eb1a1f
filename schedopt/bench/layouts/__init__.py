"""Layouts of Megatron-LM that people set by hand, beside the best ones."""
