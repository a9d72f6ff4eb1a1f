"""``schedopt profile``."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from schedopt import Chain, Profile
from schedopt.cli.profile import refuse_spreads
from tests.cli.commands import printed, run, solve_json

GPT2 = "hf:gpt2:layers=2,width=16,heads=2,vocabulary=31,tied=no"
QUICK = ("--batch", "2", "--seq", "8", "--warmup", "0", "--repeats", "2")
FACTORY = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)), torch.zeros(8, 4)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the chain of a tiny GPT-2, and what was printed."""
    path = tmp_path_factory.mktemp("profile") / "gpt2.json"
    return path, printed("profile", GPT2, *QUICK, "--verify", "-o", path)


def test_a_table_shows_the_layers(measured: tuple[Path, str]) -> None:
    path, printed = measured
    for word in ("Forward", "Backward", "Saved", "Weights", "h.0", "h.1", "all", "Chain written"):
        assert word in printed
    assert str(path.name) in printed


def test_verify_shows_the_whole_beside_the_chain(measured: tuple[Path, str]) -> None:
    printed = measured[1]
    for word in ("Whole", "forward", "backward", "step", "saved", "peak memory", "differ most"):
        assert word in printed
    (saved,) = (line for line in printed.splitlines() if line.strip(" │").startswith("saved"))
    assert "+0.00%" in saved


def test_the_chain_is_what_was_asked_for(measured: tuple[Path, str]) -> None:
    chain = Chain.load(measured[0])
    assert chain.name == "gpt2"
    assert chain.provenance["micro_batch"] == {"input_ids": [2, 8], "labels": [2, 8]}
    assert chain.recipe is not None
    assert chain.recipe.factory == GPT2
    assert chain.recipe.arguments == {"batch": 2, "seq": 8}
    assert len(chain.recipe.cuts) == len(chain.layers)


def test_the_chain_can_be_solved(measured: tuple[Path, str]) -> None:
    shown = printed("solve", "--chain", measured[0], "--gpus", "2", "--mem", "1G")
    assert "Period" in shown


@pytest.fixture(scope="module")
def estimated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("profile") / "llama.json"
    small = ("--dtype", "bfloat16", "--seq", "128", "--fake", "--flops", "400T")
    return path, printed("profile", "hf:llama-8b:layers=2", *small, "-o", path)


def test_a_model_is_estimated_without_its_memory(estimated: tuple[Path, str]) -> None:
    chain = Chain.load(estimated[0])
    attention, mlp, norms = 2 * 4096 * (4096 + 1024), 3 * 4096 * 14336, 2 * 4096
    parameters = 2 * 128256 * 4096 + 2 * (attention + mlp + norms) + 4096
    assert sum(layer.parameter_bytes or 0 for layer in chain.layers) == 2 * parameters
    assert chain.provenance["source"] == "estimated"
    assert chain.provenance["dtype"] == "bfloat16"


def test_what_was_estimated_can_be_solved(estimated: tuple[Path, str]) -> None:
    printed("solve", "--chain", estimated[0], "--gpus", "4", "--mem", "80G")


def test_a_factory_is_found_where_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "own_models.py").write_text(FACTORY)
    printed("profile", "own_models:build", "--warmup", "0", "--repeats", "2", "-o", "chain.json",
            folder=tmp_path)  # fmt: skip
    chain = Chain.load(tmp_path / "chain.json")
    assert [layer.name for layer in chain.layers] == ["0", "1"]
    assert solve_json("--chain", tmp_path / "chain.json", "--gpus", "2", "--mem", "1M")


def test_shared_weights_are_noted(tmp_path: Path) -> None:
    done = run("profile", "hf:gpt2:layers=1,width=16,heads=2,vocabulary=31", "--seq", "8",
               "--fake", "--flops", "1G", "-o", tmp_path / "chain.json")  # fmt: skip
    assert done.returncode == 0
    assert "share weights and must lie on one GPU" in " ".join(done.stdout.split())


SEVERAL = ("profile", GPT2, "--seq", "8", "--fake", "--flops", "1G", "-o", "many.json")


def test_several_sizes_are_a_profile_that_goes_on(tmp_path: Path) -> None:
    # A file of something else is written over.
    (tmp_path / "many.json").write_text("{}")
    first = printed(*SEVERAL, "--batch", "1,2", folder=tmp_path)
    assert "Profile written to many.json" in first
    assert "kept" not in first
    earlier = Profile.load(tmp_path / "many.json")
    second = printed(*SEVERAL, "--batch", "2,4", folder=tmp_path)
    assert second.count("kept") == 2
    profile = Profile.load(tmp_path / "many.json")
    assert profile.sizes == (1, 2, 4)
    assert profile.variants[:2] == earlier.variants


@pytest.mark.parametrize(("spread", "code"), [(0.04, 0), (0.2, 5)])
def test_strict_ends_with_an_error_where_times_spread(
    spread: float, code: int, measured: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    chain = Chain.load(measured[0])
    spreads = [spread] * len(chain.layers)
    found = {"forward_spread": spreads, "backward_spread": [0.01] * len(chain.layers)}
    chain = replace(chain, provenance={**chain.provenance, **found})
    ends = pytest.raises(typer.Exit) if code else nullcontext()
    with ends as caught:
        refuse_spreads([chain], Path("chain.json"))
    told = capsys.readouterr().err
    assert ("chain.json spread by 20.0% on average, more than 5%" in told) == bool(code)
    assert caught is None or caught.value.exit_code == code
