"""From a torch model to a chain: times and bytes of each layer, measured.

torch is imported only when something is measured::

    from schedopt.profiling import load_model, profile

    chain = profile(load_model("schedopt.profiling.models:gpt2_small"), device="cpu")
"""

from __future__ import annotations

from schedopt.profiling.factory import Model, as_model, load_factory, load_model
from schedopt.profiling.profiler import profile

__all__ = ["Model", "as_model", "load_factory", "load_model", "profile"]
