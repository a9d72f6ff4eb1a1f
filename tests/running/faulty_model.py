"""A model whose second rank fails where and how the environment says: ``FAULT=forward:raise``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

WHERE, _, WHAT = os.environ.get("FAULT", "").partition(":")
HERE = int(os.environ.get("RANK", "1")) == 1


def fail(where: str) -> None:
    if not (HERE and where == WHERE):
        return
    if WHAT == "raise":
        raise ValueError("broken,\nas it was told")
    if WHAT == "exit":
        sys.exit(0)
    if WHAT.isdigit():
        os._exit(int(WHAT))
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[WHAT])
    if WHAT == "print":
        print("printed")
        os.write(1, b"written\n")
    if WHAT == "start":
        subprocess.Popen(["sleep", "600"])
        raise ValueError("with a process of its own")
    if WHAT == "stay":
        print("staying", file=sys.stderr, flush=True)
        time.sleep(600)


class Layer(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        if not isinstance(value, FakeTensor):
            fail("forward")
        return super().forward(value)


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        fail("step")
        return super().step(closure)


def build(width: int = 4) -> tuple[nn.Module, Tensor, None, Callable[[Any], Optimizer]]:
    fail("factory")
    layers = [Layer(width, width) for _ in range(4)]
    return nn.Sequential(*layers), torch.randn(8, width), None, lambda own: Optimizer(own, lr=0.1)


def wide() -> tuple[nn.Module, Tensor, None, Callable[[Any], Optimizer]]:
    return build(6)
