"""``schedopt doctor``."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from schedopt.cli import doctor
from schedopt.version import __version__
from tests.cli.commands import ROOT, printed


def findings() -> dict[str, dict[str, str]]:
    document = json.loads(printed("doctor", "--json"))
    return {finding["name"]: finding for finding in document["findings"]}


def test_it_says_what_is_there() -> None:
    found = findings()
    assert found["schedopt"]["found"] == __version__
    assert re.match(r"\d+ cores? of \d+", found["Cores"]["found"])
    assert found["Extra torch"]["found"].startswith("torch 2")
    assert not found["Extra torch"]["advice"]
    searches = {
        f"Search {room}" for room in ("local_search", "replicas", "flush_search", "engines")
    }
    assert {*searches, "Code kept in"} <= {*found}


def test_what_is_not_there_has_a_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", nothing)
    found = findings()
    assert found["Extra draw"]["found"] == "matplotlib is missing, for pictures"
    assert found["Extra draw"]["advice"] == 'pip install "schedopt[draw]"'
    assert "GPUs" not in found


def test_code_that_cannot_be_kept_has_another_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))
    monkeypatch.setattr("os.access", lambda *_: False)
    found = findings()
    assert found["Search replicas"]["found"] == "not compiled yet"
    assert found["Code kept in"]["found"].startswith(str(tmp_path / "code"))
    assert "NUMBA_CACHE_DIR" in found["Code kept in"]["advice"]


def test_the_table_has_a_row_for_each() -> None:
    told = printed("doctor")
    assert "What to do" in told
    assert "Extra hf" in told


def test_the_extras_are_those_of_the_package() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*known["optional-dependencies"]} - {"test"}
    assert {*doctor.EXTRAS} == extras
    for extra, (package, _) in doctor.EXTRAS.items():
        assert any(
            re.match(rf"{package}\b", line) for line in known["optional-dependencies"][extra]
        )
