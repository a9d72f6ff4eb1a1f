"""Scheduling problems that decide 3-partition: Beaumont et al. 2021, Theorems 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from schedopt.chain import Chain, Layer
from schedopt.errors import InputError
from schedopt.families.instance import Fact, Instance, make_instance, stages_on
from schedopt.families.partition import as_sums, draw_triples, draw_without_triples
from schedopt.families.theorems import PAPER
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.stage import Stage
from schedopt.validation import show


@dataclass(frozen=True)
class Reduction:
    """A chain that has a plan of a period exactly if its numbers have a 3-partition.

    That is proven where each number lies between V / 4 and V / 2: else V may be made of two of
    them, or of four.

    Parameters
    ----------
    theorem : {1, 2}
        1: each number is a layer that takes that many ns forward and nothing back, on m GPUs; all
        sizes are 0. A plan of period V, with any allocation, has a group on each GPU.
        2: 2 GPUs with memory m. m layers of V on the second GPU; the numbers on the first; then
        2 m layers of V with an activation of 1, on the second and the first GPU in turn. Nothing
        takes time back. In a plan of period 2 m V the last ones leave m holes for the numbers.
    numbers : sequence of int
        3 m of them, that add up to a multiple of m.
    """

    theorem: Literal[1, 2]
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.theorem not in (1, 2):
            raise InputError(
                f"{show(self.theorem)} is none of them", field="theorem", way_out="Choose 1 or 2"
            )
        object.__setattr__(self, "numbers", as_sums(self.numbers))

    @property
    def m(self) -> int:
        """How many groups."""
        return len(self.numbers) // 3

    @property
    def total(self) -> int:
        """V, what each group adds up to."""
        return sum(self.numbers) // self.m

    @property
    def period_ns(self) -> int:
        """The period that is asked for. No plan has a shorter one: the GPUs never idle."""
        return self.total if self.theorem == 1 else 2 * self.m * self.total

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The allocation that Theorem 2 gives; none for Theorem 1."""
        if self.theorem == 1:
            return ()
        gpus = [1] * self.m + [0] * (3 * self.m) + [1, 0] * self.m
        return tuple(Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate(gpus))

    @property
    def scope(self) -> Scope:
        """The plans that are asked for."""
        allocation: Literal["general", "fixed"] = "general" if self.theorem == 1 else "fixed"
        return Scope(allocation=allocation, period_ns=self.period_ns)

    def instance(self, known: tuple[Fact, ...] = (), seed: int | None = None) -> Instance:
        """Return the chain with its platform."""
        m, total = self.m, self.total
        layers = [_layer(number) for number in self.numbers]
        if self.theorem == 2:
            keeping = [_layer(total, activation=1)] * (2 * m)
            layers = [*[_layer(total)] * m, *layers, *keeping]
        return make_instance(
            name=f"theorem-{self.theorem}-m-{m}",
            family=f"theorem-{self.theorem}",
            parameters={"m": m, "total": total, **({} if seed is None else {"seed": seed})},
            layers=layers,
            platform=Platform(m, 1) if self.theorem == 1 else Platform(2, m),
            source=f"{PAPER}, Theorem {self.theorem}",
            known=known,
        )

    def problem(self) -> Problem:
        """Return what is asked."""
        instance = self.instance()
        return Problem(
            chain=instance.chain, platform=instance.platform, scope=self.scope, stages=self.stages
        )

    def groups(self, plan: Plan) -> list[list[int]]:
        """Return the places of the numbers that lie together in a plan.

        On one GPU; for Theorem 2 between any two of the layers that keep something.
        """
        if self.theorem == 1:
            return [
                [
                    layer
                    for stage in plan.stages
                    if stage.gpus == (gpu,)
                    for layer in range(stage.first, stage.last + 1)
                ]
                for gpu in range(self.m)
            ]
        forwards = (operation for operation in plan.pattern.operations if operation.kind == "F")
        groups: list[list[int]] = [[]]
        for operation in sorted(forwards, key=lambda operation: operation.start_ns):
            if plan.stages[operation.stage].gpus != (0,):
                continue
            if operation.stage >= 4 * self.m:
                groups.append([])
            else:
                groups[-1].append(operation.stage - self.m)
        # What comes before the first of them comes behind the last.
        return [group for group in [groups[0] + groups[-1], *groups[1:-1]] if group]


def three_partition(
    theorem: Literal[1, 2], m: int, total: int, seed: int, *, solvable: bool
) -> Instance:
    """Return an instance with what is known: a plan that was built, or that there is none.

    There are m groups, 1 to 256, or 2 to 12 if the numbers are not to be `solvable`, which add up
    to V = `total`, 9 to 2^20.
    """
    place = f"{PAPER}, Theorem {theorem}"
    if not solvable:
        reduction = Reduction(theorem, draw_without_triples(m, total, seed))
        none = Fact(
            scope=Scope(
                allocation=reduction.scope.allocation,
                max_k=None if theorem == 1 else 1,
                period_ns=reduction.period_ns,
            ),
            period=None,
            source=f"{place}, and all groups were tried",
            k=None,
            stages=reduction.stages,
        )
        return reduction.instance((none,), seed)
    numbers, triples = draw_triples(m, total, seed)
    reduction = Reduction(theorem, numbers)
    gpus = {place: gpu for gpu, triple in enumerate(triples) for place in triple}
    best = Fact(
        scope=Scope(allocation=reduction.scope.allocation, max_k=None),
        period=Fraction(reduction.period_ns),
        source=f"{place}, and the groups were built",
        stages=reduction.stages or stages_on(gpus[place] for place in range(3 * m)),
    )
    return reduction.instance((best,), seed)


def read_reduction(chain: Chain) -> Reduction:
    """Return the numbers that a chain holds, and the theorem that it was made for.

    Its provenance names the theorem; the layers must then be those of the theorem.

    Raises
    ------
    InputError
        Naming what differs.
    """
    provenance: Any = chain.provenance or {}
    theorem: Literal[1, 2]
    match provenance.get("family"):
        case "theorem-1":
            theorem, whole, own = 1, 3, slice(None)
        case "theorem-2":
            sixth = len(chain.layers) // 6
            theorem, whole, own = 2, 6, slice(sixth, 4 * sixth)
        case other:
            said = "absent" if other is None else f"{show(other)} is no family of 3-partitions"
            raise _differs(said, "provenance.family")
    if len(chain.layers) % whole:
        rule = f"{len(chain.layers)} layers, and Theorem {theorem} has {whole} m"
        raise _differs(rule, "layers")
    numbers = [layer.forward_ns for layer in chain.layers[own]]
    total, rest = divmod(3 * sum(numbers), len(numbers))
    if rest:
        raise _differs(
            f"{len(numbers)} numbers add up to {sum(numbers)}, which is no multiple of "
            f"{len(numbers) // 3}",
            "layers",
        )
    for place, number in enumerate(numbers, own.start or 0):
        if not total < 4 * number < 2 * total:
            rule = f"{number} does not lie between V / 4 and V / 2, where V is {total}"
            raise _differs(rule, f"layers[{place}].forward_ns")
    reduction = Reduction(theorem, tuple(numbers))
    _compare(chain, reduction.instance().chain, f"Theorem {theorem}")
    told = provenance.get("parameters")
    for name, value in (("m", reduction.m), ("total", reduction.total)):
        if not isinstance(told, dict) or told.get(name) != value:
            raise _differs(f"is not {value}, as the layers say", f"provenance.parameters.{name}")
    return reduction


def _differs(rule: str, field: str) -> InputError:
    return InputError(rule, field=field, way_out="Write one with schedopt instance three-partition")


def _compare(chain: Chain, wanted: Chain, theorem: str) -> None:
    """Refuse a chain whose numbers are not those of another, and say where."""
    if chain.sha256 == wanted.sha256:
        return
    for number, (layer, other) in enumerate(zip(chain.layers, wanted.layers, strict=True)):
        for field in fields(Layer):
            found, right = getattr(layer, field.name), getattr(other, field.name)
            if field.name != "name" and found != right:
                rule = f"{show(found)}, and {'nothing' if right is None else right} in {theorem}"
                raise _differs(rule, f"layers[{number}].{field.name}")
    name = "input_bytes" if chain.input_bytes != wanted.input_bytes else "same_gpu"
    raise _differs(f"{show(getattr(chain, name))}, and nothing in {theorem}", name)


def _layer(forward_ns: int, activation: int = 0) -> Layer:
    return Layer(forward_ns=forward_ns, backward_ns=0, weight_bytes=0, activation_bytes=activation)
