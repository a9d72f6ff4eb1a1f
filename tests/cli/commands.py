"""The command line, run as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GPT2 = ROOT / "instances" / "gpt2-small.json"


def run(
    *arguments: str | Path, folder: Path | None = None, quick: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the command line and wait for its end.

    Quick: solve looks for contiguous plans, if nothing else is said, for these are found at once.
    """
    typed = [*map(str, arguments)]
    if quick and typed[:1] == ["solve"] and not {"--allocation", "--fix", "--solver"} & {*typed}:
        typed += ["--allocation", "contiguous"]
    return subprocess.run(
        [sys.executable, "-m", "schedopt", *typed],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=120,
    )


def solve_json(*arguments: str | Path) -> dict[str, Any]:
    done = run("solve", *arguments, "--json")
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document
