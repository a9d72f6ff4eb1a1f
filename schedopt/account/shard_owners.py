"""Which GPU owns which shard of a stage's weights, where they are sharded over its replicas."""

from __future__ import annotations

from schedopt.plan import Plan


class ShardOwners:
    """Which GPUs own the chunks of each stage.

    Chunk c of stage s belongs to replica (s + c) mod R, or where groups of h replicas have copies
    of the shards, to number (s + c) mod h of each group; where nothing is sharded every GPU of the
    stage owns all of them. Without updates there is a chunk for each replica. Those of experts come
    behind the others, and the one behind them by r belongs to the replica at place r of its row,
    or to all that have the same experts.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        without = plan.rule.is_given
        self.experts = [*map(plan.expert_chunks, range(len(plan.stages)))]
        """How many chunks of each stage are those of experts."""
        self.chunks = [
            experts + (len(stage.gpus) if without or experts else 1)
            for stage, experts in zip(plan.stages, self.experts, strict=True)
        ]
        for transfer in plan.pattern.transfers:
            if transfer.moves_weights and transfer.source_stage is None:
                self.chunks[transfer.stage] = transfer.chunks
        for collective in plan.pattern.collectives:
            self.chunks[collective.stage] = len(plan.stages[collective.stage].gpus)
        self._owned: dict[tuple[int, int], tuple[int, ...]] = {}

    def owned(self, stage: int, gpu: int) -> tuple[int, ...]:
        """Return the chunks of a stage that a GPU owns."""
        if (stage, gpu) not in self._owned:
            place, held = self.plan.stages[stage], self.held(stage, gpu)
            own = {
                number
                for group in place.shard_groups
                for number, replica in enumerate(group)
                if place.gpus[replica] == gpu
            }
            common = self.chunks[stage] - self.experts[stage]
            # The part of a fold owns all for GPUs of others, too.
            row = place.places[place.gpus.index(gpu)] if self.experts[stage] else 0
            self._owned[stage, gpu] = tuple(
                chunk
                for chunk in held
                if place.shard == "none"
                or (chunk < common and (stage + chunk) % place.shard_group in own)
                or chunk == common + row
            )
        return self._owned[stage, gpu]

    def held(self, stage: int, gpu: int) -> list[int]:
        """Return the chunks of a stage that a GPU has: all but those of others' experts."""
        place, experts = self.plan.stages[stage], self.experts[stage]
        every = [*range(self.chunks[stage])]
        if not experts:
            return every
        row, among = place.places[place.gpus.index(gpu)], self.plan.chain.expert
        return every[:-experts] + every[-experts:][row % among :: among]

    def foreign(self, stage: int, gpu: int) -> list[int]:
        """Return the chunks of a stage that other GPUs own."""
        owned = set(self.owned(stage, gpu))
        return [chunk for chunk in self.held(stage, gpu) if chunk not in owned]

    def part(self, total: int, stage: int, chunk: int) -> int:
        """Return what one chunk has of a stage's bytes, those of experts if it is one of these."""
        common = self.chunks[stage] - self.experts[stage]
        if chunk < common:
            return part_of(total, chunk, common)
        among = self.plan.chain.expert
        return part_of(total, (chunk - common) // among, self.experts[stage] // among)

    def share(self, total: int, stage: int, gpu: int, of_experts: int = 0) -> int:
        """Return what the chunks that a GPU owns have of a stage's bytes, and of its experts'."""
        common = self.chunks[stage] - self.experts[stage]
        return sum(
            self.part(total if chunk < common else of_experts, stage, chunk)
            for chunk in self.owned(stage, gpu)
        )

    def share_ns(self, whole: int, total: int, stage: int, gpu: int, of_experts: int) -> int:
        """Return how long a GPU takes for its share of an update, ns, rounded up.

        `whole` is how long it would take for all of them: `total` bytes, and those of its experts,
        which it updates alone where no other replica has them.
        """
        every = total + of_experts
        share = self.share(total, stage, gpu, of_experts)
        if not self.experts[stage]:
            share += of_experts
        return -(-whole * share // every) if every else whole


def part_of(total: int, chunk: int, chunks: int) -> int:
    """Return what one of the equal chunks has of some bytes."""
    return total * (chunk + 1) // chunks - total * chunk // chunks
