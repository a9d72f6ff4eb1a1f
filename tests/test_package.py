from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import schedopt
from schedopt import Chain, InputError, Layer, Platform, Scope, solve

ROOT = Path(__file__).parents[1]
SOURCE = (ROOT / "schedopt" / "__init__.py").read_text()
HEAVY = (
    "ortools",
    "torch",
    "numba",
    "numpy",
    "networkx",
    "pydantic",
    "matplotlib",
    "rich",
    "typer",
    "distributed",
)


@pytest.mark.parametrize(
    "module",
    [
        "schedopt",
        "schedopt.actions",
        "schedopt.checking",
        "schedopt.drawing",
        "schedopt.exporting",
        "schedopt.profiling",
        "schedopt.reporting.page",
        "schedopt.running",
        "schedopt.sweeping",
        "schedopt.comparing.builder",
        "schedopt.comparing.picture",
    ],
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there_and_no_other() -> None:
    for name in schedopt.__all__:
        assert getattr(schedopt, name) is not None
    assert set(schedopt.__all__) <= set(dir(schedopt))
    with pytest.raises(AttributeError, match="no attribute 'Pipeline'"):
        _ = schedopt.Pipeline  # type: ignore[attr-defined]


def test_type_checkers_and_programs_see_the_same_names_from_the_same_modules() -> None:
    (seen,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    assert ast.unparse(seen.test) == "TYPE_CHECKING"
    checked = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = {name: (home, name) for name, home in vars(schedopt)["_HOMES"].items()}
    assert checked == loaded
    assert sorted(schedopt.__all__) == sorted(loaded)


def test_solving_needs_no_torch() -> None:
    code = (
        "import sys; from schedopt import *; "
        "l = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0); "
        "solve(Chain(layers=(l,)), Platform(1, 1)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_solvers_are_one_folder_seen_twice() -> None:
    assert (ROOT / "schedopt" / "solvers").resolve() == (ROOT / "solvers").resolve()


def test_results_and_errors_pickle() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    result = solve(Chain(layers=(layer,) * 3), Platform(2, "1G", bandwidth="1GB/s"), scope=Scope())
    assert pickle.loads(pickle.dumps(result)) == result
    error = InputError("rule", field="a.b", way_out="Way", source="file")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "file: a.b: rule. Way"
