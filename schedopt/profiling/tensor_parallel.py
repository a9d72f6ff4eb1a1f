"""A model as one GPU of a tensor group has it (Shoeybi et al. 2019).

Which module is split how is said by the model's own plan for tensor parallelism, as models of
transformers have it (``tp_plan``): *colwise*, its outputs; *rowwise*, its inputs, so that what it
makes is added up over the group; *embedding_rowwise*, its vocabulary. What the plan does not name
(norms, residuals) is whole on each GPU.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from schedopt.errors import InputError
from schedopt.profiling.group_operators import Group, copied, largest, summed
from schedopt.profiling.model import Model
from schedopt.validation import show

FIELD: Final = "tensor_parallel"
_COLUMNS: Final = ("colwise", "colwise_rep", "colwise_gather_output")
"""The last two make whole outputs again: of logits, which the loss here takes in parts instead."""
_ROWS: Final = "rowwise"
_VOCABULARY: Final = "embedding_rowwise"
_HEADS: Final = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "intermediate_size": "columns of the MLP",
    "vocab_size": "tokens of the vocabulary",
}
_IGNORED: Final = -100
"""The label that counts for nothing, as in torch."""


def split(model: Model, group: Group) -> Model:
    """Return the part of a model that a GPU of a group has; weights that are whole are shared.

    Raises
    ------
    InputError
        If the model has no plan, one that is not known here, or sizes that the degree does not
        divide.
    """
    styles = check_split(model, group.degree)
    parts: dict[int, Any] = {}
    for name, style in styles.items():
        _cut(model.module.get_submodule(name), style, group, parts)
    for tensor in (*model.module.parameters(), *model.module.buffers()):
        parts.setdefault(id(tensor), tensor)
    module = copy.deepcopy(model.module, parts)
    entrances: dict[str, _Entrance] = {}
    columns = Counter(name.rpartition(".")[0] for name in styles if styles[name] in _COLUMNS)
    for name, style in styles.items():
        parent = name.rpartition(".")[0]
        entrance = entrances.setdefault(parent, _Entrance()) if columns[parent] > 1 else None
        _make_part(module.get_submodule(name), style, group, entrance)
    if any(style in _COLUMNS[1:] for style in styles.values()):
        _split_loss(module, group)
    return replace(model, module=module)


def check_split(model: Model, degree: int) -> dict[str, str]:
    """Return how each module is split over a group, by its name; refuse what cannot be."""
    if degree == 1:
        return {}
    styles = _styles(model)
    _check_sizes(model.module, degree)
    for name, style in styles.items():
        for parameter in model.module.get_submodule(name).parameters():
            size = parameter.shape[1 if style == _ROWS else 0]
            if size % degree:
                raise InputError(
                    f"{degree} GPUs cannot share the {size} of {name}",
                    field=FIELD,
                    way_out="Give numbers that divide it, or change the model",
                )
    if any(style in _COLUMNS[1:] for style in styles.values()) and (
        model.loss is not None or getattr(model.module, "loss_type", None) != "ForCausalLM"
    ):
        raise InputError(
            "each GPU has the logits of a part of the vocabulary, and the loss is not that of a "
            "causal language model of transformers",
            field=FIELD,
            way_out="Let the model compute its loss from labels, or leave it out",
        )
    return styles


def _styles(model: Model) -> dict[str, str]:
    """Return how each module is split, by its name."""
    plan = getattr(model.module, "tp_plan", None)
    if not isinstance(plan, Mapping) or not plan:
        raise InputError(
            f"{model.factory or 'the model'} has no plan that says how its modules are split",
            field=FIELD,
            way_out="Take a model with tp_plan, such as hf:llama-8b, or leave it out",
        )
    patterns = [
        (re.compile(re.escape(name).replace(r"\*", r"\d+")), style) for name, style in plan.items()
    ]
    found = {}
    for name, module in model.module.named_modules():
        for pattern, style in patterns:
            if pattern.fullmatch(name):
                _check_style(name, module, style)
                found[name] = style
    return found


def _check_style(name: str, module: nn.Module, style: object) -> None:
    kind = nn.Embedding if style == _VOCABULARY else nn.Linear
    if style not in (*_COLUMNS, _ROWS, _VOCABULARY):
        rule = f"{name} is split in a way that is not known here: {show(style)}"
    elif not isinstance(module, kind):
        rule = f"{name} is split {style}, and is a {type(module).__name__}"
    elif style == _ROWS and getattr(module, "bias", None) is not None:
        rule = f"{name} is split rowwise, and has a bias, which would be added by each GPU"
    else:
        return
    raise InputError(rule, field=FIELD, way_out="Leave it out for this model")


def _check_sizes(module: nn.Module, degree: int) -> None:
    config = getattr(module, "config", None)
    for name, what in _HEADS.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and size % degree:
            ways = [count for count in range(1, degree) if size % count == 0]
            raise InputError(
                f"{degree} GPUs cannot share {size} {what}",
                field=FIELD,
                way_out=f"Give numbers that divide them, such as {ways[-1]}, or change the model",
            )


def _cut(module: nn.Module, style: str, group: Group, parts: dict[int, Any]) -> None:
    """Note the part of each parameter of a module that is split; one that is shared has one."""
    dimension = 1 if style == _ROWS else 0
    for parameter in module.parameters():
        if id(parameter) not in parts:
            part = parameter.detach().chunk(group.degree, dimension)[group.rank].clone()
            parts[id(parameter)] = nn.Parameter(part, parameter.requires_grad)


def _make_part(module: Any, style: str, group: Group, entrance: _Entrance | None) -> None:
    module.group, module.entrance = group, entrance
    if style == _VOCABULARY:
        module.__class__ = _VocabularyPart
        module.num_embeddings //= group.degree
        if module.padding_idx is not None:
            module.padding_idx = None
    elif style == _ROWS:
        module.__class__ = _RowPart
        module.in_features //= group.degree
    else:
        module.__class__ = _ColumnPart
        module.out_features //= group.degree


class _Entrance:
    """Hands what several modules take to the group once, so that its gradient is added up once."""

    def __init__(self) -> None:
        self._taken: Tensor | None = None
        self._given: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Entrance:
        made: _Entrance = memo.setdefault(id(self), _Entrance())
        return made

    def enter(self, value: Tensor, group: Group) -> Tensor:
        if self._given is None or self._taken is not value:
            self._taken, self._given = value, copied(value, group)
        return self._given

    def leave(self) -> None:
        self._taken = self._given = None


class _ColumnPart(nn.Linear):
    """Some of the outputs of a linear layer."""

    group: Group
    entrance: _Entrance | None

    def forward(self, value: Tensor) -> Tensor:
        group, entrance = self.group, self.entrance
        given = copied(value, group) if entrance is None else entrance.enter(value, group)
        return functional.linear(given, self.weight, self.bias)


class _RowPart(nn.Linear):
    """A linear layer of some of its inputs, added up over the group."""

    group: Group
    entrance: _Entrance | None

    def forward(self, value: Tensor) -> Tensor:
        if self.entrance is not None:
            self.entrance.leave()
        return summed(functional.linear(value, self.weight), self.group)


class _VocabularyPart(nn.Embedding):
    """The rows of some of the tokens; of the others come zeros, and the group adds up."""

    group: Group
    entrance: _Entrance | None

    def forward(self, tokens: Tensor) -> Tensor:
        own, outside = _own_tokens(tokens, self.num_embeddings, self.group)
        found = functional.embedding(own, self.weight)
        return summed(found.masked_fill(outside.unsqueeze(-1), 0), self.group)


def _own_tokens(tokens: Tensor, count: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return tokens by their place in this part of the vocabulary, and which are of another one."""
    own = tokens - group.rank * count
    outside = (own < 0) | (own >= count)
    return own.masked_fill(outside, 0), outside


def _split_loss(module: Any, group: Group) -> None:
    """Let the model take the loss of logits of which each GPU has those of its own tokens."""

    def loss(logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return split_cross_entropy(logits, labels, group)

    module.loss_function = loss


def split_cross_entropy(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """Return the mean loss of predicting each next token, in single precision.

    Each GPU has the logits of its part of the vocabulary. Sent are three numbers a token: the
    largest logit, the sum of the exponentials, and the logit of the label.
    """
    scores = logits.float()
    following = functional.pad(labels, (0, 1), value=_IGNORED)[..., 1:].reshape(-1)
    scores = scores.view(-1, scores.shape[-1])
    scores = scores - largest(scores.amax(-1), group).unsqueeze(-1)
    total = summed(scores.exp().sum(-1), group)
    own, outside = _own_tokens(following, scores.shape[-1], group)
    # Indexing keeps no scores for the backward; gather would.
    chosen = scores[torch.arange(own.shape[0], device=own.device), own].masked_fill(outside, 0)
    counted = following != _IGNORED
    losses = (total.log() - summed(chosen, group)).masked_fill(~counted, 0)
    return losses.sum() / counted.sum()


def name_as_whole(graph: fx.Graph) -> None:
    """Give each sum over a group the name of what it adds up, as it is called in a whole model.

    So a model is cut in the same places, by the same names, whatever the degree.
    """
    for node in graph.nodes:
        if node.target is torch.ops.schedopt.group_sum.default:
            made = node.all_input_nodes[0]
            while made.target is torch.ops.aten.masked_fill.Scalar:
                made = made.all_input_nodes[0]
            node.name, made.name = made.name, f"{made.name}_part"
