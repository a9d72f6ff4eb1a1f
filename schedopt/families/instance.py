"""A chain with the platform that it is for and with what is known about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

from schedopt.chain import Chain, Layer
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.stage import Stage
from schedopt.validation import as_ratio, as_tuple, check_whole, show


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The least normalized period of all plans of a scope, or that there are none.

    As in Beaumont et al. 2021, section 3.1, one GPU runs all micro-batches of a layer: plans with
    replicas are not meant.

    Parameters
    ----------
    scope : Scope
        The plans that it speaks of.
    period : Fraction or None
        Exact, ns. None: proven infeasible.
    source : str
        Where it is proven.
    k : int or None
        A pattern of this many micro-batches reaches the period. None where there is no plan.
    stages : sequence of Stage
        An allocation that reaches it, where the proof names one, or the one that is given for the
        scope fixed; else empty.
    """

    scope: Scope
    period: Fraction | None
    source: str
    k: int | None = 1
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.scope, Scope):
            raise InputError(
                f"{show(self.scope)} is not a Scope", field="scope", way_out="Give a schedopt.Scope"
            )
        if self.period is not None and not (isinstance(self.period, Fraction) and self.period > 0):
            raise InputError(
                f"{show(self.period)} is no period",
                field="period",
                way_out="Give a Fraction above 0, or None for infeasible",
            )
        check_whole(self, "k", low=1, high=2**20, optional=True)
        if (self.k is None) != (self.period is None):
            raise InputError(
                "a period goes with the k of a pattern that reaches it",
                field="k",
                way_out="Give both, or None for both",
            )
        as_tuple(self, "stages")

    @property
    def status(self) -> Literal["optimal", "infeasible"]:
        """What a solver that knows everything would answer."""
        return "infeasible" if self.period is None else "optimal"

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold, in the names of ``schedopt solve --json``."""
        return {
            "status": self.status,
            "period_exact": None if self.period is None else list(as_ratio(self.period)),
            "k": self.k,
            "scope": asdict(self.scope),
            "source": self.source,
        }


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A chain with the platform that it is for and with what is known about it.

    Parameters
    ----------
    chain : Chain
        Its provenance holds the family, the parameters, the units, the platform and the facts.
    platform : Platform
    known : sequence of Fact
    """

    chain: Chain
    platform: Platform
    known: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        as_tuple(self, "known", Fact)
        Problem(chain=self.chain, platform=self.platform)


def make_instance(
    *,
    name: str,
    family: str,
    parameters: Mapping[str, int],
    layers: Iterable[Layer],
    platform: Platform,
    source: str,
    known: tuple[Fact, ...] = (),
    unit_ns: int = 1,
    unit_bytes: int = 1,
) -> Instance:
    """Return an instance on equal GPUs with free transfers, its story in the provenance.

    The family comes from `source`; a unit is what 1 stands for where that gives plain numbers.
    """
    provenance = {
        "family": family,
        "parameters": dict(parameters),
        "unit_ns": unit_ns,
        "unit_bytes": unit_bytes,
        "source": source,
        "platform": platform_to_json(platform),
        "known": [fact.to_json() for fact in known],
    }
    chain = Chain(layers=tuple(layers), name=name, provenance=provenance)
    return Instance(chain=chain, platform=platform, known=known)


def platform_to_json(platform: Platform) -> dict[str, int | None]:
    """Return equal GPUs in three numbers.

    Raises
    ------
    InputError
        If GPUs or links differ.
    """
    if not platform.uniform:
        raise InputError(
            "GPUs or links differ", field="platform", way_out="Give equal GPUs with equal links"
        )
    link = platform.link
    return {
        "gpus": len(platform.gpus),
        "memory_bytes": platform.gpus[0].memory_bytes,
        "bandwidth_bytes_per_s": None if link is None else link.bandwidth_bytes_per_s,
    }


def stages_on(gpus: Iterable[int]) -> tuple[Stage, ...]:
    """Return the stages that put each layer on the GPU that is listed for it.

    Examples
    --------
    >>> [(stage.layers, stage.gpus) for stage in stages_on([0, 0, 1, 0])]
    [((0, 1), (0,)), ((2, 2), (1,)), ((3, 3), (0,))]
    """
    stages = []
    first = 0
    for gpu, run in groupby(gpus):
        count = len(list(run))
        stages.append(Stage(layers=(first, first + count - 1), gpus=(gpu,)))
        first += count
    return tuple(stages)
