"""Known models by name, built from a configuration of transformers; no download."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from schedopt.profiling.devices import find_device
from schedopt.profiling.hf_catalog import Family, Sizes, Spec, either, parse_spec, refuse
from schedopt.profiling.model import Model, require_package

IMAGE: Final = 224
"""Height and width of an image where nothing is said, pixels."""
_SEED: Final = 0
_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def build_model(
    spec: str,
    *,
    batch: int = 1,
    seq: int | None = None,
    image: int = IMAGE,
    dtype: str = "float32",
    device: str = "cpu",
) -> Model:
    """Build a model with random weights and one random micro-batch, the same ones each time.

    The state of the caller's random numbers is left as it was. Attention is torch's
    ``scaled_dot_product_attention``, and the model computes its own loss.

    Parameters
    ----------
    spec : str
        One of `NAMES` of `schedopt.profiling.hf_catalog`, with options behind a colon:
        ``gpt2:tied=no,layers=2``. Of the options ``layers``, ``width``, ``heads``, ``kv_heads``,
        ``mlp``, ``vocabulary``, ``classes``, ``tied`` (yes or no) and ``dropout`` (0 to 1, by
        default 0), each family has some. ``mlp`` follows ``width``, and ``kv_heads`` is at most
        ``heads``, unless they are given.
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
    known = parse_spec(spec)
    family, sizes = known.family, known.sizes
    shape = _shape(known, batch, seq, image)
    number_type = _find_dtype(dtype)
    place = _find_place(device)
    # Imports what it needs, so before there is any other default device.
    model_class, config = _configure(family, sizes, shape[-1])
    with _seeded(place), torch.device(place):
        module = _build(family, model_class, config, number_type)
    inputs = _draw(family, sizes, shape, number_type, place)
    return Model(module=module, inputs=inputs, factory=str(known))


def with_batch(model: Model, batch: int) -> Model:
    """Return a model that `load_model` built, with a micro-batch of `batch` samples.

    The module is the same one; the inputs are those of a model that is built with this batch.
    """
    known = parse_spec(model.factory.removeprefix("hf:"))
    given = {**model.arguments, "batch": batch}
    shape = _shape(known, batch, given.get("seq"), given.get("image", IMAGE))
    place = next(model.module.parameters()).device
    dtype = _find_dtype(given.get("dtype", "float32"))
    inputs = _draw(known.family, known.sizes, shape, dtype, place)
    return replace(model, inputs=inputs, arguments=given)


def _shape(known: Spec, batch: int, seq: int | None, image: int) -> tuple[int, ...]:
    seq = known.family.tokens if seq is None else seq
    known.check_inputs(batch, seq, image)
    return (batch, seq) if known.family.tokens else (batch, 3, image, image)


def _configure(family: Family, sizes: Sizes, extent: int) -> tuple[Any, Any]:
    """Return the class of transformers and its config."""
    model_class = getattr(require_package("transformers"), family.model)
    return model_class, model_class.config_class(**family.arguments(sizes, extent))


def _build(family: Family, model_class: Any, config: Any, dtype: torch.dtype) -> nn.Module:
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
    family: Family,
    sizes: Sizes,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    place: torch.device,
) -> dict[str, Any]:
    """Return a micro-batch, the same one each time, whatever was drawn for the weights."""
    with _seeded(place), torch.device(place):
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
        raise refuse(f"{name!r:.60} is not a dtype of parameters", f"Choose {either(_DTYPES)}")
    return _DTYPES[name]
