"""Starts in which nothing waits: which GPU each layer is on, at times that are given.

If no operation waits, a period says when each layer works and what it holds at each moment, on
whatever GPU it is. So to choose the GPUs is to pack vectors, of which some pairs should be apart,
and another GPU for a layer moves none of the others: many layers find their places at once, where
small moves of stages that push each other about would not.

Notes
-----
Simulated annealing, with the moves and the rule of `annealing`, but no placing: a layer changes its
GPU, or two layers exchange theirs. The energy is what the GPUs hold too much at their maximum, as a
share of their memory; how long two layers of one GPU work at the same time, and how long what is
between layers on two GPUs is sent, as shares of the period. Times first count a transfer behind
each layer or behind none, then behind those where the first packing has one. With E moments and L
layers a step takes O(E + L), and O(1) if what waits or is sent decides against it.
"""

from __future__ import annotations

from itertools import product
from math import exp, log
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.annealing import Schedule, anneal
from schedopt.solving.local_search.coding import encode
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.moves import Draw, below
from schedopt.solving.local_search.njit import njit_entry, njit_inline
from schedopt.solving.local_search.state import PERIOD, Floats, Workspace
from schedopt.solving.local_search.tables import (
    BACKWARD,
    ENTRY,
    FORWARD,
    SAVED,
    TIED,
    WEIGHT,
    WORKSPACE,
    Ints,
    Tables,
)
from schedopt.stage import Stage

Bools = npt.NDArray[np.bool_]

SHORT: Final = 16
"""An annealing from a packing is this part of one from a start, as 1 / `SHORT`."""
FAILURES: Final = 5
"""Packings in a row from which nothing is found, after which the search from packings ends."""
DROPS: Final = (0.05, 0.02, 0.01)
"""How far below what was found the next packing is for, by chance."""
MOVES: Final = 16
"""Moves of a packing for each placement of the annealing that goes on from it."""
ROUNDS: Final = 2
"""Packings one after the other, each at the times that the last one gives."""
HOT: Final = 0.02
WARM: Final = 0.004
COLD: Final = 0.0005
"""Temperatures at the beginning, in later rounds, and at the end, as energies."""
ROUNDED: Final = 1e-9
"""An energy below it is none: floats are rounded."""
EXCHANGED: Final = 0.6
"""How often two layers exchange their GPUs. Compiled in."""


class Packing(NamedTuple):
    """What is packed: U units, layers of which some must share a GPU, at E moments, on P GPUs.

    Parameters
    ----------
    held : array, shape (U, E)
        Bytes of a unit at each moment.
    together : array, shape (U, U)
        Energy of each two on one GPU: negative where a transfer is saved. Of one with itself: 0.
    apart : float
        Energy of all on GPUs of their own.
    room : array, shape (P,)
        Usable bytes.
    gpu : array, shape (U,)
        Where each unit is. Overwritten.
    best : array, shape (U,)
        The best that was found.
    used : array, shape (P, E)
        Room for bytes on each GPU at each moment.
    beside : array, shape (P, U)
        Room for the energy of each unit with all others on each GPU.
    energy : array, shape (P, 2)
        Room for the excess and for the energy of those together on each GPU.
    """

    held: Floats
    together: Floats
    apart: float
    room: Ints
    gpu: Ints
    best: Ints
    used: Floats
    beside: Floats
    energy: Floats


def can_pack(tables: Tables) -> bool:
    """Whether times are the same on whatever GPU a layer is: one speed, one kind of link."""
    return bool((tables.time == tables.time[0]).all()) and len(tables.sending) <= 1


def anneal_packings(
    tables: Tables, work: Workspace, draw: np.random.Generator, plan: Schedule, stop: Ints
) -> int:
    """Search from packings, each below what was found from the last one: see `anneal`.

    Parameters
    ----------
    tables, work, draw, plan, stop
        As those of `anneal`. The first packing is for the period of the state, which has room for
        each layer as a stage; what else is there is not read. `plan` says how many placements all
        annealings have together, about.

    Returns
    -------
    int
        How many placements were looked at.
    """
    short = plan._replace(steps=max(1, plan.steps // SHORT))
    placements = 0
    failed, target = 0, int(work.state.counts[PERIOD])
    while failed < FAILURES and placements < plan.steps and not stop[0]:
        encode(pack_layers(tables, target, MOVES * short.steps, draw), work.state, target)
        before = int(work.found[0])
        placements += anneal(tables, work, draw, short, stop)
        found = int(work.found[0])
        if found == before:
            failed += 1
            continue
        if found <= plan.low:
            break
        failed = 0
        drop = DROPS[draw.integers(len(DROPS))]
        target = max(plan.low, min(found - 1, int(found * (1 - drop))))
    return placements


def pack_layers(tables: Tables, period: int, steps: int, draw: Draw) -> list[Stage]:
    """Return stages of which as few as can be found need more than there is at a period.

    Neighbours on one GPU are one stage, or each layer is a stage of its own, which holds less.

    Parameters
    ----------
    tables : Tables
        With GPUs and links of one kind: see `can_pack`.
    period : int
        T, ns, of one micro-batch.
    steps : int
        Moves that are tried, in all.
    draw : numpy.random.Generator
    """
    unit = _units(tables)
    count = int(unit.max()) + 1
    gpu = draw.integers(tables.gpus, size=count)
    cuts = np.full(tables.layers - 1, draw.random() < 0.5)
    for number in range(ROUNDS):
        packing = _make_packing(tables, period, cuts, unit, gpu)
        hot = WARM if number else HOT
        _pack(lean(packing), steps // ROUNDS, hot, COLD, lean(draw))
        gpu = packing.best
        cuts = np.diff(gpu[unit]) != 0
    where = gpu[unit]
    ends = np.ones(tables.layers, dtype=bool)
    if draw.random() < 0.5:
        ends[:-1] = cuts
    behind = np.flatnonzero(ends) + 1
    return [
        Stage(layers=(int(first), int(end) - 1), gpus=(int(where[first]),))
        for first, end in zip([0, *behind[:-1]], behind, strict=True)
    ]


def _units(tables: Tables) -> Ints:
    """Return the unit of each layer: its own, or that of all with which it must share a GPU."""
    tied = tables.layer[:-1, TIED]
    alone = np.arange(tables.layers) + tables.ties
    return np.unique(np.where(tied >= 0, tied, alone), return_inverse=True)[1].astype(np.int64)


def _make_packing(tables: Tables, period: int, cuts: Bools, unit: Ints, gpu: Ints) -> Packing:
    """Return what is packed, if there are transfers behind some layers."""
    layers, count = tables.layers, int(unit.max()) + 1
    length = np.diff(tables.time[0, [FORWARD, BACKWARD]])
    sent = tables.sending[0, : layers - 1]
    start = _times(period, length, sent * cuts)
    new = np.where(cuts, 0, 2 * sent)
    together = _overlaps(start, length, period) - np.diag(new, 1) - np.diag(new, -1)
    of_unit = np.zeros((layers, count))
    of_unit[np.arange(layers), unit] = 1.0
    held = of_unit.T @ _held(tables, period, cuts, start, length).T
    of_units = of_unit.T @ together @ of_unit / period
    np.fill_diagonal(of_units, 0.0)
    return Packing(
        held=np.ascontiguousarray(held),
        together=of_units,
        apart=float(new.sum()) / period,
        room=tables.room,
        gpu=gpu.copy(),
        best=gpu.copy(),
        used=np.zeros((tables.gpus, held.shape[1])),
        beside=np.zeros((tables.gpus, count)),
        energy=np.zeros((tables.gpus, 2)),
    )


def _times(period: int, length: Ints, sent: Ints) -> Ints:
    """Return when each layer's forward and backward begin, ns, if only it keeps itself waiting.

    Where its forward of one micro-batch would meet its backward of another, the forward is earlier.
    """
    start = np.zeros_like(length)
    early, late = 0, 0
    for layer in reversed(range(start.shape[1])):
        forward, backward = length[:, layer]
        between = sent[layer] if layer < len(sent) else 0
        early -= between + forward
        late += between
        apart = (late - early) % period
        if apart < forward:
            early -= forward - apart
        elif apart > period - backward:
            early -= period - apart + forward
        start[:, layer] = early, late
        late += backward
    return start


def _held(tables: Tables, period: int, cuts: Bools, start: Ints, length: Ints) -> Floats:
    """Return the bytes of each layer, shape (E, L), where an operation of some layer begins.

    Where memory is read as a sum, E = 1.
    """
    layers = np.arange(tables.layers)
    moments = (start % period).reshape(-1, 1)
    end = start[1] + length[1]
    in_flight = (end - moments - 1) // period - (start[0] - moments - 1) // period
    saved = tables.layer[:-1, SAVED] + tables.layer[:-1, ENTRY] * np.append(True, cuts)
    held = np.diff(tables.layer[:, WEIGHT]) + saved * in_flight
    for operation in range(2):
        held[operation * tables.layers + layers, layers] += tables.layer[:-1, WORKSPACE]
    return np.asarray(held if tables.peak else held.max(axis=0, keepdims=True), dtype=np.float64)


def _overlaps(start: Ints, length: Ints, period: int) -> Floats:
    """Return how long each two layers work at the same time in a period, ns, shape (L, L)."""
    overlaps = np.zeros((start.shape[1], start.shape[1]))
    for one, other in product(range(2), repeat=2):
        first, second = start[one][:, None], start[other]
        ahead, behind = (second - first) % period, (first - second) % period
        of_first, of_second = length[one][:, None], length[other]
        overlaps += np.clip(np.minimum(of_first - ahead, of_second), 0, None)
        overlaps += np.where(ahead, np.clip(np.minimum(of_second - behind, of_first), 0, None), 0)
    return overlaps


@njit_inline
def _excess(most: float, room: int) -> float:
    return max(0.0, most / max(1, room) - 1.0)


@njit_entry
def _pack(p: Packing, steps: int, hot: float, cold: float, draw: Draw) -> None:
    """Search from where units are, and leave the best in `best`."""
    units, moments = p.held.shape
    gpus = p.room.shape[0]
    for gpu in range(gpus):
        p.energy[gpu, 1] = 0.0
        for moment in range(moments):
            p.used[gpu, moment] = 0.0
        for unit in range(units):
            p.beside[gpu, unit] = 0.0
    for unit in range(units):
        gpu = p.gpu[unit]
        for moment in range(moments):
            p.used[gpu, moment] += p.held[unit, moment]
        for other in range(units):
            p.beside[gpu, other] += p.together[unit, other]
            if other < unit and p.gpu[other] == gpu:
                p.energy[gpu, 1] += p.together[unit, other]
    now = p.apart
    for gpu in range(gpus):
        most = 0.0
        for moment in range(moments):
            most = max(most, p.used[gpu, moment])
        p.energy[gpu, 0] = _excess(most, p.room[gpu])
        now += p.energy[gpu, 0] + p.energy[gpu, 1]
    best = now
    cooling = log(cold / hot) / max(1, steps)
    for step in range(steps):
        unit, other = below(draw, units), -1
        if draw.random() < EXCHANGED:
            other = below(draw, units)
            target = p.gpu[other]
        else:
            target = below(draw, gpus)
        source = p.gpu[unit]
        if source == target:
            continue
        limit = now - hot * exp(cooling * step) * log(draw.random())
        left = p.energy[source, 1] - p.beside[source, unit]
        joined = p.energy[target, 1] + p.beside[target, unit]
        if other >= 0:
            left += p.beside[source, other] - p.together[unit, other]
            joined -= p.beside[target, other] + p.together[unit, other]
        new = now + left - p.energy[source, 1] + joined - p.energy[target, 1]
        new -= p.energy[source, 0] + p.energy[target, 0]
        if new > limit:
            continue
        of_source, of_target = 0.0, 0.0
        for moment in range(moments):
            bytes_moved = p.held[unit, moment]
            if other >= 0:
                bytes_moved -= p.held[other, moment]
            of_source = max(of_source, p.used[source, moment] - bytes_moved)
            of_target = max(of_target, p.used[target, moment] + bytes_moved)
        of_source = _excess(of_source, p.room[source])
        of_target = _excess(of_target, p.room[target])
        new += of_source + of_target
        if new > limit:
            continue
        for moment in range(moments):
            bytes_moved = p.held[unit, moment]
            if other >= 0:
                bytes_moved -= p.held[other, moment]
            p.used[source, moment] -= bytes_moved
            p.used[target, moment] += bytes_moved
        for third in range(units):
            change = p.together[unit, third]
            if other >= 0:
                change -= p.together[other, third]
            p.beside[source, third] -= change
            p.beside[target, third] += change
        p.gpu[unit] = target
        if other >= 0:
            p.gpu[other] = source
        p.energy[source, 0], p.energy[source, 1] = of_source, left
        p.energy[target, 0], p.energy[target, 1] = of_target, joined
        now = new
        if now < best:
            best = now
            for third in range(units):
                p.best[third] = p.gpu[third]
            if best < ROUNDED:
                break
