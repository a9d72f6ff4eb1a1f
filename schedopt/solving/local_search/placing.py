"""Stages placed into a period, greedily, from the last one outwards.

Each forward goes to the latest free place of its GPU and links that is in time for what follows,
each backward to the earliest; a gene for each stage may say otherwise. What finds no place, and
what is too much for a GPU's time or memory, is a penalty: without one, the placement is a plan.
Of two micro-batches in a period each has its own places and genes, stage by stage; the second one
leaves the chain's end some time behind the first.

A stage takes O(I^2) at worst for I intervals on a resource, and O(I) mostly: see `gaps`.
"""

from __future__ import annotations

from schedopt.solving.local_search.gaps import (
    EARLIER,
    LATER,
    NOWHERE,
    first_free,
    room_to_move,
    wrap,
)
from schedopt.solving.local_search.njit import njit_inline, njit_kernel
from schedopt.solving.local_search.penalty import (
    average_of,
    final_excess,
    least_penalty,
    most_in_flight,
)
from schedopt.solving.local_search.state import (
    AT_ACTIVATION,
    AT_BACKWARD,
    AT_FORWARD,
    AT_GRADIENT,
    AT_RECOMPUTE,
    AT_WEIGHT_HALF,
    BACKWARD_GENE,
    BEGIN,
    F_TO_B,
    F_TO_W,
    FB_WORKSPACE,
    FORWARD_GENE,
    GENES,
    GPU,
    HALVED,
    HELD,
    I_TO_W,
    LAYERS_RECOMPUTED,
    LENGTH,
    MARK,
    MICRO_BATCHES,
    NEXT,
    ORDER_GENE,
    PERIOD,
    PLACED,
    PLACES,
    R_TO_B,
    R_TO_W,
    R_WORKSPACE,
    SPACING,
    SPACINGS,
    STAGES,
    START,
    T_BACKWARD,
    T_FORWARD,
    T_RECOMPUTE,
    T_WEIGHT_HALF,
    TOP,
    WAIT,
    WAITS,
    WEIGHTS,
    WHERE,
    State,
)
from schedopt.solving.local_search.tables import (
    BACKWARD,
    EARLY,
    ENTRY,
    FORWARD,
    INPUT_HALF,
    KEPT_HALF,
    RECEIVED,
    SAVED,
    WEIGHT,
    WEIGHT_HALF,
    WORKSPACE,
    Tables,
)


@njit_kernel
def measure(t: Tables, s: State, row: int) -> None:
    """Find out what a stage takes on its own."""
    begin, gpu, halved = s.row[row, BEGIN], s.row[row, GPU], s.row[row, HALVED]
    end = s.row[row - 1, BEGIN] if row > 0 else t.layers
    s.row[row, T_FORWARD] = t.time[gpu, FORWARD, end] - t.time[gpu, FORWARD, begin]
    back = INPUT_HALF if halved else BACKWARD
    s.row[row, T_BACKWARD] = t.time[gpu, back, end] - t.time[gpu, back, begin]
    rest = t.time[gpu, WEIGHT_HALF, end] - t.time[gpu, WEIGHT_HALF, begin]
    s.row[row, T_WEIGHT_HALF] = rest if halved else 0
    s.row[row, WEIGHTS] = t.layer[end, WEIGHT] - t.layer[begin, WEIGHT]
    for column in range(F_TO_B, LAYERS_RECOMPUTED + 1):
        s.row[row, column] = 0
    recompute = 0
    before = False
    for layer in range(begin, end):
        late = halved and not t.layer[layer, EARLY]
        kept = 0
        space = t.layer[layer, WORKSPACE]
        s.row[row, FB_WORKSPACE] = max(s.row[row, FB_WORKSPACE], space)
        computed = s.recompute[layer] > 0
        if computed:
            s.row[row, LAYERS_RECOMPUTED] += 1
            recompute += t.time[gpu, FORWARD, layer + 1] - t.time[gpu, FORWARD, layer]
            s.row[row, R_WORKSPACE] = max(s.row[row, R_WORKSPACE], space)
            s.row[row, R_TO_W if late else R_TO_B] += t.layer[layer, SAVED]
            if not before:
                kept = t.layer[layer, RECEIVED]
        else:
            kept = t.layer[layer, SAVED]
            if layer == begin or before:
                kept += t.layer[layer, ENTRY]
        s.row[row, F_TO_W if late else F_TO_B] += kept
        if halved:
            s.row[row, I_TO_W] += t.layer[layer, KEPT_HALF]
        before = computed
    s.row[row, T_RECOMPUTE] = recompute
    if s.row[row, T_FORWARD] + s.row[row, T_BACKWARD] + s.row[row, T_WEIGHT_HALF] == 0:
        s.row[row, FB_WORKSPACE] = 0
    if recompute == 0:
        s.row[row, R_WORKSPACE] = 0


@njit_inline
def _note_held(s: State, row: int) -> None:
    """Note what a stage that is placed holds at the most: each kind at its own maximum."""
    back = s.row[row, T_BACKWARD]
    held = s.row[row, WEIGHTS]
    held += most_in_flight(s, row, AT_FORWARD, AT_BACKWARD, back) * s.row[row, F_TO_B]
    last, rest = AT_BACKWARD, back
    if s.row[row, HALVED]:
        last, rest = AT_WEIGHT_HALF, s.row[row, T_WEIGHT_HALF]
        held += most_in_flight(s, row, AT_FORWARD, last, rest) * s.row[row, F_TO_W]
        held += most_in_flight(s, row, AT_BACKWARD, last, rest) * s.row[row, I_TO_W]
    if s.row[row, R_TO_B] > 0:
        held += most_in_flight(s, row, AT_RECOMPUTE, AT_BACKWARD, back) * s.row[row, R_TO_B]
    if s.row[row, R_TO_W] > 0:
        held += most_in_flight(s, row, AT_RECOMPUTE, last, rest) * s.row[row, R_TO_W]
    s.row[row, HELD] = held


@njit_inline
def take_out(s: State, row: int) -> None:
    """Take stages out of the period, down to a row."""
    if s.counts[PLACED] <= row:
        return
    mark = s.row[row, MARK]
    top = s.counts[TOP]
    while top > mark:
        top -= 1
        s.first[s.line[top, WHERE]] = s.line[top, NEXT]
    s.counts[TOP] = top
    s.counts[PLACED] = row


@njit_inline
def put(s: State, where: int, time: int, length: int) -> None:
    """Put an interval onto a resource, from a time in [0, T) on."""
    top = s.counts[TOP]
    s.line[top, START] = time
    s.line[top, LENGTH] = length
    s.line[top, WHERE] = where
    s.line[top, NEXT] = s.first[where]
    s.first[where] = top
    s.counts[TOP] = top + 1


@njit_inline
def _place_operation(
    s: State, row: int, length: int, start: int, gene: int, sign: int
) -> tuple[int, float]:
    """Place an operation from a start on; return where it starts and what found no place.

    It goes to the first free place, on to the end of that gap (gene 1), or to the next gap (2). On
    a free GPU no gap ends: with gene 2 it waits for a part of the period. That costs nothing where
    the backward of what fills its GPU has to wait for its forward anyway, and lets what is placed
    before run at another time of the period: a loss when there is memory for it.
    """
    gpu, period = s.row[row, GPU], s.counts[PERIOD]
    time = start % period
    far = first_free(s.line, s.first, period, gpu, length, time, period, sign)
    if far == NOWHERE:
        return start, max(1, length) / period
    time = wrap(time + sign * far, period)
    if gene > 0:
        more = 0
        room = room_to_move(s.line, s.first, period, gpu, time, length, sign)
        if room < period:
            if gene == 1:
                more = room
            else:
                begin, limit = wrap(time + sign * (room + 1), period), period - room - 1
                other = first_free(s.line, s.first, period, gpu, length, begin, limit, sign)
                if other != NOWHERE:
                    more = room + 1 + other
        elif gene == 2:
            more = s.row[row, WAIT] * period // WAITS
        far += more
        time = wrap(time + sign * more, period)
    put(s, gpu, time, length)
    return start + sign * far, 0.0


@njit_inline
def _place_transfer(
    t: Tables, s: State, source: int, target: int, length: int, begin: int, sign: int
) -> tuple[int, float]:
    """Place a transfer on all its hops from a start on."""
    period = s.counts[PERIOD]
    time, far, before = begin % period, 0, NOWHERE
    hops = t.hops.shape[2]
    while far != before:
        before = far
        for number in range(hops):
            hop = t.hops[source, target, number]
            if hop < 0:
                break
            more = first_free(s.line, s.first, period, hop, length, time, period - far, sign)
            if more == NOWHERE:
                return begin, max(1, length) / period
            time = wrap(time + sign * more, period)
            far += more
        if hops == 1:
            break
    for number in range(hops):
        hop = t.hops[source, target, number]
        if hop >= 0:
            put(s, hop, time, length)
    return begin + sign * far, 0.0


@njit_kernel
def _second_start(s: State, gpu: int, time: int) -> int:
    """Return when the forward of the last stage starts for the second micro-batch."""
    period = s.counts[PERIOD]
    start = period * s.counts[SPACING] // SPACINGS
    far = first_free(s.line, s.first, period, gpu, time, start, period, LATER)
    return int(start if far == NOWHERE else start + far)


@njit_inline
def _place_forward(t: Tables, s: State, row: int, micro_batch: int) -> float:
    """Place the forward of a stage and what it sends."""
    gpu, time, at = s.row[row, GPU], s.row[row, T_FORWARD], PLACES * micro_batch
    excess = 0.0
    if row == 0:
        end = time + (_second_start(s, gpu, time) if micro_batch else 0)
    else:
        end = s.row[row - 1, at + AT_FORWARD]
        target = s.row[row - 1, GPU]
        link = t.link[gpu, target]
        if link >= 0:
            length = t.sending[link, s.row[row - 1, BEGIN] - 1]
            end, excess = _place_transfer(t, s, gpu, target, length, end - length, EARLIER)
            s.row[row, at + AT_ACTIVATION] = end
    gene = s.row[row, FORWARD_GENE + GENES * micro_batch]
    start, more = _place_operation(s, row, time, end - time, gene, EARLIER)
    s.row[row, at + AT_FORWARD] = start
    return excess + more


@njit_inline
def _place_backward(t: Tables, s: State, row: int, micro_batch: int) -> float:
    """Place the backward of a stage, and what it waits for; its weight half, and recompute."""
    gpu, at = s.row[row, GPU], PLACES * micro_batch
    excess = 0.0
    if row == 0:
        begin = s.row[0, at + AT_FORWARD] + s.row[0, T_FORWARD] + s.row[0, T_RECOMPUTE]
    else:
        begin = s.row[row - 1, at + AT_BACKWARD] + s.row[row - 1, T_BACKWARD]
        source = s.row[row - 1, GPU]
        link = t.link[source, gpu]
        if link >= 0:
            length = t.sending[link, s.row[row - 1, BEGIN] - 1]
            begin, excess = _place_transfer(t, s, source, gpu, length, begin, LATER)
            s.row[row, at + AT_GRADIENT] = begin
            begin += length
    gene, time = s.row[row, BACKWARD_GENE + GENES * micro_batch], s.row[row, T_BACKWARD]
    start, more = _place_operation(s, row, time, begin, gene, LATER)
    s.row[row, at + AT_BACKWARD] = start
    excess += more
    if s.row[row, HALVED]:
        rest = s.row[row, T_WEIGHT_HALF]
        after, more = _place_operation(s, row, rest, start + time, 0, LATER)
        s.row[row, at + AT_WEIGHT_HALF] = after
        excess += more
    if s.row[row, LAYERS_RECOMPUTED] > 0:
        # The latest before the backward.
        time = s.row[row, T_RECOMPUTE]
        before, more = _place_operation(s, row, time, start - time, 0, EARLIER)
        s.row[row, at + AT_RECOMPUTE] = before
        excess += more
    return excess


@njit_inline
def _move_before_recompute(s: State, row: int, micro_batch: int) -> None:
    """Let the forward keep its place in the period, in one that ends before its recompute."""
    at = PLACES * micro_batch
    late = s.row[row, at + AT_FORWARD] + s.row[row, T_FORWARD] - s.row[row, at + AT_RECOMPUTE]
    if late > 0:
        period = s.counts[PERIOD]
        s.row[row, at + AT_FORWARD] -= -(-late // period) * period


@njit_kernel
def place_row(t: Tables, s: State, row: int) -> None:
    """Place one stage. The rows before are placed already."""
    overlap = s.overlap[row - 1] if row > 0 else 0.0
    k = s.counts[MICRO_BATCHES]
    s.row[row, MARK] = s.counts[TOP]
    s.counts[PLACED] = row + 1
    order = s.row[row, ORDER_GENE]
    forward_turn = 0 if order % 2 or row == 0 else 1
    # Each stands here once: what is inlined is compiled each time.
    for turn in range(2 * k):
        micro_batch = turn // 2 + order // 2
        if micro_batch >= k:
            micro_batch -= k
        if turn % 2 == forward_turn:
            overlap += _place_forward(t, s, row, micro_batch)
        else:
            overlap += _place_backward(t, s, row, micro_batch)
    if s.row[row, LAYERS_RECOMPUTED] > 0:
        for micro_batch in range(k):
            _move_before_recompute(s, row, micro_batch)
    s.overlap[row] = overlap
    _note_held(s, row)
    if t.sparing > 0.0:
        s.average[row] = average_of(s, row) + (s.average[row - 1] if row > 0 else 0.0)


@njit_kernel
def place(t: Tables, s: State, row: int, limit: float) -> float:
    """Place the stages from a row on, and return the penalty; give up above a limit.

    The rows before are placed already. Genes and sizes say what is placed. What the penalty is at
    least is asked after 1, 2, 4, 8, ... stages: most of what is too much shows in the first ones,
    and on long chains asking takes no longer than placing.
    """
    begin, look, stages = row, row + 1, s.counts[STAGES]
    while row < stages:
        place_row(t, s, row)
        row += 1
        if row == look and row < stages:
            least = least_penalty(t, s, row)
            if least > limit:
                return least
            look += row - begin
    overlap, spare = s.overlap[stages - 1], t.sparing * s.average[stages - 1]
    excess = overlap + final_excess(t, s, max(0.0, limit - overlap - spare))
    return float(excess + spare if excess > 0.0 else excess)
