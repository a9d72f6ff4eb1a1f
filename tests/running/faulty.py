"""A model that fails where it is told to, its plan, and a look at what a run leaves behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from schedopt import Chain, Plan, Platform, Result, Scope, solve
from schedopt.profiling import Model, profile

MODULE = """
import os, signal, subprocess, sys, time
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

WHERE, _, WHAT = os.environ.get("FAULT", "").partition(":")
HERE = int(os.environ.get("RANK", "1")) == 1

def fail(where):
    if not (HERE and where == WHERE):
        return
    if WHAT == "raise":
        raise ValueError("broken,\\nas it was told")
    if WHAT == "exit":
        sys.exit(0)
    if WHAT.isdigit():
        os._exit(int(WHAT))
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[WHAT])
    if WHAT == "print":
        print("printed")
        os.write(1, b"written\\n")
    if WHAT == "start":
        subprocess.Popen(["sleep", "600"])
        raise ValueError("with a process of its own")
    if WHAT == "stay":
        print("staying", file=sys.stderr, flush=True)
        time.sleep(600)

class Layer(nn.Linear):
    def forward(self, value):
        if not isinstance(value, FakeTensor):
            fail("forward")
        return super().forward(value)

class Optimizer(torch.optim.SGD):
    def step(self):
        fail("step")
        super().step()

def build(width=4):
    fail("factory")
    layers = [Layer(width, width) for _ in range(4)]
    return nn.Sequential(*layers), torch.randn(8, width), None, lambda ours: Optimizer(ours, lr=0.1)

def wide():
    return build(6)
"""


def chain() -> Chain:
    """Return a chain of the model in `MODULE`."""
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


def plan() -> Plan:
    """Return a plan of the model in `MODULE`."""
    made = solved(chain(), "1M").plan
    assert made is not None
    return made


def tight() -> Result:
    """Return a plan that believes that no layer saves anything."""
    of = chain()
    layers = tuple(replace(one, saved_bytes=0) for one in of.layers)
    return solved(replace(of, layers=layers), "800")


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
