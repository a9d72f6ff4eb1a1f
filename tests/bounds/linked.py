"""Small problems on slow links and tight memory, whose numbers may be as large as measured ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Problem, Scope

NANOSECONDS = (1, 3, 99_999_989, 10**9 + 7)
BYTES = (1, 104_729, 1_000_003, 2**31 - 1)
FASTEST = 10**15


@st.composite
def linked_problems(
    draw: st.DrawFn, *, longest: int = 4, split: bool = False, recompute: bool = False
) -> Problem:
    """Draw layers whose transfers are as long as their work, and the reading *peak*, with k = 1.

    Half of them have primes of ns and of bytes as units, and what is left over besides.
    """
    ns, unit = 1, 1
    if draw(st.booleans()):
        ns, unit = draw(st.sampled_from(NANOSECONDS)), draw(st.sampled_from(BYTES))
    least, most = draw(st.sampled_from([(0, 3), (1, 3), (1, 6), (0, 6)]))

    def of(unit: int, least: int, most: int) -> int:
        whole = draw(st.integers(least, most)) * unit
        return whole + (draw(st.integers(0, unit // 50)) if whole else 0)

    def halves() -> dict[str, Any]:
        return {
            "backward_input_ns": of(ns, least, most),
            "backward_weight_ns": of(ns, least, most),
            "saved_weight_bytes": of(unit, 0, 4) if draw(st.booleans()) else None,
        }

    layers = [
        Layer(
            forward_ns=of(ns, least, most),
            backward_ns=of(ns, least, (1 + split) * most),
            **(halves() if split else {}),
            weight_bytes=of(unit, 0, 3),
            activation_bytes=of(unit, 0, 4),
            saved_bytes=of(unit, 0, 8),
            saved_input_bytes=of(unit, 1, 2) if draw(st.integers(0, 2)) == 0 else None,
            workspace_bytes=of(unit, 1, 2) if draw(st.integers(0, 2)) == 0 else None,
        )
        for _ in range(draw(st.integers(2, longest)))
    ]
    sizes = [layer.weight_bytes + layer.saved for layer in layers]
    count = draw(st.sampled_from([1, 2, 2, 3, 3]))
    rooms = [max(*sizes, sum(sizes) // count) + of(unit, 0, 8) for _ in range(count)]
    gpus = [Gpu(memory_bytes=rooms[0])] * count
    if draw(st.integers(0, 3)) == 0:
        speeds = st.sampled_from(["0.5", "1", "1", "1.5"])
        gpus = [Gpu(memory_bytes=room, speed=draw(speeds)) for room in rooms]  # type: ignore[arg-type]
    platform = Platform(gpus)
    if draw(st.integers(0, 4)):
        platform = Platform(
            1,
            0,
            bandwidth=min(FASTEST, draw(st.sampled_from([5, 10, 20])) * 10**8 * unit // ns or 1),
            latency=draw(st.sampled_from([0, 0, 1, 5])) * ns,
            duplex=draw(st.sampled_from(["half", "half", "full"])),
        ).with_gpus(gpus)
    scope = Scope(
        allocation="general",
        grain="layer",
        max_k=1,
        memory="peak",
        recompute=recompute,
        split_backward=split,
    )
    return Problem(
        chain=Chain(layers=tuple(layers), input_bytes=of(unit, 0, 2)),
        platform=platform,
        scope=scope,
    )
