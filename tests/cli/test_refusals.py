"""What each command refuses: exit code 2, one line that names the option, nothing written."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from schedopt import Platform, Profile, Variant
from tests.cli.commands import GPT2, ROOT, run
from tests.cli.refused import REFUSED
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.importing.files import PIPEDREAM
from tests.running import faulty
from tests.solving.test_sizes import chain
from tests.sweeping.helpers import CHAIN

FACTORY = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)), torch.zeros(8, 4)
"""


def write_profiles(folder: Path) -> None:
    """Write a profile, others with a variant that differs, and tables of operators."""
    variants = (Variant(tensor=t, chain=chain(b, t)) for b in (2, 4) for t in (1, 2))
    Profile(variants=tuple(variants)).save(folder / "sizes.json")
    document = json.loads((folder / "sizes.json").read_text())
    own = document["variants"][1]["chain"]
    first, second, third = own["layers"]
    for name, other in (
        ("fewer", {"layers": [first, second]}),
        ("named", {"layers": [first, second | {"name": "other"}, third]}),
        ("tied", {"same_gpu": [[0, 2]]}),
    ):
        document["variants"][1]["chain"] = own | other
        (folder / f"{name}.json").write_text(json.dumps(document))
    operators = ROOT / "instances" / "published" / "mist" / "ops.json"
    shutil.copy(operators, folder)
    (folder / "us.json").write_text(operators.read_text().replace('"forward_ns"', '"forward_us"'))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of each kind that the rows name."""
    made = tmp_path_factory.mktemp("refused")
    nodes = ROOT / "instances" / "two-nodes.platform.json"
    shutil.copy(GPT2, made / "gpt2.json")
    shutil.copy(ROOT / "instances" / "resnet50.json", made)
    text = GPT2.read_text()
    (made / "minus.json").write_text(text.replace('"forward_ns": ', '"forward_ns": -', 1))
    document = json.loads(text)
    for half in ("backward_input_ns", "backward_weight_ns", "saved_weight_bytes"):
        document["layers"][1].pop(half, None)
    (made / "whole.json").write_text(json.dumps(document))
    (made / "four.json").write_text(json.dumps(document | {"samples": 4}))
    for name in ("gradient_bytes", "optimizer_bytes"):
        del document["layers"][1][name]
    (made / "bare.json").write_text(json.dumps(document))
    write_profiles(made)
    shutil.copy(nodes, made / "nodes.json")
    Platform(2, "9G", bandwidth="1GB/s", latency="100000s").save(made / "far.json")
    (made / "bits.json").write_text(nodes.read_text().replace("1GB/s", "1Gbit/s"))
    (made / "empty.json").write_text("{}")
    (made / "other.json").write_text('{"format": "x/1"}')
    (made / "points.json").write_text('{"format": "schedopt.sweep/1"}')
    (made / "systems.json").write_text('{"format": "schedopt.comparison/1"}')
    (made / "own_models.py").write_text(FACTORY)
    (made / "small.txt").write_text(PIPEDREAM)
    (made / "run.sh").write_text(
        "--pipeline-model-parallel-size 4 --micro-batch-size 1 "
        "--untie-embeddings-and-output-weights"
    )
    (made / "ds.json").write_text('{"train_batch_size": 4}')
    (made / "bad.txt").write_text(PIPEDREAM.replace("time=1.5", "time=-1.5"))
    CHAIN.save(made / "chain.json")
    result_of(EXAMPLES["contiguous"]()).save(made / "plan.json")
    faulty.solved(faulty.chain(), "1M").save(made / "two.plan.json")
    asked = ("--chain", "gpt2.json", "--platform", "nodes.json", "-o", "nodes.plan.json")
    assert run("solve", *asked, folder=made).returncode == 0
    return made


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_a_refusal_is_one_line_and_nothing_is_written(line: str, words: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    done = run(*shlex.split(line), folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == [
        path for path in before if path.name != "__pycache__"
    ]


@pytest.mark.parametrize("broken", ["operation", "memory"])
@pytest.mark.parametrize(
    "line",
    [
        "show bad.json",
        "simulate bad.json",
        "export bad.json --to torch-csv -o out",
        "report bad.json -o out",
        "report plan.json -o out --compare-with bad.json",
    ],
)
def test_an_invalid_plan_is_not_used(line: str, broken: str, folder: Path, tmp_path: Path) -> None:
    plan = Path(shutil.copy(folder / "plan.json", tmp_path))
    document = json.loads(plan.read_text())
    if broken == "operation":
        document["pattern"]["operations"].pop()
    else:
        document["platform"]["gpus"][0]["memory_bytes"] = 509
    (tmp_path / "bad.json").write_text(json.dumps(document))
    done = run(*line.split(), folder=tmp_path)
    if broken == "memory" and "--compare-with" in line:
        # What is run now may need more memory than there is.
        assert (done.returncode, done.stderr) == (0, "")
        assert "GPU 0 lacks" in (tmp_path / "out").read_text()
        return
    assert done.returncode == 5
    assert "See: schedopt check bad.json" in done.stderr
    assert not (tmp_path / "out").exists()
    # What is over memory, and else valid, is shown with a warning.
    shown = broken == "memory" and line.startswith("s")
    assert ("GPU 2" in done.stdout) == shown
    assert ("over memory" if shown else "bad.json: not a valid plan: ") in done.stderr
