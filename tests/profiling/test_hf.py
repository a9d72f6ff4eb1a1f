from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from schedopt import InputError
from schedopt.profiling import Model
from schedopt.profiling.hf import build_model
from schedopt.profiling.hf_catalog import NAMES

TINY = {
    "gpt2": "gpt2:layers=2,width=16,heads=2,vocabulary=31",
    "llama": "llama:layers=2,width=16,heads=4,kv_heads=2,mlp=24,vocabulary=31",
    "bert": "bert-base:layers=2,width=16,heads=2,vocabulary=31",
    "vit": "vit-b16:layers=2,width=16,heads=2,classes=5",
    "resnet18": "resnet18:width=2,classes=5",
    "resnet50": "resnet50:width=2,classes=5",
}
PUBLIC = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-1b": 1_235_814_400,
    "llama-8b": 8_030_261_248,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
}

every_family = pytest.mark.parametrize("family", TINY)
with_head = pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])


def tiny(family: str, more: str = "", **shape: Any) -> Model:
    return build_model(TINY[family] + more, **({"batch": 2, "seq": 8, "image": 32} | shape))


def on_meta(spec: str, **shape: Any) -> Model:
    with torch.device("meta"):
        return build_model(spec, **shape)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def floating(model: Model) -> list[Tensor]:
    tensors = [*model.module.parameters(), *model.tensors.values()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def refusal(spec: str, **shape: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        build_model(spec, **shape)
    return caught.value


def head_and_embedding(model: Model) -> tuple[nn.Module, nn.Module]:
    module: Any = model.module
    return module.get_output_embeddings(), module.get_input_embeddings()


def test_known_models_have_the_parameters_of_the_public_ones() -> None:
    assert {name: count(on_meta(name).module) for name in PUBLIC} == PUBLIC
    assert set(NAMES) - set(PUBLIC) == {"llama"}


@every_family
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_model_is_of_its_dtype_and_computes_a_finite_loss(family: str, dtype: str) -> None:
    model = tiny(family, dtype=dtype)
    assert {tensor.dtype for tensor in floating(model)} == {getattr(torch, dtype)}
    assert torch.get_default_dtype() == torch.float32
    made = model.module(**model.kwargs)
    assert (made.loss.shape, bool(made.loss.isfinite())) == ((), True)
    assert getattr(made, "past_key_values", None) is None


@every_family
def test_it_is_trained_with_fused_attention(family: str) -> None:
    model = tiny(family, ",tied=no" if family in ("gpt2", "llama", "bert") else "")
    assert all(module.training for module in model.module.modules())
    config: Any = model.module.config
    assert "resnet" in family or config._attn_implementation == "sdpa"
    model.module(**model.kwargs).loss.backward()
    without = [name for name, one in model.module.named_parameters() if one.grad is None]
    assert without == []


@every_family
def test_the_same_weights_and_inputs_each_time_whatever_the_caller_draws(family: str) -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002

    def seed() -> None:
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002

    seed()
    expected = draw()
    seed()
    first = tiny(family)
    assert draw() == expected
    second = tiny(family)
    assert first.module.state_dict().keys() == second.module.state_dict().keys()
    for tensor, other in zip(
        [*first.module.state_dict().values(), *first.tensors.values()],
        [*second.module.state_dict().values(), *second.tensors.values()],
        strict=True,
    ):
        assert torch.equal(tensor, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_random_numbers_of_the_caller_go_on_as_before() -> None:
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state()
    model = tiny("gpt2", device="cuda")
    assert {tensor.device.type for tensor in floating(model)} == {"cuda"}
    assert torch.equal(torch.cuda.get_rng_state(), before)


@every_family
def test_it_is_built_without_values_where_tensors_are_fake(family: str) -> None:
    with FakeTensorMode():
        model = tiny(family, dtype="bfloat16")
    assert all(isinstance(tensor, FakeTensor) for tensor in model.tensors.values())
    assert all(isinstance(parameter.data, FakeTensor) for parameter in model.module.parameters())


@pytest.mark.parametrize("build", [on_meta, lambda spec: build_model(spec, device="meta")])
def test_on_meta_everything_is_on_meta(build: Callable[[str], Model]) -> None:
    model = build(TINY["vit"])
    assert {tensor.device.type for tensor in floating(model)} == {"meta"}


@with_head
def test_a_tied_head_is_the_embedding_and_another_its_own(family: str) -> None:
    tied, untied = tiny(family, ",tied=yes"), tiny(family, ",tied=no")
    head, embedding = head_and_embedding(tied)
    assert head.weight is embedding.weight
    head, embedding = head_and_embedding(untied)
    assert isinstance(head.weight, Tensor)
    assert isinstance(embedding.weight, Tensor)
    assert head.weight.data_ptr() != embedding.weight.data_ptr()
    assert count(untied.module) - count(tied.module) == 31 * 16


def test_the_large_llama_is_not_tied() -> None:
    head, embedding = head_and_embedding(on_meta("llama-8b:layers=1"))
    assert head.weight is not embedding.weight


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "llama:layers=3,width=32,heads=8,kv_heads=4,mlp=48,vocabulary=17,dropout=0.25",
            {
                "num_hidden_layers": 3,
                "hidden_size": 32,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "intermediate_size": 48,
                "vocab_size": 17,
                "attention_dropout": 0.25,
            },
        ),
        ("llama:heads=1", {"num_key_value_heads": 1}),
        ("llama-8b:width=2048,layers=1", {"intermediate_size": 7168}),
        ("gpt2:width=24,dropout=.5", {"n_inner": 96, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("gpt2-xl:mlp=8,layers=1", {"n_inner": 8, "n_embd": 1600, "resid_pdrop": 0.0}),
        ("bert-large:layers=2,dropout=0.1", {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1}),
        ("vit-b16:classes=21,layers=1", {"num_labels": 21, "num_hidden_layers": 1}),
        ("resnet50:width=8,classes=3", {"hidden_sizes": [32, 64, 128, 256], "num_labels": 3}),
        ("resnet18:width=8", {"hidden_sizes": [8, 16, 32, 64], "depths": (2, 2, 2, 2)}),
    ],
)
def test_options_are_applied(spec: str, expected: dict[str, Any]) -> None:
    config: Any = on_meta(spec).module.config
    assert {key: getattr(config, key) for key in expected} == expected


@with_head
def test_language_models_have_no_dropout_by_default(family: str) -> None:
    model = tiny(family)
    losses = {model.module(**model.kwargs).loss.item() for _ in range(2)}
    assert len(losses) == 1


@pytest.mark.parametrize(
    ("name", "tokens"), [("gpt2", 1024), ("llama", 2048), ("bert-base", 512), ("llama-8b", 2048)]
)
def test_the_usual_length(name: str, tokens: int) -> None:
    inputs = on_meta(name, batch=3).tensors
    assert {tuple(one.shape) for one in inputs.values()} == {(3, tokens)}


@pytest.mark.parametrize(("family", "usual"), [("gpt2", 1024), ("bert", 512)])
@pytest.mark.parametrize("more", [0, 5])
def test_positions_suffice_for_the_sequence(family: str, usual: int, more: int) -> None:
    model = tiny(family, batch=1, seq=usual + more)
    assert (usual + more, 16) in {tuple(parameter.shape) for parameter in model.module.parameters()}
    assert model.module(**model.kwargs).loss.isfinite()


def test_images_have_the_shape_and_what_a_family_does_not_take_is_left_aside() -> None:
    tiny("gpt2", image=0)
    shapes = {name: tuple(one.shape) for name, one in tiny("vit", image=48, seq=0).tensors.items()}
    assert shapes == {"pixel_values": (2, 3, 48, 48), "labels": (2,)}


@pytest.mark.parametrize(
    ("spec", "normalised"),
    [
        ("gpt2", "hf:gpt2"),
        (" gpt2 : tied = no , layers = 02 ", "hf:gpt2:layers=2,tied=no"),
        ("gpt2:layers=1,dropout=0.00001", "hf:gpt2:layers=1,dropout=1e-05"),
    ],
)
def test_the_model_remembers_what_it_is_and_can_be_built_again(spec: str, normalised: str) -> None:
    factory = on_meta(spec).factory
    assert factory == normalised
    assert on_meta(factory.removeprefix("hf:")).factory == factory


@pytest.mark.nightly
def test_nothing_is_printed() -> None:
    # By day all that is built and run here is held to give no warnings, after its imports.
    code = f"""
from schedopt.profiling.hf import build_model
for spec in {list(TINY.values())}:
    model = build_model(spec, batch=2, seq=8, image=32)
    model.module(**model.kwargs).loss.backward()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("spec", "rule", "way_out"),
    [
        ("", "there is no model hf:", "Choose gpt2, "),
        ("gpt3", "there is no model hf:gpt3", "Did you mean gpt2? Choose gpt2, "),
        ("GPT2-XL", "there is no model hf:GPT2-XL", "Did you mean gpt2-xl? "),
        ("gpt2:", "gpt2 has no option ''", "Choose layers, "),
        ("gpt2:layer=2", "gpt2 has no option 'layer'", "Did you mean layers? Choose layers, "),
        ("gpt2:kv_heads=2", "gpt2 has no option 'kv_heads'", "mlp, vocabulary, tied or dropout"),
        ("vit-b16:tied=no", "vit-b16 has no option 'tied'", "mlp, classes or dropout"),
        ("resnet50:layers=2", "resnet50 has no option 'layers'", "Choose width or classes"),
        ("gpt2:layers", "layers has no value", "layers=VALUE"),
        ("gpt2:layers=", "layers has no value", "layers=VALUE"),
        ("gpt2:layers=1,layers=2", "layers is given twice", "once"),
        ("gpt2:layers=two", "layers=two is not a whole number", "from 1 to 1048576"),
        ("gpt2:layers=1.5", "layers=1.5 is not a whole number", "from 1 to 1048576"),
        ("gpt2:layers=²", "layers=² is not a whole number", "from 1 to 1048576"),
        ("gpt2:layers=0", "layers=0 is too small", "from 1 to 1048576"),
        ("gpt2:layers=-3", "layers=-3 is too small", "from 1 to 1048576"),
        ("gpt2:width=1048577", "width=1048577 is too large", "from 1 to 1048576"),
        ("gpt2:width=" + "9" * 5000, "width=99999999999999999999 is too large", "1048576"),
        ("vit-b16:classes=1", "classes=1 is too small", "from 2 to 1048576"),
        ("gpt2:tied=maybe", "tied=maybe is neither yes nor no", "tied=yes or tied=no"),
        ("gpt2:dropout=1.1", "dropout=1.1 is not a number from 0 to 1", "dropout=0.1"),
        ("gpt2:dropout=-0.1", "dropout=-0.1 is not a number from 0 to 1", "dropout=0.1"),
        ("gpt2:dropout=nan", "dropout=nan is not a number from 0 to 1", "dropout=0.1"),
        ("gpt2:heads=5", "width=768 is not a multiple of heads=5", "Change one"),
        ("bert-base:width=100", "width=100 is not a multiple of heads=12", "Change one"),
        ("llama:kv_heads=3", "heads=8 is not a multiple of kv_heads=3", "Change one"),
        ("llama:kv_heads=16", "heads=8 is not a multiple of kv_heads=16", "Change one"),
        ("llama:width=24", "width=24 over heads=8 is odd", "even multiple"),
    ],
)
def test_a_wrong_name_or_option_is_refused(spec: str, rule: str, way_out: str) -> None:
    error = refusal(spec)
    assert error.field == "model"
    assert error.rule.startswith(rule)
    assert way_out in error.way_out


@pytest.mark.parametrize(
    ("family", "shape", "rule", "way_out"),
    [
        ("gpt2", {"batch": 0}, "batch=0 is too small", "from 1 to"),
        ("gpt2", {"seq": 0}, "seq=0 is too small", "from 1 to"),
        ("gpt2", {"seq": 2**20 + 1}, "seq=1048577 is too large", "to 1048576"),
        ("gpt2", {"batch": 1.5}, "batch=1.5 is not a whole number", "from 1 to"),
        ("gpt2", {"batch": True}, "batch=True is not a whole number", "from 1 to"),
        ("vit", {"image": 0}, "image=0 is too small", "from 1 to"),
        ("vit", {"image": 40}, "image=40 is not a multiple of the patch of 16", "224"),
        ("resnet50", {"batch": 1, "image": 32}, "image=32 shrinks to one pixel", "above 32"),
        ("gpt2", {"dtype": "int8"}, "'int8' is not a dtype", "Choose float32, bfloat16, "),
        ("gpt2", {"device": "abacus"}, "'abacus' is not the name of a device", "Choose cpu, "),
    ],
)
def test_a_wrong_shape_or_dtype_is_refused(
    family: str, shape: dict[str, Any], rule: str, way_out: str
) -> None:
    error = refusal(TINY[family], **shape)
    assert error.field == ("device" if "device" in shape else "model")
    assert error.rule.startswith(rule)
    assert way_out in error.way_out


def test_the_smallest_image_for_one_at_a_time_works() -> None:
    model = tiny("resnet18", batch=1, image=33)
    assert model.module(**model.kwargs).loss.isfinite()


def test_without_transformers_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refusal("gpt2").way_out
