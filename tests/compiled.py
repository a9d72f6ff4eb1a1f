"""``python -m tests.compiled``: compile what tests call, once and before they start.

In a fresh checkout each process that runs tests would do so, while others wait for it.
"""

from __future__ import annotations

from schedopt.solving.local_search.compilation import COMPILATIONS


def compile_all() -> None:
    """Compile both searches; what is kept on disk is loaded."""
    for compilation in COMPILATIONS.values():
        compilation.compile_here()


if __name__ == "__main__":
    compile_all()
