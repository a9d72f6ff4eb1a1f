"""From a torch model to a chain: times and bytes of each layer, measured.

torch is imported only when something is measured::

    from schedopt.profiling import load_model, profile

    chain = profile(load_model("hf:gpt2"), device="cpu")
"""

from __future__ import annotations

from schedopt.profiling.factory import as_model, load_factory, load_model
from schedopt.profiling.model import Model
from schedopt.profiling.profiler import cut_again, estimate, profile
from schedopt.profiling.verifying import Deviation, verify_chain

__all__ = [
    "Deviation",
    "Model",
    "as_model",
    "cut_again",
    "estimate",
    "load_factory",
    "load_model",
    "profile",
    "verify_chain",
]
