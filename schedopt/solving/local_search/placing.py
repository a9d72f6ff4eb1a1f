"""Stages placed into a period, greedily, from the last one outwards.

Each forward goes to the latest free place of its GPU and links that is in time for what follows,
each backward to the earliest; a gene for each stage may say otherwise. What finds no place, and
what is too much for a GPU's time or memory, is a penalty: without one, the placement is a plan.
"""

from __future__ import annotations

from schedopt.solving.local_search.compiled import compiled, inlined
from schedopt.solving.local_search.gaps import (
    NOWHERE,
    earliest,
    latest,
    room_before,
    room_behind,
)
from schedopt.solving.local_search.state import (
    AGAIN_TO_BACK,
    AGAIN_TO_REST,
    AHEAD,
    AT_AGAIN,
    AT_AHEAD,
    AT_BACK,
    AT_REST,
    AT_RETURN,
    AT_SEND,
    BACK,
    BEGIN,
    FIRST,
    GPU,
    HALVED,
    HALVES,
    HELD,
    LAYERS_AGAIN,
    LENGTH,
    MARK,
    NEED,
    NEXT,
    PERIOD,
    PLACED,
    SPACE,
    STAGES,
    START,
    T_AGAIN,
    T_AHEAD,
    T_BACK,
    T_REST,
    TIME,
    TO_BACK,
    TO_REST,
    TOP,
    WEIGHTS,
    WHERE,
    WORK,
    WORK_AGAIN,
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
    TIED,
    WEIGHT,
    WEIGHT_HALF,
    WORKSPACE,
    Tables,
)


@compiled
def measure(t: Tables, s: State, row: int) -> None:
    """Find out what a stage takes on its own."""
    begin, gpu, halved = s.row[row, BEGIN], s.row[row, GPU], s.row[row, HALVED]
    end = s.row[row - 1, BEGIN] if row > 0 else t.layers
    s.row[row, T_AHEAD] = t.time[gpu, FORWARD, end] - t.time[gpu, FORWARD, begin]
    back = INPUT_HALF if halved else BACKWARD
    s.row[row, T_BACK] = t.time[gpu, back, end] - t.time[gpu, back, begin]
    rest = t.time[gpu, WEIGHT_HALF, end] - t.time[gpu, WEIGHT_HALF, begin]
    s.row[row, T_REST] = rest if halved else 0
    s.row[row, WEIGHTS] = t.layer[end, WEIGHT] - t.layer[begin, WEIGHT]
    for column in range(TO_BACK, LAYERS_AGAIN + 1):
        s.row[row, column] = 0
    again = 0
    before = False
    for layer in range(begin, end):
        late = halved and not t.layer[layer, EARLY]
        kept = 0
        space = t.layer[layer, WORKSPACE]
        s.row[row, WORK] = max(s.row[row, WORK], space)
        computed = s.again[layer] > 0
        if computed:
            s.row[row, LAYERS_AGAIN] += 1
            again += t.time[gpu, FORWARD, layer + 1] - t.time[gpu, FORWARD, layer]
            s.row[row, WORK_AGAIN] = max(s.row[row, WORK_AGAIN], space)
            s.row[row, AGAIN_TO_REST if late else AGAIN_TO_BACK] += t.layer[layer, SAVED]
            if not before:
                kept = t.layer[layer, RECEIVED]
        else:
            kept = t.layer[layer, SAVED]
            if layer == begin or before:
                kept += t.layer[layer, ENTRY]
        s.row[row, TO_REST if late else TO_BACK] += kept
        if halved:
            s.row[row, HALVES] += t.layer[layer, KEPT_HALF]
        before = computed
    s.row[row, T_AGAIN] = again
    if s.row[row, T_AHEAD] + s.row[row, T_BACK] + s.row[row, T_REST] == 0:
        s.row[row, WORK] = 0
    if again == 0:
        s.row[row, WORK_AGAIN] = 0


@inlined
def _turns(length: int, period: int) -> int:
    """Return how many micro-batches hold something at once that each holds for so long."""
    return max(1, -(-length // period))


@inlined
def _excess_of_load(t: Tables, s: State) -> float:
    """Return by how much GPUs are overloaded whatever the order is, in periods and memories.

    A micro-batch stays in a stage for its work and that of all stages behind at least.
    """
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        s.load[gpu, TIME] = s.load[gpu, NEED] = 0
    behind, turns = 0, 1
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        work = s.row[row, T_AHEAD] + s.row[row, T_BACK] + s.row[row, T_AGAIN]
        s.load[gpu, TIME] += work + s.row[row, T_REST]
        behind += work
        # Divided only where it grows: most stages add less than a period.
        if behind > turns * period:
            turns = _turns(behind, period)
        need = s.row[row, WEIGHTS] + turns * s.row[row, TO_BACK]
        if s.row[row, T_REST] > 0:
            later = _turns(behind + s.row[row, T_REST], period)
            need += later * s.row[row, TO_REST] + s.row[row, HALVES]
        s.load[gpu, NEED] += need + s.row[row, AGAIN_TO_BACK] + s.row[row, AGAIN_TO_REST]
    excess = 0.0
    for gpu in range(t.gpus):
        if s.load[gpu, TIME] > period:
            excess += (s.load[gpu, TIME] - period) / period
        if not t.peak and s.load[gpu, NEED] > t.room[gpu]:
            excess += (s.load[gpu, NEED] - t.room[gpu]) / max(1, t.room[gpu])
    return excess


@inlined
def _hold(s: State, row: int) -> None:
    """Note what a stage that is placed holds at the most: each kind at its own maximum."""
    period = s.counts[PERIOD]
    ahead, begin = s.row[row, AT_AHEAD], s.row[row, AT_BACK]
    back = begin + s.row[row, T_BACK]
    held = s.row[row, WEIGHTS] + _turns(back - ahead, period) * s.row[row, TO_BACK]
    rest = back
    if s.row[row, HALVED]:
        rest = s.row[row, AT_REST] + s.row[row, T_REST]
        held += _turns(rest - ahead, period) * s.row[row, TO_REST]
        held += _turns(rest - begin, period) * s.row[row, HALVES]
    if s.row[row, AGAIN_TO_BACK] > 0:
        held += _turns(back - s.row[row, AT_AGAIN], period) * s.row[row, AGAIN_TO_BACK]
    if s.row[row, AGAIN_TO_REST] > 0:
        held += _turns(rest - s.row[row, AT_AGAIN], period) * s.row[row, AGAIN_TO_REST]
    s.row[row, HELD] = held


@inlined
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


@inlined
def put(s: State, where: int, start: int, length: int) -> None:
    """Put an interval onto a resource."""
    top = s.counts[TOP]
    s.line[top, START] = start % s.counts[PERIOD]
    s.line[top, LENGTH] = length
    s.line[top, WHERE] = where
    s.line[top, NEXT] = s.first[where]
    s.first[where] = top
    s.counts[TOP] = top + 1


@inlined
def _place_ahead(s: State, row: int, end: int) -> tuple[int, float]:
    """Place a forward that ends in time; return its start and what found no place."""
    gpu, length, period = s.row[row, GPU], s.row[row, T_AHEAD], s.counts[PERIOD]
    start = latest(s.line, s.first, period, gpu, length, end - length, end - length - period)
    if start == NOWHERE:
        return end - length, max(1, length) / period
    gene = s.row[row, AHEAD]
    if gene > 0:
        room = room_before(s.line, s.first, period, gpu, start)
        if room < period:
            if gene == 1:
                start -= room
            else:
                other = latest(
                    s.line, s.first, period, gpu, length, start - room - 1, start - period
                )
                if other != NOWHERE:
                    start = other
    put(s, gpu, start, length)
    return start, 0.0


@inlined
def _place_back(s: State, row: int, begin: int) -> tuple[int, float]:
    """Place a backward, or its input half; return its start and what found no place."""
    gpu, length, period = s.row[row, GPU], s.row[row, T_BACK], s.counts[PERIOD]
    start = earliest(s.line, s.first, period, gpu, length, begin, begin + period)
    if start == NOWHERE:
        return begin, max(1, length) / period
    gene = s.row[row, BACK]
    if gene > 0:
        room = room_behind(s.line, s.first, period, gpu, start + length)
        if room < period:
            if gene == 1:
                start += room
            else:
                other = earliest(
                    s.line, s.first, period, gpu, length, start + room + 1, start + period
                )
                if other != NOWHERE:
                    start = other
    put(s, gpu, start, length)
    return start, 0.0


@inlined
def _place_transfer(
    t: Tables, s: State, source: int, target: int, length: int, time: int, ahead: int
) -> tuple[int, float]:
    """Place a transfer that ends by a time (ahead), or begins from it on."""
    period = s.counts[PERIOD]
    begin = time - length if ahead else time
    start, before = begin, NOWHERE
    hops = t.hops.shape[2]
    while start != before:
        before = start
        for number in range(hops):
            hop = t.hops[source, target, number]
            if hop < 0:
                break
            if ahead:
                start = latest(s.line, s.first, period, hop, length, start, begin - period)
            else:
                start = earliest(s.line, s.first, period, hop, length, start, begin + period)
            if start == NOWHERE:
                return begin, max(1, length) / period
        if hops == 1:
            break
    for number in range(hops):
        hop = t.hops[source, target, number]
        if hop >= 0:
            put(s, hop, start, length)
    return start, 0.0


@inlined
def _way_ahead(t: Tables, s: State, row: int) -> float:
    """Place the forward of a stage and what it sends."""
    gpu = s.row[row, GPU]
    excess = 0.0
    if row == 0:
        end = s.row[0, T_AHEAD]
    else:
        end = s.row[row - 1, AT_AHEAD]
        target = s.row[row - 1, GPU]
        link = t.link[gpu, target]
        if link >= 0:
            length = t.sending[link, s.row[row - 1, BEGIN] - 1]
            end, excess = _place_transfer(t, s, gpu, target, length, end, 1)
            s.row[row, AT_SEND] = end
    s.row[row, AT_AHEAD], more = _place_ahead(s, row, end)
    return excess + more


@inlined
def _way_back(t: Tables, s: State, row: int) -> float:
    """Place the backward of a stage, and what it waits for; then its weight half."""
    gpu = s.row[row, GPU]
    excess = 0.0
    if row == 0:
        begin = s.row[0, AT_AHEAD] + s.row[0, T_AHEAD] + s.row[0, T_AGAIN]
    else:
        begin = s.row[row - 1, AT_BACK] + s.row[row - 1, T_BACK]
        source = s.row[row - 1, GPU]
        link = t.link[source, gpu]
        if link >= 0:
            length = t.sending[link, s.row[row - 1, BEGIN] - 1]
            begin, excess = _place_transfer(t, s, source, gpu, length, begin, 0)
            s.row[row, AT_RETURN] = begin
            begin += length
    s.row[row, AT_BACK], more = _place_back(s, row, begin)
    excess += more
    if s.row[row, HALVED]:
        length, period = s.row[row, T_REST], s.counts[PERIOD]
        begin = s.row[row, AT_BACK] + s.row[row, T_BACK]
        start = earliest(s.line, s.first, period, gpu, length, begin, begin + period)
        if start == NOWHERE:
            excess += max(1, length) / period
            start = begin
        else:
            put(s, gpu, start, length)
        s.row[row, AT_REST] = start
    return excess


@inlined
def _once_more(s: State, row: int) -> float:
    """Place what a stage computes again, the latest before its backward."""
    gpu, length, period = s.row[row, GPU], s.row[row, T_AGAIN], s.counts[PERIOD]
    begin = s.row[row, AT_BACK] - length
    start = latest(s.line, s.first, period, gpu, length, begin, begin - period)
    excess = 0.0
    if start == NOWHERE:
        excess = max(1, length) / period
        start = begin
    else:
        put(s, gpu, start, length)
    s.row[row, AT_AGAIN] = start
    return excess


@inlined
def _before_again(s: State, row: int) -> None:
    """Let the forward keep its place in the period, in one that ends before it is run again."""
    late = s.row[row, AT_AHEAD] + s.row[row, T_AHEAD] - s.row[row, AT_AGAIN]
    if late > 0:
        period = s.counts[PERIOD]
        s.row[row, AT_AHEAD] -= -(-late // period) * period


@compiled
def place(t: Tables, s: State, row: int, limit: float) -> float:
    """Place the stages from a row on, and return the penalty; give up above a limit.

    The rows before are placed already. Genes and sizes say what is placed.
    """
    excess = _excess_of_load(t, s)
    if excess > limit:
        return excess
    overlap = s.overlap[row - 1] if row > 0 else 0.0
    while row < s.counts[STAGES]:
        s.row[row, MARK] = s.counts[TOP]
        s.counts[PLACED] = row + 1
        again = s.row[row, LAYERS_AGAIN]
        if s.row[row, FIRST] or row == 0:
            overlap += _way_ahead(t, s, row)
        overlap += _way_back(t, s, row)
        if again > 0:
            overlap += _once_more(s, row)
        if not (s.row[row, FIRST] or row == 0):
            overlap += _way_ahead(t, s, row)
        if again > 0:
            _before_again(s, row)
        s.overlap[row] = overlap
        _hold(s, row)
        row += 1
        if overlap > limit:
            return overlap
    return overlap + _excess(t, s)


@compiled
def _excess(t: Tables, s: State) -> float:
    """Return by how much GPUs are overloaded, in periods and memories."""
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        s.load[gpu, NEED] = s.load[gpu, SPACE] = 0
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        s.load[gpu, NEED] += s.row[row, HELD]
        s.load[gpu, SPACE] = max(s.load[gpu, SPACE], s.row[row, WORK], s.row[row, WORK_AGAIN])
    excess = 0.0
    for gpu in range(t.gpus):
        if s.load[gpu, TIME] > period:
            excess += (s.load[gpu, TIME] - period) / period
        need = s.load[gpu, NEED] + s.load[gpu, SPACE]
        if need > t.room[gpu] and t.peak:
            need = peak_of(t, s, gpu)
        s.load[gpu, NEED] = need
        if need > t.room[gpu]:
            excess += (need - t.room[gpu]) / max(1, t.room[gpu])
    return excess + _parted(t, s)


@compiled
def _parted(t: Tables, s: State) -> float:
    """Return how often a layer does not lie where another of its group does."""
    if t.ties == 0:
        return 0.0
    found = 0.0
    for group in range(t.ties):
        home = -1
        row = 0
        for layer in range(t.layers - 1, -1, -1):
            while layer < s.row[row, BEGIN]:
                row += 1
            if t.layer[layer, TIED] == group:
                if home >= 0 and s.row[row, GPU] != home:
                    found += 1.0
                home = s.row[row, GPU]
    return found


@inlined
def _level(s: State, start: int, end: int, count: int, time: int) -> int:
    """Return what lies there at a time of something that each micro-batch holds."""
    period = s.counts[PERIOD]
    length = end - start
    whole = length // period
    left = length - whole * period
    behind = (time - start) % period
    if behind < left or (length == 0 and behind == 0):
        whole += 1
    return int(whole * count)


@compiled
def peak_of(t: Tables, s: State, gpu: int) -> int:
    """Return the most that lies on a GPU at once. It begins where something begins."""
    most = 0
    for row in range(s.counts[STAGES]):
        if s.row[row, GPU] == gpu:
            most = max(
                most,
                _level_of(s, gpu, s.row[row, AT_AHEAD]),
                _level_of(s, gpu, s.row[row, AT_BACK]),
            )
            if s.row[row, HALVED]:
                most = max(most, _level_of(s, gpu, s.row[row, AT_REST]))
            if s.row[row, LAYERS_AGAIN]:
                most = max(most, _level_of(s, gpu, s.row[row, AT_AGAIN]))
    return most


@inlined
def _level_of(s: State, gpu: int, time: int) -> int:
    """Return what lies on a GPU at a time."""
    found = 0
    for row in range(s.counts[STAGES]):
        if s.row[row, GPU] != gpu:
            continue
        back = s.row[row, AT_BACK] + s.row[row, T_BACK]
        rest = s.row[row, AT_REST] + s.row[row, T_REST] if s.row[row, HALVED] else back
        found += s.row[row, WEIGHTS]
        found += _level(s, s.row[row, AT_AHEAD], back, s.row[row, TO_BACK], time)
        found += _level(s, s.row[row, AT_AHEAD], rest, s.row[row, TO_REST], time)
        found += _level(s, s.row[row, AT_BACK], rest, s.row[row, HALVES], time)
        if s.row[row, LAYERS_AGAIN]:
            found += _level(s, s.row[row, AT_AGAIN], back, s.row[row, AGAIN_TO_BACK], time)
            found += _level(s, s.row[row, AT_AGAIN], rest, s.row[row, AGAIN_TO_REST], time)
        if s.row[row, WORK] > 0:
            for begin, length in (
                (s.row[row, AT_AHEAD], s.row[row, T_AHEAD]),
                (s.row[row, AT_BACK], s.row[row, T_BACK]),
                (s.row[row, AT_REST], s.row[row, T_REST]),
            ):
                if length > 0:
                    found += _level(s, begin, begin + length, s.row[row, WORK], time)
        if s.row[row, WORK_AGAIN] > 0:
            begin = s.row[row, AT_AGAIN]
            found += _level(s, begin, begin + s.row[row, T_AGAIN], s.row[row, WORK_AGAIN], time)
    return found
