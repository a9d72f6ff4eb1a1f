"""``schedopt compare``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from schedopt.cli.compare import show_and_advise
from schedopt.formats.chains import chain_document
from schedopt.systems import catalogue
from schedopt.systems.catalogue import SYSTEMS, System
from tests.cli.commands import printed, run
from tests.systems import stand_ins
from tests.systems.stand_ins import CHAIN, names

STAND_INS = (
    *stand_ins.SYSTEMS,
    *(
        System(name, name, f"tests.systems.stand_ins:{name}", "")
        for name in ("wrong", "interrupting", "endless")
    ),
)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    CHAIN.save(tmp_path / "chain.json")
    return tmp_path / "chain.json"


def compare(chain: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the systems that are easy to follow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "SYSTEMS", STAND_INS)
        patched.setenv("COLUMNS", "200")
        return run("compare", "--chain", chain, "--gpus", "2", "--bandwidth", "1GB/s", *more)


SOME = ("--systems", ",".join(names))


def test_the_table(chain: Path) -> None:
    done = compare(chain, "--mem", "32", *SOME)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {line[0]: line[1:] for line in lines if line and line[0] in names}
    assert list(found) == ["alone", "in_pairs", "there_and_back", "stale", "halves"]
    free = ["0", "B", "0", "B"]
    assert found["alone"] == [
        *("48", "ns", "1.667e+08", "6", "ns", "30", "B", "yes", "1"), *free, "0", "8", "-", "-"
    ]  # fmt: skip
    assert found["there_and_back"] == [
        *("96", "ns", "8.333e+07", "12", "ns", "15", "B", "yes", "2"),
        *("3", "B", "6", "B", "1", "8", "-", "-"),
    ]
    assert found["stale"][5:] == [
        *("34", "B", "no", "1"), *free, "0", "1", "2", "1/1", "GPU", "0", "lacks", "2", "B"
    ]  # fmt: skip
    assert "layers[0].backward_input_ns: absent" in " ".join(found["halves"])
    assert "Step      8 micro-batches" in done.stdout
    assert "Transfers are free" not in done.stdout
    assert "without replicas" not in done.stdout


def test_updates_that_nobody_timed_are_told_of(chain: Path) -> None:
    words = "Updates of the weights take no time here: no layer of the chain has update_ns."
    assert words in compare(chain, "--mem", "32", "--systems", "alone").stdout
    first, *others = CHAIN.layers
    timed = replace(CHAIN, layers=(replace(first, update_ns=0), *others))
    timed.save(chain)
    assert words not in compare(chain, "--mem", "32", "--systems", "alone").stdout


def test_everything_is_written(chain: Path) -> None:
    folder = chain.parent
    done = compare(
        chain, "--mem", "32", "--systems", "alone, halves,schedopt", "--sort", "name", "--json",
        "--plans", str(folder / "plans"), "-o", str(folder / "c.json"),
        "--plot", str(folder / "c.svg"), "--microbatches", "3",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    written = json.loads((folder / "c.json").read_text())
    assert written.pop("chain") == chain_document(CHAIN)
    assert [row.pop("plan", None) is None for row in written["rows"]] == [False, False, True]
    assert document == written
    assert [row["system"] for row in document["rows"]] == ["alone", "schedopt", "halves"]
    assert [row.get("period_exact") for row in document["rows"]] == [[6, 1], [6, 1], None]
    assert (document["microbatches"], document["rows"][0]["step_ns"]) == (3, 18)
    assert "throughput against memory" in (folder / "c.svg").read_text()
    assert sorted(path.name for path in (folder / "plans").iterdir()) == [
        "alone.json",
        "schedopt.json",
    ]
    for path in (folder / "plans").iterdir():
        assert run("check", path).returncode == 0


def test_nothing_fits(chain: Path) -> None:
    done = compare(chain, "--mem", "14", "--systems", "alone,there_and_back,schedopt")
    assert (done.returncode, done.stderr) == (3, "")
    assert "GPU 0 lacks 16 B" in done.stdout
    assert "a plan exists with 15 B" in done.stdout
    assert "schedopt: looked for, and proven, among plans without replicas" in done.stdout
    assert "No plan fits: there_and_back is the closest, where GPU 0 lacks 1 B." in done.stdout
    some = compare(chain, "--mem", "15", "--systems", "alone,there_and_back")
    assert "No plan fits" not in some.stdout


def test_another_training_state_changes_what_fits(chain: Path) -> None:
    # Each layer has one parameter of 2 bytes: 16 and the 2 of buffers instead of 10.
    done = compare(
        chain, "--mem", "32", "--systems", "there_and_back", "--training-state", "mixed-adam"
    )
    assert "23 B" in done.stdout
    solved = run(
        "solve", "--chain", chain, "--gpus", "2", "--mem", "22", "--training-state", "mixed-adam"
    )
    assert solved.returncode == 3
    assert "23 bytes" in solved.stdout


def test_systems_without_time_are_named(chain: Path) -> None:
    done = compare(chain, "--mem", "32", "--systems", "alone,endless", "--time-limit", "2")
    assert done.returncode == 0
    assert "no time was left for it" in done.stdout
    assert "No time was left for endless: give more (--time-limit)" in done.stderr
    done = compare(chain, "--mem", "32", "--systems", "endless", "--time-limit", "0.1")
    assert done.returncode == 4


def test_an_interrupt_keeps_the_rows_so_far(chain: Path) -> None:
    output = chain.parent / "c.json"
    done = compare(
        chain, "--mem", "32", "--systems", "alone,interrupting,schedopt", "-o", str(output)
    )
    assert done.returncode == 130
    assert done.stderr == (
        "Interrupted: without interrupting, schedopt. Start again for all of them.\n"
    )
    assert "alone" in done.stdout
    document = json.loads(output.read_text())
    assert [row["system"] for row in document["rows"]] == ["alone"]
    assert document["missing"] == ["interrupting", "schedopt"]


def test_what_takes_long_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("schedopt.cli.compare.monotonic", lambda: now[0])
    shown: list[str] = []
    on_progress = show_and_advise(lambda done, total, name: shown.append(name))
    said = []
    for seconds, name in (
        (0, "one"),
        (29, "two"),
        (31, "schedopt: step"),
        (31, "three"),
        (99, "4"),
    ):
        now[0] = seconds
        on_progress(len(shown), 5, name)
        said.append(capsys.readouterr().err)
    assert shown == ["one", "two", "schedopt: step", "three", "4"]
    assert [bool(words) for words in said] == [False, False, False, True, False]
    assert said[3].startswith("3 of 5 rows are done. Fewer micro-batches (--microbatches) or only")


def test_a_plan_that_is_not_valid_is_our_fault(chain: Path) -> None:
    done = compare(chain, "--mem", "32", "--systems", "wrong")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the plan of wrong is not valid" in done.stderr


def test_every_system_has_a_row(chain: Path) -> None:
    shown = printed("compare", "--chain", chain, "--gpus", "2", "--mem", "1K", "--json")
    found = {row["system"] for row in json.loads(shown)["rows"]}
    assert found == {system.name for system in SYSTEMS} | {"schedopt", "schedopt_step"}
