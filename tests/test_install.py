"""What an installed schedopt is to people and type checkers, from a folder of somebody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    call_backend(hook, copy_source(folder), folder)
    (wheel,) = folder.glob("*.whl")
    return ZipFile(wheel)


def copy_source(folder: Path) -> Path:
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("schedopt", "solvers"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    names = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "GLOSSARY.md")
    for name in (*names, "constraints.txt"):
        shutil.copy(ROOT / name, source)
    return source


def call_backend(hook: str, source: Path, folder: Path) -> None:
    code = f"import setuptools.build_meta as backend; backend.{hook}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)


def test_what_ci_uses_is_in_the_ranges_of_the_project() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    pinned = {canonicalize_name(name): version for name, version in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    required = map(Requirement, chain(project["dependencies"], *extras))
    for package in required:
        if package.name != project["name"]:
            assert package.specifier.contains(pinned[canonicalize_name(package.name)]), str(package)


def test_where_no_newer_pip_is_to_be_had_that_of_python_installs(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"""#!/bin/sh
case "$*" in *" pip") exit 1;; esac
echo "$*" >> {tmp_path}/installed
""")
    python.chmod(0o755)
    typed = ["make", "-s", "PYTHON=true", f"VENV={tmp_path}", f"{tmp_path}/installed-test"]
    alone = {"MAKEFLAGS": "", "PATH": os.environ["PATH"]}
    subprocess.run(typed, cwd=ROOT, env=alone, check=True, capture_output=True)
    assert "-e .[test]" in (tmp_path / "installed").read_text()
    assert (tmp_path / "installed-test").exists()


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


@pytest.mark.nightly
def test_a_wheel_from_the_sdist_works_where_nothing_of_the_checkout_is(tmp_path: Path) -> None:
    call_backend("build_sdist", copy_source(tmp_path), tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert {path.name for path in source.iterdir()} >= {"CHANGELOG.md", "LICENSE", "README.md"}
    assert not (source / "schedopt" / "solvers").is_symlink()
    call_backend("build_wheel", source, tmp_path)
    (built,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    # What it needs comes from here, so that no network is needed; the package itself does not.
    needed = {str(Path(find_spec(name).origin or "").parents[1]) for name in ("numpy", "typer")}  # type: ignore[union-attr]
    (packages / "needed.pth").write_text("\n".join(sorted(needed)))
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        str(built),
    ]
    subprocess.run(install, check=True, capture_output=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    command = str(tmp_path / "venv" / "bin" / "schedopt")
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "code"), "PATH": "/usr/bin:/bin"}
    given = ("--gpus", "2", "--mem", "1G")
    for line in (
        ("instance", "uniform", "--layers", "8", "-o", "chain.json"),
        ("solve", "--chain", "chain.json", *given, "-o", "plan.json", "--time-limit", "5"),
        ("check", "plan.json"),
        ("report", "plan.json", "-o", "plan.html"),
        ("sweep", "--chain", "chain.json", *given, "-o", "sweep.json"),
        ("report", "sweep.json", "-o", "sweep.html"),
        ("--show-completion", "bash"),
        ("doctor",),
    ):
        done = subprocess.run(
            [command, *line], cwd=outside, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stderr)
    where = (
        "import schedopt, schedopt.solvers.contiguous as c; print(schedopt.__file__, c.__file__)"
    )
    done = subprocess.run(
        [python, "-c", where], cwd=outside, env={}, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(packages)) for path in done.stdout.split())
