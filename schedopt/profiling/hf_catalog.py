"""Known models by name: their families in transformers, their sizes, and options behind ``hf:``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from schedopt.errors import InputError

Sizes: TypeAlias = dict[str, Any]
"""The sizes of a model: layers, width, ..., whether weights are tied."""

PATCH: Final = 16
"""The side of a patch of ViT, pixels."""
_LARGEST: Final = 2**20
_SMALLEST_IMAGE: Final = 33
"""Below it a ResNet shrinks an image to one pixel."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What models have in common that differ only in their sizes.

    Parameters
    ----------
    model : str
        The class of transformers.
    loss : str
        The loss that transformers computes when labels are given.
    sizes : mapping
        From an argument of the config to the size that it takes.
    fixed : mapping
        Arguments of the config that are the same for all sizes.
    longest : (str, int), optional
        The argument for the number of positions, and its least value.
    tokens : int
        The usual length of a sequence. 0: it takes images.
    constants : mapping
        Inputs that are not tensors.
    """

    model: str
    loss: str
    sizes: Mapping[str, str]
    fixed: Mapping[str, Any]
    longest: tuple[str, int] | None = None
    tokens: int = 0
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """The sizes that can be chosen, in the order in which they are written."""
        return tuple(dict.fromkeys(self.sizes.values()))

    def known(self, *values: float | bool, **more: Any) -> Sizes:
        """Return sizes in the order of the options; `dropout`, the last, is none."""
        return {"dropout": 0.0, **dict(zip(self.options, values, strict=False)), **more}

    def arguments(self, sizes: Sizes, extent: int) -> dict[str, Any]:
        """Return the arguments of the config; `extent` is in tokens, or the side of an image."""
        arguments = {name: sizes[size] for name, size in self.sizes.items()} | dict(self.fixed)
        if self.longest is not None:
            name, least = self.longest
            arguments[name] = max(least, extent)
        if self.model.startswith("ViT"):
            arguments["image_size"] = extent
        if self.model.startswith("ResNet"):
            widening = {"basic": 1, "bottleneck": 4}[sizes["block"]]
            widths = [sizes["width"] * widening * 2**stage for stage in range(4)]
            blocks = {"layer_type": sizes["block"], "depths": sizes["blocks"]}
            arguments |= {**blocks, "hidden_sizes": widths}
        return arguments


_SDPA: Final = {"attn_implementation": "sdpa"}
_DECODER: Final = _SDPA | {"bos_token_id": None, "eos_token_id": None}
_ENCODER: Final = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp",
}
_VOCABULARY: Final = {"vocab_size": "vocabulary", "tie_word_embeddings": "tied"}
_DROPOUT: Final = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "dropout"}
_LABELLED: Final = {"problem_type": "single_label_classification"}

_GPT2: Final = Family(
    model="GPT2LMHeadModel",
    loss="ForCausalLM",
    sizes={
        **{"n_layer": "layers", "n_embd": "width", "n_head": "heads", "n_inner": "mlp"},
        **_VOCABULARY,
        **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), "dropout"),
    },
    fixed=_DECODER,
    longest=("n_positions", 1024),
    tokens=1024,
    constants={"use_cache": False},
)
_LLAMA: Final = Family(
    model="LlamaForCausalLM",
    loss="ForCausalLM",
    sizes={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "intermediate_size": "mlp",
        **_VOCABULARY,
        "attention_dropout": "dropout",
    },
    # How Llama 3 stretches its rotary frequencies changes values, not sizes or times.
    fixed=_DECODER
    | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-5,
    },
    longest=("max_position_embeddings", 131072),
    tokens=2048,
    constants={"use_cache": False},
)
_BERT: Final = Family(
    model="BertForMaskedLM",
    loss="ForMaskedLM",
    sizes=_ENCODER | _VOCABULARY | _DROPOUT,
    fixed=_SDPA,
    longest=("max_position_embeddings", 512),
    tokens=512,
)
_VIT: Final = Family(
    model="ViTForImageClassification",
    loss="ForImageClassification",
    sizes=_ENCODER | {"num_labels": "classes"} | _DROPOUT,
    fixed=_SDPA | _LABELLED | {"patch_size": PATCH},
)
_RESNET: Final = Family(
    model="ResNetForImageClassification",
    loss="ForImageClassification",
    sizes={"embedding_size": "width", "num_labels": "classes"},
    fixed=_LABELLED,
)

KNOWN: Final[dict[str, tuple[Family, Sizes]]] = {
    # openai-community/gpt2, gpt2-medium, gpt2-large, gpt2-xl
    "gpt2": (_GPT2, _GPT2.known(12, 768, 12, 3072, 50257, True)),
    "gpt2-medium": (_GPT2, _GPT2.known(24, 1024, 16, 4096, 50257, True)),
    "gpt2-large": (_GPT2, _GPT2.known(36, 1280, 20, 5120, 50257, True)),
    "gpt2-xl": (_GPT2, _GPT2.known(48, 1600, 25, 6400, 50257, True)),
    # of no public model
    "llama": (_LLAMA, _LLAMA.known(4, 256, 8, 2, 1024, 32000, False)),
    # meta-llama/Llama-3.2-1B, Llama-3.1-8B
    "llama-1b": (_LLAMA, _LLAMA.known(16, 2048, 32, 8, 8192, 128256, True)),
    "llama-8b": (_LLAMA, _LLAMA.known(32, 4096, 32, 8, 14336, 128256, False)),
    # google-bert/bert-base-uncased, bert-large-uncased
    "bert-base": (_BERT, _BERT.known(12, 768, 12, 3072, 30522, True)),
    "bert-large": (_BERT, _BERT.known(24, 1024, 16, 4096, 30522, True)),
    # google/vit-base-patch16-224, vit-large-patch16-224
    "vit-b16": (_VIT, _VIT.known(12, 768, 12, 3072, 1000)),
    "vit-l16": (_VIT, _VIT.known(24, 1024, 16, 4096, 1000)),
    # microsoft/resnet-18, resnet-50, resnet-101
    "resnet18": (_RESNET, _RESNET.known(64, 1000, block="basic", blocks=(2, 2, 2, 2))),
    "resnet50": (_RESNET, _RESNET.known(64, 1000, block="bottleneck", blocks=(3, 4, 6, 3))),
    "resnet101": (_RESNET, _RESNET.known(64, 1000, block="bottleneck", blocks=(3, 4, 23, 3))),
}
"""Family and sizes of each model."""

NAMES: Final[tuple[str, ...]] = tuple(KNOWN)
"""What can stand behind ``hf:``."""


@dataclass(frozen=True)
class Spec:
    """A known model, one of `NAMES`, and the options that were given, their values read."""

    name: str
    given: Sizes

    @property
    def family(self) -> Family:
        """The family."""
        return KNOWN[self.name][0]

    @property
    def sizes(self) -> Sizes:
        """All sizes: those that were given, the others as known or as they follow."""
        named = KNOWN[self.name][1]
        sizes = named | self.given
        if "mlp" in named and "mlp" not in self.given:
            sizes["mlp"] = max(1, sizes["width"] * named["mlp"] // named["width"])
        if "kv_heads" in named and "kv_heads" not in self.given:
            sizes["kv_heads"] = min(sizes["heads"], named["kv_heads"])
        return sizes

    def __str__(self) -> str:
        """Return it as a factory is written, its options in the order of the family."""
        given = self.given
        options = [f"{key}={_shown(given[key])}" for key in self.family.options if key in given]
        return f"hf:{self.name}{':' if options else ''}{','.join(options)}"

    def check_inputs(self, batch: int, seq: int, image: int) -> None:
        """Refuse a micro-batch that the model cannot take."""
        extent = ("seq", seq) if self.family.tokens else ("image", image)
        for what, value in (("batch", batch), extent):
            _check_whole(what, value)
        if self.family is _VIT and image % PATCH:
            raise refuse(
                f"image={image} is not a multiple of the patch of {PATCH}",
                f"Give a multiple of {PATCH}, such as 224",
            )
        if self.family is _RESNET and batch == 1 and image < _SMALLEST_IMAGE:
            raise refuse(
                f"image={image} shrinks to one pixel, over which batch norm has no variance",
                f"Give a batch of 2 or an image above {_SMALLEST_IMAGE - 1}",
            )


def parse_spec(text: str) -> Spec:
    """Return the model that is written behind ``hf:``; refuse what is not known."""
    name, colon, rest = text.partition(":")
    name = name.strip()
    if name not in KNOWN:
        raise refuse(f"there is no model hf:{name:.60}", _choice(name, NAMES))
    known = KNOWN[name][0].options
    given: Sizes = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise refuse(f"{name} has no option {key!r:.60}", _choice(key, known))
        if not equals or not value:
            raise refuse(f"{key} has no value", f"Write it as {key}=VALUE")
        if key in given:
            raise refuse(f"{key} is given twice", "Give it once")
        given[key] = _read(key, value)
    spec = Spec(name, given)
    _check_sizes(spec.sizes)
    return spec


def either(names: Iterable[str]) -> str:
    """Return names as a choice: a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}"


def refuse(rule: str, way_out: str) -> InputError:
    """Return an error about a known model."""
    return InputError(rule, field="model", way_out=way_out)


def _choice(word: str, names: Sequence[str]) -> str:
    close = get_close_matches(word.lower(), names, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Choose {either(names)}"


def _read(key: str, text: str) -> int | float | bool:
    if key == "tied":
        if text not in ("yes", "no"):
            raise refuse(f"tied={text:.60} is neither yes nor no", "Write tied=yes or tied=no")
        return text == "yes"
    if key == "dropout":
        if not re.fullmatch(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-[0-9]+)?", text) or float(text) > 1:
            raise refuse(
                f"dropout={text:.60} is not a number from 0 to 1", "Write it as dropout=0.1"
            )
        return float(text)
    if not re.fullmatch(r"-?[0-9]+", text):
        raise refuse(f"{key}={text:.60} is not a whole number", _way_out_of_whole(key))
    value = int(text[:20])
    _check_whole(key, value)
    return value


def _check_whole(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(f"{key}={value!r:.60} is not a whole number", _way_out_of_whole(key))
    if not _smallest(key) <= value <= _LARGEST:
        size = "small" if value < _smallest(key) else "large"
        raise refuse(f"{key}={value} is too {size}", _way_out_of_whole(key))


def _smallest(key: str) -> int:
    return 2 if key == "classes" else 1


def _way_out_of_whole(key: str) -> str:
    return f"Give a whole number from {_smallest(key)} to {_LARGEST}"


def _check_sizes(sizes: Sizes) -> None:
    width, heads = sizes["width"], sizes.get("heads", 1)
    if width % heads:
        raise refuse(f"width={width} is not a multiple of heads={heads}", "Change one of them")
    if "kv_heads" not in sizes:
        return
    if heads % sizes["kv_heads"]:
        raise refuse(
            f"heads={heads} is not a multiple of kv_heads={sizes['kv_heads']}", "Change one of them"
        )
    if width // heads % 2:
        raise refuse(
            f"width={width} over heads={heads} is odd, and its halves are rotated",
            "Make the width an even multiple of the heads",
        )


def _shown(value: float | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value}"
