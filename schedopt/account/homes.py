"""What of a stage's weights is at home where, if the rule shards them over the replicas."""

from __future__ import annotations

from schedopt.plan import Plan


class Homes:
    """Where the chunks of each stage are at home.

    Chunk c of stage s is at home on replica (s + c) mod R; without a partition everything is at
    home on every GPU of the stage.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chunks = [1] * len(plan.stages)
        for transfer in plan.pattern.transfers:
            if transfer.tensor in ("weights", "weight_gradient"):
                self.chunks[transfer.stage] = transfer.chunks
        self._at_home: dict[tuple[int, int], tuple[int, ...]] = {}

    def at_home(self, stage: int, gpu: int) -> tuple[int, ...]:
        """Return the chunks of a stage that are at home on a GPU."""
        if (stage, gpu) not in self._at_home:
            place = self.plan.stages[stage]
            self._at_home[stage, gpu] = tuple(
                chunk
                for chunk in range(self.chunks[stage])
                if self.plan.rule.partition == "none" or place.gpu(stage + chunk) == gpu
            )
        return self._at_home[stage, gpu]

    def abroad(self, stage: int, gpu: int) -> list[int]:
        """Return the chunks of a stage that are not at home on a GPU."""
        home = set(self.at_home(stage, gpu))
        return [chunk for chunk in range(self.chunks[stage]) if chunk not in home]

    def part(self, total: int, stage: int, chunk: int) -> int:
        """Return what one chunk has of a stage's bytes."""
        return part_of(total, chunk, self.chunks[stage])

    def share(self, total: int, stage: int, gpu: int) -> int:
        """Return what the chunks at home on a GPU have of a stage's bytes."""
        return sum(self.part(total, stage, chunk) for chunk in self.at_home(stage, gpu))


def part_of(total: int, chunk: int, chunks: int) -> int:
    """Return what one of the equal chunks has of some bytes."""
    return total * (chunk + 1) // chunks - total * chunk // chunks
