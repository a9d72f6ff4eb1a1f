"""Options of several commands, some in groups, and how their values are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeAlias

import typer

from schedopt.chain import Chain
from schedopt.effort import GAP, TIME_LIMIT
from schedopt.engine import may_copy_shards
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.problem import Scope, widest_step
from schedopt.profile import Profile
from schedopt.scope import MemoryReading
from schedopt.stage import Shard

if TYPE_CHECKING:
    from schedopt.sweeping import Pool

PlanFile: TypeAlias = Annotated[
    Path, typer.Argument(help="A schedopt.plan/1 file.", metavar="PLAN")
]
ChainFile: TypeAlias = Annotated[Path, "FILE: A schedopt.chain/1 or schedopt.profile/1 file."]
Samples: TypeAlias = Annotated[
    int | None,
    "N: Of a profile with several sizes of micro-batches, that of N samples.",
]
ChainOutput: TypeAlias = Annotated[Path, "FILE: Where to write the chain."]
PictureOutput: TypeAlias = Annotated[
    Path | None, "FILE: Draw a picture instead: .svg, .png or .pdf."
]
AsJson: TypeAlias = Annotated[bool, "Print one JSON document and nothing else."]
Recompute: TypeAlias = Annotated[bool, "Recompute layers before the backward where that is faster."]
MEMORY: Final = (
    "What must fit: the true maximum over time (peak, the default), or each kind of memory at its "
    "own maximum, added up (sum)."
)
Memory: TypeAlias = Annotated[Literal["sum", "peak"], MEMORY]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of random choices.", min=0, metavar="N")]
TiedLayers: TypeAlias = Literal["together", "copied"]
TrainingStateName: TypeAlias = Annotated[
    str | None,
    "NAME: The state kept for each parameter, instead of what was measured: mixed-adam (2 "
    "bytes of weight, 2 of gradient, 12 of optimizer state). Append the present bytes of an "
    "element if the chain does not record them: mixed-adam:4.",
]
OptimizerName: TypeAlias = Literal["adamw", "adam", "sgd"]
Microbatches: TypeAlias = Annotated[
    int | None,
    "M: Micro-batches of one step. Default: 4 for each GPU that has a stage; those of a training "
    "step.",
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Processes that run at the same time. Default: one for each core.",
        min=1,
        metavar="N",
        show_default=False,
    ),
]
Dask: TypeAlias = Annotated[
    str | None, "ADDRESS: Run on the workers of this Dask cluster instead: tcp://host:8786."
]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How long and with what a search runs."""

    time_limit: Annotated[
        float, "S: Stop after this many seconds with the best plan so far; inf: never."
    ] = TIME_LIMIT
    workers: Annotated[
        int | None,
        typer.Option(
            help="Threads. Default: one for each usable core.",
            min=1,
            metavar="N",
            show_default=False,
        ),
    ] = None
    gap: Annotated[
        float,
        "G: Stop when the plan is proven to be longer than the best by at most this part of it; "
        "0: when it is proven optimal.",
    ] = GAP
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_time_limit(self.time_limit)
        if not 0 <= self.gap < float("inf"):
            raise InputError(
                f"{self.gap:g} is not a gap",
                field="--gap",
                way_out="Give a part of the best period, such as 0.001, or 0 for a proof",
            )


@dataclass(frozen=True, kw_only=True)
class FreedomOptions:
    """What a plan may do, and what must fit: fields of `schedopt.Scope`."""

    split_backward: Annotated[
        bool, "Let the weight half of a backward run later; needs both halves in the chain."
    ] = False
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="Recompute layers before the backward where that is faster. Default: only for "
            "--batch.",
            show_default=False,
        ),
    ] = None
    grain: Annotated[
        Literal["stage", "layer"],
        "Whether the layers of a GPU run as one stage, or each on its own.",
    ] = "stage"
    memory: Annotated[Literal["sum", "peak"] | None, MEMORY] = None

    def fields(self, reading: MemoryReading = "peak") -> dict[str, Any]:
        """Return the fields of a scope; memory is read so where nothing was typed."""
        typed = {"memory": self.memory or reading, "recompute": bool(self.recompute)}
        return vars(self) | typed


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What replicas may do, and the training step that is asked for; None: as it is usual."""

    batch: Annotated[
        int | None,
        "B: Minimise a training step of this many samples: a flush, gradients added up over "
        "replicas, weights updated. Stages may have replicas, and recompute.",
    ] = None
    replicas: Annotated[
        int | None,
        "R: The most GPUs that share a stage: micro-batch i runs on replica i mod R. Default: 1; "
        "with --batch any number that divides the micro-batches.",
    ] = None
    uneven: Annotated[
        bool,
        "With --batch: replicas that share nothing need not divide the micro-batches; some run one "
        "more. All GPUs and links are alike.",
    ] = False
    shard: Annotated[
        Shard | None,
        "LEVEL: The most that replicas of a stage may share of its state: none; optimizer (ZeRO-1; "
        "with --batch the default, where the chain knows its size: engines run it beside "
        "pipelines, and it sends no more); gradient (ZeRO-2) or parameter (ZeRO-3), with --batch.",
    ] = None
    hybrid: Annotated[
        bool | None,
        typer.Option(
            "--hybrid/--no-hybrid",
            help="With --batch, alone or with --for megatron or torchtitan: replicas may share in "
            "groups, each of which has a copy of all shards (HSDP). Fewer bytes then leave a node. "
            "Default: with --for one of these, on several nodes.",
            show_default=False,
        ),
    ] = None
    tensor_parallel: Annotated[
        int | None,
        "T: The most GPUs of a tensor group, with --batch. Default: any that a node has and the "
        "profile a variant for.",
    ] = None

    def check_groups(self, platform: Platform) -> None:
        """Refuse tensor groups that no node holds."""
        most = platform.largest_node
        if (self.tensor_parallel or 0) > most:
            raise InputError(
                f"no node holds a group of {self.tensor_parallel} GPUs",
                field="--tensor-parallel",
                way_out=f"Give {most} at most",
            )

    def widen(
        self,
        scope: Scope,
        chain: Chain,
        freedoms: FreedomOptions,
        usual: int | None = 1,
        *,
        nodes: int = 1,
    ) -> Scope:
        """Return a scope with what is allowed to replicas; `usual` is how many without a batch."""
        groups: dict[str, Any] = {"uneven": self.uneven, "hybrid": bool(self.hybrid)}
        if self.batch is None:
            if self.tensor_parallel is not None:
                raise InputError(
                    "tensor groups are searched for in a training step",
                    field="--tensor-parallel",
                    way_out="Ask for a batch (--batch), or leave it out",
                )
            most = usual if self.replicas is None else self.replicas
            return replace(scope, replicas=most, shard=self.shard or "none", **groups)
        wide = widest_step(chain)
        if freedoms.recompute is None:
            scope = replace(scope, recompute=wide.recompute)
        most = wide.replicas if self.replicas is None else self.replicas
        level = wide.shard if self.shard is None and most != 1 else self.shard or "none"
        if self.hybrid is None and level != "none" and scope.engine is not None:
            # Inside a node groups send no fewer bytes.
            groups["hybrid"] = may_copy_shards(scope.engine) and nodes > 1 and chain.expert == 1
        return replace(scope, replicas=most, shard=level, tensor=self.tensor_parallel, **groups)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model that is built from a config is built; None: as it is usual."""

    seq: Annotated[int | None, "N: Tokens of a sample, for hf: models."] = None
    image: Annotated[int | None, "N: Pixels of a side, for hf: models."] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"] | None,
        "Data type, for hf: models. Default: float32.",
    ] = None

    def given(self) -> dict[str, Any]:
        """Return those that were typed."""
        return {name: value for name, value in vars(self).items() if value is not None}


def refuse_together(option: str, other: str, why: str) -> NoReturn:
    """Refuse an option that another one contradicts."""
    raise InputError(
        f"given together with {other}, {why}", field=option, way_out="Leave one of them out"
    )


@contextmanager
def naming_options(
    names: Mapping[str, str] = MappingProxyType({}), file: Path | None = None
) -> Iterator[None]:
    """Name the option in each error about a parameter, and a file in those about what is in it.

    `names` are those of parameters whose option has another name; capitals are an argument. Without
    a file what is wrong elsewhere stays as it is.
    """
    try:
        yield
    except InputError as error:
        if error.source or not error.field or error.field.startswith("--"):
            raise
        if any(sign in error.field for sign in " .["):
            raise (error if file is None else error.in_file(str(file))) from None
        name = names.get(error.field, error.field).replace("_", "-")
        field = name if name.isupper() else f"--{name}"
        raise InputError(error.rule, field=field, way_out=error.way_out) from None


@contextmanager
def naming_files(chain: Path, fix: Path | None = None, start: Path | None = None) -> Iterator[None]:
    """Name the file, or the option, of an error about what is asked."""
    try:
        yield
    except InputError as error:
        kind = error.field.partition("[")[0]
        if kind == "solver" or kind.startswith("scope."):
            from schedopt.cli.flags import OPTIONS

            option = OPTIONS.get(f"Scope.{kind.removeprefix('scope.')}", "--solver")
            raise InputError(error.rule, field=option, way_out=error.way_out) from None
        file = {"layers": chain, "variants": chain, "stages": fix, "initial": start}.get(kind)
        if error.source or file is None:
            raise
        raise error.in_file(str(file)) from None


def alone(profile: Profile, path: Path) -> Chain:
    """Return the chain on one GPU of a profile from a file, which has one size of micro-batches."""
    check_size(profile, path)
    try:
        return profile.of_size(profile.sizes[0])[0]
    except InputError as error:
        raise error.in_file(str(path)) from None


def check_size(profile: Profile, path: Path) -> None:
    """Require one size of micro-batches of a profile from a file."""
    if len(profile.sizes) > 1:
        *most, last = map(str, profile.sizes)
        raise InputError(
            f"micro-batches of {', '.join(most)} and {last} samples",
            field="variants",
            way_out=f"Choose one (--samples {last}), or ask schedopt solve for a batch (--batch), "
            "which chooses",
            source=str(path),
        )


def load_profile(
    path: Path,
    training_state: str | None = None,
    tied: TiedLayers = "together",
    samples: int | None = None,
) -> Profile:
    """Read a chain or a profile, perhaps as it is trained with another state or with copies.

    With `samples` only what was measured with micro-batches of that size.
    """
    from schedopt.tied_weights import copy_tied_weights
    from schedopt.training_state import with_training_state

    profile = Profile.load(path)

    def changed(chain: Chain) -> Chain:
        if training_state is not None:
            chain = with_training_state(chain, training_state)
        return copy_tied_weights(chain) if tied == "copied" else chain

    try:
        with naming_options():
            if samples is not None:
                profile = profile.with_size(samples)
            variants = (
                replace(variant, chain=changed(variant.chain)) for variant in profile.variants
            )
            return replace(profile, variants=tuple(variants))
    except InputError as error:
        raise (error if error.field.startswith("--") else error.in_file(str(path))) from None


def check_time_limit(seconds: float) -> None:
    """Refuse a time limit that leaves no time."""
    if not seconds > 0:
        raise InputError(
            f"{seconds:g} is not a time limit",
            field="--time-limit",
            way_out="Give more than 0 seconds",
        )


def check_outputs(
    named: Mapping[str, Path | None], *formats: str, picture: Path | None = None
) -> None:
    """Refuse files that cannot be written or that two options name, and unknown pictures.

    An older file there that is one of ours has one of the formats.
    """
    from schedopt.drawing import picture_suffix
    from schedopt.formats import check_writable

    if picture is not None:
        picture_suffix(picture)
    taken: dict[Path, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        check_writable(path, *formats)
        if path in taken:
            raise InputError(
                f"{path} is named twice",
                field=f"{taken[path]} and {option}",
                way_out="Name a file for each",
            )
        taken[path] = option


def parse_counts(text: str, field: str = "--gpus", noun: str = "GPUs") -> list[int]:
    """Return the numbers of GPUs, or of something else, that were typed: ``2,4,8``."""
    return [_count(part, field, noun) for part in text.split(",")]


def _count(text: str, field: str, noun: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 4096:
        raise InputError(
            f"{text!r:.60} is not a number of {noun}", field=field, way_out="Give 1 to 4096: 2,4,8"
        )
    return int(text)


def make_pool(jobs: int | None, dask: str | None) -> Pool:
    """Return processes on this machine, or the workers of a Dask cluster."""
    from schedopt.sweeping import ClusterPool, ProcessPool

    if dask is None:
        return ProcessPool(jobs)
    if jobs is not None:
        refuse_together("--jobs", "--dask", "whose workers say how many run at a time")
    pool = ClusterPool(dask)
    # What it would say of a lost connection, our error says in one line.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return pool
