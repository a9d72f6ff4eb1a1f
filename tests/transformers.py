"""Random chains whose layers are named as those of a transformer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from schedopt import Chain, Layer


def named(chain: Chain, names: list[str]) -> Chain:
    layers = [replace(layer, name=name) for layer, name in zip(chain.layers, names, strict=True)]
    return replace(chain, layers=tuple(layers))


@st.composite
def transformers(draw: st.DrawFn, *, most: int = 4, longest: int = 2, predictors: int = 0) -> Chain:
    """Draw so many transformer layers of one or more layers each, an embedding and a head.

    Before the head perhaps a layer or more that predict further tokens.
    """
    counts = draw(st.lists(st.integers(1, longest), min_size=1, max_size=most))
    names = ["model.embed_tokens"]
    for number, count in enumerate(counts):
        parts = ["input_layernorm to self_attn", "post_attention_layernorm to mlp"]
        names += [f"model.layers.{number}: {parts[i % 2]}" for i in range(count)]
    names += [f"mtp.layers.{number}" for number in range(draw(st.integers(0, predictors)))]
    names += draw(st.sampled_from([["lm_head"], ["model.norm", "lm_head"], ["lm_head", "loss"]]))
    small = st.integers(0, 5)
    layers = [
        Layer(
            forward_ns=draw(small),
            backward_ns=draw(small),
            weight_bytes=draw(small),
            activation_bytes=draw(small),
            saved_bytes=draw(small),
            saved_input_bytes=draw(st.none() | small),
            workspace_bytes=draw(st.none() | small),
            name=name,
        )
        for name in names
    ]
    return Chain(layers=tuple(layers))
