"""The options that describe a platform, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from schedopt.cli.options import naming_options
from schedopt.errors import InputError
from schedopt.platform import Gpu, Platform

OF_PLATFORM: Final[Mapping[str, str]] = MappingProxyType(
    {"memory": "mem", "memory_bytes": "mem", "reserved_bytes": "reserved"}
)
"""Fields of a platform whose option has another name."""


@dataclass(frozen=True, kw_only=True)
class PlatformOptions:
    """The options that describe a platform, as they were typed; None: not given."""

    platform: Annotated[
        Path | None,
        "FILE: A schedopt.platform/1 file: nodes with GPUs, and the links between them; or a known "
        "kind of node with how many: dgx-a100:8, dgx-h100:8, hgx-h200:8, dgx-b200:4, a10g:4x8 (4 "
        "nodes of 8 GPUs), l4:4x8. In place of the options from --gpus to --duplex.",
    ] = None
    gpus: Annotated[int | None, "P: How many GPUs."] = None
    mem: Annotated[
        str | None,
        "SIZE: Memory of a GPU: 16G (powers of 1000), 16GiB, or bytes; or one for each GPU, "
        "16G,16G,8G.",
    ] = None
    reserved: Annotated[str | None, "SIZE: Memory of each GPU that is reserved. Default: 0."] = None
    speed: Annotated[
        str | None,
        "FACTORS: Speed of the GPUs relative to the one that was measured: 1, or 1,1,0.5. "
        "Default: 1.",
    ] = None
    bandwidth: Annotated[
        str | None, "RATE: Of each link: 12GB/s. Without one, transfers are free."
    ] = None
    latency: Annotated[str | None, "TIME: Time added to each transfer: 5us. Default: 0."] = None
    duplex: Annotated[
        Literal["half", "full"] | None,
        "Whether the two directions of a link share it (half, the default) or not (full).",
    ] = None

    @property
    def names(self) -> Mapping[str, str]:
        """The options of fields that have another name; a file says its links itself."""
        if self.platform is None:
            return OF_PLATFORM
        return {**OF_PLATFORM, "bandwidth": "platform", "latency": "platform"}

    def read(self, plan: Platform | None = None) -> Platform:
        """Return the platform of the file or that was typed, the rest taken from that of a plan."""
        if self.platform is not None:
            return self._load(self.platform)
        if plan is not None:
            return self._read_over(plan)
        if self.gpus is None:
            raise InputError(
                "not given",
                field="--gpus",
                way_out="Say how many GPUs: --gpus 8; or give a file: --platform FILE",
            )
        if self.mem is None:
            raise InputError("not given", field="--mem", way_out="Say how much each has: --mem 16G")
        return self._platform(())

    def _load(self, path: Path) -> Platform:
        for field in fields(self):
            if field.name != "platform" and getattr(self, field.name) is not None:
                raise InputError(
                    "given together with --platform, which says it",
                    field=f"--{field.name}",
                    way_out="Leave it out, or write what you have into a file and give that: "
                    "--platform FILE (schedopt.platform/1)",
                )
        return Platform.load(path)

    def _read_over(self, plan: Platform) -> Platform:
        if plan.network is not None:
            for name in ("gpus", "bandwidth", "latency", "duplex"):
                if getattr(self, name) is not None:
                    raise InputError(
                        "given together with a plan for several nodes",
                        field=f"--{name}",
                        way_out="Give other nodes: --platform FILE",
                    )
        file_gpus = self._as_many(plan)
        typed = self._linked_as(plan)._platform(file_gpus)
        gpus = typed.gpus
        if self.reserved is None:
            pairs = zip(gpus, file_gpus, strict=True)
            gpus = tuple(replace(gpu, reserved_bytes=old.reserved_bytes) for gpu, old in pairs)
        return (typed if plan.network is None else plan).with_gpus(gpus)

    def _as_many(self, plan: Platform) -> tuple[Gpu, ...]:
        """Return the GPUs of a plan, as many as were typed."""
        file_gpus = plan.gpus
        if self.gpus in (None, len(file_gpus)):
            return file_gpus
        if not plan.uniform:
            raise InputError(
                f"the GPUs of the plan differ, and it has {len(file_gpus)}",
                field="--gpus",
                way_out="Leave it out, or fix a plan for equal GPUs",
            )
        return file_gpus[:1] * (self.gpus or 1)

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

    def _platform(self, file_gpus: Sequence[Gpu]) -> Platform:
        """Return the platform; of GPUs what was not typed is as in those of a plan."""
        with naming_options(OF_PLATFORM):
            return Platform(
                len(file_gpus) if self.gpus is None else self.gpus,
                [gpu.memory_bytes for gpu in file_gpus]
                if self.mem is None
                else self.mem.split(","),
                reserved=self.reserved or 0,
                speed=[gpu.speed for gpu in file_gpus] or "1"
                if self.speed is None
                else self.speed.split(","),
                bandwidth=self.bandwidth,
                latency=self.latency or 0,
                duplex=self.duplex or "half",
            )
