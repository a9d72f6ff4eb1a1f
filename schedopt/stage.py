"""A stage: consecutive layers that run as one, and the GPUs that run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from schedopt.errors import InputError
from schedopt.validation import LARGEST, STRICT, as_numbers, as_rows


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Consecutive layers that run as one.

    Parameters
    ----------
    layers : (int, int)
        First and last layer, 0-based, inclusive.
    gpus : sequence of int
        Micro-batch i runs on ``gpus[i % len(gpus)]``. A GPU named more than once runs a larger
        share, and holds the weights once.
    recompute : sequence of (int, int)
        Runs of layers, first and last, that are computed again before the backward. Each keeps
        only its input for a micro-batch in flight.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    layers: tuple[int, int]
    gpus: tuple[int, ...]
    recompute: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        # Numbers that name nothing are violations, which the check of a plan reports.
        for name in ("layers", "gpus"):
            numbers = as_numbers(getattr(self, name), name, low=-LARGEST)
            object.__setattr__(self, name, numbers)
        as_rows(self, "recompute", low=-LARGEST)
        _check_pair(self.layers, "layers")
        for position, run in enumerate(self.recompute):
            _check_pair(run, f"recompute[{position}]")
        if not self.gpus:
            raise InputError("a stage runs on at least one GPU", field="gpus", way_out="Name a GPU")

    @property
    def first(self) -> int:
        """The first layer."""
        return self.layers[0]

    @property
    def last(self) -> int:
        """The last layer."""
        return self.layers[1]

    @property
    def layer_range(self) -> range:
        """All layers."""
        return range(self.first, self.last + 1)

    @property
    def recomputed_layers(self) -> frozenset[int]:
        """The layers that are computed again."""
        return frozenset(
            layer for first, last in self.recompute for layer in range(first, last + 1)
        )

    def gpu(self, micro_batch: int) -> int:
        """Return the GPU that runs a micro-batch."""
        return self.gpus[micro_batch % len(self.gpus)]


def _check_pair(numbers: tuple[int, ...], field: str) -> None:
    if len(numbers) != 2:
        raise InputError(
            f"{list(numbers)!r:.60} is not a pair",
            field=field,
            way_out="Give the first and the last layer",
        )
