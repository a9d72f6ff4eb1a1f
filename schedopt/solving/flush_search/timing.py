"""The compiled simulation of a step with a flush on stages that share GPUs.

Each GPU runs what it can as soon as it can: of backwards that of the oldest micro-batch, of
forwards that of the last stage; a recompute ahead of its backward where there is nothing else to
run. Memory never fills so that micro-batches wait for each other, as in the banker's algorithm
(Dijkstra 1965). Let i be the oldest one that has not begun the last stage of a GPU. A forward
begins only if what i needs at the most fits beside the weights and all that those behind i hold.
Those before i have only backwards left there, which need nothing more but their workspace and what
is to be recomputed: while there are some, the most of that is kept free. Where there are none, i
may begin the last stage without: its needs were counted. So no backward waits for memory, the
oldest micro-batch of all always goes on, and each placement on which one fits alone has a step.
"""

from __future__ import annotations

from schedopt.solving.flush_search.state import (
    AGAIN,
    ALONE,
    BACKWARD,
    BEGUN,
    END,
    FIRST,
    FIXED,
    FORWARD,
    FORWARDS_FIRST,
    GPU,
    HELD,
    KEPT,
    KIND,
    LAST,
    LEFT,
    NEVER,
    NEXT,
    RECOMPUTE,
    RUNS,
    STAGE_COLUMNS,
    STAGES,
    SYNC,
    T_AGAIN,
    T_BACKWARD,
    T_FORWARD,
    TAIL,
    TO_DO,
    TRIP,
    WINDOW,
    WORKSPACE,
    Choice,
    Room,
    Step,
)
from schedopt.solving.local_search import tables
from schedopt.solving.local_search.njit import njit_inline, njit_kernel


@njit_kernel
def read_stages(step: Step, choice: Choice, room: Room) -> None:
    """Fill in the stages of a choice, and what each is on its own."""
    t, stage = step.tables, room.stage
    stages = first = 0
    while first < t.layers:
        gpu, end = choice.gpu[first], first + 1
        while end < t.layers and choice.gpu[end] == gpu:
            end += 1
        for column in range(STAGE_COLUMNS):
            stage[stages, column] = 0
        stage[stages, FIRST], stage[stages, END], stage[stages, GPU] = first, end, gpu
        for kind in range(2):
            time = t.time[gpu, kind, end] - t.time[gpu, kind, first]
            stage[stages, T_FORWARD + kind] = time
        stage[stages, SYNC] = step.sync[end] - step.sync[first]
        for layer in range(first, end):
            behind = layer > first and choice.recomputed[layer - 1]
            workspace = t.layer[layer, tables.WORKSPACE]
            stage[stages, WORKSPACE] = max(stage[stages, WORKSPACE], workspace)
            if choice.recomputed[layer]:
                stage[stages, T_AGAIN] += t.time[gpu, 0, layer + 1] - t.time[gpu, 0, layer]
                stage[stages, AGAIN] += t.layer[layer, tables.SAVED]
                if not behind:
                    stage[stages, KEPT] += t.layer[layer, tables.RECEIVED]
            else:
                stage[stages, KEPT] += t.layer[layer, tables.SAVED]
                if behind or layer == first:
                    stage[stages, KEPT] += t.layer[layer, tables.ENTRY]
        if first:
            link = t.link[stage[stages - 1, GPU], gpu]
            if link >= 0:
                stage[stages - 1, TRIP] = t.sending[link, first - 1]
        stages, first = stages + 1, end
    room.counts[0] = stages


@njit_kernel
def clear(step: Step, room: Room, limit: int) -> int:
    """Make room for a run. Return a bound on its makespan, if that is above the limit; else 0.

    It is `NEVER` and more where one micro-batch alone does not fit, by the bytes that are missing.
    """
    t, stage, gpu, m = step.tables, room.stage, room.gpu, step.microbatches
    stages = room.counts[0]
    room.counts[1] = 0
    for p in range(t.gpus):
        for column in range(gpu.shape[1]):
            gpu[p, column] = 0
        gpu[p, NEXT], gpu[p, RUNS] = NEVER, -1
        for other in range(t.gpus):
            room.link[p, other] = 0
    before = 0
    for s in range(stages):
        p = stage[s, GPU]
        if gpu[p, STAGES] == 0:
            gpu[p, TAIL] = before
        room.own[p, gpu[p, STAGES]] = s
        gpu[p, STAGES] += 1
        gpu[p, TO_DO] += m * (stage[s, T_FORWARD] + stage[s, T_BACKWARD] + stage[s, T_AGAIN])
        weights = t.layer[stage[s, END], tables.WEIGHT] - t.layer[stage[s, FIRST], tables.WEIGHT]
        gpu[p, FIXED] += weights
        # Until the run begins: what one micro-batch keeps.
        gpu[p, HELD] += stage[s, KEPT]
        most = gpu[p, HELD] + stage[s, AGAIN] + stage[s, WORKSPACE]
        gpu[p, ALONE] = max(gpu[p, ALONE], most)
        before += stage[s, T_FORWARD] + stage[s, TRIP]
        for i in range(m):
            room.arrived[0, s, i] = room.arrived[1, s, i] = NEVER
    missing = 0
    for p in range(t.gpus):
        gpu[p, HELD] = gpu[p, FIXED]
        missing += max(0, gpu[p, FIXED] + gpu[p, ALONE] - t.room[p])
    if missing:
        return int(NEVER + missing)
    behind = 0
    for s in range(stages):
        p = stage[s, GPU]
        if room.own[p, 0] == s:
            begin, gpu[p, TAIL] = gpu[p, TAIL], max(behind, stage[s, SYNC])
            if begin + gpu[p, TO_DO] + gpu[p, TAIL] > limit:
                return limit + 1
        behind += stage[s, T_BACKWARD] + stage[s, TRIP]
    for i in range(m):
        room.arrived[0, 0, i] = 0
    gpu[stage[0, GPU], NEXT] = 0
    return 0


@njit_kernel
def has_room(room: Room, p: int, s: int, kind: int, most: int) -> bool:
    """Whether a GPU has the memory to begin a forward or a recompute of a stage: see the module."""
    stage, gpu = room.stage, room.gpu
    last = room.own[p, gpu[p, STAGES] - 1]
    oldest = stage[last, BEGUN]
    if oldest > stage[room.own[p, 0], LEFT]:
        needed = 0
        for place in range(gpu[p, STAGES]):
            other = room.own[p, place]
            recomputed = stage[other, BEGUN + RECOMPUTE] + (other == s and kind == RECOMPUTE)
            again = stage[other, AGAIN] if recomputed <= stage[other, BEGUN + BACKWARD] else 0
            needed = max(needed, again + stage[other, WORKSPACE])
        if gpu[p, HELD] + stage[s, AGAIN if kind else KEPT] + needed > most:
            return False
        oldest += s == last
    if kind == RECOMPUTE:
        return True
    held = gpu[p, FIXED] + gpu[p, ALONE]
    for place in range(gpu[p, STAGES]):
        other = room.own[p, place]
        behind = stage[other, BEGUN] + (other == s) - oldest - 1
        if behind > 0:
            held += behind * stage[other, KEPT]
    return bool(held <= most)


@njit_inline
def send(room: Room, p: int, s: int, kind: int, i: int, end: int) -> None:
    """Let what an operation makes come to a stage, and its GPU know, if that has nothing to do."""
    stage, gpu = room.stage, room.gpu
    q, trip = stage[s, GPU], stage[s if kind else s - 1, TRIP]
    if trip:
        end = max(end, room.link[p, q]) + trip
        room.link[p, q] = end
    room.arrived[kind, s, i] = end
    if gpu[q, RUNS] < 0:
        gpu[q, NEXT] = min(gpu[q, NEXT], end)


@njit_kernel
def simulate(step: Step, choice: Choice, room: Room, limit: int) -> int:
    """Return the makespan of a step, ns; more than the limit, if it is longer than that.

    `NEVER` and more: one micro-batch alone does not fit.
    """
    t, stage, gpu, m = step.tables, room.stage, room.gpu, step.microbatches
    read_stages(step, choice, room)
    stages = room.counts[0]
    above = clear(step, room, limit)
    if above:
        return above
    while True:
        p, now = 0, gpu[0, NEXT]
        for other in range(1, t.gpus):
            if gpu[other, NEXT] < now:
                p, now = other, gpu[other, NEXT]
        if now >= NEVER:
            break
        gpu[p, NEXT] = NEVER
        s = gpu[p, RUNS]
        if s >= 0:
            gpu[p, RUNS] = -1
            if gpu[p, KIND] == BACKWARD:
                gpu[p, HELD] -= stage[s, KEPT] + stage[s, AGAIN]
                stage[s, LEFT] += 1
                first = stage[0, GPU]
                if s == 0 and gpu[first, RUNS] < 0:
                    gpu[first, NEXT] = min(gpu[first, NEXT], now)
        kind = choose(step, choice, room, p, now)
        if kind < 0:
            continue
        if now + gpu[p, TO_DO] + gpu[p, TAIL] > limit:
            return limit + 1
        s = gpu[p, RUNS]
        i = stage[s, BEGUN + kind]
        if kind == BACKWARD and stage[s, T_AGAIN] and stage[s, BEGUN + RECOMPUTE] <= i:
            # What was not recomputed ahead is now.
            now = start(room, p, s, RECOMPUTE, now, m)
        now = start(room, p, s, kind, now, m)
        gpu[p, KIND], gpu[p, NEXT] = kind, now
        if kind == FORWARD:
            if s + 1 == stages:
                room.arrived[1, s, i] = now
            else:
                send(room, p, s + 1, 0, i, now)
        elif kind == BACKWARD:
            stage[s, LAST] = now
            if s:
                send(room, p, s - 1, 1, i, now)
    makespan = 0
    for p in range(t.gpus):
        gpu[p, NEXT] = 0
    for s in range(stages - 1, -1, -1):
        p = stage[s, GPU]
        gpu[p, NEXT] = max(gpu[p, NEXT], stage[s, LAST]) + stage[s, SYNC]
        makespan = max(makespan, gpu[p, NEXT])
    return makespan


@njit_inline
def start(room: Room, p: int, s: int, kind: int, now: int, count: int) -> int:
    """Let a GPU run the next operation of a kind and stage; return when it ends."""
    stage, gpu = room.stage, room.gpu
    stages = room.stage.shape[0]
    room.order[room.counts[1]] = (kind * stages + s) * count + stage[s, BEGUN + kind]
    room.counts[1] += 1
    stage[s, BEGUN + kind] += 1
    if kind != BACKWARD:
        gpu[p, HELD] += stage[s, AGAIN if kind else KEPT]
    gpu[p, TO_DO] -= stage[s, T_FORWARD + kind]
    return int(now + stage[s, T_FORWARD + kind])


@njit_kernel
def choose(step: Step, choice: Choice, room: Room, p: int, now: int) -> int:
    """Return the kind of what an idle GPU runs next, and note its stage; -1: nothing yet.

    Then the GPU looks again when something comes.
    """
    t, stage, gpu, m = step.tables, room.stage, room.gpu, step.microbatches
    back, oldest = -1, m
    for place in range(gpu[p, STAGES]):
        s = room.own[p, place]
        i = stage[s, BEGUN + BACKWARD]
        if i < oldest:
            if room.arrived[1, s, i] <= now:
                back, oldest = s, i
            else:
                gpu[p, NEXT] = min(gpu[p, NEXT], room.arrived[1, s, i])
    if back < 0 or choice.rule[FORWARDS_FIRST]:
        for place in range(gpu[p, STAGES] - 1, -1, -1):
            s = room.own[p, place]
            i = stage[s, BEGUN + FORWARD]
            if i == m or (s == 0 and i >= stage[0, LEFT] + choice.rule[WINDOW]):
                continue
            if room.arrived[0, s, i] > now:
                gpu[p, NEXT] = min(gpu[p, NEXT], room.arrived[0, s, i])
                continue
            # One that does not fit waits, and others do not take its place.
            if has_room(room, p, s, FORWARD, t.room[p]):
                gpu[p, RUNS] = s
                return FORWARD
            break
    if back >= 0:
        gpu[p, RUNS] = back
        return BACKWARD
    oldest, last = m, room.own[p, gpu[p, STAGES] - 1]
    for place in range(gpu[p, STAGES]):
        s = room.own[p, place]
        i = stage[s, BEGUN + RECOMPUTE]
        ahead = stage[s, T_AGAIN] and i == stage[s, BEGUN + BACKWARD]
        if not ahead or i >= min(oldest, stage[last, BEGUN]):
            continue
        if has_room(room, p, s, RECOMPUTE, t.room[p]):
            gpu[p, RUNS], oldest = s, i
    return RECOMPUTE if gpu[p, RUNS] >= 0 else -1
