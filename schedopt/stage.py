"""A stage: consecutive layers that run as one, and the GPUs that run them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, get_args

from schedopt.errors import InputError
from schedopt.validation import LARGEST, STRICT, as_numbers, as_rows, check_choice, check_whole

Shard = Literal["none", "optimizer", "gradient", "parameter"]
SHARDS: Final[tuple[Shard, ...]] = get_args(Shard)
"""What replicas may share of the state of a stage, each more than the one before."""
_SHARED: Final[dict[Shard, str]] = {
    "none": "nothing",
    "optimizer": "the optimizer state",
    "gradient": "the optimizer state and gradients",
    "parameter": "the optimizer state, gradients and parameters",
}
LARGEST_GROUP: Final = 1024
"""GPUs of a tensor group, or that share sequences or experts."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Consecutive layers that run as one.

    Parameters
    ----------
    layers : (int, int)
        First and last layer, 0-based, inclusive. A stage without layers, as engines allow it, has
        the layer behind it and the one before.
    gpus : sequence of int
        Micro-batch i runs on ``gpus[i % len(gpus)]``. A GPU named more than once runs a larger
        share, and holds the weights once.
    recompute : sequence of (int, int)
        Runs of layers, first and last, that are computed again before the backward. Each keeps
        only its input for a micro-batch in flight.
    tensor : int
        t, the GPUs of a tensor group, each of which computes a part of every layer. A replica is
        then a group, and the GPU in `gpus` the first of t in a row; all of them do the same at the
        same time, and hold as much.
    shard : {"none", "optimizer", "gradient", "parameter"}
        What is sharded over the replicas (Rajbhandari et al. 2020, ZeRO 1, 2 and 3); each stage of
        a plan has a level of its own. The weights are cut into as many equal chunks as the
        transfers of weights and of their gradients say (1 if there are none); chunk c of stage s is
        at home on replica (s + c) mod R. So on one GPU everything is at home, whatever the level.
        Under the rule *given* no update is in the pattern: then *optimizer* only says what lies
        where, a chunk on each replica, and the levels behind it, which send something for each
        micro-batch or each update, need a rule with updates.

        *optimizer*: only the home of a chunk has its optimizer state. So the gradient of a chunk
        must come to its home, which updates it (an update takes its share of ``update_ns``); then
        transfers of weights, named by a micro-batch of the mini-batch applied, bring the chunk to
        the other replicas. A version is there when all chunks are.

        *gradient*: also, the gradient of a chunk stays at home only. Elsewhere it lies from the
        start of the first backward (B or W) of its mini-batch there, or of what comes earlier, to
        the end of the transfer that takes it away, with all that was added up there by then. What
        is added later lies there anew: so it may go home once a step, or behind each backward.

        *parameter*: also, each version of a chunk stays at home only, and is there when all homes
        have made theirs. Each operation that reads weights (F, R, B or I, W) needs every chunk
        that is not at home there exactly once, by a transfer to its own replica (``target`` 0)
        named by its micro-batch (the first that it covers): it is for the first of that
        micro-batch's operations in that stage that starts at or after its end, and brings the
        version which that operation reads. It comes from the home, or from a copy that lies
        complete on another replica. A copy lies there from the start of its transfer to the end
        of that operation, or of what is sent on from it.
    shard_copies : int
        g, how many copies there are of each shard (hybrid sharding, HSDP; Zhao et al. 2023). The
        replicas share in groups of h = R / g, in the order of the numbers of their GPUs. Of the
        replicas of each group, by their own numbers, chunk c of stage s is at home on number (s +
        c) mod h, which needs the gradients of all R; what was updated goes to the others of its
        group.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    layers: tuple[int, int]
    gpus: tuple[int, ...]
    recompute: tuple[tuple[int, int], ...] = ()
    shard: Shard = "none"
    tensor: int = 1
    shard_copies: int = 1

    def __post_init__(self) -> None:
        # Numbers that name nothing are violations, which the check of a plan reports.
        for name in ("layers", "gpus"):
            numbers = as_numbers(getattr(self, name), name, low=-LARGEST)
            object.__setattr__(self, name, numbers)
        as_rows(self, "recompute", low=-LARGEST)
        check_choice(self, "shard", SHARDS)
        check_whole(self, "tensor", low=1, high=LARGEST_GROUP)
        _check_pair(self.layers, "layers")
        for position, run in enumerate(self.recompute):
            _check_pair(run, f"recompute[{position}]")
        if not self.gpus:
            raise InputError("a stage runs on at least one GPU", field="gpus", way_out="Name a GPU")
        check_whole(self, "shard_copies", low=1)
        if self.shard_copies > 1:
            self._check_copies()

    def _check_copies(self) -> None:
        replicas = len(self.gpus)
        if self.shard == "none" or replicas % self.shard_copies or len({*self.gpus}) < replicas:
            raise InputError(
                f"{replicas} replicas on {len({*self.gpus})} GPUs that share "
                f"{'nothing' if self.shard == 'none' else 'their state'} have no "
                f"{self.shard_copies} copies of each shard",
                field="shard_copies",
                way_out="Give a divisor of the replicas, each on a GPU of its own, and a shard "
                "level, or leave it out",
            )

    @property
    def shard_group(self) -> int:
        """h, how many replicas share a state: all, or those of a group."""
        return len(self.gpus) // self.shard_copies

    @property
    def shared(self) -> str:
        """What its replicas share, in a word."""
        return f"{self.shard}{_say_groups(self.shard_copies)}"

    @cached_property
    def shard_groups(self) -> tuple[tuple[int, ...], ...]:
        """The replicas that share a state, by their numbers; groups by those of their GPUs."""
        size = self.shard_group
        begins = range(0, len(self.gpus), size)
        return tuple(tuple(sorted(self.in_a_row[begin : begin + size])) for begin in begins)

    def home(self, stage: int, chunk: int, replica: int = 0) -> int:
        """Return the replica of the group of one at which a chunk is at home.

        `stage` is its own number in the plan.
        """
        group = self.shard_groups[self.places[replica] // self.shard_group]
        return group[(stage + chunk) % len(group)]

    @property
    def first(self) -> int:
        """The first layer."""
        return self.layers[0]

    @property
    def last(self) -> int:
        """The last layer."""
        return self.layers[1]

    @property
    def is_empty(self) -> bool:
        """Whether it has no layers, and passes on what it gets."""
        return self.last < self.first

    @property
    def layer_range(self) -> range:
        """All layers."""
        return range(self.first, self.last + 1)

    @property
    def recomputed_layers(self) -> frozenset[int]:
        """The layers that are computed again."""
        return frozenset(
            layer for first, last in self.recompute for layer in range(first, last + 1)
        )

    @property
    def every_gpu(self) -> tuple[int, ...]:
        """All GPUs, those of a group behind each other."""
        return tuple(gpu for first in self.gpus for gpu in self.group(first))

    def group(self, first: int) -> range:
        """Return the GPUs of a replica, of which one is the first."""
        return range(first, first + self.tensor)

    def gpu(self, micro_batch: int) -> int:
        """Return the GPU that runs a micro-batch, the first of its group."""
        return self.gpus[micro_batch % len(self.gpus)]

    def mates(self, micro_batch: int, together: int) -> tuple[int, ...]:
        """Return the micro-batches that run at the same time as one, that one among them.

        They run on `together` replicas whose GPUs are next to each other: the first ones, the next
        and so on (`Chain.together`).
        """
        if together == 1:
            return (micro_batch,)
        begin, replica = divmod(micro_batch, len(self.gpus))
        first = self.places[replica] // together * together
        return tuple(
            begin * len(self.gpus) + one for one in self.in_a_row[first : first + together]
        )

    @cached_property
    def in_a_row(self) -> list[int]:
        """The replicas by the numbers of their GPUs."""
        return sorted(range(len(self.gpus)), key=self.gpus.__getitem__)

    @cached_property
    def places(self) -> list[int]:
        """The place of each replica in that order."""
        return sorted(range(len(self.gpus)), key=self.in_a_row.__getitem__)


def _check_pair(numbers: tuple[int, ...], field: str) -> None:
    if len(numbers) != 2:
        raise InputError(
            f"{list(numbers)!r:.60} is not a pair",
            field=field,
            way_out="Give the first and the last layer",
        )


def say_shared(shard: Shard, copies: int = 1) -> str:
    """Return what replicas share, in `copies` groups, as a phrase.

    Examples
    --------
    >>> say_shared("optimizer", 2)
    'the optimizer state in 2 groups'
    """
    return f"{_SHARED[shard]}{_say_groups(copies)}"


def _say_groups(copies: int) -> str:
    return f" in {copies} groups" if copies > 1 else ""
