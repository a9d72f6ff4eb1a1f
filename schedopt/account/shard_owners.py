"""Which GPU owns which shard of a stage's weights, where they are sharded over its replicas."""

from __future__ import annotations

from schedopt.plan import Plan


class ShardOwners:
    """Which GPUs own the chunks of each stage.

    Chunk c of stage s belongs to replica (s + c) mod R, or where groups of h replicas have copies
    of the shards, to number (s + c) mod h of each group; where nothing is sharded every GPU of the
    stage owns all of them. Without updates there is a chunk for each replica.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        without = plan.rule.is_given
        self.chunks = [len(stage.gpus) if without else 1 for stage in plan.stages]
        for transfer in plan.pattern.transfers:
            if transfer.moves_weights and transfer.source_stage is None:
                self.chunks[transfer.stage] = transfer.chunks
        for collective in plan.pattern.collectives:
            self.chunks[collective.stage] = len(plan.stages[collective.stage].gpus)
        self._owned: dict[tuple[int, int], tuple[int, ...]] = {}

    def owned(self, stage: int, gpu: int) -> tuple[int, ...]:
        """Return the chunks of a stage that a GPU owns."""
        if (stage, gpu) not in self._owned:
            place = self.plan.stages[stage]
            own = {
                number
                for group in place.shard_groups
                for number, replica in enumerate(group)
                if place.gpus[replica] == gpu
            }
            self._owned[stage, gpu] = tuple(
                chunk
                for chunk in range(self.chunks[stage])
                if place.shard == "none" or (stage + chunk) % place.shard_group in own
            )
        return self._owned[stage, gpu]

    def foreign(self, stage: int, gpu: int) -> list[int]:
        """Return the chunks of a stage that other GPUs own."""
        owned = set(self.owned(stage, gpu))
        return [chunk for chunk in range(self.chunks[stage]) if chunk not in owned]

    def part(self, total: int, stage: int, chunk: int) -> int:
        """Return what one chunk has of a stage's bytes."""
        return part_of(total, chunk, self.chunks[stage])

    def share(self, total: int, stage: int, gpu: int) -> int:
        """Return what the chunks that a GPU owns have of a stage's bytes."""
        return sum(self.part(total, stage, chunk) for chunk in self.owned(stage, gpu))

    def share_ns(self, whole: int, total: int, stage: int, gpu: int) -> int:
        """Return how long a GPU takes for its share of an update of `total` bytes, ns, rounded up.

        `whole` is how long it would take for all of them.
        """
        return -(-whole * self.share(total, stage, gpu) // total) if total else whole


def part_of(total: int, chunk: int, chunks: int) -> int:
    """Return what one of the equal chunks has of some bytes."""
    return total * (chunk + 1) // chunks - total * chunk // chunks
