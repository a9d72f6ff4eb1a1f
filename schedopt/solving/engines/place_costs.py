"""What the parts of a chain cost that an engine does not cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from schedopt.chain import Layer

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts

_COSTS: Final = attrgetter(*(field.name for field in fields(Layer) if field.name != "name"))


def layers_of_places(cuts: EngineCuts) -> list[tuple[object, ...]]:
    """Return what the layers of each place cost: the same for places that are alike."""
    layers = [*map(_COSTS, cuts.chain.layers)]
    return [tuple(layers[begin:end]) for begin, end in pairwise((*cuts.places, cuts.layers))]


@dataclass(frozen=True)
class PlaceCosts:
    """What each part between two places to cut adds to a stage at least, on any rank.

    Parameters
    ----------
    forward, backward, again : sequence of int
        Times of an operation, and of recompute, where it may be recomputed, ns.
    exchange : sequence of int
        What follows the last backward of its stage, ns.
    weights, workspace : sequence of int
        All the time, and while it runs, bytes.
    saved, saved_recomputed : sequence of int
        Of a micro-batch in flight, and if it is recomputed, bytes. 0 of what takes no time:
        micro-batches may come one after the other at one instant.
    awaited : sequence of int
        What a recompute holds of the gradient that it waits for, where a stage ends with it, bytes.
    may_recompute : sequence of bool
        Whether it may be recomputed.
    """

    forward: Sequence[int]
    backward: Sequence[int]
    again: Sequence[int]
    exchange: Sequence[int]
    weights: Sequence[int]
    workspace: Sequence[int]
    saved: Sequence[int]
    saved_recomputed: Sequence[int]
    awaited: Sequence[int]
    may_recompute: Sequence[bool]

    @classmethod
    def of(cls, cuts: EngineCuts) -> PlaceCosts:
        """Return the costs of a chain on a grid."""
        begins = np.array(cuts.places)
        ends = np.append(begins[1:], cuts.layers)
        forward, backward, work = (
            np.min([np.array(row)[ends] - np.array(row)[begins] for row in rows], axis=0)
            for rows in (*cuts.lengths, cuts.work)
        )
        weights, saved = (
            np.array(row)[ends] - np.array(row)[begins] for row in (cuts.weights, cuts.saved)
        )
        lasts = work > 0
        exchange = np.zeros_like(begins)
        if cuts.exchange is not None:
            exchange = cuts.exchange.least_ns(begins, ends)
        return cls(
            forward=forward.tolist(),
            backward=backward.tolist(),
            again=cuts.recomputed.each_ns(begins, ends).tolist(),
            exchange=exchange.tolist(),
            weights=weights.tolist(),
            workspace=[
                min(cuts.workspaces[begin:end]) for begin, end in zip(begins, ends, strict=True)
            ],
            saved=np.where(lasts, saved, 0).tolist(),
            saved_recomputed=np.where(
                lasts, saved - cuts.recomputed.each_spared(begins, ends), 0
            ).tolist(),
            awaited=[
                cuts.chain.layers[end - 1].activation_bytes if cuts.ranks > 1 else 0
                for end in ends.tolist()
            ],
            may_recompute=cuts.recomputed.may_recompute(begins).tolist(),
        )
