"""Versions, staleness and memory of TiMePReSt beside PipeDream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, Final, Literal

from schedopt.account import memory, versions
from schedopt.bench.claims.claim import TIMEPREST, Claim, Finding, Part, Reading, Step, Table
from schedopt.bench.claims.timeprest_runs import config_of, run_timeprest
from schedopt.bench.claims.vgg import vgg16_chain
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.pipedream import one_f_one_b
from schedopt.systems.timeprest import timeprest_plan

ForwardReads = Literal["entry", "live"]

CLAIM: Final = Claim(
    id="T5",
    says="Staleness is zero in forward and backward, and on two GPUs VGG-16 takes nearly 50 % and "
    "40 % less memory than with PipeDream.",
    sources=(f"{TIMEPREST}, section 4.1, Degree of Staleness", f"{TIMEPREST}, Figure 16"),
)
READS: Final[dict[ForwardReads, str]] = {
    "entry": "vertical sync in the forward, as section 4 has it",
    "live": "each stage reads its own newest weights in the forward",
}
"""What a forward reads."""
EACH_STAGE: Final = "each stage reads its own newest weights in the backward"
ALL_STAGES: Final = "all stages read the newest weights that are made in all of them"
DATA: Final = {"CIFAR-100": (32, 100), "Tiny-ImageNet-200": (64, 200)}
"""Pixels of a side, and classes."""
SIZES: Final = ((64, 2), (64, 4), (256, 2), (256, 4))
"""Images of a mini-batch, and micro-batches; the source names neither."""
PRINTED: Final = (50, 40)
NEARLY: Final = 5
"""Points of a hundred."""
ROOM: Final = 10**12


def find_versions(
    step: Step, largest: int = 6, sizes: Sequence[tuple[int, int]] = SIZES
) -> Finding:
    """Read versions and staleness off plans, and the memory of VGG-16 off all its splits."""
    cases, splits = [], []
    for stages, count in product(range(2, largest + 1), repeat=2):
        step(f"W = {stages}, N = {count}")
        cases += [_case(stages, count, reads) for reads in READS]
    for name, (images, count), reads in product(DATA, sizes, READS):
        step(f"{name}, {images} images in {count} micro-batches")
        splits += _splits(name, images, count, reads)
    tried = f"W, N = 2 to {largest}, backwards as long as a forward"
    on_vgg = (
        f"VGG-16, all {len({case['cut'] for case in splits})} splits, "
        f"{' and '.join(DATA)}, mini-batches of "
        f"{', '.join(f'{images} images in {count}' for images, count in sizes)}: peak by account"
    )

    def readings(found: list[dict[str, Any]], tried: str, wrong: Wrong) -> list[Reading]:
        return [
            Reading(
                convention=text,
                tried=tried,
                counterexamples=wrong([case for case in found if case["reads"] == reads]),
            )
            for reads, text in READS.items()
        ]

    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="the gradient is that of the weights that it updates",
                readings=[
                    Reading(
                        convention=ALL_STAGES,
                        tried=tried,
                        counterexamples=_nonzero(cases[:: len(READS)], "backward_all"),
                    ),
                    Reading(
                        convention=EACH_STAGE,
                        tried=tried,
                        counterexamples=_nonzero(cases, "backward"),
                    ),
                ],
            ),
            Part(
                says="the forward reads the weights that its gradient updates",
                readings=readings(cases, tried, lambda found: _nonzero(found, "forward")),
            ),
            Part(
                says="no stage keeps more versions than with PipeDream, and the first fewer",
                readings=readings(cases, tried, _with_more_versions),
            ),
            Part(
                says="each GPU takes less memory than with PipeDream",
                readings=readings(splits, on_vgg, _with_no_less),
            ),
            Part(
                says=f"nearly 50 % and 40 % less (to {NEARLY} points) at some split",
                readings=readings(splits, on_vgg, _with_no_near),
            ),
        ],
        figures={
            "best_split": {
                reads: _best([c for c in splits if c["reads"] == reads]) for reads in READS
            },
            "less_in_percent": {reads: _ranges(splits, reads) for reads in READS},
            "splits": len(splits),
        },
        notes=[
            "Versions are counted in updates of a stage. PipeDream runs a mini-batch as a whole; "
            "on two GPUs it keeps two versions of the weights and two mini-batches in the first "
            "stage, one of each in the last one, so that little can be saved there. With vertical "
            "sync TiMePReSt keeps there the older version that its forwards still read.",
            "Memory is weights with their versions, gradients, activations and workspaces of a "
            "chain that is estimated from the layers, single precision, plain gradient descent.",
        ],
        tables=[
            *(_version_table(stages, count) for stages, count in ((4, 2), (4, 4))),
            *(_split_table(splits, "CIFAR-100", sizes[0], reads) for reads in READS),
        ],
    )


Wrong = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
"""From cases to those that are wrong."""


def _with_more_versions(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: case[name] for name in ("W", "N", "held", "pipedream")}
        for case in cases
        if case["held"][0] >= case["pipedream"][0]
        or any(one > other for one, other in zip(case["held"], case["pipedream"], strict=True))
    ]


def _with_no_less(splits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        case
        for case in splits
        if any(
            one >= other for one, other in zip(case["bytes"], case["pipedream_bytes"], strict=True)
        )
    ]


def _with_no_near(splits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best split if none is near to what is printed."""
    near = [
        case
        for case in splits
        if all(got >= want - NEARLY for got, want in zip(case["less"], PRINTED, strict=True))
    ]
    return [] if near else [{"best split": _best(splits)}]


def _best(splits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the split that comes nearest to what is printed on both GPUs."""
    return max(
        splits,
        key=lambda case: min(got / want for got, want in zip(case["less"], PRINTED, strict=True)),
    )


def _case(stages: int, count: int, reads: ForwardReads) -> dict[str, Any]:
    plan = _timeprest(stages, count, reads)
    found = versions(plan)
    run = run_timeprest(stages, count, 1)
    behind = versions(_pipedream(config_of(stages, 1, 1), config_of(stages, 1, 1).pipeline()))
    return {
        "W": stages,
        "N": count,
        "reads": reads,
        "forward": max(found.forward_staleness.values()),
        "backward": max(found.backward_staleness.values()),
        # Of the weights that all stages have: i less one, less those that are through.
        "backward_all": max(run.version_difference(i + 1) - 1 for i in run.steady),
        "held": [held for _, held in sorted(found.held.items())],
        "pipedream": [held for _, held in sorted(behind.held.items())],
    }


def _timeprest(stages: int, count: int, reads: ForwardReads) -> Plan:
    config = config_of(stages, count, 1)
    plan = timeprest_plan(config, config.pipeline(), count, bounded=False, forward_reads=reads)
    assert not check(plan)
    return plan


def _pipedream(config: SystemConfig, stages: list[Stage]) -> Plan:
    plan = one_f_one_b(config, Rule(update_every=1), stages)
    assert not check(plan)
    return plan


def _nonzero(cases: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{"W": case["W"], "N": case["N"], name: case[name]} for case in cases if case[name]]


def _splits(data: str, images: int, count: int, reads: ForwardReads) -> list[dict[str, Any]]:
    """Return what both systems take on two GPUs, for each place to cut VGG-16."""
    side, classes = DATA[data]
    whole = vgg16_chain(images, side, classes)
    parts = vgg16_chain(images // count, side, classes)
    found = []
    for cut in range(1, len(whole.layers)):
        last = len(whole.layers) - 1
        stages = [Stage(layers=(0, cut - 1), gpus=(0,)), Stage(layers=(cut, last), gpus=(1,))]
        one = _pipedream(_on_two(whole, 1), stages)
        other = timeprest_plan(_on_two(parts, count), stages, count, forward_reads=reads)
        assert not check(other)
        before, now = ([gpu.peak_bytes for gpu in memory(plan)] for plan in (one, other))
        found.append(
            {
                "data": data,
                "images": images,
                "N": count,
                "cut": cut,
                "reads": reads,
                "bytes": now,
                "pipedream_bytes": before,
                "less": [
                    round(float(100 * (1 - Fraction(less, more))), 1)
                    for less, more in zip(now, before, strict=True)
                ],
            }
        )
    return found


def _ranges(splits: list[dict[str, Any]], reads: ForwardReads) -> list[list[float]]:
    """Return the least and the most that is saved on each GPU."""
    mine = [case["less"] for case in splits if case["reads"] == reads]
    return [[min(less[gpu] for less in mine), max(less[gpu] for less in mine)] for gpu in (0, 1)]


def _on_two(chain: Any, count: int) -> SystemConfig:
    return SystemConfig(chain=chain, platform=Platform(2, ROOM), microbatches=count)


def _version_table(stages: int, count: int) -> Table:
    """Return the versions behind its own that each micro-batch of a mini-batch reads."""
    found = versions(_timeprest(stages, count, "entry"))
    rows = []
    for i in range(count):
        row = [
            f"{found.forward_staleness[i, stage]}, {found.backward_staleness[i, stage]}"
            for stage in range(stages)
        ]
        rows.append(("ABCDEFGH"[i], *row))
    return Table(
        title=f"Updates by which forward and backward of each micro-batch read behind their own, "
        f"W = {stages}, N = {count}",
        header=["micro-batch", *(f"stage {stage + 1}" for stage in range(stages))],
        rows=rows,
    )


def _split_table(
    splits: list[dict[str, Any]], data: str, size: tuple[int, int], reads: ForwardReads
) -> Table:
    images, count = size
    return Table(
        title=f"Memory of VGG-16 on two GPUs, MB: {data}, {images} images in {count}; "
        f"{READS[reads]}",
        header=["first layers", "PipeDream", "", "TiMePReSt", "", "less, %", ""],
        rows=[
            (
                case["cut"],
                *(count // 10**6 for count in case["pipedream_bytes"]),
                *(count // 10**6 for count in case["bytes"]),
                *case["less"],
            )
            for case in splits
            if (case["data"], case["images"], case["N"], case["reads"])
            == (data, images, count, reads)
        ],
    )
