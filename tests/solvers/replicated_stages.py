"""What a stage of a training step with replicas takes and holds, worked out on its own.

Stages that share gradients or parameters run layer by layer, recompute in between, and have copies
and gradients away from home of one layer at a time, which come and go in no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schedopt import Chain, Layer, Platform
from tests.bounds.every_step import kept_bytes, workspace_bytes

SHARED: Final = ("optimizer_bytes", "gradient_bytes", "parameter_bytes")
"""What the first, the first two or all three levels of ZeRO share."""


@dataclass(frozen=True)
class ReplicatedStage:
    """Layers with replicas, some of them computed again, which share up to a level of ZeRO.

    The chain is that of their tensor groups.
    """

    chain: Chain
    layers: range
    replicas: int
    level: int = 0
    again: tuple[bool, ...] = ()
    tensor: int = 1

    @property
    def _own(self) -> Sequence[Layer]:
        return self.chain.layers[self.layers.start : self.layers.stop]

    def total(self, name: str) -> int:
        """Return the sum of a figure of the layers."""
        return sum(getattr(layer, name) or 0 for layer in self._own)

    @property
    def recomputed(self) -> list[Layer]:
        """The layers that are computed again."""
        return [layer for layer, redo in zip(self._own, self.again, strict=True) if redo]

    @property
    def again_ns(self) -> int:
        """How long they take."""
        return sum(layer.forward_ns for layer in self.recomputed)

    @property
    def layered(self) -> bool:
        """Whether it runs layer by layer."""
        return self.level > 1

    @property
    def weight_bytes(self) -> int:
        """What lies on a GPU whatever it does; of what is shared the largest share."""
        shared = sum(self.total(name) for name in SHARED[: self.level])
        return self.total("weight_bytes") - shared + -(-shared // self.replicas)

    @property
    def layer_bytes(self) -> list[int]:
        """What a micro-batch keeps of each layer where it runs layer by layer."""
        received = [self.chain.input_bytes, *(one.activation_bytes for one in self.chain.layers)]
        return [
            received[number] if redo else layer.saved + (layer.saved_input_bytes or 0)
            for number, layer, redo in zip(self.layers, self._own, self.again, strict=True)
        ]

    def _away(self, layer: Layer, name: str) -> int:
        """Return what of a figure is not at home on the replica that has most of it."""
        size = getattr(layer, name) or 0
        return size - -(-size // self.replicas)

    def _layer_peak(self, *, backward: bool) -> int:
        """Return what a forward or backward needs at most, layer by layer, without weights."""
        kept = peak = 0
        for layer, held, redo in zip(self._own, self.layer_bytes, self.again, strict=True):
            kept += held
            works = layer.forward_ns or (backward and layer.backward_ns)
            used = (layer.workspace_bytes or 0) if works else 0
            if self.level == len(SHARED):
                used += self._away(layer, "parameter_bytes")
            if backward:
                used += self._away(layer, "gradient_bytes") + (layer.saved if redo else 0)
            peak = max(peak, kept + used)
        return peak

    @property
    def kept_bytes(self) -> int:
        """What a micro-batch keeps from its forward to its backward."""
        if self.layered:
            return sum(self.layer_bytes)
        return sum(size for _, size in kept_bytes(self.chain, self.layers, self.again))

    @property
    def recomputed_bytes(self) -> int:
        """What it keeps on top from its recompute to its backward."""
        return sum(layer.saved for layer in self.recomputed)

    @property
    def operations(self) -> Iterator[tuple[int, int, int]]:
        """Time of F, R and B, and what the micro-batch and the operation then need of memory."""
        before, behind = self.kept_bytes, self.kept_bytes + self.recomputed_bytes
        if self.layered:
            ahead, back = (self._layer_peak(backward=way) - before for way in (False, True))
            yield self.total("forward_ns"), before, ahead
            yield 0, before, 0
            yield self.total("backward_ns") + self.again_ns, before, back
            return
        yield self.total("forward_ns"), before, workspace_bytes(self._own)
        yield self.again_ns, behind, workspace_bytes(self.recomputed)
        yield self.total("backward_ns"), behind, workspace_bytes(self._own)

    @property
    def least_bytes(self) -> int:
        """What one micro-batch at a time takes."""
        return self.weight_bytes + max(
            held + (workspace if length else 0) for length, held, workspace in self.operations
        )

    @property
    def sent_bytes(self) -> int:
        """What a micro-batch sends to the next stage, and gets back."""
        return self._own[-1].activation_bytes

    def trip_ns(self, platform: Platform, following: ReplicatedStage) -> int:
        """Return how long a transfer to the next stage takes, a part from each GPU of a group."""
        lanes = min(self.tensor, following.tensor)
        return platform.transfer_ns(-(-self.sent_bytes // lanes), 0, 1)

    def behind_ns(self, platform: Platform) -> int:
        """Return how long its collectives and updates take at least behind its last backward.

        The chunk that begins at the last replica to be ready goes round the whole ring from then
        on, once for the sum and once for what comes of it.
        """
        update = self.total("update_ns")
        if self.replicas == 1:
            return update
        if self.layered:
            return self._behind_layers_ns(platform)
        gradients = self._ring_ns(platform, self.total("gradient_bytes"))
        if not self.level:
            return 2 * gradients + update
        held = self.total("parameter_bytes")
        # The chunk may be a smallest one, of which the home has less than its part to update.
        share = update * (held // self.replicas) // held if held else update // self.replicas
        return gradients + share + self._ring_ns(platform, held)

    def _behind_layers_ns(self, platform: Platform) -> int:
        """Return the same for the first layer alone, whose gradients go straight home."""
        layer, found = self._own[0], 0
        gradients, weights = layer.gradient_bytes or 0, layer.parameter_bytes or 0
        if gradients:
            found += platform.transfer_ns(gradients // self.replicas, 0, 1)
        if weights:
            found += (layer.update_ns or 0) * (weights // self.replicas) // weights
            if self.level < len(SHARED):
                found += platform.transfer_ns(weights // self.replicas, 0, 1)
        return found

    def _ring_ns(self, platform: Platform, count: int) -> int:
        hop = platform.transfer_ns(count // self.replicas, 0, 1) if count else 0
        return (self.replicas - 1) * hop
