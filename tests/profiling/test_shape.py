"""Profiles of decoders given by numbers: against those of a decoder as it is written by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from schedopt import Chain, InputError, Profile
from schedopt.profiling.decoder import make_chain
from schedopt.profiling.decoder_shape import Attention, Batch, Decoder, Experts
from schedopt.profiling.rates import find_rates
from schedopt.profiling.shape import Shape, make_profile, read_shape
from tests.cli.commands import printed, run

RATES = find_rates("h100", "half")
PLAIN = "layers=3,hidden=64,heads=4,kv-heads=2,ffn=96,vocabulary=100"
MOE = "layers=3,hidden=64,heads=4,head=32,ffn=96,vocabulary=100,predictors=1,dense=1"
MOE += ",experts=8,active=2,shared=1,expert-ffn=48,expert-parallel=4"
HUGE = "layers=3,hidden=999999999,heads=1,ffn=999999999,vocabulary=100"


def test_numbers_are_read() -> None:
    attention = Attention.grouped(64, 4, 2, 16)
    decoder = Decoder(
        layers=3, hidden=64, ffn=96, vocabulary=100, attention=attention, name="decoder"
    )
    assert read_shape(PLAIN) == Shape(decoder=decoder, heads=4, compared=64)
    experts = Experts(count=8, active=2, shared=1, ffn=48)
    wide = replace(
        decoder,
        attention=Attention.grouped(64, 4, 4, 32),
        experts=experts,
        dense=1,
        predictors=1,
    )
    assert read_shape(MOE) == Shape(decoder=wide, heads=4, compared=256, expert=4)


@pytest.mark.parametrize("text", [PLAIN, MOE])
def test_on_one_gpu_it_is_the_chain_of_the_decoder(text: str) -> None:
    shape = read_shape(text)
    profile = make_profile(shape, RATES, sequence=128, sizes=(1, 2))
    for variant, samples in zip(profile.variants, (1, 2), strict=True):
        batch = Batch(sequence=128, samples=samples, expert=shape.expert)
        assert variant.chain == make_chain(shape.decoder, batch, RATES)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (",context-parallel=0", "0 GPUs do not share a sequence"),
        (",context-parallel=3", "4 GPUs that share the experts are no multiple of 3"),
    ],
)
def test_gpus_that_share_nothing_are_refused(more: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        read_shape(MOE + more)


def test_keys_and_values_go_round_between_gpus_that_share_sequences() -> None:
    shape = read_shape(f"{PLAIN},context-parallel=4")
    (variant,) = make_profile(shape, RATES, sequence=128).variants
    part = make_chain(shape.decoder, Batch(sequence=128, context=4), RATES)
    # Three rounds, each with the keys and values of 32 tokens: two heads of 16 values, twice.
    bandwidth, latency = RATES.link_bytes_per_s, RATES.latency_ns
    assert bandwidth is not None
    each = ceil(3 * (latency + Fraction(32 * 2 * 2 * 16 * 2 * 10**9, bandwidth)))
    assert variant.chain.context == 4
    for number, (one, own) in enumerate(zip(variant.chain.layers, part.layers, strict=True)):
        added = each if 0 < number < 4 else 0
        assert one.forward_ns == own.forward_ns + added
        assert one.backward_ns == own.backward_ns + 2 * added
        assert one.parameter_bytes == own.parameter_bytes


def test_groups_add_their_sums_and_send_whole_outputs() -> None:
    profile = make_profile(read_shape(PLAIN), RATES, sequence=128, degrees=(1, 2))
    alone, group = (variant.chain for variant in profile.variants)
    part = make_chain(read_shape(PLAIN).decoder, Batch(sequence=128, tensor=2), RATES)
    # A ring of two: each sends half of the hidden values, twice.
    bandwidth, latency = RATES.link_bytes_per_s, RATES.latency_ns
    assert bandwidth is not None
    each = 2 * (latency + 128 * 64 * 2 // 2 * 10**9 / bandwidth)
    for number, (one, own, whole) in enumerate(
        zip(group.layers, part.layers, alone.layers, strict=True)
    ):
        sums = 2 if 0 < number < 4 else 1
        for added in (one.forward_ns - own.forward_ns, one.backward_ns - own.backward_ns):
            assert added == pytest.approx(sums * each, abs=1)
        assert one.activation_bytes == whole.activation_bytes
        assert one.saved_bytes == own.saved_bytes
        assert one.weight_bytes == own.weight_bytes


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{PLAIN},active=2", "active needs experts"),
        (f"{PLAIN},experts=8,active=2", "expert-ffn is not given"),
        (f"{PLAIN},experts=8,active=9,expert-ffn=4", "a token is sent to 9 of 8 experts"),
        (f"{MOE},kv-heads=3", "4 heads do not share 3"),
        (MOE.replace("dense=1", "dense=4"), "4 dense layers are more than all 3"),
        (MOE.replace("parallel=4", "parallel=3"), "3 GPUs do not share the experts"),
        (PLAIN.replace("hidden=64", "hidden=66"), "66 values are not shared evenly by 4"),
        (PLAIN.replace("layers=3", "layers=0"), "layers is not given"),
        (PLAIN.replace("ffn=96", "head=2"), "ffn is not given"),
        (f"{PLAIN},head=0", "a head has no values"),
        (PLAIN.replace("layers=3", "layers=999999999"), "at most 4096 layers"),
        (f"{PLAIN},predictors=4092", "at most 4096 layers"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        read_shape(text)
    assert caught.value.field == "shape"
    assert caught.value.way_out


def product_ns(inputs: int, outputs: int, tokens: int = 128, parts: int = 1) -> Fraction:
    """Return how long tokens take through weights, of which a GPU has one of some parts."""
    moved = 2 * (tokens * (inputs + outputs) + inputs * outputs // parts)
    return max(Fraction(2 * tokens * inputs * outputs * 10**9, RATES.flops), RATES.moving_ns(moved))


AGAIN: dict[str, tuple[int, Fraction]] = {
    # Two norms of 64 values a token, half precision: written again, not kept.
    "layernorm": (128 * 2 * 2 * 64, RATES.moving_ns(128 * 2 * 4 * 64)),
    "mlp": (
        128 * 2 * 3 * 96,
        product_ns(64, 192) + product_ns(96, 64) + RATES.moving_ns(128 * 2 * 3 * 96),
    ),
    # Queries and keys of 4 heads of 16 values, and as many values added up, each with the
    # (128 + 1) / 2 keys before it.
    "core_attn": (0, Fraction(128 * 2 * 129 * (64 + 64) * 10**9, 2 * RATES.flops)),
}


@pytest.mark.parametrize("module", AGAIN)
def test_a_module_that_is_computed_again_keeps_less_and_takes_longer(module: str) -> None:
    profile = make_profile(read_shape(PLAIN), RATES, sequence=128, recomputed_modules=[module])
    kept, again = (variant.chain for variant in profile.variants)
    assert profile.measured == ((1, ()), (1, (module,)))
    less, longer = AGAIN[module]
    for number, (one, own) in enumerate(zip(kept.layers, again.layers, strict=True)):
        inside = 0 < number < 4
        assert one.saved - own.saved == (less if inside else 0)
        assert (own.workspace_bytes or 0) == (less if inside else 0)
        more = own.backward_ns - one.backward_ns
        assert abs(more - (longer if inside else Fraction(0))) <= 1
        assert own.forward_ns == one.forward_ns
        assert own.weight_bytes == one.weight_bytes


def test_experts_that_are_computed_again() -> None:
    shape = read_shape(MOE)
    chains = {
        modules: make_profile(shape, RATES, sequence=128, recomputed_modules=modules)
        .variants[-1]
        .chain.layers
        for modules in ((), ("moe",), ("moe_act",), ("moe", "moe_act"), ("mlp",))
    }
    kept, moe, act = chains[()], chains["moe",], chains["moe_act",]
    # Two experts of 48 values and one that takes all tokens: three times each, and sorted tokens.
    assert kept[2].saved - moe[2].saved == 128 * 2 * (3 * 3 * 48 + 2 * 64)
    assert kept[2].saved - act[2].saved == 128 * 2 * 2 * 48
    # The router; the experts, of which a GPU has two of eight; and the one that takes all.
    products = (
        product_ns(64, 8)
        + max(
            Fraction(2 * 256 * 64 * 96 * 10**9, RATES.flops),
            RATES.moving_ns(2 * (256 * (64 + 96) + 2 * 64 * 96)),
        )
        + max(
            Fraction(2 * 256 * 48 * 64 * 10**9, RATES.flops),
            RATES.moving_ns(2 * (256 * (48 + 64) + 2 * 48 * 64)),
        )
        + product_ns(64, 96)
        + product_ns(48, 64)
    )
    moved = RATES.moving_ns(128 * 2 * (3 * 3 * 48 + 2 * 3 * 64))
    assert abs(moe[2].backward_ns - kept[2].backward_ns - products - moved) <= 1
    assert chains["moe", "moe_act"] == moe
    # The first layer has no experts, the others no other network.
    assert moe[1] == act[1] == kept[1]
    assert chains["mlp",][2] == kept[2]
    assert chains["mlp",][1].saved < kept[1].saved


@pytest.mark.parametrize(
    ("text", "module", "rule"),
    [
        (PLAIN, "mla_up_proj", "'mla_up_proj' is no module"),
        (PLAIN, "moe", "no layer of this shape has 'moe'"),
        (PLAIN, "moe_act", "no layer of this shape has 'moe_act'"),
        (MOE.replace("dense=1", "dense=0"), "mlp", "no layer of this shape has 'mlp'"),
    ],
)
def test_modules_that_a_shape_lacks_are_refused(text: str, module: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        make_profile(read_shape(text), RATES, sequence=128, recomputed_modules=[module])
    assert caught.value.field == "recomputed_modules"


@pytest.mark.parametrize(
    ("text", "degree", "field", "rule"),
    [
        (PLAIN, 3, "degrees", "3 GPUs do not share 4 attention heads"),
        (HUGE, 1, "shape", "a layer is too large"),
    ],
)
def test_what_no_group_or_chain_can_hold_is_refused(
    text: str, degree: int, field: str, rule: str
) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        make_profile(read_shape(text), RATES, sequence=1, degrees=(1, degree))
    assert caught.value.field == field


def test_the_command_writes_a_chain_or_a_profile(tmp_path: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    shown = printed("profile", "--shape", PLAIN, "--on", "h100", "--seq", "128", "-o", one)
    assert "layers.2" in shown
    assert "Chain written" in shown
    assert len(Chain.load(one).layers) == 5
    more = ("--tensor-parallel", "1,2", "--batch", "1,2")
    shown = printed("profile", "--shape", MOE, "--on", "h100", *more, "-o", several)
    assert "Profile written" in shown
    profile = Profile.load(several)
    assert profile.degrees == profile.sizes == (1, 2)
    assert [layer.name for layer in profile.variants[0].chain.layers][-2:] == ["mtp.0", "head"]
    again = ("--recompute-modules", "moe_act,layernorm")
    shown = printed("profile", "--shape", MOE, "--on", "h100", *again, "-o", several)
    assert "layernorm, moe_act" in shown
    assert Profile.load(several).measured == ((1, ()), (1, ("layernorm", "moe_act")))
    odd = ("--tensor-parallel", "3")
    done = run("profile", "--shape", PLAIN, "--on", "h100", *odd, "-o", tmp_path / "odd.json")
    assert done.returncode == 2
    assert "--tensor-parallel: 3 GPUs do not share 4 attention heads evenly" in done.stderr
