"""What an installed schedopt is to type checkers, from a folder of somebody else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
USE = """
from schedopt import Chain, Platform, solve
from schedopt.solvers.contiguous import solve as contiguous
chain = Chain.load("chain.json")
reveal_type(chain)
solve(chain, Platform(gpus="two", memory="16G"))
contiguous()
"""


def build(hook: str, folder: Path) -> ZipFile:
    """Return the wheel that a hook of setuptools makes of a copy, since it leaves files there."""
    source = folder / "source"
    for name in ("schedopt", "solvers"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    code = f"import setuptools.build_meta as backend; backend.{hook}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return ZipFile(wheel)


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["build_editable", "build_wheel"])
def test_mypy_finds_the_types(hook: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    with build(hook, tmp_path) as wheel:
        wheel.extractall(packages)
    (tmp_path / "use.py").write_text(USE)
    python = str(tmp_path / "venv" / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "use.py"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
    )
    revealed, *errors, _ = done.stdout.splitlines()
    assert 'Revealed type is "schedopt.chain.Chain"' in revealed
    assert [line.rpartition("[")[2] for line in errors] == ["arg-type]", "call-arg]"]


@pytest.mark.nightly
def test_a_wheel_holds_all_that_is_read_at_run_time(tmp_path: Path) -> None:
    with build("build_wheel", tmp_path) as wheel:
        held = set(wheel.namelist())
    room = ROOT / "schedopt"
    read = (".py", ".typed", ".html", ".css", ".js", ".toml", ".ipynb")
    files = [*room.rglob("*"), *(room / "solvers").iterdir()]
    wanted = {str(path.relative_to(ROOT)) for path in files if path.suffix in read}
    assert {"schedopt/py.typed", "schedopt/solvers/contiguous.py"} <= wanted <= held
