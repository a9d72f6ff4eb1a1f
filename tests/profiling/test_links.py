"""Links that are measured become a platform; measured for real between processes by night."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schedopt import Platform
from schedopt.network import Duplex
from schedopt.profiling.links import MeasuredLink, MeasuredLinks, MeasuredNode

ROOT = Path(__file__).parents[2]


def link(one: int, other: int, rate: int, latency: int, duplex: Duplex = "full") -> MeasuredLink:
    return MeasuredLink(
        ranks=(one, other),
        bandwidth_bytes_per_s=rate,
        latency_ns=latency,
        duplex=duplex,
        spread=0.0,
    )


def nodes(*counts: int) -> tuple[MeasuredNode, ...]:
    found, first = [], 0
    for count in counts:
        ranks = tuple(range(first, first + count))
        inside = link(first, first + 1, 100 + first, 10) if count > 1 else None
        found.append(MeasuredNode(ranks=ranks, memory_bytes=(7,) * count, inside=inside))
        first += count
    return tuple(found)


def test_one_node_is_a_machine_with_links_inside() -> None:
    platform = MeasuredLinks(nodes=nodes(3), between=()).platform()
    assert platform == Platform(3, 7, bandwidth=100, latency=10, duplex="full")


def test_two_nodes_have_a_link_of_their_own() -> None:
    measured = MeasuredLinks(nodes=nodes(2, 1), between=(link(0, 2, 5, 9, "half"),))
    network = measured.platform().network
    assert network is not None
    assert [node.gpus for node in network.nodes] == [2, 1]
    assert network.nodes[1].link is None
    (between,) = network.links
    assert (between.bandwidth_bytes_per_s, between.latency_ns, between.duplex) == (5, 9, "half")


def test_more_nodes_meet_at_a_switch_where_the_way_is_as_it_was_measured() -> None:
    measured = MeasuredLinks(nodes=nodes(1, 1, 1), between=(link(0, 1, 5, 8), link(0, 2, 4, 6)))
    network = measured.platform().network
    assert network is not None
    assert [node.gpus for node in network.nodes] == [1, 1, 1, 0]
    ways = {one.between[0]: (one.bandwidth_bytes_per_s, one.latency_ns) for one in network.links}
    # The first node has what the fastest way through it needs.
    assert ways == {"node0": (5, 4), "node1": (5, 4), "node2": (4, 3)}


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize("machines", [1, 2])
def test_processes_measure_what_lies_between_them(machines: int, tmp_path: Path) -> None:
    """Two machines are two launchers on this one, each with a process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = []
    for number in range(machines):
        place = [f"--nnodes={machines}", f"--node-rank={number}", "--master-port=29571"]
        command = [sys.executable, "-m", "torch.distributed.run", *place]
        command += [f"--nproc-per-node={2 // machines}", "-m", "schedopt", "profile", "--links"]
        options = ["--repeats", "3", "-o", str(tmp_path / "machine.json")]
        started.append(
            subprocess.Popen(
                [*command, *options],
                cwd=tmp_path,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    said = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * machines, said
    told = "".join(out for out, _ in said)
    assert told.count("Platform written to") == 1
    assert ("The same as options: --bandwidth " in told) == (machines == 1)
    platform = Platform.load(tmp_path / "machine.json")
    assert len(platform.gpus) == 2
    found = platform.link if platform.network is None else platform.network.links[0]
    assert found is not None
    # Within factors of a thousand of what a machine has: the units are right.
    assert 10**6 < found.bandwidth_bytes_per_s < 10**12
    assert 10**2 < found.latency_ns < 10**9
