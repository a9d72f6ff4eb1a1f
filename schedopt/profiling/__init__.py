"""From a torch model to a chain, or a profile: times and bytes of each layer, measured.

torch is imported only when something is measured::

    from schedopt.profiling import load_model, profile

    chain = profile(load_model("hf:gpt2"), device="cpu")
"""

from __future__ import annotations

from schedopt.profiling.factory import as_model, load_factory, load_model
from schedopt.profiling.model import Model
from schedopt.profiling.profiler import Estimator, Profiler, cut_again, estimate, profile
from schedopt.profiling.variants import profile_variants
from schedopt.profiling.verifying import Deviation, verify_chain

__all__ = [
    "Deviation",
    "Estimator",
    "Model",
    "Profiler",
    "as_model",
    "cut_again",
    "estimate",
    "load_factory",
    "load_model",
    "profile",
    "profile_variants",
    "verify_chain",
]
