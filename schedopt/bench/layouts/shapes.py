"""What tables of layouts do not say of a model: its attention, and some whole shapes.

From the configurations that their makers publish with the weights (``config.json`` at
huggingface.co: deepseek-ai, moonshotai, zai-org, Qwen); DeepSeek-V4-Pro and GLM-5 after Lockwood
(glennklockwood.com/garden). Attention that layers do not all have alike is taken as that of most:
the full attention of Qwen3-Next for all, whose other layers do about as much. What picks the keys
that sparse attention compares is left out, as is the vision encoder of GLM-4.5V.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from schedopt.profiling.decoder_shape import Attention

_LATENT: Final = {"ranks": (1536, 512), "head": (128, 64, 128)}
HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {"glm-4.5": 128, "qwen3": 128, "qwen3-next": 256}
)
"""Values of a head, where they are not the hidden ones divided among the heads."""
LATENT: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "deepseek-v3": _LATENT,
        "deepseek-r1": _LATENT,
        "kimi-k2": _LATENT,
        "glm-5": {"ranks": (2048, 512), "head": (192, 64, 256), "keys": 2048},
    }
)
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "glm-5": {
            "hidden": 6144,
            "heads": 64,
            "kv_heads": 64,
            "ffn": 12288,
            "vocabulary": 154880,
            "moe": "75 MoE layers after 3 dense; 256 experts, top 8, 1 shared, expert ffn 2048",
        },
        "deepseek-v4-pro": {
            "hidden": 7168,
            "heads": 128,
            "kv_heads": 1,
            "ffn": 3072,
            "vocabulary": 129280,
            "moe": "61 MoE layers after 0 dense; 384 experts, top 6, 1 shared, expert ffn 3072",
        },
    }
)
"""What is not in the tables, by their columns."""
# Queries through a low rank, one key and value for all heads, and an output in 16 groups.
_V4_PRO: Final = Attention(
    products=((7168, 1536 + 512), (1536, 128 * 512), (128 * 512 // 16, 16 * 1024), (16384, 7168)),
    queries=128 * 512,
    values=128 * 512,
    kept=1536 + 512 + 2 * 128 * 512 + 16384,
    keys=1024 + 128,
)


def find_attention(model: str, hidden: int, heads: int, kv_heads: int) -> Attention:
    """Return the attention of a model, by the longest name that its own begins with."""
    if model.startswith("deepseek-v4-pro"):
        return _V4_PRO
    if (latent := longest(LATENT, model)) is not None:
        return Attention.latent(hidden, heads, **latent)
    return Attention.grouped(hidden, heads, kv_heads, longest(HEADS, model) or hidden // heads)


def longest(table: Mapping[str, Any], model: str) -> Any:
    """Return what stands in a table under the longest name that a model's begins with, or None."""
    names = [name for name in table if model.startswith(name)]
    return table[max(names, key=len)] if names else None
