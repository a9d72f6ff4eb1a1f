"""The chain of a decoder from its shape alone: work and bytes of each layer by formulas.

No model is built, so that also those are described that no package here can trace. Each product,
attention and pass over memory takes what a roofline says (Williams et al. 2009), whichever of its
operations and bytes takes longer. Activations are in half precision and cut over the tensor group
in all of a layer (sequence parallelism), kernels are fused as in Megatron-LM with Transformer
Engine, and attention keeps no scores (FlashAttention-2, Dao 2023).

What is left out, since shapes do not say it: collectives of tensor groups, which recipes overlap
with products, the exchange between experts, and that some experts get more tokens than others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

from schedopt.chain import Chain, Layer
from schedopt.profiling.decoder_shape import Batch, Decoder
from schedopt.profiling.rates import Roofline

HALF: Final = 2
"""Bytes of an activation and of a parameter."""
GRADIENT: Final = 4
"""Bytes of the gradient of a parameter, added up in single precision."""
STATE: Final = 12
"""Bytes of Adam for a parameter: a copy in single precision, and two moments."""
LOGITS: Final = 6
"""Bytes of a logit that the loss reads and writes each way: in half and in single precision."""
ATTENTION_BACK: Final = Fraction(5, 2)
"""Backward over forward of attention: scores again, then four products in place of two."""


class _Product(NamedTuple):
    """A product of a token's values with weights.

    `tokens` is how many pass through it, of one of the micro-batch; `copies` how many products
    with weights of their own share them.
    """

    inputs: int
    outputs: int
    tokens: int = 1
    copies: int = 1

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.copies


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one layer of the chain is made of.

    Parameters
    ----------
    products : sequence of _Product
    shared : sequence of _Product
        Those whose weights lie on GPUs that share the experts.
    attention : int
        Operations of attention for a token of a micro-batch.
    touched : int
        Bytes of a token that passes between products read and write.
    kept : int
        Bytes of a token that are kept for the backward.
    looked_up : int
        Weights of which a token reads a row alone.
    again : _Part, optional
        What of this is computed again in the backward; its `kept` is not kept.
    """

    products: tuple[_Product, ...] = ()
    shared: tuple[_Product, ...] = ()
    attention: int = 0
    touched: int = 0
    kept: int = 0
    looked_up: int = 0
    again: _Part | None = None


def make_chain(decoder: Decoder, batch: Batch, rates: Roofline) -> Chain:
    """Return the chain of a micro-batch as each GPU of a tensor group runs and holds it.

    Its layers are the embedding, the transformer layers, those that predict further tokens, and
    the head with the loss. Weights are trained with Adam, 18 bytes a parameter.
    """
    return Chain(
        layers=tuple(_layers(decoder, batch, rates)),
        name=decoder.name,
        input_bytes=_whole(8 * batch.tokens),
        samples=batch.samples,
        context=batch.context,
        expert=batch.expert,
        recomputed_modules=batch.recomputed_modules,
        provenance={"source": "estimated", "times": rates.times, "dtype": "bfloat16"},
    )


def _layers(decoder: Decoder, batch: Batch, rates: Roofline) -> Iterator[Layer]:
    hidden, vocabulary = decoder.hidden, decoder.vocabulary
    sent = HALF * hidden
    embedding = _Part(looked_up=hidden * vocabulary, touched=2 * sent, kept=8)
    yield _layer("embedding", embedding, batch, rates, sent)
    for number in range(decoder.layers):
        with_experts = decoder.experts is not None and number >= decoder.dense
        part = _block(decoder, batch, with_experts=with_experts)
        yield _layer(f"layers.{number}", part, batch, rates, sent)
    for number in range(decoder.predictors):
        block = _block(decoder, batch, with_experts=decoder.experts is not None)
        # Two hidden states go through norms into it, and all that are made go on to the head.
        part = replace(
            block,
            products=(_Product(2 * hidden, hidden), *block.products),
            touched=block.touched + 4 * sent,
            kept=block.kept + 4 * sent,
        )
        yield _layer(f"mtp.{number}", part, batch, rates, (2 + number) * sent)
    heads = 1 + decoder.predictors
    head = _Part(
        products=(_Product(hidden, vocabulary, tokens=heads),),
        touched=heads * (2 * sent + LOGITS * vocabulary),
        kept=heads * (2 * sent + 4 * vocabulary),
    )
    yield _layer("head", head, batch, rates, 0)


def _block(decoder: Decoder, batch: Batch, *, with_experts: bool) -> _Part:
    """Return a transformer layer."""
    hidden, attention = decoder.hidden, decoder.attention
    keys = Fraction(batch.sequence + 1, 2)
    if attention.keys is not None:
        keys = min(keys, Fraction(attention.keys))
    compared = 2 * keys * (attention.queries + attention.values)
    # Two norms and two sums read and write hidden states; norms keep input and output.
    touched = HALF * (10 * hidden + 2 * attention.queries)
    kept = HALF * (4 * hidden + attention.kept)
    own = [_Product(*product) for product in attention.products]
    shared: list[_Product] = []
    if with_experts:
        assert decoder.experts is not None
        found = decoder.experts
        ffn, active = found.ffn, found.active
        own.append(_Product(hidden, found.count))
        shared += [
            _Product(hidden, 2 * ffn, tokens=active, copies=found.count),
            _Product(ffn, hidden, tokens=active, copies=found.count),
        ]
        if found.shared:
            own += [
                _Product(hidden, 2 * found.shared * ffn),
                _Product(found.shared * ffn, hidden),
            ]
        inside = (active + found.shared) * ffn
        # Tokens are sorted by expert, and back.
        touched += HALF * 2 * (1 + active) * hidden
        kept += HALF * active * hidden
    else:
        inside = decoder.ffn
        own += [_Product(hidden, 2 * inside), _Product(inside, hidden)]
    # Gate and input go in, their product comes out; all three are kept.
    touched += HALF * 3 * inside
    kept += HALF * 3 * inside
    part = _Part(
        products=tuple(own),
        shared=tuple(shared),
        attention=_whole(compared),
        touched=touched,
        kept=kept,
    )
    return replace(part, again=_again(decoder, part, batch.recomputed_modules, with_experts))


def _again(
    decoder: Decoder, part: _Part, modules: Collection[str], with_experts: bool
) -> _Part | None:
    """Return what modules of a transformer layer do when they are computed again; None: nothing."""
    hidden, experts = decoder.hidden, decoder.experts if with_experts else None
    parts = []
    if "core_attn" in modules:
        parts.append(_Part(attention=part.attention))
    if "layernorm" in modules:
        # Two norms read a hidden state and write another one, which is not kept.
        parts.append(_Part(touched=HALF * 4 * hidden, kept=HALF * 2 * hidden))
    if experts is None:
        if "mlp" in modules:
            inside = HALF * 3 * decoder.ffn
            parts.append(_Part(products=part.products[-2:], touched=inside, kept=inside))
    else:
        active = HALF * experts.active
        if "moe" in modules:
            inside = 3 * HALF * (experts.active + experts.shared) * experts.ffn
            parts.append(
                _Part(
                    products=part.products[len(decoder.attention.products) :],
                    shared=part.shared,
                    touched=inside + 2 * (HALF + active) * hidden,
                    kept=inside + active * hidden,
                )
            )
        elif "moe_act" in modules:
            parts.append(_Part(touched=3 * active * experts.ffn, kept=active * experts.ffn))
    if not parts:
        return None
    return _Part(
        products=tuple(product for one in parts for product in one.products),
        shared=tuple(product for one in parts for product in one.shared),
        attention=sum(one.attention for one in parts),
        touched=sum(one.touched for one in parts),
        kept=sum(one.kept for one in parts),
    )


def _layer(name: str, part: _Part, batch: Batch, rates: Roofline, sent: int) -> Layer:
    """Return a layer of the chain; `sent` are the bytes of a token that go on from it."""
    products, attention, touched = _times(part, batch, rates)
    again = part.again or _Part()
    weights = part.looked_up + sum(product.weights for product in part.products)
    experts = sum(product.weights for product in part.shared)
    parameters = _whole(
        Fraction(weights, batch.tensor) + Fraction(experts, batch.tensor * batch.expert)
    )
    # Others have what no GPU has alone.
    common = parameters if batch.expert == 1 else _whole(Fraction(weights, batch.tensor))
    return Layer(
        name=name,
        forward_ns=_whole(products + attention + touched),
        # Of a product the gradients of input and weights, each a product as large.
        backward_ns=_whole(
            2 * products
            + ATTENTION_BACK * attention
            + 2 * touched
            + sum(_times(again, batch, rates))
        ),
        weight_bytes=(HALF + GRADIENT + STATE) * parameters,
        activation_bytes=_whole(batch.split * sent),
        saved_bytes=_whole(batch.split * (part.kept - again.kept)),
        # What is not kept lies there while the layer runs.
        workspace_bytes=_whole(batch.split * again.kept) if again.kept else None,
        parameter_bytes=HALF * common,
        gradient_bytes=GRADIENT * common,
        optimizer_bytes=STATE * common,
        **_of_experts(parameters - common, batch),
        update_ns=_whole(rates.moving_ns(2 * (HALF + STATE) * parameters)),
    )


def _of_experts(parameters: int, batch: Batch) -> dict[str, int]:
    """Return what the parameters of experts of one of the GPUs that share them take, by field."""
    if batch.expert == 1:
        return {}
    return {
        "expert_parameter_bytes": HALF * parameters,
        "expert_gradient_bytes": GRADIENT * parameters,
        "expert_optimizer_bytes": STATE * parameters,
    }


def _times(part: _Part, batch: Batch, rates: Roofline) -> tuple[Fraction, Fraction, Fraction]:
    """Return how long products, attention and passes over memory take in a forward, ns."""
    products = sum(
        (
            _product_ns(product, batch, rates, holders)
            for row, holders in (
                (part.products, batch.tensor),
                (part.shared, batch.tensor * batch.expert),
            )
            for product in row
        ),
        start=Fraction(0),
    )
    attention = batch.split * part.attention * 10**9 / rates.flops
    return products, attention, rates.moving_ns(_whole(batch.split * part.touched))


def _product_ns(product: _Product, batch: Batch, rates: Roofline, holders: int) -> Fraction:
    """Return how long the forward of a product takes on a GPU, ns."""
    tokens = batch.split * product.tokens
    computed = 2 * tokens * product.inputs * product.outputs * 10**9 / rates.flops
    moved = HALF * (
        tokens * (product.inputs + product.outputs) + Fraction(product.weights, holders)
    )
    return max(computed, rates.moving_ns(_whole(moved)))


def _whole(amount: Fraction | int) -> int:
    return -(-amount.numerator // amount.denominator)
