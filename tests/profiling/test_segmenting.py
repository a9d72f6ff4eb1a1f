from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, fx, nn

from schedopt import InputError
from schedopt.profiling import Model
from schedopt.profiling.fake_tensors import without_memory
from schedopt.profiling.hf import build_model
from schedopt.profiling.pieces import Piece
from schedopt.profiling.segmenting import find_cuts, make_segments
from schedopt.profiling.tracing import trace
from tests.budgets import nightly_but
from tests.profiling.networks import TINY, tiny
from tests.profiling.odd_modules import (
    DOUBLE,
    MASK,
    ODD,
    PLAIN,
    Two,
    batch_norm,
    chained,
    drop_path,
    lstm,
    residual,
    two,
)

BY_DAY = ("gpt2-dropout", "llama", "resnet18")
"""Random numbers, grouped heads, and normalization over a batch with residual branches."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sum in one order: with more threads a sum may be cut elsewhere, which moves its last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def segments_of(model: Model, *without: str) -> list[Piece]:
    module = trace(model)
    return make_segments(module, [cut for cut in find_cuts(module) if cut not in without])


def run_segments(segments: Sequence[Piece], inputs: dict[str, Tensor]) -> Tensor:
    """Run one step of a pipeline: segments cut off from each other, gradients handed back."""
    own = {name: value.clone() for name, value in inputs.items()}
    steps: list[tuple[Tensor | None, Tensor]] = []
    value: Tensor | None = None
    for segment in segments:
        side = [own[name] for name in segment.side]
        if value is None:
            output = segment.module(*side)
        else:
            value = value.detach().clone().requires_grad_(value.requires_grad)
            # Not a leaf, so that the segment may write over it.
            output = segment.module(value.clone(), *side)
        steps.append((value, output))
        value = output
    loss = steps[-1][1].detach()
    gradient: Tensor | None = None
    for taken, output in reversed(steps):
        torch.autograd.backward(output, gradient)
        if taken is None or taken.grad is None:
            break
        gradient = taken.grad
    return loss


def run_whole(module: nn.Module, model: Model) -> Tensor:
    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    args = [copied(value) for value in model.args]
    output = module(*args, **{name: copied(value) for name, value in model.kwargs.items()})
    if model.loss is not None:
        loss: Tensor = model.loss(output)
    else:
        loss = output.sum() if isinstance(output, Tensor) else output.loss
    torch.autograd.backward(loss)
    return loss.detach()


def differences(model: Model, *without: str) -> dict[str, float]:
    """Return what differs between the segments and the whole: loss, gradients, buffers."""
    whole = copy.deepcopy(model.module)
    segments = segments_of(model, *without)
    torch.manual_seed(0)
    expected = {"loss": run_whole(whole, model)}
    torch.manual_seed(0)
    found = {"loss": run_segments(segments, model.tensors)}
    for module, values in ((whole, expected), (model.module, found)):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                values[f"gradient of {name}"] = parameter.grad
        values.update(module.named_buffers())
    assert found.keys() == expected.keys()
    return {
        name: float((found[name] - value).abs().max())
        for name, value in expected.items()
        if not torch.equal(found[name], value)
    }


@pytest.mark.parametrize("family", nightly_but(BY_DAY, [name for name in TINY if name != "vit"]))
def test_the_segments_of_a_known_model_compute_what_the_whole_computes(family: str) -> None:
    assert differences(tiny(family, "float64")) == {}


def test_the_segments_of_a_vision_transformer_compute_what_the_whole_computes() -> None:
    # Cut off, the gradient of the convolution comes in another layout, and is rounded otherwise.
    assert differences(tiny("vit", "float64"), "conv2d", "flatten") == {}


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
def test_the_segments_of_a_module_compute_what_the_whole_computes(name: str) -> None:
    assert differences(two((PLAIN | ODD)[name])) == {}


@pytest.mark.parametrize("name", ["x, mask", "x"])
def test_inputs_by_position_and_by_name_come_where_they_are_needed(name: str) -> None:
    x = torch.randn(8, 4, dtype=DOUBLE)
    inputs = (x, MASK) if name == "x" else {"mask": MASK, "x": x}
    assert differences(two(residual, inputs)) == {}


def test_frozen_and_tied_weights_and_a_loss_of_the_caller_are_kept() -> None:
    model = two(chained)
    assert isinstance(model.module, Two)
    model.module.a.requires_grad_(False)
    assert differences(model) == {}
    assert model.module.a.weight.grad is None
    model = two(chained)
    assert isinstance(model.module, Two)
    model.module.b.weight = model.module.a.weight
    assert differences(model) == {}
    assert differences(two(chained, loss=lambda y: y.square().mean())) == {}


def test_running_statistics_advance() -> None:
    model = two(batch_norm)
    assert isinstance(model.module, Two)
    run_segments(segments_of(model), model.tensors)
    assert model.module.norm.num_batches_tracked == 1


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_a_layer_of_many_outputs_is_not_cut_before_one_is_taken() -> None:
    assert differences(two(lstm)) == {}


def carried_nodes(module: fx.GraphModule) -> tuple[networkx.DiGraph, str]:
    """Return the graph of the nodes that depend on an input and on a parameter, and the loss."""
    every = networkx.DiGraph()
    for node in module.graph.nodes:
        every.add_node(node.name)
        every.add_edges_from((one.name, node.name) for one in node.all_input_nodes)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}

    def below(names: list[str]) -> set[str]:
        return set().union(*(networkx.descendants(every, name) for name in names))

    inputs = below([node.name for node in module.graph.nodes if node.op == "placeholder"])
    weights = [n.name for n in module.graph.nodes if n.op == "get_attr" and n.target in parameters]
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    carried = (inputs & below(weights)) - {output.name}
    return every.subgraph(carried), output.all_input_nodes[0].name


@pytest.mark.parametrize("name", [*nightly_but(BY_DAY, TINY), *PLAIN])
def test_a_cut_is_where_one_tensor_is_live(name: str) -> None:
    module = trace(tiny(name) if name in TINY else two(PLAIN[name]))
    graph, loss = carried_nodes(module)
    useful = networkx.ancestors(graph, loss) | {loss}
    expected = set()
    for node in useful:
        done = networkx.ancestors(graph, node) | {node}
        later = useful - done
        live = {one for one in done if later & set(graph.successors(one))}
        started = {one for one in later if graph.in_degree(one) == 0}
        if live <= {node} and not started:
            expected.add(node)
    assert set(find_cuts(module)) == expected


def test_cuts_are_in_order_and_end_with_the_loss() -> None:
    module = trace(tiny("gpt2"))
    order = [node.name for node in module.graph.nodes]
    cuts = find_cuts(module)
    assert cuts == sorted(cuts, key=order.index)
    assert cuts[-1] == "cross_entropy_loss"


@pytest.mark.parametrize(
    ("name", "least"), [pytest.param("gpt2", 25, marks=pytest.mark.nightly), ("resnet50", 30)]
)
def test_a_real_model_has_many_cuts(name: str, least: int) -> None:
    with without_memory():
        assert len(find_cuts(trace(build_model(name)))) >= least


def test_noise_does_not_keep_a_model_from_being_cut_before_and_after_it() -> None:
    # Behind each linear layer but those beside a way around, and behind each sum.
    assert len(find_cuts(trace(two(drop_path)))) == 7


def test_names_tell_the_block_and_side_inputs_come_in_where_they_are_read() -> None:
    segments = segments_of(tiny("gpt2"))
    for name in ("wte", "h.0", "h.1", "ln_f", "lm_head"):
        assert any(name in segment.name for segment in segments)
    first, *rest, last = segments
    assert (first.side, last.side) == (("input_ids",), ("labels",))
    assert all(segment.side == () for segment in rest)
    names = [segment.name for segment in segments_of(tiny("resnet18"))]
    for stage in range(4):
        assert any(f"stages.{stage}.layers.1" in name for name in names)
    masked = segments_of(two(residual, {"x": torch.randn(8, 4, dtype=DOUBLE), "mask": MASK}))
    assert [segment.side for segment in masked if segment.side] == [("x",), ("mask",), ("mask",)]


def test_segments_share_the_parameters_and_hold_only_those_that_they_use() -> None:
    model = tiny("gpt2")
    own = {id(parameter) for parameter in model.module.parameters()}
    found = {id(p) for segment in segments_of(model) for p in segment.module.parameters()}
    assert found == own
    segments = segments_of(two(chained))
    assert [len(list(segment.module.parameters())) for segment in segments] == [2, 0, 2, 0]


@pytest.mark.parametrize(
    "cuts",
    [
        [],
        ["nothing"],
        ["linear", "nothing", "sum_1"],
        ["linear", "tanh"],
        ["tanh", "linear", "sum_1"],
        ["linear", "linear", "sum_1"],
    ],
)
def test_cuts_that_the_model_does_not_have_are_refused(cuts: list[str]) -> None:
    with pytest.raises(InputError, match=r"recipe\.cuts: the model cannot be cut at"):
        make_segments(trace(two(chained)), cuts)


@pytest.mark.parametrize("cuts", [["sum_1"], ["linear_1", "sum_1"], ["linear", "tanh", "sum_1"]])
def test_some_of_the_cuts_will_do(cuts: list[str]) -> None:
    assert [segment.cut for segment in make_segments(trace(two(chained)), cuts)] == cuts


def branching(self: Two, x: Tensor) -> Any:
    y: Tensor = self.a(x)
    return self.b(y) if y.sum() > 0 else y


def without_weights(_: Two, x: Tensor) -> Any:
    return x * 2


def several(self: Two, x: Tensor) -> Any:
    return self.a(x), self.b(x)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (two(branching), "cannot be traced at test_segmenting.py:[0-9]+: .* Move control flow"),
        (two(without_weights), "the loss depends on no parameter"),
        (
            two(chained, torch.zeros(8, 5, dtype=DOUBLE)),
            r"cannot be traced at .*\[8, 5\] X \[4, 4\]",
        ),
        (two(several), "it returns tuple, not one dense tensor. Return one tensor, or give a loss"),
        (two(chained, loss=lambda y: y), r"the loss is a tensor of shape \(8, 4\), not a scalar"),
        (two(chained, loss=lambda y: 3), "the loss is 3, not a scalar tensor"),
    ],
)
def test_a_model_that_cannot_be_cut_is_told_why(model: Model, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        find_cuts(trace(model))
    assert "\n" not in str(caught.value)


def test_operators_between_the_modules_have_their_own_names_and_are_no_loss() -> None:
    segments = segments_of(two(chained, loss=lambda output: output.exp().mean()))
    assert [segment.name for segment in segments] == ["a", "tanh", "b", "loss", "loss"]
