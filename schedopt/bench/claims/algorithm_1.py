"""Algorithm 1 of cyclic data parallelism, as message passing: as printed, and mended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table
from schedopt.bench.claims.message_passing import Process, Receive, Send, run

CLAIM: Final = Claim(
    id="C7",
    says="Algorithm 1 runs: a worker for each stage and micro-batch, which send each other "
    "parameters, activations and gradients, trains by the rule of CDP-v2.",
    sources=(f"{CDP}, Algorithm 1",),
)
MENDS: Final = {
    "indices": "lines 5 and 6 count workers modulo N from 1 to N: 1 receives from N, and N sends "
    "to 1",
    "start": "in the first training step workers 1 and N + 1 - j take the initial parameters "
    "instead of waiting in line 5; as printed nobody ever uses or sends them",
    "count": "t grows by 1 with each training step",
    "body": "lines 12 to 16 and 28 to 38 run for every stage; in the text at hand they stand in "
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


@dataclass
class Training:
    """N stages of one parameter each, x -> parameter x, with the squared error as the loss.

    Parameters
    ----------
    size : int
        N, stages and micro-batches.
    steps : int
        T, training steps.
    """

    size: int
    steps: int
    reads: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Training step, micro-batch, stage and version of the parameters of every forward."""
    final: dict[int, int] = field(default_factory=dict)
    """Parameters by stage, behind the last update of worker N."""

    def initial(self, stage: int) -> int:
        """Return the parameter of a stage before the first training step."""
        return self._draw("parameter", stage)

    def sample(self, step: int, micro_batch: int) -> int:
        """Return the input of a micro-batch."""
        return self._draw("sample", step, micro_batch)

    def error(self, step: int, micro_batch: int, output: int) -> int:
        """Return the gradient of the loss at the output."""
        return (output - self._draw("target", step, micro_batch)) % PRIME

    def updated(self, parameter: int, gradient: int) -> int:
        """Return a parameter after a step of gradient descent with rate 1."""
        return (parameter - gradient) % PRIME

    def mean(self, gradient: int) -> int:
        """Return the part of a micro-batch in the gradient of its mini-batch."""
        return gradient * pow(self.size, -1, PRIME) % PRIME

    def _draw(self, *what: object) -> int:
        return random.Random(f"{self.size} {what}").randrange(PRIME)


def fresh(size: int, micro_batch: int, stage: int) -> bool:
    """Whether CDP-v2 reads the newest parameters: stage >= N - micro-batch + 1."""
    return stage >= size - micro_batch + 1


def worker(training: Training, i: int, j: int, mends: Collection[str]) -> Process:
    """Be worker (i, j) of Algorithm 1: stage j of micro-batch i, both counted from 1."""
    size = training.size
    head = size + 1 - j
    before, behind = (i - 1) % size, (i + 1) % size
    if "indices" in mends:
        before, behind = before or size, behind or size
    for turn in count():
        t = turn if "count" in mends else 0
        if t >= training.steps:
            return
        last = t == training.steps - 1 and "last" in mends
        if t == 0 and i in (1, head) and "start" in mends:
            version, parameter = 0, training.initial(j)
        else:
            source = (before if i != head else size, j)
            version, parameter = yield Receive(source, "parameters")
        if not (behind == head and "ring" in mends) and not (last and i == size):
            yield Send((behind, j), "parameters", (version, parameter))
        training.reads.append((turn, i, j, version))
        if j == 1:
            taken = training.sample(turn, i)
        else:
            taken = yield Receive((i, j - 1), "activation")
        if j > 1 or "body" in mends:
            output = taken * parameter % PRIME
            if j < size:
                yield Send((i, j + 1), "activation", output)
        added = 0
        if i > 1:
            added = yield Receive((i - 1, j), "sum")
        if j == size:
            error = training.error(turn, i, output if "loss" in mends else taken)
        else:
            error = yield Receive((i, j + 1), "gradient")
        if j == size and "body" not in mends:
            continue
        added = (added + training.mean(taken * error)) % PRIME
        if j > 1:
            yield Send((i, j - 1), "gradient", parameter * error % PRIME)
        if i < size:
            yield Send((i + 1, j), "sum", added)
            continue
        parameter = training.final[j] = training.updated(parameter, added)
        if not last:
            yield Send((head, j), "parameters", (turn + 1, parameter))


def train_by_the_rule(training: Training) -> dict[int, int]:
    """Return the parameters after T steps of the equation (CDP-v2), computed one by one."""
    stages = range(1, training.size + 1)
    now = {j: training.initial(j) for j in stages}
    older = dict(now)
    for turn in range(training.steps):
        total = dict.fromkeys(stages, 0)
        for n in stages:
            used = {j: now[j] if fresh(training.size, n, j) else older[j] for j in stages}
            taken = {1: training.sample(turn, n)}
            for j in stages:
                taken[j + 1] = taken[j] * used[j] % PRIME
            error = training.error(turn, n, taken[training.size + 1])
            for j in reversed(stages):
                total[j] = (total[j] + training.mean(taken[j] * error)) % PRIME
                error = error * used[j] % PRIME
        older, now = now, {j: training.updated(now[j], total[j]) for j in stages}
    return now


def try_out(size: int, steps: int, mends: Collection[str]) -> dict[str, Any]:
    """Run the algorithm and say how it went."""
    training = Training(size, steps)
    places = [(i, j) for i in range(1, size + 1) for j in range(1, size + 1)]
    processes = {(i, j): worker(training, i, j, mends) for i, j in places}
    outcome = run(processes, most_actions=20 * size * size * (steps + 1))
    # Before the first update there is one version only.
    wrong = [
        read
        for read in training.reads
        if read[0] < steps and read[3] != max(0, read[0] - (not fresh(size, read[1], read[2])))
    ]
    return {
        "N": size,
        "T": steps,
        "ends": outcome.completes,
        "waits": "" if outcome.endless else _describe(outcome.circle, outcome.waiting),
        "unmatched": [
            f"{what} of {source} for {target}" for source, target, what in outcome.unmatched
        ],
        "wrong_versions": len(wrong),
        "as_the_rule": training.final == train_by_the_rule(training),
    }


def _describe(circle: Collection[tuple[int, int]], waiting: Any) -> str:
    if circle:
        names = [*circle, next(iter(circle))]
        return "circle " + " waits for ".join(map(str, names))
    for where, receive in waiting.items():
        if receive.source not in waiting:
            return f"{where} waits for {receive.source}, which sends nothing"
    return ""


def find_algorithm_1(step: Step, largest: int = 6, steps: int = 4) -> Finding:
    """Run Algorithm 1 as printed, mended, and with each mend left out."""
    sizes = range(2, largest + 1)
    printed, kind, mended = [], [], []
    for size in sizes:
        step(f"N = {size}")
        printed.append(try_out(size, steps, ()))
        kind.append(try_out(size, steps, SLIPS))
        mended.append(try_out(size, steps, MENDS))
    without = {
        name: [try_out(size, steps, MENDS.keys() - {name}) for size in sizes] for name in MENDS
    }
    tried = f"N = 2 to {largest}, {steps} training steps, a channel for each pair and kind"

    def part(says: str, bad: Any) -> Part:
        return Part(
            says=says,
            readings=[
                Reading(tried=tried, counterexamples=[case for case in printed if bad(case)]),
                Reading(
                    tried=tried,
                    counterexamples=[case for case in kind if bad(case)],
                    convention="; ".join(MENDS[name] for name in SLIPS if name in MENDS),
                ),
            ],
        )

    return Finding(
        claim=CLAIM,
        parts=[
            part("every worker comes to the end", lambda case: not case["ends"]),
            part(
                "every message is received",
                lambda case: not case["ends"] or case["unmatched"],
            ),
            part(
                "forwards read the parameters of the rule u",
                lambda case: not case["ends"] or case["wrong_versions"],
            ),
            part(
                "the parameters in the end are those of the equation (CDP-v2)",
                lambda case: not case["as_the_rule"],
            ),
            Part(
                says="with all mends that are listed all of this is so",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=[case for case in mended if not _is_well(case)],
                        convention="; ".join(MENDS.values()),
                    )
                ],
            ),
        ],
        figures={
            "mends": MENDS,
            "needed": {name: not any(map(_is_well, cases)) for name, cases in without.items()},
        },
        notes=[
            "Parameters, samples and gradients are whole numbers modulo a prime, so that results "
            "are equal or not. Delayed parameters are the initial ones in the first training step."
        ],
        tables=[
            Table(
                title=f"With all mends but one, N = {sizes[-1]}",
                header=["left out", "ends", "what is wrong"],
                rows=[
                    (name, "yes" if cases[-1]["ends"] else "no", "; ".join(_faults(cases[-1])))
                    for name, cases in without.items()
                ],
            )
        ],
    )


def _is_well(case: dict[str, Any]) -> bool:
    return not list(_faults(case))


def _faults(case: dict[str, Any]) -> Iterator[str]:
    if case["waits"]:
        yield case["waits"]
    elif not case["ends"]:
        yield "it never ends"
    elif case["unmatched"]:
        count = len(case["unmatched"])
        yield f"{count} messages that nobody receives, first {case['unmatched'][0]}"
    if case["wrong_versions"]:
        yield f"{case['wrong_versions']} forwards read another version"
    if case["ends"] and not case["as_the_rule"]:
        yield "the parameters in the end are others"
