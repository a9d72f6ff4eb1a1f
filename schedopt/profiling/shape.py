"""Profiles of decoders given by numbers: no model is built, and none need exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Final, NoReturn

from schedopt.chain import MOST_LAYERS, Chain
from schedopt.errors import InputError
from schedopt.profile import Profile, Variant
from schedopt.profiling.decoder import HALF, make_chain
from schedopt.profiling.decoder_shape import MODULES, Attention, Batch, Decoder, Experts
from schedopt.profiling.rates import Roofline
from schedopt.stage import LARGEST_GROUP
from schedopt.validation import show

FIELD: Final = "shape"
NUMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layers": "transformer layers",
        "hidden": "values of a token between layers",
        "heads": "attention heads",
        "kv-heads": "heads of keys and values; default: heads",
        "head": "values of a head; default: hidden / heads",
        "ffn": "values inside a gated feed-forward network",
        "vocabulary": "tokens that are known",
        "predictors": "layers that predict a further token (MTP); default: 0",
        "experts": "feed-forward networks of a layer; default: 1, no experts",
        "active": "experts that a token is sent to",
        "shared": "experts that take every token; default: 0",
        "expert-ffn": "values inside an expert",
        "dense": "first layers without experts; default: 0",
        "expert-parallel": "GPUs that share the experts of a layer; default: 1",
        "context-parallel": "GPUs that share each sequence; default: 1",
    }
)
"""What a shape is made of, in words."""
BLOCKS: Final = ("layers.", "mtp.")
"""How the names of layers with attention begin."""
NEEDED: Final = ("layers", "hidden", "heads", "vocabulary")
OF_EXPERTS: Final = ("active", "shared", "expert-ffn", "dense", "expert-parallel")
EXAMPLE: Final = "layers=32,hidden=4096,heads=32,kv-heads=8,ffn=14336,vocabulary=128256"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder, and how many GPUs share what.

    Parameters
    ----------
    decoder : Decoder
    heads : int
        Of attention.
    compared : int
        Values of the keys and values of a token.
    expert, context : int
        GPUs that share the experts of each layer, and each sequence.
    """

    decoder: Decoder
    heads: int
    compared: int
    expert: int = 1
    context: int = 1


def read_shape(text: str) -> Shape:
    """Return the decoder that a text gives: ``layers=32,hidden=4096,...``.

    Raises
    ------
    InputError
        If a number is missing, unknown, given twice, no positive whole number, or contradicts
        another one.
    """
    numbers = _read_numbers(text)
    for name in NEEDED:
        _require(numbers, name)
    if numbers["layers"] + numbers.get("predictors", 0) > MOST_LAYERS - 2:
        _refuse(f"a chain has at most {MOST_LAYERS} layers, embedding and head included", EXAMPLE)
    hidden, heads = numbers["hidden"], numbers["heads"]
    kv_heads = numbers.get("kv-heads", heads)
    if not kv_heads or not heads or heads % kv_heads:
        _refuse(f"{heads} heads do not share {kv_heads} of keys and values evenly", "kv-heads=8")
    if "head" not in numbers and hidden % heads:
        _refuse(f"{hidden} values are not shared evenly by {heads} heads", "head=128")
    experts = _experts(numbers)
    if experts is None or numbers.get("dense"):
        _require(numbers, "ffn")
    if numbers.get("dense", 0) > numbers["layers"]:
        _refuse(f"{numbers['dense']} dense layers are more than all {numbers['layers']}", "dense=3")
    head = numbers.get("head", hidden // heads)
    if not head:
        _refuse("a head has no values", "head=128")
    decoder = Decoder(
        layers=numbers["layers"],
        hidden=hidden,
        ffn=numbers.get("ffn", 0),
        vocabulary=numbers["vocabulary"],
        attention=Attention.grouped(hidden, heads, kv_heads, head),
        experts=experts,
        dense=numbers.get("dense", 0),
        predictors=numbers.get("predictors", 0),
        name="decoder",
    )
    expert = numbers.get("expert-parallel", 1)
    if not expert or (experts is not None and experts.count % expert):
        _refuse(f"{expert} GPUs do not share the experts evenly", "expert-parallel=8")
    context = numbers.get("context-parallel", 1)
    if not 1 <= context <= LARGEST_GROUP:
        _refuse(f"{context} GPUs do not share a sequence", "context-parallel=2")
    if expert > 1 and expert % context:
        _refuse(
            f"{expert} GPUs that share the experts are no multiple of {context} that share each "
            "sequence",
            f"expert-parallel={context}",
        )
    return Shape(
        decoder=decoder,
        heads=heads,
        compared=2 * kv_heads * head,
        expert=expert,
        context=context,
    )


def make_profile(
    shape: Shape,
    rates: Roofline,
    *,
    sequence: int,
    sizes: Sequence[int] = (1,),
    degrees: Sequence[int] = (1,),
    recomputed_modules: Sequence[str] = (),
) -> Profile:
    """Return the chains of a decoder for sizes of micro-batches in tensor groups.

    Behind attention and the feed-forward network a ring adds up what the GPUs of a group have, and
    once for the embedding and the head, each way (Megatron-LM; Korthikanti et al. 2022, figure 5).
    Where GPUs share sequences, keys and values go round between them, and on the way back their
    gradients as well (Liu et al. 2023, Ring Attention). Nothing hides either.

    Parameters
    ----------
    shape : Shape
    rates : Roofline
    sequence : int
        Tokens of a sample.
    sizes, degrees : sequence of int
        Samples of a micro-batch, and GPUs of a tensor group.
    recomputed_modules : sequence of str
        Modules of a transformer layer (`decoder_shape.MODULES`). Each chain is there without and
        with them computed again.

    Raises
    ------
    InputError
        If a group does not share the attention heads evenly, a layer is too large for a chain, or
        layers have no such modules.
    """
    for degree in degrees:
        if shape.heads % degree:
            raise InputError(
                f"{degree} GPUs do not share {shape.heads} attention heads evenly",
                field="degrees",
                way_out=f"Give divisors of {shape.heads}",
            )
    _check_modules(shape.decoder, recomputed_modules)
    variants = []
    for samples in sizes:
        for modules in dict.fromkeys([(), tuple(recomputed_modules)]):
            batch = Batch(
                sequence=sequence,
                samples=samples,
                context=shape.context,
                expert=shape.expert,
                recomputed_modules=modules,
            )
            alone = _chain(shape, rates, batch)
            for degree in degrees:
                chain = _chain(shape, rates, replace(batch, tensor=degree))
                one = Variant(tensor=degree, chain=_in_group(chain, alone, rates, degree))
                variants.append(one)
    return Profile(variants=tuple(variants), name=shape.decoder.name)


def _check_modules(decoder: Decoder, modules: Sequence[str]) -> None:
    """Refuse modules that no layer has; those that are unknown are refused of a batch."""
    lacking = set[str]()
    if decoder.experts is None:
        lacking |= {"moe", "moe_act"}
    elif not decoder.dense:
        lacking.add("mlp")
    for module in modules:
        if module in lacking:
            raise InputError(
                f"no layer of this shape has {show(module)}",
                field="recomputed_modules",
                way_out=f"Choose of {', '.join(one for one in MODULES if one not in lacking)}",
            )


def _chain(shape: Shape, rates: Roofline, batch: Batch) -> Chain:
    try:
        chain = make_chain(shape.decoder, batch, rates)
        sent = HALF * batch.split * shape.compared
        added = ceil(rates.ring_ns(sent, shape.context))
        layers = (
            replace(
                layer,
                forward_ns=layer.forward_ns + added,
                backward_ns=layer.backward_ns + 2 * added,
            )
            if layer.name.startswith(BLOCKS)
            else layer
            for layer in chain.layers
        )
        return replace(chain, layers=tuple(layers))
    except InputError as error:
        _refuse(f"a layer is too large: {error.field} of {error.rule}", EXAMPLE)


def _in_group(chain: Chain, alone: Chain, rates: Roofline, degree: int) -> Chain:
    """Return a chain with the sums over its group, and with outputs that are whole."""
    layers, size = [], alone.layers[0].activation_bytes
    for layer, whole in zip(chain.layers, alone.layers, strict=True):
        sums = 2 if layer.name.startswith(BLOCKS) else 1
        added = ceil(sums * rates.all_reduce_ns(size, degree))
        layers.append(
            replace(
                layer,
                forward_ns=layer.forward_ns + added,
                backward_ns=layer.backward_ns + added,
                activation_bytes=whole.activation_bytes,
            )
        )
    return replace(chain, layers=tuple(layers))


def _read_numbers(text: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (side.strip() for side in part.partition("="))
        if not equals or name not in NUMBERS:
            known = ", ".join(NUMBERS)
            what = "is not known" if equals else "is no NAME=NUMBER"
            raise InputError(f"{show(part)} {what}", field=FIELD, way_out=f"Numbers are {known}")
        if name in numbers:
            _refuse(f"{name} stands there twice", EXAMPLE)
        if not (value.isascii() and value.isdigit() and len(value) <= 9):
            _refuse(f"{show(value)} is no whole number for {name}", f"{name}=8")
        numbers[name] = int(value)
    return numbers


def _experts(numbers: Mapping[str, int]) -> Experts | None:
    """Return the experts of a layer; none where there is one network."""
    count = numbers.get("experts", 1)
    if count <= 1:
        for name in OF_EXPERTS:
            if name in numbers:
                _refuse(f"{name} needs experts", "experts=64")
        return None
    for name in ("active", "expert-ffn"):
        _require(numbers, name)
    if not 1 <= numbers["active"] <= count:
        _refuse(f"a token is sent to {numbers['active']} of {count} experts", "active=8")
    if numbers["expert-ffn"] < 1:
        _refuse("expert-ffn is 0", "expert-ffn=2048")
    return Experts(
        count=count,
        active=numbers["active"],
        shared=numbers.get("shared", 0),
        ffn=numbers["expert-ffn"],
    )


def _require(numbers: Mapping[str, int], name: str) -> None:
    if not numbers.get(name):
        _refuse(f"{name} is not given: {NUMBERS[name]}", EXAMPLE)


def _refuse(rule: str, example: str) -> NoReturn:
    raise InputError(rule, field=FIELD, way_out=f"Write it as in {example}")
