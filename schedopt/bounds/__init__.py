"""Closed forms that nothing can beat, each with the scope in which it holds and its proof.

They hold for plans that run each layer on one GPU, the same for all micro-batches.

`propagation` brings together what is known of a period, in rounds until nothing changes: `amounts`
says what each layer takes, `runs` which layers can share a GPU and how long the spans get by cuts,
`instants` what is kept at one instant, where patterns have one micro-batch and memory is its peak.
`flush` does so for the makespan of a step.
"""

from __future__ import annotations

from schedopt.bounds.averages import average_step_bound
from schedopt.bounds.every import lower_bounds
from schedopt.bounds.flush import flush_bound
from schedopt.bounds.gradients import gradient_step_bound
from schedopt.bounds.load import load_bound, longest_layer_ns, stage_load_bound
from schedopt.bounds.memory import memory_proof
from schedopt.bounds.packing import packing_bound
from schedopt.bounds.propagation import propagation_bound
from schedopt.bounds.scopes import widest
from schedopt.bounds.span import contiguous_bound
from schedopt.bounds.step import contiguous_step_bound, step_bound

__all__ = [
    "average_step_bound",
    "contiguous_bound",
    "contiguous_step_bound",
    "flush_bound",
    "gradient_step_bound",
    "load_bound",
    "longest_layer_ns",
    "lower_bounds",
    "memory_proof",
    "packing_bound",
    "propagation_bound",
    "stage_load_bound",
    "step_bound",
    "widest",
]
