from __future__ import annotations

import json
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain
from tests.cli.commands import printed, run, run_process

MS = 10**6

CASES: dict[str, tuple[str, int, int, int | None]] = {
    "section 6.1": ("section6-1", 2, MS, 3),
    "lemma 2": ("lemma2", 2, 2 * MS, None),
    "theorem 4": ("theorem4 --k 3", 4, 4 * MS, 4),
    "theorem 4, k = 1": ("theorem4 --k 1", 2, 2 * MS, 4),
    "theorem 5": ("theorem5 --k 2", 5, MS, 16),
    "theorem 6": ("theorem6 --k 4", 6, 4 * MS, 12),
    "theorem 6 with a memory": ("theorem6 --k 3 --memory 7", 5, 7 * MS, 6),
    "uniform": ("uniform --layers 7 --gpus 3", 3, 3 * (10 + 3) * MS, 9),
    "uniform with all options": (
        "uniform --layers 5 --forward 500us --backward 1.5ms --weight 2MB --activation 1MB "
        "--saved 3MB --gpus 2 --mem 1G", 2, 10**9, 6,
    ),
}  # fmt: skip
"""Arguments, GPUs, bytes of each, and the contiguous 1-periodic optimum in ms, by hand."""

COMMANDS = ("section6-1", "lemma2", "theorem4", "theorem5", "theorem6", "uniform", "random",
            "three-partition")  # fmt: skip


def written(stdout: str) -> list[str]:
    """Return the solve command that was printed, as a shell splits it, without ``schedopt``."""
    (line,) = (line for line in stdout.splitlines() if line.startswith("Solve "))
    name, *command = shlex.split(line.removeprefix("Solve "))
    assert name == "schedopt"
    return command


def solve_as_printed(command: list[str], folder: Path, expected_ms: int | None) -> None:
    done = run(*command, "--json", folder=folder)
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    if expected_ms is None:
        assert (done.returncode, document["status"]) == (3, "infeasible")
    else:
        assert (done.returncode, document["status"]) == (0, "optimal")
        assert document["period_exact"] == [expected_ms * MS, 1]


class Here:
    """Runs the command line in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Return the exit code, what was printed, and the errors."""
        done = run(*arguments, folder=self.folder, quick=False)
        return done.returncode, done.stdout, done.stderr

    def fail(self, *arguments: str | Path) -> str:
        """Run what must end with 2 and print nothing but errors; return those."""
        code, shown, errors = self.run(*arguments)
        assert (code, shown) == (2, "")
        return errors

    def print(self, *arguments: str | Path) -> str:
        """Run what must end well and without errors; return what is printed."""
        return printed(*arguments, folder=self.folder, quick=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    monkeypatch.setenv("COLUMNS", "80")
    return Here(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_the_command_that_is_printed_solves_what_was_written(
    case: str, here: Here, tmp_path: Path
) -> None:
    arguments, gpus, memory, period = CASES[case]
    shown = here.print("instance", *arguments.split(), "-o", "my chain.json")
    chain = Chain.load(tmp_path / "my chain.json")
    assert shown.startswith(f"Chain     {chain.name}: {len(chain.layers)} layers, ")
    assert "Chain written to my chain.json\n" in shown
    assert f"{gpus} GPUs of " in shown
    assert "transfers are free" in shown
    command = written(shown)
    assert command == [
        "solve", "--chain", "my chain.json", "--gpus", str(gpus), "--mem", str(memory)
    ]  # fmt: skip
    assert "--chain 'my chain.json'" in shown
    first = next(line for line in shown.splitlines() if line.startswith("Known"))
    assert first.startswith("Known     contiguous, ")
    assert ("infeasible" if period is None else f"{period}.000 ms or {period * MS} ns") in first
    solve_as_printed(command, tmp_path, period)


@pytest.mark.parametrize("case", ["lemma 2", "theorem 4", "theorem 5", "uniform"])
def test_json_is_one_document(case: str, here: Here, tmp_path: Path) -> None:
    arguments, gpus, memory, period = CASES[case]
    shown = here.print("instance", *arguments.split(), "-o", "chain.json", "--json")
    document = json.loads(shown)
    chain = Chain.load(tmp_path / "chain.json")
    assert document["name"] == chain.name
    assert document["layers"] == len(chain.layers)
    assert document["chain_sha256"] == chain.sha256
    assert document["platform"] == chain.provenance["platform"]
    assert document["platform"] == {
        "gpus": gpus, "memory_bytes": memory, "bandwidth_bytes_per_s": None
    }  # fmt: skip
    assert document["known"] == chain.provenance["known"]
    first = document["known"][0]
    assert first["scope"]["allocation"] == "contiguous"
    assert first["period_exact"] == (None if period is None else [period * MS, 1])
    name, *command = document["solve"]
    assert name == "schedopt"
    solve_as_printed(command, tmp_path, period)


def test_theorem_4_tells_exact_periods_and_their_k(here: Here, tmp_path: Path) -> None:
    shown = here.print("instance", "theorem4", "--k", "3", "-o", tmp_path / "chain.json")
    lines = [line for line in shown.splitlines() if line.startswith("Known")]
    for line, start in zip(
        lines,
        (
            "contiguous, k = 1: 4.000 ms or 4000000 ns (",
            "contiguous, k up to 2: 3.000 ms or 3000000 ns, reached with k = 2 (",
            "contiguous, any k: 2.667 ms or 8000000/3 ns, reached with k = 3 (",
            "any allocation, any k: 2.667 ms or 8000000/3 ns, reached with k = 3 (",
        ),
        strict=True,
    ):
        assert line.startswith(f"Known     {start}Beaumont et al. 2021, Theorem 4")


def test_random_is_solvable_and_nothing_is_known(here: Here, tmp_path: Path) -> None:
    arguments = ("instance", "random", "--layers", "12", "--seed", "3", "-o")
    shown = here.print(*arguments, "one.json")
    assert "Known     nothing\n" in shown
    solved = run(*written(shown), "--json", folder=tmp_path)
    document = json.loads(solved.stdout)
    assert (solved.returncode, document["status"]) == (0, "optimal")
    assert Fraction(*document["period_exact"]) > 0
    again = here.print(*arguments, "two.json", "--gpus", "8", "--mem", "1G", "--json")
    one, two = (Chain.load(tmp_path / name) for name in ("one.json", "two.json"))
    assert one.layers == two.layers
    told = json.loads(again)
    assert told["known"] == []
    assert told["platform"]["gpus"] == 8
    assert told["solve"][-4:] == ["--gpus", "8", "--mem", str(10**9)]


def test_one_layer_on_one_gpu_is_singular(here: Here, tmp_path: Path) -> None:
    shown = here.print(
        "instance", "uniform", "--layers", "1", "--gpus", "1", "-o", tmp_path / "c.json"
    )
    assert "uniform-layers-1: 1 layer, 3.000 ms" in shown
    assert "Platform  1 GPU of 11.00 MB" in shown


def test_with_less_memory_nothing_is_said_to_be_known(here: Here, tmp_path: Path) -> None:
    arguments = ("uniform", "--layers", "8", "--mem", "27MB", "-o", "chain.json")
    shown = here.print("instance", *arguments)
    assert "Known     nothing\n" in shown


@pytest.mark.parametrize("name", ['it\'s $HOME; "x" & y.json', "-chain.json", "ключ 🎉.json"])
def test_odd_names_are_quoted_for_a_shell(name: str, here: Here, tmp_path: Path) -> None:
    shown = here.print("instance", "section6-1", f"--output={name}")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    solve_as_printed(written(shown), tmp_path, 3)


def test_a_bad_value_ends_the_installed_command_the_same_way(tmp_path: Path) -> None:
    done = run_process("instance", "theorem4", "--k", "0", "-o", tmp_path / "chain.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: --k: 0 is out of range. Give an integer from 1 to 4095\n"


def test_an_older_file_stays_after_bad_values_and_goes_after_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_text("older")
    assert run("instance", "theorem4", "--k", "0", "-o", path).returncode == 2
    assert path.read_text() == "older"
    assert run("instance", "theorem4", "--k", "1", "-o", path).returncode == 0
    assert len(Chain.load(path).layers) == 2


def test_help_lists_all(here: Here) -> None:
    shown = here.print("instance", "--help")
    for command in COMMANDS:
        assert f" {command} " in shown
    assert "Exit codes" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_exit_codes_and_an_example_that_works(
    command: str, here: Here, tmp_path: Path
) -> None:
    shown = here.print("instance", command, "--help")
    assert "Exit codes" in shown
    lines = [line.strip().removeprefix("Example: ") for line in shown.splitlines()]
    examples = [line for line in lines if line.startswith(f"schedopt instance {command} ")]
    assert len(examples) == (2 if command == "uniform" else 1)
    for example in examples:
        here.print(*example.split()[1:])
        (path,) = tmp_path.iterdir()
        assert Chain.load(path).layers
        path.unlink()
