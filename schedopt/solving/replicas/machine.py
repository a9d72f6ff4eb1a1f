"""The GPUs and links of a problem, as stages with replicas see them."""

from __future__ import annotations

from schedopt.network import Link
from schedopt.problem import Problem
from schedopt.solving.replicas.arrays import Machine


def read_machine(problem: Problem) -> Machine | None:
    """Return the GPUs and links of a problem; None where some differ from others."""
    platform, network = problem.platform, problem.platform.network
    gpus, room = len(platform.gpus), platform.gpus[0].usable_bytes
    together = problem.chain.together
    if len(set(platform.gpus)) > 1:
        return None
    if network is None:
        link = _describe(platform.link)
        return Machine(gpus, gpus, room, link, link, together=together)
    nodes = [node for node in network.nodes if node.gpus]
    if len(nodes) == 1:
        link = _describe(nodes[0].link)
        return Machine(gpus, gpus, room, link, link, together=together)
    sizes = {node.gpus for node in nodes}
    inside = {node.link for node in nodes} if sizes != {1} else {None}
    between = {link for _, link in network.paths()}
    cards = {network.cards_of(number) for number, node in enumerate(network.nodes) if node.gpus}
    several = len(cards) > 1
    if len(sizes) > 1 or len(inside) > 1 or len(between) > 1 or (several and max(cards) > 1):
        return None
    node, count = sizes.pop(), 0 if several else cards.pop()
    ways = _describe(inside.pop()), _describe(between.pop())
    card = node // count if count else 0
    return Machine(gpus, node, room, *ways, card=card, together=together)


def _describe(link: Link | None) -> tuple[int, int, int]:
    if link is None:
        return 0, 0, 1
    return link.latency_ns, link.bandwidth_bytes_per_s, int(link.duplex == "full")


def degrees_of(problem: Problem, machine: Machine) -> list[int]:
    """Return the sizes of tensor groups that a node holds, ascending."""
    return [tensor for tensor in problem.degrees if tensor <= machine.node]


def width_of(machine: Machine, tensor: int) -> int:
    """Return how many GPUs lie in one node: a tensor group, or several that run together."""
    width = tensor * machine.together
    return width if width <= machine.node else tensor


def lanes_of_card(machine: Machine, tensor: int) -> int:
    """Return how many GPUs of a tensor group share a network card, at least on some card.

    A group may begin anywhere in a node, with one GPU on its first card and one on its last.
    """
    if machine.card == 0 or tensor == 1:
        return tensor
    cards = min(machine.node // machine.card, (tensor - 2) // machine.card + 2)
    return -(-tensor // cards)
