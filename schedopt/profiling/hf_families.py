"""Families of models that transformers builds, and the sizes of the known ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Sizes: TypeAlias = dict[str, Any]
"""What a model of a family is told by: layers, width, ..., whether weights are tied."""

PATCH: Final = 16
"""The side of a patch of ViT, pixels."""


@dataclass(frozen=True, kw_only=True)
class Family:
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
        "patch_size": PATCH,
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


FAMILIES: Final = {
    "gpt2": Family(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        loss="ForCausalLM",
        arguments=_gpt2,
        options=("layers", "width", "heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=1024,
        constants={"use_cache": False},
    ),
    "llama": Family(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        loss="ForCausalLM",
        arguments=_llama,
        options=("layers", "width", "heads", "kv_heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=2048,
        constants={"use_cache": False},
    ),
    "bert": Family(
        model="BertForMaskedLM",
        config="BertConfig",
        loss="ForMaskedLM",
        arguments=_bert,
        options=("layers", "width", "heads", "mlp", "vocabulary", "tied", "dropout"),
        tokens=512,
        constants={},
    ),
    "vit": Family(
        model="ViTForImageClassification",
        config="ViTConfig",
        loss="ForImageClassification",
        arguments=_vit,
        options=("layers", "width", "heads", "mlp", "classes", "dropout"),
        constants={},
    ),
    "resnet": Family(
        model="ResNetForImageClassification",
        config="ResNetConfig",
        loss="ForImageClassification",
        arguments=_resnet,
        options=("width", "classes"),
        constants={},
    ),
}
"""Each family by the name that `KNOWN` gives it."""


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


KNOWN: Final[dict[str, tuple[str, Sizes]]] = {
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
"""Family and sizes of each model."""

NAMES: Final[tuple[str, ...]] = tuple(KNOWN)
"""What can stand behind ``hf:``."""
