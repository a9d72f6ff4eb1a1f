from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from schedopt import InputError
from schedopt.profiling import as_model, load_factory, load_model

GOOD = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.zeros(8, 4)

def fail():
    raise OSError("no such disk")

def needs(size):
    return None

number = 3
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules into the current directory, which is on no path yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)

    def write_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write_module
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_importing_the_package_loads_no_torch() -> None:
    code = "import schedopt.profiling, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_factory_in_the_current_directory_is_found_and_remembered(write: Write) -> None:
    write("good_models", GOOD)
    model = load_model("good_models:build")
    assert isinstance(model.module, nn.Sequential)
    assert model.factory == "good_models:build"
    # Then the directory is on the path.
    assert load_factory("good_models:build").__name__ == "build"


NO_NAME = r"is not package\.module:function"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        *((spec, NO_NAME) for spec in ("models", "models.build", ":build", "models:", "")),
        ("no_such_module:build", r"there is no module 'no_such_module'\. Run in the dir"),
        ("schedopt.no_such_module:build", "there is no module 'schedopt.no_such_module'"),
        ("good_models.py:build", "is a file, not a module. Write good_models:build,"),
        ("./good_models.py:build", "is a file, not a module. Write good_models:build,"),
        ("good_models:biuld", r"good_models has no biuld. Did you mean build\?"),
        ("good_models:number", "good_models:number is an int, which cannot be called"),
        ("good_models:fail", "good_models:fail raised OSError: no such disk"),
        ("good_models:needs", "Give a function that needs no arguments"),
    ],
)
def test_a_factory_that_is_not_there_or_fails_is_refused(
    write: Write, spec: str, told: str
) -> None:
    write("good_models", GOOD)
    with pytest.raises(InputError, match=told):
        load_model(spec)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "raised ZeroDivisionError"),
        ("def (", "raised SyntaxError"),
        ("import no_such_package", "raised ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)", "raised SystemExit"),
    ],
)
def test_an_import_that_fails_tells_why(write: Write, text: str, told: str) -> None:
    write("broken_models", text)
    with pytest.raises(InputError, match=told):
        load_factory("broken_models:build")


def test_a_missing_extra_is_told_how_to_install(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("hub_models", "import transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="Run pip install transformers"):
        load_factory("hub_models:build")


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None. Return"),
        (nn.Sequential(nn.ReLU()), "returned a Sequential. Return"),
        ((nn.ReLU(),), "returned a tuple of 1. Return"),
        ((3, torch.zeros(1)), "the module is an int, not a torch.nn.Module"),
        ((nn.Sequential(), torch.zeros(1)), "the nn.Sequential has no layer"),
        ((nn.Linear(1, 1), [1.0]), "an input is a float, not a tensor"),
        ((nn.Linear(1, 1), {"x": "a", "y": object()}), "an input is an object, not a tensor"),
        ((nn.Linear(1, 1), ()), "there are no inputs"),
        ((nn.Sequential(nn.ReLU()), {"x": torch.zeros(1)}), "takes no inputs by name"),
        ((nn.Sequential(nn.ReLU()), (torch.zeros(1),) * 2), "takes one input, not 2"),
        ((nn.Sequential(nn.ReLU()), torch.zeros(1), 3), "the loss is an int, which cannot be"),
        ((nn.Sequential(nn.ReLU()), torch.zeros(1), None, 3), "the optimizer is an int, which"),
    ],
)
def test_what_a_factory_may_not_return(returned: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        as_model(returned)
