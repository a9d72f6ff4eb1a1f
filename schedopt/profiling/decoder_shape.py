"""The shape of a decoder: what its layers are made of, and the micro-batch that goes through."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from schedopt.errors import InputError
from schedopt.validation import check_whole, show

MODULES: Final = ("core_attn", "layernorm", "mlp", "moe", "moe_act")
"""Parts of a transformer layer that Megatron-LM can compute again (``--recompute-modules``).

*core_attn* keeps nothing anyhow but its inputs and its output, which the next product needs too.
*mlp* is a feed-forward network without experts, *moe* one with experts, router included, and
*moe_act* the activation of those that share the tokens.
"""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What attention costs, whatever it is made of.

    Parameters
    ----------
    products : sequence of (int, int)
        Inputs and outputs of each projection of a token.
    queries : int
        Values of all heads that are compared for a query and a key.
    values : int
        Values of all heads that are added up for a query and a key.
    kept : int
        Values of a token that are kept for the backward beside the input: queries, keys, values,
        output, and what low ranks lie between.
    keys : int, optional
        With how many keys a query is compared at most. Default: all up to its own.
    """

    products: tuple[tuple[int, int], ...]
    queries: int
    values: int
    kept: int
    keys: int | None = None

    @classmethod
    def grouped(cls, hidden: int, heads: int, kv_heads: int, head: int) -> Attention:
        """Return attention whose keys and values several heads share (Ainslie et al. 2023)."""
        width, shared = heads * head, kv_heads * head
        return cls(
            products=((hidden, width + 2 * shared), (width, hidden)),
            queries=width,
            values=width,
            kept=2 * width + 2 * shared,
        )

    @classmethod
    def latent(
        cls,
        hidden: int,
        heads: int,
        *,
        ranks: tuple[int, int],
        head: tuple[int, int, int],
        keys: int | None = None,
    ) -> Attention:
        """Return attention through low ranks (DeepSeek-V2, 2024, section 2.1 and appendix C).

        `ranks` are those of queries and of keys and values; `head` has what a head compares
        without and with its position, and what it adds up.
        """
        (rank, shared), (plain, turned, value) = ranks, head
        width, added = heads * (plain + turned), heads * value
        return cls(
            products=(
                (hidden, rank + shared + turned),
                (rank, width),
                (shared, heads * (plain + value)),
                (added, hidden),
            ),
            queries=width,
            values=added,
            kept=rank + shared + turned + 2 * width + 2 * added,
            keys=keys,
        )


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Feed-forward networks of which a token goes through some.

    Parameters
    ----------
    count, active, shared : int
        How many there are, how many a token is sent to, and how many take every token.
    ffn : int
        Values inside of each.
    """

    count: int
    active: int
    shared: int
    ffn: int

    def __post_init__(self) -> None:
        for name in ("count", "active", "ffn"):
            check_whole(self, name, low=1)
        check_whole(self, "shared")
        if self.active > self.count:
            raise InputError(
                f"{self.active} are more than all {self.count}",
                field="active",
                way_out="Give the experts that one token is sent to",
            )


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The shape of a decoder with gated feed-forward networks (SwiGLU) and a head of its own.

    Parameters
    ----------
    layers, hidden, ffn, vocabulary : int
    attention : Attention
    experts : Experts, optional
    dense : int
        Layers, the first ones, whose feed-forward network is that of `ffn` all the same.
    predictors : int
        Layers behind the last one that predict a further token each (multi-token prediction,
        DeepSeek-V3, 2024, section 2.2): a layer that takes two hidden states, and the head again.
    name : str
    """

    layers: int
    hidden: int
    ffn: int
    vocabulary: int
    attention: Attention
    experts: Experts | None = None
    dense: int = 0
    predictors: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "vocabulary"):
            check_whole(self, name, low=1)
        for name in ("ffn", "dense", "predictors"):
            check_whole(self, name)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch, and the GPUs that share it.

    Parameters
    ----------
    sequence : int
        Tokens of a sample.
    samples : int
    tensor, context, expert : int
        GPUs that share each layer, each sequence, and the experts of each layer.
    recomputed_modules : sequence of str
        Of `MODULES`: computed again in the backward of each transformer layer that has them.
    """

    sequence: int
    samples: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    recomputed_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sequence", "samples", "tensor", "context", "expert"):
            check_whole(self, name, low=1)
        for module in self.recomputed_modules:
            if module not in MODULES:
                raise InputError(
                    f"{show(module)} is no module that can be computed again here",
                    field="recomputed_modules",
                    way_out=f"Choose of {', '.join(MODULES)}",
                )

    @property
    def tokens(self) -> Fraction:
        """Tokens of a GPU."""
        return Fraction(self.sequence * self.samples, self.context)

    @property
    def split(self) -> Fraction:
        """The part of a layer, for all tokens of its GPU, that is a GPU's own work."""
        return self.tokens / self.tensor
