"""Chains of decoders from their shapes: against figures of their makers, and a traced model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, InputError
from schedopt.profiling import estimate, load_model
from schedopt.profiling.decoder import make_chain
from schedopt.profiling.decoder_shape import Attention, Batch, Decoder, Experts
from schedopt.profiling.rates import Roofline, find_rates
from schedopt.transformer_blocks import find_blocks

RATES = find_rates("h100", "half")
LLAMA_70B = Decoder(
    layers=80,
    hidden=8192,
    ffn=28672,
    vocabulary=128256,
    attention=Attention.grouped(8192, 64, 8, 128),
)
DEEPSEEK_V3 = Decoder(
    layers=61,
    hidden=7168,
    ffn=18432,
    vocabulary=129280,
    attention=Attention.latent(7168, 128, ranks=(1536, 512), head=(128, 64, 128)),
    experts=Experts(count=256, active=8, shared=1, ffn=2048),
    dense=3,
)


def parameters(chain: Chain) -> float:
    """Return the parameters of a chain, 10**9."""
    return sum(layer.parameter_bytes or 0 for layer in chain.layers) / 2e9


def test_parameters_are_those_that_their_makers_give() -> None:
    # Without those of norms, which are few: 70.6 of Llama 3 (Llama Team 2024), 671 of DeepSeek-V3
    # and 14 of what predicts a further token, embedding and head of which are those of the model.
    assert parameters(make_chain(LLAMA_70B, Batch(sequence=1), RATES)) == pytest.approx(70.55, 1e-3)
    main = make_chain(DEEPSEEK_V3, Batch(sequence=1), RATES)
    assert parameters(main) == pytest.approx(671.0, 1e-3)
    further = make_chain(replace(DEEPSEEK_V3, predictors=1), Batch(sequence=1), RATES)
    shared = 2 * 129280 * 7168 / 1e9
    assert parameters(further) - parameters(main) == pytest.approx(14 - shared, abs=1)


def test_work_is_that_of_the_products_of_a_traced_model() -> None:
    """A Llama that torch runs without memory, at a rate of operations alone."""
    rates = Roofline(flops=10**12)
    text = "hf:llama:layers=1,width=256,heads=8,kv_heads=2,mlp=512,vocabulary=1000"
    traced = estimate(lambda: load_model(text, batch=2, seq=64), flops=10**12)
    decoder = Decoder(
        layers=1,
        hidden=256,
        ffn=512,
        vocabulary=1000,
        attention=Attention.grouped(256, 8, 2, 32),
    )
    chain = make_chain(decoder, Batch(sequence=64, samples=2), rates)
    assert 2 * parameters(chain) == pytest.approx(parameters(traced), 1e-2)
    # torch counts attention over all keys, not up to the own one: 4 s^2 h of each sample more.
    work = sum(layer.forward_ns for layer in chain.layers)
    theirs = sum(layer.forward_ns for layer in traced.layers)
    more = 2 * (2 * 64 * 63 * 256) * 1e-3
    assert work + more == pytest.approx(theirs, 1e-3)


def test_a_part_of_a_group_has_its_part_of_work_and_bytes() -> None:
    whole = make_chain(LLAMA_70B, Batch(sequence=8192), RATES)
    for batch in (Batch(sequence=8192, tensor=4), Batch(sequence=8192, context=4)):
        part = make_chain(LLAMA_70B, batch, RATES)
        for one, other in zip(part.layers, whole.layers, strict=True):
            for name in ("activation_bytes", "saved_bytes"):
                assert getattr(one, name) == pytest.approx(getattr(other, name) / 4, abs=1)
            if one.forward_ns > 10**6:
                assert one.forward_ns == pytest.approx(other.forward_ns / 4, 0.02)
            shared = 4 if batch.tensor > 1 else 1
            assert one.parameter_bytes == pytest.approx((other.parameter_bytes or 0) / shared)


def test_experts_lie_on_the_gpus_that_share_them() -> None:
    alone, shared = (
        make_chain(DEEPSEEK_V3, Batch(sequence=4096, expert=count), RATES) for count in (1, 64)
    )
    experts = 3 * 256 * 7168 * 2048
    for number, (one, other) in enumerate(zip(shared.layers, alone.layers, strict=True)):
        own = experts if 4 <= number <= 61 else 0
        assert other.weight_bytes - one.weight_bytes == 18 * own * 63 // 64
        # Not all replicas add up the gradients of experts, of which each GPU has a part.
        assert (other.parameter_bytes or 0) - (one.parameter_bytes or 0) == 2 * own
        assert (other.gradient_bytes or 0) - (one.gradient_bytes or 0) == 4 * own
        parts = (one.expert_parameter_bytes, one.expert_gradient_bytes, one.expert_optimizer_bytes)
        assert parts == (2 * own // 64, 4 * own // 64, 12 * own // 64)
        assert other.expert_parameter_bytes is None
    assert (alone.expert, shared.expert) == (1, 64)


def test_the_head_of_llama_70b_is_worth_more_than_a_layer() -> None:
    # By its products alone 2 h V over those of a layer and half of its scores: 1.14.
    products = make_chain(LLAMA_70B, Batch(sequence=8192), Roofline(flops=10**15)).layers
    ratio = products[-1].forward_ns / products[1].forward_ns
    layer = 2 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672) + 2 * 8193 * 8192
    assert ratio == pytest.approx(2 * 8192 * 128256 / layer, 1e-4)
    assert ratio == pytest.approx(1.14, abs=0.005)


def test_its_layers_are_known_by_their_names() -> None:
    blocks = find_blocks(make_chain(replace(DEEPSEEK_V3, predictors=2), Batch(sequence=8), RATES))
    assert (blocks.count, blocks.predictors, blocks.head) == (61, 2, 62)
    assert sorted(blocks.begins) == [*range(63), 64]


def test_impossible_experts_are_refused() -> None:
    with pytest.raises(InputError, match="9 are more than all 8"):
        Experts(count=8, active=9, shared=0, ffn=1)
