"""How far spans of 1F1B* grow: one rule for what Python asks, and what is compiled.

The span of an item is the time from the start of its forward to the end of its backward. What runs
the item sees a micro-batch every `modulus` ns: the period, or where micro-batches are dealt to
replicas, as many periods as there are replicas.
"""

from __future__ import annotations


def span_in_front(behind: int, work: int, recompute: int, modulus: int) -> int:
    """Return the least span in front of an item that excludes itself, ns.

    1F1B* (Beaumont et al. 2021, Algorithm 1): forward and backward lie apart modulo `modulus`
    exactly if the span, less the work of the item, leaves room for it in its last modulus. So the
    span grows by the work, or first up to a multiple. A recompute runs in the gap between them,
    which grows for it only where neither the gap modulo `modulus` nor the rest holds it.

    Parameters
    ----------
    behind : int
        The least span behind the item, ns.
    work, recompute : int
        Of forward and backward, and of what runs between them, ns; together up to the modulus.
    modulus : int
        ns.
    """
    periods, load = behind // modulus, behind % modulus
    if load + work > modulus:
        periods, load = periods + 1, 0
    if recompute > load and (periods == 0 or recompute > modulus - work - load):
        load = recompute
    return periods * modulus + load + work
