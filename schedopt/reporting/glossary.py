"""The words of a page, for a reader who has never seen one."""

from __future__ import annotations

from typing import Final

WORDS: Final = (
    ("Layer", "a part of the network that is measured as one: its time and its bytes."),
    ("Stage", "neighbouring layers that run as one on one GPU."),
    ("Micro-batch", "a small part of a batch, which goes through all stages on its own."),
    ("Forward, F", "computes the output of a stage, and saves what the backward needs."),
    ("Backward, B", "computes gradients, from the last stage to the first."),
    ("Input half, I, and weight half, W", "the two parts of a backward that is split."),
    ("Recompute, R", "runs a forward again, so that less has to be kept in memory."),
    ("Weight update, U", "applies the gradients of a mini-batch to the weights."),
    ("Pattern", "the times at which all runs, repeated for ever."),
    ("Period", "the length of the pattern for each of its micro-batches: less is faster."),
    ("In flight", "micro-batches between their forward and their backward on a stage."),
    ("Bubble", "the share of the time in which GPUs that have a stage idle."),
    ("Flush", "all gradients are applied, and the pipeline is empty, before the next step."),
    ("Bound", "a period that no plan of a certain kind can beat, proven."),
    ("Gap", "how much longer the period of the plan is than the bound."),
    ("1F1B*", "of all orders with one forward and one backward a period the one that keeps the "
     "least in memory (Beaumont, Eyraud-Dubois and Shilova 2021)."),
)  # fmt: skip
"""Each with what it means."""
