"""``python -m tests.compiled``: compile what tests call, once and before they start.

In a fresh checkout each process that runs tests would do so, while others wait for it.
"""

from __future__ import annotations

from schedopt import Chain, Layer, Platform, Problem
from schedopt.solving.local_search.search import compile_search
from schedopt.solving.replicas.search import compile_search as compile_step_search
from schedopt.solving.run import Run


def compile_all() -> None:
    """Compile both searches; what is kept on disk is loaded."""
    compile_search()
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    compile_step_search(Run(Problem(chain=Chain(layers=(layer,)), platform=Platform(1, 0))))


if __name__ == "__main__":
    compile_all()
