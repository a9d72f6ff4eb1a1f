"""Dutta, Chaki and De, TiMePReSt: versions of the weights, and memory next to PipeDream."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Final, Literal

import torch
from torch import nn

from schedopt.account import memory, versions
from schedopt.bench.claims.plans import checked
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced
from schedopt.bench.claims.timeprest import config_of, run_timeprest
from schedopt.chain import Chain
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.profiling import Model, estimate
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.pipedream import one_f_one_b
from schedopt.systems.timeprest import timeprest_plan

ForwardReads = Literal["entry", "live"]
READS: Final[dict[ForwardReads, str]] = {
    "entry": "vertical sync in the forward, as section 4 has it",
    "live": "each stage reads its own newest weights in the forward",
}
DATA: Final = {"CIFAR-100": (32, 100), "Tiny-ImageNet-200": (64, 200)}
"""Pixels of a side, and classes."""
SIZES: Final = ((64, 2), (64, 4), (256, 2), (256, 4))
"""Images of a mini-batch, and micro-batches; the source names neither."""
PRINTED: Final = (50, 40)
NEARLY: Final = 5
"""Points of a hundred."""


def find_versions(
    step: Step, largest: int = 6, sizes: Sequence[tuple[int, int]] = SIZES
) -> Computed:
    """T5: read versions and staleness off plans, and the memory of VGG-16 off all its splits."""
    shapes = product(range(2, largest + 1), repeat=2)
    cases = [
        measure_versions(stages, count, reads)
        for stages, count in announced(step, "W = {}, N = {}", shapes)
        for reads in READS
    ]
    wanted = product(DATA, sizes, READS)
    rows = [(data, *size, reads) for data, size, reads in wanted]
    words = "{}, {} images in {} micro-batches, {}"
    splits = [case for row in announced(step, words, rows) for case in split_vgg(*row)]
    by_reads = {reads: [c for c in cases if c["reads"] == reads] for reads in READS}
    splits_by = {reads: [c for c in splits if c["reads"] == reads] for reads in READS}
    chosen: dict[str, list[Case]] = {}
    for reads, own in by_reads.items():
        chosen[f"forward, {reads}"] = _nonzero(own, "forward")
        chosen[f"versions, {reads}"] = _with_more_versions(own)
        chosen[f"no less, {reads}"] = [*filter(_takes_no_less, splits_by[reads])]
        chosen[f"not near, {reads}"] = _not_near(splits_by[reads])
    return Computed(
        {
            **chosen,
            "backward of all stages": _nonzero(by_reads["entry"], "backward_all"),
            "backward of each stage": _nonzero(cases, "backward"),
        },
        {
            "tried": f"W, N = 2 to {largest}, backwards as long as a forward",
            "on_vgg": f"VGG-16, all {len({case['cut'] for case in splits})} splits, "
            f"{' and '.join(DATA)}, mini-batches of "
            f"{', '.join(f'{images} images in {count}' for images, count in sizes)}: peak by "
            "account",
        },
        figures={
            "best_split": {reads: _best(own) for reads, own in splits_by.items()},
            "less_in_percent": {
                reads: [
                    [min(saved), max(saved)]
                    for saved in zip(*(case["less"] for case in own), strict=True)
                ]
                for reads, own in splits_by.items()
            },
            "splits": len(splits),
        },
        tables=[
            *(_version_table(*shape) for shape in ((4, 2), (4, 4))),
            *(_split_table(own, "CIFAR-100", sizes[0]) for own in splits_by.values()),
        ],
    )


def measure_versions(stages: int, count: int, reads: ForwardReads) -> Case:
    """Return staleness and versions held, in updates of a stage, with those of PipeDream."""
    found = versions(_timeprest(stages, count, reads))
    run = run_timeprest(stages, count, 1)
    single = config_of(stages, 1, 1)
    pipedream = versions(checked(one_f_one_b(single, Rule(update_every=1), single.pipeline())))
    return {
        "W": stages,
        "N": count,
        "reads": reads,
        "forward": max(found.forward_staleness.values()),
        "backward": max(found.backward_staleness.values()),
        # Of the weights that all stages have: i less one, less those that are through.
        "backward_all": max(run.version_difference(i + 1) - 1 for i in run.steady),
        "held": [held for _, held in sorted(found.held.items())],
        "pipedream": [held for _, held in sorted(pipedream.held.items())],
    }


def _timeprest(stages: int, count: int, reads: ForwardReads) -> Plan:
    config = config_of(stages, count, 1)
    plan = timeprest_plan(config, config.pipeline(), count, bounded=False, forward_reads=reads)
    return checked(plan)


def split_vgg(data: str, images: int, count: int, reads: ForwardReads) -> list[Case]:
    """Return the memory of both systems on two GPUs, for each place to cut VGG-16."""
    whole, parts = (vgg16_chain(size, *DATA[data]) for size in (images, images // count))
    cases = []
    for cut in range(1, len(whole.layers)):
        last = len(whole.layers) - 1
        stages = [Stage(layers=(0, cut - 1), gpus=(0,)), Stage(layers=(cut, last), gpus=(1,))]
        on_whole, on_parts = (
            SystemConfig(chain=chain, platform=Platform(2, "1T"), microbatches=number)
            for chain, number in ((whole, 1), (parts, count))
        )
        pipedream = checked(one_f_one_b(on_whole, Rule(update_every=1), stages))
        timeprest = checked(timeprest_plan(on_parts, stages, count, forward_reads=reads))
        before, now = ([gpu.peak_bytes for gpu in memory(p)] for p in (pipedream, timeprest))
        less = [1 - Fraction(few, many) for few, many in zip(now, before, strict=True)]
        cases.append(
            {
                "data": data,
                "images": images,
                "N": count,
                "cut": cut,
                "reads": reads,
                "bytes": now,
                "pipedream_bytes": before,
                "less": [round(float(100 * part), 1) for part in less],
            }
        )
    return cases


def vgg16(classes: int) -> nn.Sequential:
    """Return VGG-16 (Simonyan and Zisserman 2015): a layer per weight, with what follows it."""
    layers: list[nn.Module] = []
    before = 3
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for number in range(count):
            pool = [nn.MaxPool2d(2)] if number == count - 1 else []
            convolution = nn.Conv2d(before, channels, 3, padding=1)
            layers.append(nn.Sequential(convolution, nn.ReLU(inplace=True), *pool))
            before = channels
    flat = [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for size, first in ((before * 7**2, flat), (4096, [])):
        linear = nn.Linear(size, 4096)
        layers.append(nn.Sequential(*first, linear, nn.ReLU(inplace=True), nn.Dropout()))
    return nn.Sequential(*layers, nn.Linear(4096, classes))


@cache
def vgg16_chain(images: int, side: int, classes: int) -> Chain:
    """Return the chain of VGG-16 for images, trained by plain gradient descent, without a run."""
    return estimate(
        lambda: Model(module=vgg16(classes), inputs=torch.randn(images, 3, side, side)),
        flops=10**13,
        optimizer="sgd",
        min_share=0,
    )


def _nonzero(cases: Sequence[Case], name: str) -> list[Case]:
    return [{"W": case["W"], "N": case["N"], name: case[name]} for case in cases if case[name]]


def _with_more_versions(cases: Sequence[Case]) -> list[Case]:
    """Return where a stage keeps more versions than with PipeDream, or the first as many."""
    return [
        {name: case[name] for name in ("W", "N", "held", "pipedream")}
        for case in cases
        if case["held"][0] >= case["pipedream"][0]
        or any(own > other for own, other in zip(case["held"], case["pipedream"], strict=True))
    ]


def _takes_no_less(case: Case) -> bool:
    return any(a >= b for a, b in zip(case["bytes"], case["pipedream_bytes"], strict=True))


def _not_near(splits: Sequence[Case]) -> list[Case]:
    """Return the best split if none is near the printed savings."""
    near = any(
        all(got >= want - NEARLY for got, want in zip(case["less"], PRINTED, strict=True))
        for case in splits
    )
    return [] if near else [{"best split": _best(splits)}]


def _best(splits: Sequence[Case]) -> Case:
    """Return the split that comes nearest to the printed savings on both GPUs."""
    return max(
        splits,
        key=lambda case: min(got / want for got, want in zip(case["less"], PRINTED, strict=True)),
    )


def _version_table(stages: int, count: int) -> Table:
    """Return the versions behind its own that each micro-batch of a mini-batch reads."""
    found = versions(_timeprest(stages, count, "entry"))
    forward, backward = found.forward_staleness, found.backward_staleness
    return Table(
        "Updates by which forward and backward of each micro-batch read behind their own, "
        f"W = {stages}, N = {count}",
        ["micro-batch", *(f"stage {stage + 1}" for stage in range(stages))],
        [
            ("ABCDEFGH"[i], *(f"{forward[i, s]}, {backward[i, s]}" for s in range(stages)))
            for i in range(count)
        ],
    )


def _split_table(splits: Sequence[Case], data: str, size: tuple[int, int]) -> Table:
    own = [case for case in splits if (case["data"], (case["images"], case["N"])) == (data, size)]
    images, count = size
    return Table(
        f"Memory of VGG-16 on two GPUs, MB: {data}, {images} images in {count}; "
        f"{READS[own[0]['reads']]}",
        ["first layers", "PipeDream", "", "TiMePReSt", "", "less, %", ""],
        [
            (
                case["cut"],
                *(size // 10**6 for size in (*case["pipedream_bytes"], *case["bytes"])),
                *case["less"],
            )
            for case in own
        ],
    )
