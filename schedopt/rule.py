"""How training uses the weights: when they are updated, and which version an operation reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from schedopt.errors import InputError
from schedopt.validation import STRICT, as_rows, check_choice, check_whole

ForwardReads = Literal["live", "entry", "delay", "table"]
BackwardReads = Literal["forward", "live", "recomputed"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How training uses the weights.

    Version v of a stage is its weights after v updates. Micro-batch i belongs to mini-batch
    g = i // m; update g applies the gradients of that mini-batch, all of them, and makes version
    g + 1 from version g, so that nothing of a mini-batch reads a later version than g. How many
    versions lie in memory, and how stale a gradient is, follow from the pattern.

    Parameters
    ----------
    update_every : int, optional
        m, the micro-batches of one update. None, the default, is the rule *given*: `weight_bytes`
        is everything that the weights need, as in Beaumont et al. 2021, and versions are not
        looked at.
    forward_reads : {"live", "entry", "delay", "table"}
        What F reads: the newest version on its GPU; the newest version of the first stage when
        the micro-batch entered there (vertical sync); version g - `delay`; or version
        g - ``table[i % len(table)][stage]``.
    delay : int
        For ``"delay"``. 0 waits for every update (data parallelism, a flush); 1 is PipeDream-2BW.
    table : sequence of rows of int
        For ``"table"``: a row a micro-batch, an entry a stage, each a delay in updates.
    backward_reads : {"forward", "live", "recomputed"}
        What B reads: the version of its F (weight stashing); the newest; or the newest when its
        stage was recomputed.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    update_every: int | None = None
    forward_reads: ForwardReads = "live"
    delay: int = 0
    table: tuple[tuple[int, ...], ...] = ()
    backward_reads: BackwardReads = "forward"

    def __post_init__(self) -> None:
        check_whole(self, "update_every", low=1, high=2**20, optional=True)
        check_whole(self, "delay", high=2**20)
        check_choice(self, "forward_reads", ("live", "entry", "delay", "table"))
        check_choice(self, "backward_reads", ("forward", "live", "recomputed"))
        as_rows(self, "table", high=2**20)
        if (self.forward_reads == "table") != bool(self.table):
            raise InputError(
                "a table goes with forward_reads = table, and only with it",
                field="table",
                way_out="Give both or neither",
            )
        if self.delay and self.forward_reads != "delay":
            raise InputError(
                "a delay goes with forward_reads = delay, and only with it",
                field="delay",
                way_out="Give both or neither",
            )
        for position, row in enumerate(self.table):
            if not row or len(row) != len(self.table[0]):
                raise InputError(
                    f"{list(row)!r:.60} is not a row of delays",
                    field=f"table[{position}]",
                    way_out="Give one delay of 0 or more for each stage, in every row",
                )
        plain = ("live", "forward")
        if self.is_given and plain != (self.forward_reads, self.backward_reads):
            raise InputError(
                "absent, though versions are asked for",
                field="update_every",
                way_out="Give the number of micro-batches of one update",
            )

    @classmethod
    def of_flush(cls, microbatches: int) -> Rule:
        """Return the rule of a flush: an update every m micro-batches, which all wait for."""
        return cls(update_every=microbatches, forward_reads="delay", delay=0)

    @property
    def is_given(self) -> bool:
        """Whether `weight_bytes` is everything and versions are not looked at."""
        return self.update_every is None

    def forward_delay(self, micro_batch: int, stage: int) -> int | None:
        """Return how many updates behind its mini-batch F reads; None if not fixed."""
        if self.forward_reads == "delay":
            return self.delay
        if self.forward_reads == "table":
            return self.table[micro_batch % len(self.table)][stage]
        return None
