"""Work and activations of a transformer by its shape (Korthikanti et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from schedopt.bench.published.tables import Line

UPDATE: Final = 34
"""Bytes that Adam reads and writes for a weight in mixed precision: gradient, two moments and
copy in single precision, of which three are written, and the weight itself."""
LINK: Final = 300e9
"""Bytes per second each way between two A100 of a node (NVLink 3)."""
MEMORY: Final = 2.039e12
"""Bytes per second of the memory of an A100 (80 GB)."""

Mode = Literal["none", "sequence", "selective", "sequence+selective", "full"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer of equal layers, and the micro-batch that it is run with.

    Parameters
    ----------
    layers, hidden, heads, sequence, vocabulary : int
    samples : int
        Sequences of a micro-batch.
    tensor : int
        GPUs that share each layer.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    samples: int = 1
    tensor: int = 1

    @property
    def values(self) -> int:
        """Values of one hidden state: s b h."""
        return self.sequence * self.samples * self.hidden

    @property
    def layer_flop(self) -> int:
        """Work of the forward of a layer, floating-point operations (appendix A)."""
        return 24 * self.values * self.hidden + self.attention_flop

    @property
    def attention_flop(self) -> int:
        """Of it, the attention scores and what is made of them."""
        return 4 * self.values * self.sequence

    @property
    def head_flop(self) -> int:
        """Work of the forward of the output layer."""
        return 2 * self.values * self.vocabulary

    @property
    def head_layers(self) -> float:
        """How many layers the output layer is worth by its work, attention scores left out."""
        return self.vocabulary / (12 * self.hidden)

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrices of a layer."""
        return 12 * self.hidden**2

    def activation_bytes(self, mode: Mode) -> float:
        """Return what a layer keeps of a micro-batch on each GPU, bytes (table 2).

        Sequence parallelism divides all of it by the tensor degree; selective recompute keeps
        nothing of the attention scores; full recompute keeps the input of the layer alone.
        """
        shared, scores = 24 / self.tensor, 5 * self.heads * self.sequence / self.hidden
        if mode == "full":
            return 2 * self.values
        whole = 10 / self.tensor if "sequence" in mode else 10
        kept = 0 if "selective" in mode else scores / self.tensor
        return self.values * (whole + shared + kept)


def read_shape(line: Line, *, vocabulary: int, tensor: int = 1) -> Shape:
    """Return the shape that a line of a table gives."""
    return Shape(
        layers=line["layers"],
        hidden=line["hidden"],
        heads=line["heads"],
        sequence=line["sequence"],
        vocabulary=vocabulary,
        samples=line["mbs"],
        tensor=tensor,
    )
