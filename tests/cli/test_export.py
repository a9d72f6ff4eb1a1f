"""``schedopt export`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import ROOT, printed, run

PLAN = ROOT / "instances" / "two-stages.plan.json"


def test_a_target_of_one_file_is_written_where_it_is_told(tmp_path: Path) -> None:
    options = ("--to", "torch-csv", "--microbatches", "2", "-o", "rows.csv")
    shown = printed("export", PLAN, *options, folder=tmp_path)
    assert shown == "Written: rows.csv\n"
    # The first GPU runs both forwards before the first gradient is there.
    assert (tmp_path / "rows.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_a_target_of_several_files_gets_a_folder(tmp_path: Path) -> None:
    document = json.loads(PLAN.read_text())
    names = ("embed", "layers.0", "layers.1", "head")
    for layer, name in zip(document["chain"]["layers"], names, strict=True):
        layer["name"] = name
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document))
    shown = printed("export", plan, "--to", "torchtitan", "-o", "titan", folder=tmp_path)
    assert shown == "Written: titan/pipeline.py\nWritten: titan/schedule.csv\n"
    assert "['layers.1', 'norm', 'lm_head']" in (tmp_path / "titan" / "pipeline.py").read_text()
    done = run("export", plan, "--to", "torchtitan", "-o", "plan.json", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: plan.json: cannot be made: File exists")
    done = run("export", PLAN, "--to", "torchtitan", "-o", "other", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --to: torchtitan cannot express it: ")
    assert not (tmp_path / "other").exists()
