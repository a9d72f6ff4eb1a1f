"""Options of several commands: how they are written, read, and named in errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from schedopt.errors import InputError

if TYPE_CHECKING:
    from typer import BadParameter

    from schedopt.chain import Chain

OF_PLATFORM: Final[Mapping[str, str]] = MappingProxyType(
    {"memory": "mem", "memory_bytes": "mem", "reserved_bytes": "reserved"}
)
"""Fields of a platform whose option has another name."""

# What a solve looks for.
SplitBackward: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--split-backward",
        help="Let the weight half of a backward run later; needs both halves in the chain.",
    ),
]
Recompute: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--recompute", help="Compute layers again before the backward, where that is faster."
    ),
]
Grain: TypeAlias = Annotated[
    Literal["stage", "layer"],
    typer.Option(help="Whether the layers of a GPU run as one stage, or each on its own."),
]
Memory: TypeAlias = Annotated[
    Literal["sum", "peak"],
    typer.Option(
        help="What must fit: each kind of memory at its own maximum, added up, or the true "
        "maximum over time."
    ),
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Of random choices.", min=0, metavar="N")]
TimeLimit: TypeAlias = Annotated[
    float,
    typer.Option(
        help="Stop after so many seconds with the best plan so far; inf: never.", metavar="S"
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Threads. Default: one for each core that may be used.",
        min=1,
        metavar="N",
        show_default=False,
    ),
]

TrainingStateName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="What training keeps of each parameter, instead of what was measured: mixed-adam (2 "
        "bytes, 2 of gradient, 12 of optimizer). With the bytes of an element now where the chain "
        "does not record them: mixed-adam:4.",
        metavar="NAME",
    ),
]

# The model that is measured or run.
Batch: TypeAlias = Annotated[
    int | None, typer.Option(help="Samples of a micro-batch, for hf: models.", metavar="N")
]
Seq: TypeAlias = Annotated[
    int | None, typer.Option(help="Tokens of a sample, for hf: models.", metavar="N")
]
Image: TypeAlias = Annotated[
    int | None, typer.Option(help="Pixels of a side, for hf: models.", metavar="N")
]
Dtype: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16", "float64"] | None,
    typer.Option(help="Of the weights, for hf: models. Default: float32.", show_default=False),
]
OptimizerName: TypeAlias = Literal["adamw", "adam", "sgd"]

# A finite step.
Microbatches: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Of one step. Default: 4 for each GPU that has a stage.",
        metavar="M",
        show_default=False,
    ),
]

# What a command reads and writes.
PlanFile: TypeAlias = Annotated[
    Path, typer.Argument(help="A schedopt.plan/1 file.", metavar="PLAN")
]
ChainOutput: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", help="Where to write the chain.", metavar="FILE")
]
PictureOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Draw a picture instead: .svg, .png or .pdf.", metavar="FILE"
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.")
]


@contextmanager
def naming_options(names: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Name the option in each error about a parameter; what is wrong elsewhere stays as it is.

    Parameters
    ----------
    names : mapping of str to str
        Parameters whose option has another name; one in capitals is an argument.
    """
    try:
        yield
    except InputError as error:
        if error.source or not error.field or error.field.startswith("--"):
            raise
        if any(sign in error.field for sign in " .["):
            raise
        name = names.get(error.field, error.field).replace("_", "-")
        field = name if name.isupper() else f"--{name}"
        raise InputError(error.rule, field=field, way_out=error.way_out) from None


def usage_error(error: BadParameter) -> InputError:
    """Return what typer says about the value of an option in one line, in words of ours."""
    from pydantic import ValidationError

    names = [] if error.param is None else [*error.param.opts]
    field = max(names, key=len, default="")
    field = field if field.startswith("-") else field.upper()
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return InputError(error.message.removesuffix("."), field=field)
    first = cause.errors()[0]
    value = f"{first['input']!r:.60}"
    match first["type"]:
        case "int_parsing" | "int_from_float":
            return InputError(f"{value} is not a whole number", field=field, way_out="Give one")
        case "float_parsing":
            return InputError(f"{value} is not a number", field=field, way_out="Give one")
        case "greater_than_equal":
            least = first["ctx"]["ge"]
            return InputError(
                f"{value} is too little", field=field, way_out=f"Give at least {least:g}"
            )
    text = first["msg"].removeprefix("Value error, ").removesuffix(".")
    return InputError(text, field=field)


def load_chain(path: Path, training_state: str | None) -> Chain:
    """Read a chain, perhaps as it is trained with another state."""
    from schedopt.chain import Chain
    from schedopt.training_state import with_training_state

    chain = Chain.load(path)
    if training_state is None:
        return chain
    try:
        with naming_options():
            return with_training_state(chain, training_state)
    except InputError as error:
        raise (error if error.field.startswith("--") else error.in_file(str(path))) from None


def check_time_limit(seconds: float) -> None:
    """Refuse a time limit that leaves no time."""
    if not seconds > 0:
        raise InputError(
            f"{seconds:g} is no time to solve in",
            field="--time-limit",
            way_out="Give more than 0 seconds",
        )


def check_outputs(named: Mapping[str, Path | None]) -> None:
    """Refuse files that cannot be written, or that two options name."""
    from schedopt.formats import check_writable

    taken: dict[Path, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        check_writable(path)
        if path in taken:
            raise InputError(
                f"{path} is named twice",
                field=f"{taken[path]} and {option}",
                way_out="Name a file for each",
            )
        taken[path] = option


def parse_counts(text: str, field: str = "--gpus", what: str = "GPUs") -> list[int]:
    """Return the numbers of GPUs, or of something else, that were typed: ``2,4,8``."""
    return [_count(part, field, what) for part in text.split(",")]


def _count(text: str, field: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 4096:
        raise InputError(
            f"{text!r:.60} is no number of {what}", field=field, way_out="Give 1 to 4096: 2,4,8"
        )
    return int(text)
