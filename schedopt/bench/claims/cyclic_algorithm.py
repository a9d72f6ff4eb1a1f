"""Fournier and Oyallon: Algorithm 1 as message passing, as printed, and corrected."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from schedopt.bench.claims.result import Case, Computed, Step, announced, table_of

CORRECTIONS: Final = {
    "indices": "lines 5 and 6 count workers modulo N from 1 to N: 1 receives from N, and N sends "
    "to 1",
    "start": "in the first training step workers 1 and N + 1 - j take the initial parameters "
    "instead of waiting in line 5; as printed nobody ever uses or sends them",
    "count": "t grows by 1 with each training step",
    "body": "lines 12 to 16 and 28 to 38 run for every stage; in the printed text they stand in "
    "the else of lines 10 and 26",
    "loss": "line 25 takes the gradient of the loss at the output of the last stage, not at its "
    "input",
    "ring": "line 6 sends nothing to worker N + 1 - j, which receives from line 36",
    "last": "in the last training step line 36, and line 6 of worker N, send nothing, since "
    "nobody receives it",
}
"""What must be changed so that the algorithm runs."""
SLIPS: Final = ("indices", "count", "body", "loss")
"""Those that a kind reader makes without noticing."""
PRIME: Final = 2**61 - 1
"""Training is computed modulo this prime, so that equal results are exactly equal."""

Where: TypeAlias = tuple[int, int]
"""The name of a process."""


class Send(NamedTuple):
    """Put a message into the channel to a process; never waits."""

    target: Where
    kind: str
    content: Any


class Receive(NamedTuple):
    """Wait for the first message of a kind from a process."""

    source: Where
    kind: str


Process: TypeAlias = Generator[Send | Receive, Any, None]
"""Yields its actions; a `Receive` yields the content of the message."""


@dataclass(frozen=True)
class Outcome:
    """How a run of processes ended."""

    waiting: Mapping[Where, Receive]
    """For each process that did not come to its end, what it waits for."""
    unmatched: list[tuple[Where, Where, str]]
    """Messages that were sent and never received."""
    endless: bool
    """Whether the run was cut off after more actions than it needs."""

    @property
    def completes(self) -> bool:
        """Whether every process came to its end."""
        return not self.waiting and not self.endless

    @property
    def circle(self) -> tuple[Where, ...]:
        """Processes of which each waits for the next, and the last for the first."""
        for now in self.waiting:
            path: list[Where] = []
            while now in self.waiting and now not in path:
                path.append(now)
                now = self.waiting[now].source
            if now in path:
                return tuple(path[path.index(now) :])
        return ()


def run(processes: Mapping[Where, Process], most_actions: int) -> Outcome:
    """Run processes until all have ended, all that are left wait, or it takes too long."""
    channels: dict[tuple[Where, Where, str], deque[Any]] = defaultdict(deque)
    waiting: dict[Where, Receive] = {}
    ready: deque[tuple[Where, Any]] = deque((where, None) for where in processes)
    actions = 0
    while ready and actions < most_actions:
        where, content = ready.popleft()
        while actions < most_actions:
            actions += 1
            try:
                action = processes[where].send(content)
            except StopIteration:
                break
            content = None
            if isinstance(action, Send):
                queue = channels[where, action.target, action.kind]
                queue.append(action.content)
                if waiting.get(action.target) == Receive(where, action.kind):
                    del waiting[action.target]
                    ready.append((action.target, queue.popleft()))
                continue
            queue = channels[action.source, where, action.kind]
            if not queue:
                waiting[where] = action
                break
            content = queue.popleft()
    left = [channel for channel, queue in channels.items() for _ in queue]
    return Outcome(waiting, left, actions >= most_actions)


@dataclass
class Training:
    """N stages and micro-batches, T training steps: x -> parameter x, and the squared error."""

    size: int
    steps: int
    reads: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Training step, micro-batch, stage and version of the parameters of every forward."""
    final: dict[int, int] = field(default_factory=dict)
    """Parameters by stage, after the last update of worker N."""

    def initial(self, stage: int) -> int:
        """Return the parameter of a stage before the first training step."""
        return self._draw("parameter", stage)

    def sample(self, step: int, micro_batch: int) -> int:
        """Return the input of a micro-batch."""
        return self._draw("sample", step, micro_batch)

    def error(self, step: int, micro_batch: int, output: int) -> int:
        """Return the gradient of the loss at the output."""
        return (output - self._draw("target", step, micro_batch)) % PRIME

    def mean(self, gradient: int) -> int:
        """Return the part of a micro-batch in the gradient of its mini-batch."""
        return gradient * pow(self.size, -1, PRIME) % PRIME

    def _draw(self, *key: object) -> int:
        return random.Random(f"{self.size} {key}").randrange(PRIME)


def is_fresh(size: int, micro_batch: int, stage: int) -> bool:
    """Whether CDP-v2 reads the newest parameters: stage >= N - micro-batch + 1."""
    return stage >= size - micro_batch + 1


def worker(training: Training, i: int, j: int, corrections: Collection[str]) -> Process:
    """Be worker (i, j) of Algorithm 1: stage j of micro-batch i, both counted from 1."""
    size = training.size
    head = size + 1 - j
    before, after = (i - 1) % size, (i + 1) % size
    if "indices" in corrections:
        before, after = before or size, after or size
    for turn in count():
        t = turn if "count" in corrections else 0
        if t >= training.steps:
            return
        last = t == training.steps - 1 and "last" in corrections
        if t == 0 and i in (1, head) and "start" in corrections:
            version, parameter = 0, training.initial(j)
        else:
            source = (before if i != head else size, j)
            version, parameter = yield Receive(source, "parameters")
        if not (after == head and "ring" in corrections) and not (last and i == size):
            yield Send((after, j), "parameters", (version, parameter))
        training.reads.append((turn, i, j, version))
        if j == 1:
            value = training.sample(turn, i)
        else:
            value = yield Receive((i, j - 1), "activation")
        if j > 1 or "body" in corrections:
            output = value * parameter % PRIME
            if j < size:
                yield Send((i, j + 1), "activation", output)
        added = 0
        if i > 1:
            added = yield Receive((i - 1, j), "sum")
        if j == size:
            error = training.error(turn, i, output if "loss" in corrections else value)
        else:
            error = yield Receive((i, j + 1), "gradient")
        if j == size and "body" not in corrections:
            continue
        added = (added + training.mean(value * error)) % PRIME
        if j > 1:
            yield Send((i, j - 1), "gradient", parameter * error % PRIME)
        if i < size:
            yield Send((i + 1, j), "sum", added)
            continue
        parameter = training.final[j] = (parameter - added) % PRIME
        if not last:
            yield Send((head, j), "parameters", (turn + 1, parameter))


def train_by_rule(training: Training) -> dict[int, int]:
    """Return the parameters after T steps of the equation (CDP-v2), computed one by one."""
    stages = range(1, training.size + 1)
    now = {j: training.initial(j) for j in stages}
    older = dict(now)
    for turn in range(training.steps):
        total = dict.fromkeys(stages, 0)
        for n in stages:
            used = {j: now[j] if is_fresh(training.size, n, j) else older[j] for j in stages}
            values = {1: training.sample(turn, n)}
            for j in stages:
                values[j + 1] = values[j] * used[j] % PRIME
            error = training.error(turn, n, values[training.size + 1])
            for j in reversed(stages):
                total[j] = (total[j] + training.mean(values[j] * error)) % PRIME
                error = error * used[j] % PRIME
        older, now = now, {j: (now[j] - total[j]) % PRIME for j in stages}
    return now


def try_out(size: int, steps: int, corrections: Collection[str]) -> Case:
    """Run the algorithm and report how it went."""
    training = Training(size, steps)
    places = [(i, j) for i in range(1, size + 1) for j in range(1, size + 1)]
    processes = {place: worker(training, *place, corrections) for place in places}
    outcome = run(processes, most_actions=20 * size * size * (steps + 1))
    # Before the first update there is one version only.
    wrong = [
        version
        for turn, i, j, version in training.reads
        if turn < steps and version != max(0, turn - (not is_fresh(size, i, j)))
    ]
    return {
        "N": size,
        "T": steps,
        "ends": outcome.completes,
        "waits": "" if outcome.endless else _describe_waiting(outcome),
        "unmatched": [f"{kind} of {source} for {to}" for source, to, kind in outcome.unmatched],
        "wrong_versions": len(wrong),
        "as_the_rule": training.final == train_by_rule(training),
    }


def _describe_waiting(outcome: Outcome) -> str:
    if circle := outcome.circle:
        return "circle " + " waits for ".join(map(str, (*circle, circle[0])))
    for where, receive in outcome.waiting.items():
        if receive.source not in outcome.waiting:
            return f"{where} waits for {receive.source}, which sends nothing"
    return ""


CHECKS: Final[dict[str, Callable[[Case], object]]] = {
    "waits": lambda case: not case["ends"],
    "unmatched": lambda case: not case["ends"] or case["unmatched"],
    "wrong versions": lambda case: not case["ends"] or case["wrong_versions"],
    "other parameters": lambda case: not case["as_the_rule"],
}


def find_algorithm(step: Step, largest: int = 6, steps: int = 4) -> Computed:
    """C7: run Algorithm 1 as printed, corrected, and with each correction left out."""
    kinds: dict[str, Collection[str]] = {"as printed": (), "slips corrected": SLIPS}
    kinds |= {"all": CORRECTIONS} | {name: CORRECTIONS.keys() - {name} for name in CORRECTIONS}
    runs: dict[str, list[Case]] = {name: [] for name in kinds}
    for size in announced(step, "N = {}", range(2, largest + 1)):
        for name, corrections in kinds.items():
            runs[name].append(try_out(size, steps, corrections))
    left_out = {name: runs[name] for name in CORRECTIONS}
    return Computed(
        {
            **{
                f"{name}: {check}": [case for case in runs[name] if is_bad(case)]
                for name in ("as printed", "slips corrected")
                for check, is_bad in CHECKS.items()
            },
            "all corrected": [case for case in runs["all"] if any(_faults(case))],
        },
        {
            "tried": f"N = 2 to {largest}, {steps} training steps, a channel for each pair and "
            "kind",
            "slips": "; ".join(CORRECTIONS[name] for name in SLIPS if name in CORRECTIONS),
            "corrections": "; ".join(CORRECTIONS.values()),
        },
        figures={
            "corrections": CORRECTIONS,
            "needed": {
                name: all(any(_faults(case)) for case in cases) for name, cases in left_out.items()
            },
        },
        tables=[
            table_of(
                f"With all corrections but one, N = {largest}",
                [{"name": name, **cases[-1]} for name, cases in left_out.items()],
                {
                    "left out": "name",
                    "ends": lambda case: "yes" if case["ends"] else "no",
                    "what is wrong": lambda case: "; ".join(_faults(case)),
                },
            )
        ],
    )


def _faults(case: Case) -> Iterator[str]:
    if case["waits"]:
        yield case["waits"]
    elif not case["ends"]:
        yield "it never ends"
    elif unmatched := case["unmatched"]:
        yield f"{len(unmatched)} messages that nobody receives, first {unmatched[0]}"
    if case["wrong_versions"]:
        yield f"{case['wrong_versions']} forwards read another version"
    if case["ends"] and not case["as_the_rule"]:
        yield "the parameters in the end are others"
