"""The plan of `faulty_model`, and a look at what a run leaves behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from schedopt import Chain, Plan, Platform, Result, Rule, Scope, check, solve
from schedopt.profiling import Model, profile
from tests.running.replicated import cyclic, system

MODULE = Path(__file__).with_name("faulty_model.py").read_text()
BUILD = "tests.running.faulty_model:build"


@cache
def chain() -> Chain:
    """Return a chain of the model."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    model = Model(module=layers, inputs=torch.randn(8, 4), factory="faulty_model:build")
    return profile(model, optimizer="sgd", warmup=0, repeats=2)


def solved(of: Chain, memory: str) -> Result:
    """Return a plan for two GPUs, a stage each."""
    scope = Scope(allocation="contiguous")
    found = solve(of, Platform(gpus=2, memory=memory), scope=scope, time_limit=5)
    assert found.plan is not None
    assert len(found.plan.stages) == 2
    return found


@cache
def plan() -> Plan:
    """Return a plan of the model."""
    made = solved(chain(), "1M").plan
    assert made is not None
    return made


def tight() -> Result:
    """Return a plan that believes that no layer saves anything."""
    of = chain()
    layers = tuple(replace(layer, saved_bytes=0) for layer in of.layers)
    return solved(replace(of, layers=layers), "800")


def stashing() -> Plan:
    """Return a plan whose weights are updated after every micro-batch (PipeDream's stashing)."""
    made = plan()
    # The pattern has no operations that update.
    layers = tuple(replace(layer, update_ns=None) for layer in made.chain.layers)
    made = replace(made, chain=replace(made.chain, layers=layers), rule=Rule(update_every=1))
    assert check(made) == ()
    return made


def overlapped(**more: Any) -> Plan:
    """Return data parallelism of the faulty model on two GPUs."""
    return system("dp_overlapped", chain(), 2, 2, **more)


def fresh() -> Plan:
    """Return CDP-v2 of the faulty model on three GPUs."""
    return cyclic(chain(), 3, fresh=True, spread=False)


@contextmanager
def nothing_left(tag: str, *, within_s: float = 5) -> Iterator[dict[str, str]]:
    """Give a variable for the environment of processes, which must all end soon after this."""
    try:
        yield {"SCHEDOPT_TEST_TAG": tag}
    finally:
        wanted = f"SCHEDOPT_TEST_TAG={tag}".encode()
        until = time.monotonic() + within_s
        while (left := _holding(wanted)) and time.monotonic() < until:
            time.sleep(0.05)
        for process in left:
            os.kill(process, signal.SIGKILL)
    assert not left


def _holding(variable: bytes) -> dict[int, str]:
    """Return the other processes with a variable in their environment, and what they run."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text()
        except OSError:
            continue
    found.pop(os.getpid(), None)
    return found
