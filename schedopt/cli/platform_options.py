"""The options that describe a platform, and what stands in their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from schedopt.cli.options import OF_PLATFORM, naming_options
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.platform import Gpu, Platform

PlatformFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A schedopt.platform/1 file: nodes with GPUs, and the links between them. In "
        "place of the options from --gpus to --duplex.",
        metavar="FILE",
    ),
]
Gpus: TypeAlias = Annotated[int | None, typer.Option(help="How many GPUs.", metavar="P")]
Mem: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Memory of a GPU: 16G (powers of 1000), 16GiB, or bytes; or one for each GPU, "
        "16G,16G,8G.",
        metavar="SIZE",
    ),
]
Reserved: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Memory of each GPU that is not ours. Default: 0.", metavar="SIZE"),
]
Speed: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Speed of the GPUs against the one that was measured: 1, or 1,1,0.5. Default: 1.",
        metavar="FACTORS",
    ),
]
Bandwidth: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Of each link: 12GB/s. Absent: transfers are free.", metavar="RATE"),
]
Latency: TypeAlias = Annotated[
    str | None, typer.Option(help="Added to each transfer: 5us. Default: 0.", metavar="TIME")
]
DuplexChoice: TypeAlias = Annotated[
    Literal["half", "full"] | None,
    typer.Option(
        help="Whether the two directions of a link share it (half, the default) or not (full).",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class PlatformOptions:
    """The options that describe a platform, as they were typed; None: not given.

    Parameters
    ----------
    gpus : int, optional
    mem, reserved, speed, bandwidth, latency, duplex : str, optional
    """

    gpus: int | None
    mem: str | None
    reserved: str | None
    speed: str | None
    bandwidth: str | None
    latency: str | None
    duplex: Literal["half", "full"] | None

    def read(self) -> Platform:
        """Return the platform that was typed."""
        if self.gpus is None:
            raise InputError(
                "not given",
                field="--gpus",
                way_out="Say how many GPUs: --gpus 8; or give a file: --platform FILE",
            )
        if self.mem is None:
            raise InputError("not given", field="--mem", way_out="Say how much each has: --mem 16G")
        return self._platform(())

    def read_over(self, plan: Platform) -> Platform:
        """Return the platform that was typed, the rest taken from that of a plan."""
        if plan.network is not None:
            self._refuse(
                ("gpus", "bandwidth", "latency", "duplex"),
                "given beside a plan for several nodes",
                "Give other nodes: --platform FILE",
            )
        own = self._as_many(plan)
        typed = self._linked_as(plan)._platform(own)
        made = typed.gpus
        if self.reserved is None:
            pairs = zip(made, own, strict=True)
            made = tuple(replace(gpu, reserved_bytes=old.reserved_bytes) for gpu, old in pairs)
        return (typed if plan.network is None else plan).with_gpus(made)

    def load_instead(self, path: Path) -> Platform:
        """Return the platform of a file, beside which nothing may be typed."""
        from schedopt.platform import Platform

        self._refuse(
            [field.name for field in fields(self)],
            "given beside --platform, whose file says it",
            "Leave one of them out",
        )
        return Platform.load(path)

    def _refuse(self, names: Iterable[str], rule: str, way_out: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(rule, field=f"--{name}", way_out=way_out)

    def _as_many(self, plan: Platform) -> tuple[Gpu, ...]:
        """Return the GPUs of a plan, as many as were typed."""
        own = plan.gpus
        if self.gpus in (None, len(own)):
            return own
        if not plan.uniform:
            raise InputError(
                f"the GPUs of the plan differ, and it has {len(own)}",
                field="--gpus",
                way_out="Leave it out, or fix a plan for equal GPUs",
            )
        return own[:1] * (self.gpus or 1)

    def _linked_as(self, plan: Platform) -> PlatformOptions:
        """Return the same with what was not typed of links as in a plan."""
        link = plan.link
        if link is None:
            return self
        return replace(
            self,
            bandwidth=self.bandwidth or str(link.bandwidth_bytes_per_s),
            latency=self.latency or str(link.latency_ns),
            duplex=self.duplex or link.duplex,
        )

    def _platform(self, own: Sequence[Gpu]) -> Platform:
        """Return the platform; of GPUs what was not typed is as in those of a plan."""
        from schedopt.platform import Platform

        with naming_options(OF_PLATFORM):
            return Platform(
                len(own) if self.gpus is None else self.gpus,
                [gpu.memory_bytes for gpu in own] if self.mem is None else self.mem.split(","),
                reserved=self.reserved or 0,
                speed=[gpu.speed for gpu in own] or "1"
                if self.speed is None
                else self.speed.split(","),
                bandwidth=self.bandwidth,
                latency=self.latency or 0,
                duplex=self.duplex or "half",
            )
