"""The peak memory of a rank under Megatron-LM, from shapes (bf16, flash attention, ZeRO-1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schedopt.bench.published.steps import in_flight
from schedopt.bench.published.tables import Line
from schedopt.errors import InputError

HALF: Final = 2
RESIDENT: Final = 6
"""Bytes for a weight: itself in half precision, and its gradient in single precision."""
SHARED: Final = 12
"""Bytes of its copy and moments in single precision, shared by its replicas."""
QUERY_RANK, KEY_RANK, TURNED, PLAIN = 1536, 512, 64, 128
"""Of multi-head latent attention (DeepSeek-V2 and V3): ranks of queries, and of keys and values;
of a head, the values of a key that are turned by position, and those that are not."""


@dataclass(frozen=True)
class Model:
    """A decoder by its shape; without experts its attention has groups of keys and values."""

    hidden: int
    heads: int
    kv: int
    ffn: int
    vocabulary: int
    experts: int = 0
    top: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0

    @property
    def keys(self) -> int:
        """Keys of a token, and values."""
        return self.hidden // self.heads * self.kv

    @property
    def attention(self) -> int:
        """Weights of the attention of a layer."""
        if not self.experts:
            return 2 * self.hidden * (self.hidden + self.keys)
        queries = QUERY_RANK * (self.hidden + self.heads * (PLAIN + TURNED))
        keys = self.hidden * (KEY_RANK + TURNED) + KEY_RANK * self.heads * 2 * PLAIN
        return queries + keys + self.heads * PLAIN * self.hidden

    @property
    def attention_bytes(self) -> int:
        """What the attention of a layer keeps of a token, with both norms."""
        norms = 4 * self.hidden
        if not self.experts:
            # Queries, keys and values, these once more when they are turned; the output.
            return HALF * (norms + 2 * self.hidden + 4 * self.keys) + 4 * self.heads
        ranks = 2 * (QUERY_RANK + KEY_RANK)
        heads = self.heads * (2 * (PLAIN + TURNED) + 3 * PLAIN)
        return HALF * (norms + ranks + heads) + 4 * self.heads

    def block(self, *, sparse: bool) -> int:
        """Return the weights of the rest of a layer that all ranks have."""
        if not sparse:
            return 3 * self.hidden * self.ffn
        return 3 * self.hidden * self.shared_ffn + self.hidden * self.experts

    @property
    def expert(self) -> int:
        """Weights of an expert."""
        return 3 * self.hidden * self.expert_ffn

    def block_bytes(self, *, sparse: bool) -> int:
        """Return what the rest of a layer keeps of a token."""
        if not sparse:
            return 3 * HALF * self.ffn
        routed = self.top * (2 * self.hidden + 3 * self.expert_ffn)
        return HALF * (routed + 3 * self.shared_ffn)


def read_models(notes: Sequence[str]) -> dict[str, Model]:
    """Return the models whose shapes the notes of the table give, by the start of their names."""
    words: Mapping[str, str] = {
        "hidden": "hidden",
        "heads": "heads",
        "kv": "kv",
        "ffn": "ffn",
        "vocabulary": "vocabulary",
        "experts": "experts",
        "top": "top",
        "expert ffn": "expert_ffn",
        "shared": "shared_ffn",
    }
    found = {}
    for name, text in re.findall(r"(\S+): (hidden \d+[^;]*)", " ".join(notes)):
        pairs = re.findall(r"(expert ffn|[a-z]+) (\d+)", text)
        shape = {words[word]: int(count) for word, count in pairs if word in words}
        if shape.keys() >= {"hidden", "heads", "kv", "ffn", "vocabulary"}:
            found[name] = Model(**shape)
    return found


def find_model(line: Line, models: Mapping[str, Model]) -> Model:
    """Return the shape of the model of a line."""
    name = line["model"]
    longer = (found for other, found in models.items() if other.startswith(name))
    model = models.get(name) or next(longer, None)
    if model is None:
        raise InputError(
            f"{name} has no shape in the notes of the table",
            field="model",
            way_out="Give it, as in 'name: hidden 8192, heads 64, kv 8, ffn 28672, vocabulary 1'",
        )
    return model


def peak_bytes(line: Line, models: Mapping[str, Model], stage: int) -> float:
    """Return the peak of a rank of a stage, bytes.

    Weights with gradients and the rank's share of the optimizer state; what the layers keep of the
    micro-batches in flight; and in a backward the gradient of the widest product, one buffer for
    each shape of weights (those of a layer with one expert, and the head) where gradients are added
    in place, and the logits. Tensor and sequence parallelism share all of this.
    """
    model, stages, tensor = find_model(line, models), int(line["pp"]), int(line["tp"])
    layers = [*_layers(line, stage)]
    dense = sum(1 for sparse in layers if not sparse)
    ends = (stage == 0) + (stage == stages - 1)
    weights = ends * model.vocabulary * model.hidden + sum(
        model.attention + model.block(sparse=sparse) for sparse in layers
    )
    replicas = line["dp"] * line["cp"]
    states = weights / tensor * (RESIDENT + SHARED / replicas)
    spread = (len(layers) - dense) * model.experts * model.expert / line["ep"] / tensor
    states += spread * (RESIDENT + SHARED * line["ep"] / replicas)

    tokens = line["sequence"] * line["mbs"] / line["cp"] / tensor
    kept = sum(model.attention_bytes + model.block_bytes(sparse=sparse) for sparse in layers)
    stash = in_flight(stages, stage, line["microbatches"]) * kept * tokens

    widest = max(
        model.attention + model.block(sparse=sparse) + (model.expert if sparse else 0)
        for sparse in layers
    )
    gradients = HALF * widest / tensor
    product = 2 * HALF * (model.ffn if dense else model.top * model.expert_ffn) * tokens
    if stage == stages - 1:
        gradients += HALF * model.vocabulary * (model.hidden / tensor + tokens)
    return float(states + stash + gradients + product)


def _layers(line: Line, stage: int) -> list[bool]:
    """Return whether each layer of a stage has experts."""
    count, dense = int(line["layers"]), line["dense_layers"]
    each = count // int(line["pp"])
    first = stage * each
    return [dense is not None and layer >= dense for layer in range(first, first + each)]
