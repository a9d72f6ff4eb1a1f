"""Known models by name, built from a configuration of transformers; no download."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeAlias
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from schedopt.errors import InputError
from schedopt.profiling.devices import find_device
from schedopt.profiling.factory import Model, require_package

Sizes: TypeAlias = dict[str, Any]

_SEED: Final = 0
_LARGEST: Final = 2**20
_PATCH: Final = 16
_SHRINKING: Final = 32
_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What models have in common that differ only in their sizes.

    Parameters
    ----------
    model, config : str
        Classes of transformers.
    loss : str
        The loss that transformers computes when labels are given.
    arguments : callable
        From the sizes, and the tokens or the side of an image, to the arguments of the config.
    options : tuple of str
        The sizes that can be chosen, in the order in which they are written.
    tokens : int
        The usual length of a sequence. 0: it takes images.
    constants : mapping
        Inputs that are no tensors.
    """

    model: str
    config: str
    loss: str
    arguments: Callable[[Sizes, int], dict[str, Any]]
    options: tuple[str, ...]
    tokens: int = 0
    constants: Mapping[str, Any]


def _gpt2(sizes: Sizes, tokens: int) -> dict[str, Any]:
    return {
        "n_layer": sizes["layers"],
        "n_embd": sizes["width"],
        "n_head": sizes["heads"],
        "n_inner": sizes["mlp"],
        "vocab_size": sizes["vocabulary"],
        "n_positions": max(1024, tokens),
        "tie_word_embeddings": sizes["tied"],
        "embd_pdrop": sizes["dropout"],
        "resid_pdrop": sizes["dropout"],
        "attn_pdrop": sizes["dropout"],
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _llama(sizes: Sizes, tokens: int) -> dict[str, Any]:
    # How Llama 3 stretches its rotary frequencies changes values, not sizes or times.
    return {
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["width"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "intermediate_size": sizes["mlp"],
        "vocab_size": sizes["vocabulary"],
        "max_position_embeddings": max(131072, tokens),
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": sizes["tied"],
        "attention_dropout": sizes["dropout"],
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _encoder(sizes: Sizes) -> dict[str, Any]:
    return {
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["width"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["mlp"],
        "hidden_dropout_prob": sizes["dropout"],
        "attention_probs_dropout_prob": sizes["dropout"],
        "attn_implementation": "sdpa",
    }


def _bert(sizes: Sizes, tokens: int) -> dict[str, Any]:
    return _encoder(sizes) | {
        "vocab_size": sizes["vocabulary"],
        "max_position_embeddings": max(512, tokens),
        "tie_word_embeddings": sizes["tied"],
    }


def _vit(sizes: Sizes, image: int) -> dict[str, Any]:
    return _encoder(sizes) | {
        "image_size": image,
        "patch_size": _PATCH,
        "num_labels": sizes["classes"],
        "problem_type": "single_label_classification",
    }


def _resnet(sizes: Sizes, _: int) -> dict[str, Any]:
    widening = {"basic": 1, "bottleneck": 4}[sizes["block"]]
    return {
        "embedding_size": sizes["width"],
        "hidden_sizes": [sizes["width"] * widening * 2**stage for stage in range(4)],
        "depths": sizes["blocks"],
        "layer_type": sizes["block"],
        "num_labels": sizes["classes"],
        "problem_type": "single_label_classification",
    }


_FAMILIES: Final = {
    "gpt2": _Family(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        loss="ForCausalLM",
        arguments=_gpt2,
        options=("layers", "width", "heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=1024,
        constants={"use_cache": False},
    ),
    "llama": _Family(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        loss="ForCausalLM",
        arguments=_llama,
        options=("layers", "width", "heads", "kv_heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=2048,
        constants={"use_cache": False},
    ),
    "bert": _Family(
        model="BertForMaskedLM",
        config="BertConfig",
        loss="ForMaskedLM",
        arguments=_bert,
        options=("layers", "width", "heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=512,
        constants={},
    ),
    "vit": _Family(
        model="ViTForImageClassification",
        config="ViTConfig",
        loss="ForImageClassification",
        arguments=_vit,
        options=("layers", "width", "heads", "mlp", "classes", "dropout"),
        constants={},
    ),
    "resnet": _Family(
        model="ResNetForImageClassification",
        config="ResNetConfig",
        loss="ForImageClassification",
        arguments=_resnet,
        options=("width", "classes"),
        constants={},
    ),
}


def _text(layers: int, width: int, heads: int, mlp: int, vocabulary: int, *, tied: bool) -> Sizes:
    return {
        "layers": layers,
        "width": width,
        "heads": heads,
        "mlp": mlp,
        "vocabulary": vocabulary,
        "tied": tied,
        "dropout": 0.0,
    }


def _patches(layers: int, width: int, heads: int, mlp: int) -> Sizes:
    sizes = {"layers": layers, "width": width, "heads": heads, "mlp": mlp}
    return sizes | {"classes": 1000, "dropout": 0.0}


def _stages(block: str, *blocks: int) -> Sizes:
    return {"block": block, "blocks": blocks, "width": 64, "classes": 1000}


_KNOWN: Final[dict[str, tuple[str, Sizes]]] = {
    # openai-community/gpt2, gpt2-medium, gpt2-large, gpt2-xl
    "gpt2": ("gpt2", _text(12, 768, 12, 3072, 50257, tied=True)),
    "gpt2-medium": ("gpt2", _text(24, 1024, 16, 4096, 50257, tied=True)),
    "gpt2-large": ("gpt2", _text(36, 1280, 20, 5120, 50257, tied=True)),
    "gpt2-xl": ("gpt2", _text(48, 1600, 25, 6400, 50257, tied=True)),
    # of no public model
    "llama": ("llama", _text(4, 256, 8, 1024, 32000, tied=False) | {"kv_heads": 2}),
    # meta-llama/Llama-3.2-1B, Llama-3.1-8B
    "llama-1b": ("llama", _text(16, 2048, 32, 8192, 128256, tied=True) | {"kv_heads": 8}),
    "llama-8b": ("llama", _text(32, 4096, 32, 14336, 128256, tied=False) | {"kv_heads": 8}),
    # google-bert/bert-base-uncased, bert-large-uncased
    "bert-base": ("bert", _text(12, 768, 12, 3072, 30522, tied=True)),
    "bert-large": ("bert", _text(24, 1024, 16, 4096, 30522, tied=True)),
    # google/vit-base-patch16-224, vit-large-patch16-224
    "vit-b16": ("vit", _patches(12, 768, 12, 3072)),
    "vit-l16": ("vit", _patches(24, 1024, 16, 4096)),
    # microsoft/resnet-18, resnet-50, resnet-101
    "resnet18": ("resnet", _stages("basic", 2, 2, 2, 2)),
    "resnet50": ("resnet", _stages("bottleneck", 3, 4, 6, 3)),
    "resnet101": ("resnet", _stages("bottleneck", 3, 4, 23, 3)),
}

NAMES: Final[tuple[str, ...]] = tuple(_KNOWN)
"""What can stand behind ``hf:``."""


def build_model(
    spec: str,
    *,
    batch: int = 1,
    seq: int | None = None,
    image: int = 224,
    dtype: str = "float32",
    device: str = "cpu",
) -> Model:
    """Build a model with random weights and one random micro-batch, the same ones each time.

    The state of the caller's random numbers is left as it was. Attention is torch's
    ``scaled_dot_product_attention``, and the model computes its own loss.

    Parameters
    ----------
    spec : str
        One of `NAMES`, with options behind a colon: ``gpt2:tied=no,layers=2``. Of the options
        ``layers``, ``width``, ``heads``, ``kv_heads``, ``mlp``, ``vocabulary``, ``classes``,
        ``tied`` (yes or no) and ``dropout`` (0 to 1, by default 0), each family has some. ``mlp``
        follows ``width``, and ``kv_heads`` is at most ``heads``, unless they are given.
    batch : int
        Sequences or images in a micro-batch.
    seq : int, optional
        Tokens in a sequence. Default: 1024 for GPT-2, 2048 for Llama, 512 for BERT. GPT-2 and BERT
        get more positions where it is longer than theirs. Image models leave it aside.
    image : int
        Height and width of an image, pixels. Language models leave it aside.
    dtype : {"float32", "bfloat16", "float16", "float64"}
        Of parameters and of images. Rotary frequencies stay in single precision, as in a real run.
    device : str
        Where it is built. Within ``torch.device("meta")`` it is built there.

    Returns
    -------
    Model
        In training mode, its inputs by name.

    Raises
    ------
    InputError
        With the rule and the way out; also if transformers is not installed.
    """
    name, given = _parse(spec)
    kind, named = _KNOWN[name]
    family = _FAMILIES[kind]
    sizes = _fill(named, given)
    _check_sizes(kind, sizes)
    seq = family.tokens if seq is None else seq
    for what, value in (("batch", batch), ("seq", seq), ("image", image)):
        if what != ("image" if family.tokens else "seq"):
            _check_whole(what, value)
    _check_image(kind, image, batch)
    number_type = _find_dtype(dtype)
    place = _find_place(device)
    shape = (batch, seq) if family.tokens else (batch, 3, image, image)
    # Imports what it needs, so before there is any other default device.
    model_class, config = _configure(family, sizes, shape[-1])
    with _seeded(place), torch.device(place):
        module = _build(family, model_class, config, number_type)
        inputs = _draw(family, sizes, shape, number_type)
    return Model(module=module, inputs=inputs, factory=_normalised(name, family, given))


def _configure(family: _Family, sizes: Sizes, extent: int) -> tuple[Any, Any]:
    """Return the class of transformers and its config."""
    transformers = require_package("transformers")
    config = getattr(transformers, family.config)(**family.arguments(sizes, extent))
    return getattr(transformers, family.model), config


def _build(family: _Family, model_class: Any, config: Any, dtype: torch.dtype) -> nn.Module:
    with _values_if_any():
        module: Any = model_class._from_config(config, dtype=dtype)
    # Without it, transformers takes this very loss for GPT-2, but warns that it does.
    module.loss_type = family.loss
    if family.model == "BertForMaskedLM" and not config.tie_word_embeddings:
        # Untied, transformers leaves a second bias that nothing reads.
        module.cls.predictions.bias = module.cls.predictions.decoder.bias
    built: nn.Module = module.train()
    return built


@contextmanager
def _values_if_any() -> Iterator[None]:
    """Leave weights that have no values as they are: drawing for ViT looks at what it drew."""
    if not isinstance(torch.empty(0), FakeTensor):
        yield
        return
    base = require_package("transformers").PreTrainedModel
    with mock.patch.object(base, "initialize_weights", return_value=None):
        yield


def _draw(
    family: _Family, sizes: Sizes, shape: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Any]:
    inputs: dict[str, Any]
    if family.tokens:
        inputs = {
            "input_ids": torch.randint(sizes["vocabulary"], shape),
            "labels": torch.randint(sizes["vocabulary"], shape),
        }
    else:
        inputs = {
            "pixel_values": torch.randn(shape, dtype=dtype),
            "labels": torch.randint(sizes["classes"], shape[:1]),
        }
    return {**inputs, **family.constants}


@contextmanager
def _seeded(place: torch.device) -> Iterator[None]:
    """Draw the same random numbers each time, and put back the state of the caller's."""
    on_gpu = place.type == "cuda"
    with torch.random.fork_rng(devices=[place] if on_gpu else []):
        # torch.manual_seed would seed the other GPUs, too.
        torch.default_generator.manual_seed(_SEED)
        if on_gpu:
            with torch.cuda.device(place):
                torch.cuda.manual_seed(_SEED)
        yield


def _find_place(device: str) -> torch.device:
    meta = torch.device("meta")
    return meta if device == "meta" or torch.get_default_device() == meta else find_device(device)


def _find_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise _refuse(f"{name!r:.60} is not a dtype of parameters", f"Choose {_either(_DTYPES)}")
    return _DTYPES[name]


def _parse(spec: str) -> tuple[str, Sizes]:
    """Return the name and the options that are given, their values read."""
    name, colon, rest = spec.partition(":")
    name = name.strip()
    if name not in _KNOWN:
        close = get_close_matches(name.lower(), NAMES, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise _refuse(f"there is no model hf:{name:.60}", f"{hint}Choose {_either(NAMES)}")
    known = _FAMILIES[_KNOWN[name][0]].options
    given: Sizes = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = (text.strip() for text in part.partition("="))
        if key not in known:
            close = get_close_matches(key.lower(), known, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise _refuse(f"{name} has no option {key!r:.60}", f"{hint}Choose {_either(known)}")
        if not equals or not value:
            raise _refuse(f"{key} has no value", f"Write it as {key}=VALUE")
        if key in given:
            raise _refuse(f"{key} is given twice", "Give it once")
        given[key] = _read(key, value)
    return name, given


def _read(key: str, text: str) -> int | float | bool:
    if key == "tied":
        if text not in ("yes", "no"):
            raise _refuse(f"tied={text:.60} is neither yes nor no", "Write tied=yes or tied=no")
        return text == "yes"
    if key == "dropout":
        if not re.fullmatch(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-[0-9]+)?", text) or float(text) > 1:
            raise _refuse(
                f"dropout={text:.60} is not a number from 0 to 1", "Write it as dropout=0.1"
            )
        return float(text)
    if not re.fullmatch(r"-?[0-9]+", text):
        raise _refuse(f"{key}={text:.60} is not a whole number", _way_out_of_whole(key))
    value = int(text[:20])
    _check_whole(key, value)
    return value


def _check_whole(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(f"{key}={value!r:.60} is not a whole number", _way_out_of_whole(key))
    if not _smallest(key) <= value <= _LARGEST:
        size = "small" if value < _smallest(key) else "large"
        raise _refuse(f"{key}={value} is too {size}", _way_out_of_whole(key))


def _smallest(key: str) -> int:
    return 2 if key == "classes" else 1


def _way_out_of_whole(key: str) -> str:
    return f"Give a whole number from {_smallest(key)} to {_LARGEST}"


def _fill(named: Sizes, given: Sizes) -> Sizes:
    sizes = named | given
    if "mlp" in named and "mlp" not in given:
        sizes["mlp"] = max(1, sizes["width"] * named["mlp"] // named["width"])
    if "kv_heads" in named and "kv_heads" not in given:
        sizes["kv_heads"] = min(sizes["heads"], named["kv_heads"])
    return sizes


def _check_sizes(kind: str, sizes: Sizes) -> None:
    if kind == "resnet":
        return
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise _refuse(f"width={width} is not a multiple of heads={heads}", "Change one of them")
    if kind != "llama":
        return
    if heads % sizes["kv_heads"]:
        raise _refuse(
            f"heads={heads} is not a multiple of kv_heads={sizes['kv_heads']}", "Change one of them"
        )
    if width // heads % 2:
        raise _refuse(
            f"width={width} over heads={heads} is odd, and its halves are rotated",
            "Make the width an even multiple of the heads",
        )


def _check_image(kind: str, image: int, batch: int) -> None:
    if kind == "vit" and image % _PATCH:
        raise _refuse(
            f"image={image} is not a multiple of the patch of {_PATCH}",
            f"Give a multiple of {_PATCH}, such as 224",
        )
    if kind == "resnet" and batch == 1 and image <= _SHRINKING:
        raise _refuse(
            f"image={image} shrinks to one pixel, over which batch norm has no variance",
            f"Give a batch of 2 or an image above {_SHRINKING}",
        )


def _normalised(name: str, family: _Family, given: Sizes) -> str:
    options = [f"{key}={_shown(given[key])}" for key in family.options if key in given]
    return f"hf:{name}{':' if options else ''}{','.join(options)}"


def _shown(value: float | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value}"


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _refuse(rule: str, way_out: str) -> InputError:
    return InputError(rule, field="model", way_out=way_out)
