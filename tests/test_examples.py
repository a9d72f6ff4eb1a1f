"""The notebooks run from top to bottom, and are kept without what they print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "schedopt" / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    cells: list[dict[str, Any]] = document["cells"]
    return cells


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["do_research", "plan_from_code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = cells_of(path)
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert path.stat().st_size < 20_000
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), path.name, "exec")


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """As a script; what ends a cell shows itself, and progress is left out."""
    lines = ["import warnings", "warnings.simplefilter('error')"]
    for cell in cells_of(path):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace(", on_progress=show_progress()", "")
            shown = r"assert '</table>' in \1._repr_html_()"
            lines += re.sub(r"^(\w+)\Z", shown, source, flags=re.MULTILINE).splitlines()
    script = tmp_path / "notebook.py"
    # Under a guard, since searches start processes.
    script.write_text("if __name__ == '__main__':\n    " + "\n    ".join(lines) + "\n")
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True)
