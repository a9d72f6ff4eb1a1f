"""The device that is measured: is it there, and what is it called."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import torch

from schedopt.errors import InputError


def find_device(name: str) -> torch.device:
    """Return the device of that name; a GPU without a number is the current one.

    Raises
    ------
    InputError
        If it does not exist here or cannot be measured.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _no_device(name, "is not the name of a device") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise _no_device(name, "cannot be measured")
    if not torch.cuda.is_available():
        raise _no_device(name, "is not available: this torch sees no GPU")
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise _no_device(
            name, f"is not there: GPUs count from 0 to {torch.cuda.device_count() - 1}"
        )
    return device


def _no_device(name: str, rule: str) -> InputError:
    return InputError(f"{name!r:.60} {rule}", field="device", way_out="Choose cpu, cuda or cuda:0")


def describe(device: torch.device) -> dict[str, str]:
    """Return the kind and the name of a device, for a GPU with its driver and CUDA version."""
    if device.type != "cuda":
        return {"device": device.type, "device_name": _processor()}
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device),
        "driver": _driver(),
        "cuda": torch.version.cuda or "",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.partition("\n")[0].strip() if answer.returncode == 0 else ""
