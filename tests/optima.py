"""Small problems whose optimum is known by brute force: ``tests/data/optima.json``.

``python -m tests.optima`` makes the file: 400 problems by rule, and of each the least normalized
period by trying all allocations and orders. `make test` reads it; by night the brute force is run
again on a part of it (``tests/solvers/test_optima.py``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from schedopt import Chain, Layer, Platform, Scope, Stage
from tests.solvers.brute_force import all_stages, contiguous_stages, least_period
from tests.solvers.order_words import least_of

FILE: Final = Path(__file__).parent / "data" / "optima.json"
COUNTS: Final = {"programme": 120, "recompute": 60, "contiguous": 70, "general": 80, "fixed": 70}
"""Problems of each group; a group has its own oracle and its own solvers."""
LAYER: Final = (
    "forward_ns", "backward_ns", "weight_bytes", "activation_bytes", "saved_bytes",
    "saved_input_bytes", "workspace_bytes", "backward_input_ns", "backward_weight_ns",
    "saved_weight_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Golden:
    """A problem and its optimum: None where it has no plan."""

    group: str
    chain: Chain
    platform: Platform
    scope: Scope
    stages: tuple[Stage, ...]
    optimum: Fraction | None = None

    def solve_by_brute_force(self) -> Fraction | None:
        """Return the least period over all plans."""
        chain, platform = self.chain, self.platform
        if self.group == "programme":
            least = least_period(chain, platform)
            return None if least is None else Fraction(least)
        if self.group == "fixed":
            return least_of(chain, platform, [self.stages], self.scope)
        allocations = all_stages if self.group == "general" else contiguous_stages
        return least_of(chain, platform, allocations(chain, platform), self.scope)


def make(group: str, number: int) -> Golden:
    """Make the problem of a group with a number, without its optimum."""
    draw = random.Random(f"{group} {number}")
    halves = group in ("contiguous", "general", "fixed")
    length = draw.randint(1, 6 if group == "programme" else 3)
    layers = [_layer(draw, halves=halves, most=6 if group == "programme" else 3)]
    layers += [_layer(draw, halves=halves, most=6 if not halves else 3) for _ in range(length - 1)]
    tied = group == "programme" and length > 2 and draw.random() < 0.2
    pair = tuple(sorted(draw.sample(range(length), 2))) if tied else ()
    chain = Chain(layers=tuple(layers), same_gpu=(pair,) if pair else ())
    platform = _platform(draw, chain, most=4 if group == "programme" else 2 + (group != "general"))
    return Golden(group, chain, platform, *_asked(draw, group, chain, platform))


def _layer(draw: random.Random, *, halves: bool, most: int) -> Layer:
    def maybe(largest: int) -> int | None:
        return draw.choice([None, draw.randint(0, largest)])

    return Layer(
        forward_ns=draw.randint(0, most),
        backward_ns=draw.randint(0, most),
        weight_bytes=draw.randint(0, most),
        activation_bytes=draw.randint(0, most),
        saved_bytes=draw.randint(0, most) if halves else maybe(most + 2),
        saved_input_bytes=maybe(3),
        workspace_bytes=maybe(3),
        backward_input_ns=draw.randint(0, most) if halves else None,
        backward_weight_ns=draw.randint(0, most) if halves else None,
        saved_weight_bytes=maybe(2) if halves else None,
    )


def _platform(draw: random.Random, chain: Chain, *, most: int) -> Platform:
    count = draw.randint(1, most)
    weights = sum(layer.weight_bytes for layer in chain.layers)
    rooms = [draw.randint(weights // count, weights + 8 * len(chain.layers)) for _ in range(count)]
    speeds = [draw.choice(["0.5", "1", "1.5", "2"]) for _ in range(count)]
    if draw.random() < 0.6:
        rooms, speeds = rooms[:1] * count, ["1"] * count
    rate, latency = draw.choice([5 * 10**8, 10**9, 2 * 10**9]), draw.randint(0, 2)
    duplex = draw.choice(["half", "full"])
    link = (rate, latency, duplex) if draw.random() < 0.6 else None
    return _make_platform(rooms, speeds, link)


def _make_platform(
    rooms: Sequence[int], speeds: Sequence[str], link: tuple[int, int, Any] | None
) -> Platform:
    if link is None:
        return Platform(len(rooms), rooms, speed=speeds)
    rate, latency, duplex = link
    return Platform(
        len(rooms), rooms, speed=speeds, bandwidth=rate, latency=f"{latency}ns", duplex=duplex
    )


def _asked(
    draw: random.Random, group: str, chain: Chain, platform: Platform
) -> tuple[Scope, tuple[Stage, ...]]:
    """Return the scope of a group, and the stages that are given."""
    if group == "programme":
        return Scope(), ()
    if group == "recompute":
        return Scope(recompute=True), ()
    scope = Scope(
        max_k=draw.randint(1, 2),
        split_backward=draw.random() < 0.5,
        recompute=draw.random() < 0.3,
    )
    if group == "contiguous":
        return scope, ()
    if group == "general":
        grain: Any = draw.choice(["stage", "stage", "layer"])
        return replace(scope, allocation="general", grain=grain), ()
    cuts = [0, *(c for c in range(1, len(chain.layers)) if draw.random() < 0.6), len(chain.layers)]
    stages = tuple(
        Stage(layers=(first, end - 1), gpus=(draw.randrange(len(platform.gpus)),))
        for first, end in pairwise(cuts)
    )
    return replace(scope, allocation="fixed", recompute=False), stages


def load(group: str) -> list[Golden]:
    """Return the problems of a group with their optima."""
    return [_read(record) for record in json.loads(FILE.read_text()) if record["group"] == group]


def _read(record: dict[str, Any]) -> Golden:
    layers = [Layer(**dict(zip(LAYER, row, strict=True))) for row in record["layers"]]
    return Golden(
        group=record["group"],
        chain=Chain(layers=tuple(layers), same_gpu=tuple(map(tuple, record["same_gpu"]))),
        platform=_make_platform(record["memory"], record["speed"], record["link"]),
        scope=Scope(**record["scope"]),
        stages=tuple(Stage(layers=(a, b), gpus=(gpu,)) for a, b, gpu in record["stages"]),
        optimum=Fraction(*record["optimum"]) if record["optimum"] else None,
    )


def _write(golden: Golden) -> dict[str, Any]:
    usual = asdict(Scope())
    found = golden.optimum
    link = golden.platform.link
    return {
        "group": golden.group,
        "layers": [[getattr(layer, name) for name in LAYER] for layer in golden.chain.layers],
        "same_gpu": golden.chain.same_gpu,
        "memory": [gpu.memory_bytes for gpu in golden.platform.gpus],
        "speed": [str(gpu.speed) for gpu in golden.platform.gpus],
        "link": link and [link.bandwidth_bytes_per_s, link.latency_ns, link.duplex],
        "scope": {k: v for k, v in asdict(golden.scope).items() if v != usual[k]},
        "stages": [(*stage.layers, stage.gpus[0]) for stage in golden.stages],
        "optimum": None if found is None else [found.numerator, found.denominator],
    }


def main(groups: Sequence[str] = tuple(COUNTS)) -> None:
    """Make the file."""
    lines = []
    for group in groups:
        for number in range(COUNTS[group]):
            golden = make(group, number)
            solved = replace(golden, optimum=golden.solve_by_brute_force())
            lines.append(json.dumps(_write(solved), separators=(",", ":")))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
