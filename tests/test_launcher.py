"""torchrun's report of a failed process ends with the line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from schedopt import InputError
from schedopt.cli.flags import report
from schedopt.launcher import ERROR_FILE, telling_torchrun


def reported(path: Path) -> str:
    """Return what torchrun prints of a process that left a file."""
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    failed: Any = ChildFailedError("train.py", {0: failure})
    said: str = failed.format_msg()
    return said


def test_bad_input_of_a_library_call_is_what_the_report_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    error = InputError("3 is odd", field="microbatches", way_out="Give 4")
    with pytest.raises(InputError, match="3 is odd"), telling_torchrun():
        raise error
    (line,) = (line for line in reported(tmp_path / "error.json").splitlines() if "odd" in line)
    assert line.strip().endswith("Error: microbatches: 3 is odd. Give 4")


def test_the_command_line_tells_it_with_its_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    assert report(InputError("too little", way_out="Allow Scope.recompute")) == 2
    assert "Error: too little. Allow --recompute" in reported(tmp_path / "error.json")


def test_a_process_of_nobody_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError), telling_torchrun():
        raise InputError("bad")
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "missing" / "error.json"))
    with pytest.raises(InputError), telling_torchrun():
        raise InputError("bad")
    assert list(tmp_path.iterdir()) == []
