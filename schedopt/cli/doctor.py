"""``schedopt doctor``: what this installation has, and what can be installed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from schedopt.cli.options import AsJson

EXTRAS: Final = {
    "draw": ("matplotlib", "pictures"),
    "bench": ("pandas", "tables of benchmarks"),
    "cluster": ("distributed", "a sweep on a Dask cluster"),
    "torch": ("torch", "profiles and runs of models"),
    "hf": ("transformers", "models by name (hf:)"),
    "claims": ("scikit-learn", "the accuracy that papers claim"),
    "engines": ("megatron-core", "exports against the engines themselves"),
    "docs": ("sphinx", "the site"),
}
"""Of each extra the package that it is there for, and what that does."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked for.

    Parameters
    ----------
    name, found : str
    advice : str
        What to do, if something is to be done.
    """

    name: str
    found: str
    advice: str = ""


def examine(as_json: AsJson = False) -> None:
    """Say what is there: versions, cores, memory, compiled searches, extras, GPUs; and what is not.

    Examples
    --------
    schedopt doctor

    schedopt doctor --json
    """
    from schedopt.cli.printing import make_console, print_json, print_table
    from schedopt.reporting.tables import Table

    findings = [*_find_all()]
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return
    columns = ("What", "Found", "What to do")
    rows = tuple((finding.name, finding.found, finding.advice) for finding in findings)
    print_table(make_console(), Table(title="schedopt", columns=columns, rows=rows, words=columns))


def _find_all() -> Iterator[Finding]:
    from schedopt.version import __version__

    yield Finding(name="schedopt", found=__version__)
    yield Finding(name="Python", found=f"{platform.python_version()} on {platform.platform()}")
    yield from _find_machine()
    yield from _find_compiled()
    installed = {extra: _version(package) for extra, (package, _) in EXTRAS.items()}
    for extra, (package, purpose) in EXTRAS.items():
        known = installed[extra]
        yield Finding(
            name=f"Extra {extra}",
            found=f"{package} {known}" if known else f"{package} is missing, for {purpose}",
            advice="" if known else f'pip install "schedopt[{extra}]"',
        )
    if installed["torch"]:
        yield from _find_gpus()


def _find_machine() -> Iterator[Finding]:
    from schedopt.effort import usable_cores
    from schedopt.units import counted, format_bytes

    cores, whole = usable_cores(), os.cpu_count() or 1
    few = "" if cores > 1 else "Give it two: what searches and what proves run side by side"
    yield Finding(name="Cores", found=f"{counted(cores, 'core')} of {whole}", advice=few)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Finding(name="Memory", found=f"{format_bytes(memory)} of the machine")


def _find_compiled() -> Iterator[Finding]:
    """Yield which searches are compiled, and where their code is kept."""
    from schedopt.solving.local_search.compilation import COMPILATIONS, code_folder

    folder = code_folder(os.environ.get("NUMBA_CACHE_DIR", ""))
    for room, compilation in COMPILATIONS.items():
        kept = compilation.is_kept()
        yield Finding(
            name=f"Search {room}",
            found="compiled" if kept else "not compiled yet",
            advice="" if kept else "The first solve that needs it does so, next to the search",
        )
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = os.access(existing, os.W_OK)
    yield Finding(
        name="Code kept in",
        found=str(folder),
        advice="" if writable else "Not writable: name another folder in NUMBA_CACHE_DIR",
    )


def _find_gpus() -> Iterator[Finding]:
    import torch

    from schedopt.units import format_bytes

    if not torch.cuda.is_available():
        yield Finding(
            name="GPUs",
            found="none that torch can use",
            advice="profile and run take the CPU (gloo); or estimate: profile --fake --on h100",
        )
        return
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        yield Finding(name=f"GPU {number}", found=f"{gpu.name}, {format_bytes(gpu.total_memory)}")
    if torch.distributed.is_nccl_available():
        find_nccl: Any = torch.cuda.nccl.version
        nccl = ".".join(map(str, find_nccl()))
        yield Finding(name="NCCL", found=nccl)
    else:
        yield Finding(name="NCCL", found="none", advice="run takes gloo, which is slower")


def _version(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
