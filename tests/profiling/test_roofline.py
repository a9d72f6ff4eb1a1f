from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

from schedopt import Chain, InputError
from schedopt.formats.presets import GPUS
from schedopt.profiling import Model, estimate
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock, roofline_of
from tests.profiling.networks import tiny

NANO = 10**9
BOTH = Roofline(flops=NANO, bytes_per_s=NANO)
TABLES = Path(__file__).parents[2] / "instances" / "published"


def stack(width: int, samples: int, dtype: torch.dtype = torch.bfloat16) -> Model:
    layers = [nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False)]
    inputs = torch.zeros(samples, width, dtype=dtype)
    return Model(module=nn.Sequential(*layers).to(dtype), inputs=inputs)


def on(gpu: str, width: int, samples: int, dtype: torch.dtype = torch.bfloat16) -> Chain:
    return estimate(lambda: stack(width, samples, dtype), on=gpu)


def test_a_large_product_takes_its_operations_over_three_quarters_of_the_peak() -> None:
    width = 16384
    products = on("h100", width, width).layers[0]
    assert products.forward_ns == round(2 * width**3 / (989.4e12 * 0.75) * 1e9)
    single = on("h100", width, width, torch.float32).layers[0]
    assert single.forward_ns == round(2 * width**3 / (66.9e12 * 0.75) * 1e9)


def test_what_is_small_takes_its_bytes_over_four_fifths_of_the_memory_rate() -> None:
    width, samples = 4096, 8
    first, middle, _ = on("a100", width, samples).layers
    rate = 2039e9 * 0.8
    # Two bytes each: the weights are read, and both sides of the product; ReLU reads and writes.
    assert first.forward_ns == round(2 * (width * width + 2 * samples * width) / rate * 1e9)
    assert middle.forward_ns == round(2 * 2 * samples * width / rate * 1e9)


def test_an_update_reads_gradients_and_reads_and_writes_the_rest() -> None:
    width = 4096
    first, middle, _ = on("a100", width, 8).layers
    assert middle.update_ns is None
    # Of two bytes: the gradient once; parameter and two moments each twice.
    assert first.update_ns == round(2 * width * width * 7 / (2039e9 * 0.8) * 1e9)


def test_the_provenance_says_that_nothing_was_measured() -> None:
    provenance = on("l4", 64, 8).provenance
    assert provenance["source"] == "estimated"
    assert provenance["times"] == "roofline of l4, not measured"


def test_views_take_no_time_and_lookups_what_they_return() -> None:
    table, rows = torch.zeros(1000, 8), torch.zeros(4, dtype=torch.long)
    with FlopClock(BOTH) as clock:
        table.t().view(8, 1000)[:, :10].expand(8, 10)
        assert clock.mark() == 0
        nn.functional.embedding(rows, table)
        assert clock.mark() == 2 * 4 * 8 * 4
        before = clock.mark()
        table.add_(1)
        # Read once, written once.
        assert clock.mark() - before == 2 * 4 * 8000
        before = clock.mark()
        (torch.zeros(1, 8).expand(1000, 8) + table).sum()
        # What is repeated is read from its own memory: 8 elements, not 8,000; zeros write them.
        assert clock.mark() - before == 4 * (8 + 8 + 8000 + 8000 + 8000 + 1)


def test_an_operator_takes_the_longer_of_both() -> None:
    first, second = torch.zeros(4, 6), torch.zeros(6, 10)
    with FlopClock(Roofline(flops=NANO, bytes_per_s=NANO * 100)) as clock:
        torch.mm(first, second)
    assert clock.mark() == 2 * 4 * 6 * 10
    with FlopClock(BOTH) as clock:
        torch.mm(first, second)
    assert clock.mark() == 4 * (4 * 6 + 6 * 10 + 4 * 10) > 2 * 4 * 6 * 10 / 2


def test_a_ring_sends_a_part_in_each_of_its_steps() -> None:
    links = Roofline(flops=1, link_bytes_per_s=NANO, latency_ns=5)
    assert links.all_reduce_ns(1200, 4) == 6 * (5 + 300)
    assert links.all_reduce_ns(1200, 2) == 2 * (5 + 600)
    assert links.all_reduce_ns(1000, 3) == 4 * (5 + Fraction(1000, 3))


def test_no_product_that_was_measured_is_faster_than_the_peak() -> None:
    table = json.loads((TABLES / "mist" / "ops.json").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    width = {"1.3B": 2048, "2.6B": 2560, "6.7B": 4096, "13B": 5120}
    fastest = max(
        2 * row["mbs"] * 2048 * 4 * width[row["model"]] ** 2 / row["forward_ns"] * 1e9
        for row in rows
        if row["op"] == "enc-MLP-GEMM-2"
        and (row["set"], row["tp"], row["algo"]) == ("a10g", 1, 0)
        and row["model"] in width
    )
    assert 0.95 * 70e12 < fastest < 70e12


@pytest.mark.parametrize("gpu", GPUS)
def test_every_kind_of_gpu_has_rates(gpu: str) -> None:
    model = tiny("gpt2")
    roofline = roofline_of(gpu, model)
    assert roofline.link_bytes_per_s is not None
    assert roofline.bytes_per_s is not None
    assert roofline.link_bytes_per_s < roofline.bytes_per_s < roofline.flops


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"on: 'h900' is not known.*a100 or h100"):
        estimate(lambda: tiny("gpt2"), on="h900")
    with pytest.raises(InputError, match="on: how fast h100 computes float64 is not known"):
        estimate(lambda: tiny("gpt2", "float64"), on="h100")
    with pytest.raises(InputError, match="flops and on: one of them"):
        estimate(lambda: tiny("gpt2"), on="h100", flops=1)
    with pytest.raises(InputError, match="flops and on: one of them"):
        estimate(lambda: tiny("gpt2"))
