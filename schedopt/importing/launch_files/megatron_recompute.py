"""What the arguments of Megatron-LM say of recompute: whole layers, or modules of all layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schedopt.chain import Chain
from schedopt.engine import recomputable_units
from schedopt.importing.launch_files.launch import Layers
from schedopt.importing.launch_files.settings import Settings
from schedopt.importing.launch_files.splitting import units_within
from schedopt.validation import show

GRANULARITY: Final = "recompute-granularity"
METHOD: Final = "recompute-method"
NUM_LAYERS: Final = "recompute-num-layers"
SELECTIVE: Final = "recompute-activations"
MODULES: Final = "recompute-modules"
KNOWN_MODULES: Final = (
    *("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act"),
    "shared_experts",
)
"""What Megatron-LM can compute again of a layer."""


def read_modules(settings: Settings) -> tuple[str, ...]:
    """Return the modules of layers that are computed again."""
    settings.refuse_together(SELECTIVE, GRANULARITY, "which says it too")
    named = settings.get(MODULES)
    given = settings.word(GRANULARITY, ("full", "selective"), "full") == "selective"
    if not (given or settings.flag(SELECTIVE)):
        if named is not None and not _is_left_out(settings):
            settings.refuse(
                MODULES,
                f"without {settings.name(GRANULARITY)} selective none of them is computed again",
                "Add it, or leave this out",
            )
        return ()
    for name in (METHOD, NUM_LAYERS):
        if settings.has(name):
            settings.refuse(
                name,
                "for whole layers, and modules of layers are computed again",
                f"Leave it out, or write {settings.name(GRANULARITY)} full",
            )
    modules = ["core_attn"] if named is None else re.findall(r"[^\s,'\"\[\]]+", str(named))
    for module in modules:
        if module not in KNOWN_MODULES:
            settings.refuse(
                MODULES, f"{show(module)} is not known", f"Known are {', '.join(KNOWN_MODULES)}"
            )
    return tuple(sorted({*modules}))


def _is_left_out(settings: Settings) -> bool:
    """Whether what is said of recompute is to be left out."""
    return any(
        name in settings.values and not settings.has(name) for name in (GRANULARITY, SELECTIVE)
    )


def read_recompute(
    settings: Settings, chain: Chain, stages: Sequence[Layers], *, selective: bool
) -> tuple[tuple[Layers, ...], ...]:
    """Return what each stage computes again, of whole layers."""
    if selective or not settings.has(GRANULARITY):
        for name in (METHOD, NUM_LAYERS):
            if settings.has(name) and not _is_left_out(settings):
                settings.refuse(
                    name,
                    f"without {settings.name(GRANULARITY)} nothing is computed again",
                    "Add it, or leave this out",
                )
        return tuple(() for _ in stages)
    if not settings.has(METHOD):
        settings.refuse(METHOD, "is not given", "Write block or uniform")
    method = settings.word(METHOD, ("block", "uniform"), "block")
    size = settings.whole(NUM_LAYERS, 1)
    units = recomputable_units(chain, "megatron")
    runs = []
    for stage in stages:
        own = [*units_within(units, stage)]
        if method == "block":
            runs.append(tuple(own[:size]))
        else:
            groups = [own[begin : begin + size] for begin in range(0, len(own), size)]
            runs.append(tuple((group[0][0], group[-1][1]) for group in groups))
    return tuple(runs)
