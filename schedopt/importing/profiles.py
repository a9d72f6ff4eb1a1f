"""From tables of published profiles to profiles of ours: Superscaler's (Aceso's) and Sailor's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from schedopt.chain import MOST_LAYERS, Chain, Layer
from schedopt.errors import InputError, naming_file
from schedopt.importing.reading import Item, as_bytes
from schedopt.importing.saved_activations import Operator, misplaced, saved_bytes
from schedopt.importing.tables import Line, chosen, read_table, whole
from schedopt.profile import Profile, Variant
from schedopt.validation import as_whole

ProfileSource = Literal["superscaler", "sailor"]
MIB: Final = 2**20
_PARTS: Final = (
    "model mbs tp part count forward_ns backward_ns weights_bytes activations_shared_bytes "
    "input_bytes output_bytes fwd_reserved_max_bytes bwd_reserved_max_bytes"
)
_OPERATORS: Final = (
    "model mbs tp algo op forward_ns backward_ns input_mib output_mib weights_mib activations_mib"
)
_ORDER: Final = ("embedding", "layer", "head")
DID_NOT_RUN: Final = 10**10
"""ns, what Aceso's profiler writes where an operator ran out of memory."""
_SAILOR: Final = "model gpu mbs tp forward_ns backward_ns update_ns"
_SAILOR_BYTES: Final = "model tp layer params_bytes act_output_bytes act_input_bytes act_mem_bytes"
_EARLIER, _INSIDE, _LATER = slice(0, 1), slice(1, 14), slice(14, None)
"""The operators of Aceso: before the layers, of one layer, and behind them."""
_PARTS_NOTE: Final = (
    "What is saved follows Aceso's rule: dropout counts one and a half times, softmax nothing.",
)
_HALF: Final = {"gradient": 2, "optimizer": 6}
"""Bytes for each of the weights in half precision: Megatron-LM keeps gradients, a copy of the
weights and two moments in single precision, 18 bytes a parameter."""
_SINGLE: Final = {"gradient": 1, "optimizer": 2, "rest": 2}
"""The same of weights in single precision; DeepSpeed keeps two more buffers as large, 24 bytes."""

Variants = Mapping[tuple[int, int], Chain]
"""Chains by degree and samples."""


@dataclass(frozen=True)
class ImportedProfile:
    """A profile, and notes: what was left out or assumed."""

    profile: Profile
    notes: tuple[str, ...]


def import_profile(
    path: str | Path,
    source: ProfileSource,
    *,
    model: str | None = None,
    gpu: str | None = None,
    layers: int | None = None,
) -> ImportedProfile:
    """Turn a table of measured layers into a profile with all its variants.

    Parameters
    ----------
    path : path
        The table. *superscaler*: parts of a model (embedding, layer, head), or its operators.
        *sailor*: times of all layers; their bytes are in ``bytes.json`` in the same folder.
    source : {"superscaler", "sailor"}
    model, gpu : str, optional
        Which lines. Needed where the table has several.
    layers : int, optional
        How many layers the model has, where a table of operators has those of one.

    Raises
    ------
    InputError
        Naming the file, the column or line, the rule and the way out.
    """
    if source == "sailor":
        variants, name, notes = _sailor(Path(path), model, gpu)
    else:
        variants, name, notes = _superscaler(Path(path), model, gpu, layers)
    with naming_file(path):
        made = tuple(
            Variant(tensor=tensor, chain=chain) for (tensor, _), chain in sorted(variants.items())
        )
        return ImportedProfile(Profile(name=name, variants=made), notes)


def _operator_notes(lines: Sequence[Line], variants: Variants) -> Iterator[str]:
    yield (
        "Each tensor that a backward needs is saved once: peaks predicted so are within 4 % of "
        "measured ones in the mean."
    )
    measured = {(whole(line["tp"], 1), whole(line["mbs"], 1)) for line in lines}
    there = {samples for _, samples in variants}
    if left := {samples for _, samples in measured} - there:
        yield (
            f"Micro-batches of {_listed(left)} are left out: an operator did not run with them on "
            "one GPU."
        )
    for tensor in sorted({tensor for tensor, _ in measured}):
        left = {samples for samples in there if (tensor, samples) in measured - {*variants}}
        if left:
            yield (
                f"With tensor degree {tensor} micro-batches of {_listed(left)} are left out: an "
                "operator did not run."
            )


def _listed(sizes: Iterable[int]) -> str:
    return " and ".join(str(samples) for samples in sorted(sizes))


def _superscaler(
    path: Path, model: str | None, gpu: str | None, layers: int | None
) -> tuple[Variants, str, tuple[str, ...]]:
    lines = read_table(path, "model mbs tp forward_ns backward_ns")
    if not lines:
        raise InputError(
            "has no lines", field="rows", way_out="Is the table complete?", source=str(path)
        )
    of_parts = "part" in lines[0]
    lines = read_table(path, _PARTS if of_parts else _OPERATORS)
    if "set" in lines[0]:
        lines = chosen(path, lines, "set", gpu, "gpu")
    elif gpu is not None:
        raise InputError(
            "the table is of one kind of GPU", field="gpu", way_out="Leave it out", source=str(path)
        )
    lines = chosen(path, lines, "model", model, "model")
    name = lines[0]["model"].text()
    with naming_file(path):
        variants = _parts(lines) if of_parts else operator_chains(lines, layers)
        notes = (
            "Weights are those in half precision; gradients, a copy of the weights and two moments "
            "in single precision come on top: 18 bytes a parameter.",
            *(_PARTS_NOTE if of_parts else _operator_notes(lines, variants)),
            "The head has its own copy of the embedding; that their gradients are added up is left "
            "out.",
        )
    return variants, name, notes


def _by_variant(lines: Sequence[Line]) -> dict[tuple[int, int], list[Line]]:
    found: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        key = whole(line["tp"], 1), whole(line["mbs"], 1)
        found.setdefault(key, []).append(line)
    return found


def _parts(lines: Sequence[Line]) -> dict[tuple[int, int], Chain]:
    chains = {}
    for (tensor, samples), parts in _by_variant(lines).items():
        layers = []
        _refuse_disordered(parts)
        for line in parts:
            weights = line["weights_bytes"].bytes()
            workspace = max(line[f"{way}_reserved_max_bytes"].bytes() for way in ("fwd", "bwd"))
            count = whole(line["count"], 1, MOST_LAYERS)
            for number in range(count):
                part = line["part"].text()
                layers.append(
                    Layer(
                        name=f"{part}.{number}" if count > 1 else part,
                        forward_ns=whole(line["forward_ns"]),
                        backward_ns=whole(line["backward_ns"]),
                        activation_bytes=line["output_bytes"].bytes(),
                        saved_bytes=line["activations_shared_bytes"].bytes(),
                        workspace_bytes=workspace,
                        **_state(weights, _HALF),
                    )
                )
        chains[tensor, samples] = Chain(
            layers=tuple(layers),
            input_bytes=parts[0]["input_bytes"].bytes(),
            samples=samples,
            provenance={"format": "superscaler", "weights_of": "half precision"},
        )
    return _with_whole_outputs(chains)


def _refuse_disordered(parts: Sequence[Line]) -> None:
    """Refuse parts that do not stand in the order of execution, where their names tell it."""
    last = 0
    for line in parts:
        part = line["part"].text()
        place = _ORDER.index(part) if part in _ORDER else last
        if place < last:
            raise InputError(
                f"{part} stands behind {_ORDER[last]}",
                field=line["part"].path,
                way_out=f"Give the parts in the order of execution: {', '.join(_ORDER)}",
            )
        last = place


def operator_chains(lines: Sequence[Line], layers: int | None) -> dict[tuple[int, int], Chain]:
    """Return the operators of a model as chains, the degree and the samples as keys.

    Those of one layer are repeated for each. Sizes of micro-batches of which an operator did not
    run on one GPU are left out.
    """
    if layers is None:
        raise InputError(
            "the table has the operators of one layer, and does not say how many there are",
            field="layers",
            way_out="Give the number of layers (import_profile.layers)",
        )
    layers = as_whole(layers, "layers", low=1, high=MOST_LAYERS)
    usual = [line for line in lines if whole(line["algo"]) == 0]
    found = {key: one for key, one in _by_variant(usual).items() if _ran(one)}
    alone = {samples for tensor, samples in found if tensor == 1}
    chains = {}
    for (tensor, samples), one in found.items():
        if samples not in alone:
            continue
        if wrong := misplaced([line["op"].text() for line in one]):
            raise InputError(
                f"with tensor degree {tensor} and {samples} samples {wrong}",
                field=one[0]["op"].path,
                way_out="Give each once, in the order of execution: one, those of one layer, two",
            )
        read = [(_read_operator(line), _read_costs(line)) for line in one]
        numbered = [("", each) for each in read[_EARLIER]]
        for number in range(layers):
            numbered += [(f".{number}", each) for each in read[_INSIDE]]
        numbered += [("", each) for each in read[_LATER]]
        operators = [operator for _, (operator, _) in numbered]
        chains[tensor, samples] = Chain(
            layers=tuple(
                Layer(
                    name=operator.name + behind,
                    saved_bytes=saved,
                    saved_input_bytes=on_top or None,
                    **costs,
                )
                for (behind, (operator, costs)), (saved, on_top) in zip(
                    numbered, saved_bytes(operators), strict=True
                )
            ),
            input_bytes=operators[0].input_bytes,
            samples=samples,
            provenance={"format": "superscaler", "weights_of": "half precision"},
        )
    return _with_whole_outputs(chains)


def _ran(lines: Sequence[Line]) -> bool:
    return all(
        line[column].exact() < DID_NOT_RUN
        for line in lines
        for column in ("forward_ns", "backward_ns")
    )


def _read_operator(line: Line) -> Operator:
    return Operator(
        name=line["op"].text(),
        input_bytes=_mebibytes(line["input_mib"]),
        made_bytes=_mebibytes(line["activations_mib"]),
    )


def _read_costs(line: Line) -> dict[str, Any]:
    """Return the fields of a layer but for its name and what it saves."""
    return {
        "forward_ns": whole(line["forward_ns"]),
        "backward_ns": whole(line["backward_ns"]),
        "activation_bytes": _mebibytes(line["output_mib"]),
        **_state(_mebibytes(line["weights_mib"]), _HALF),
    }


def _mebibytes(item: Item) -> int:
    return as_bytes(item.exact() * MIB, item.path)


def _state(weights: int, times: Mapping[str, int]) -> dict[str, Any]:
    return {
        "parameter_bytes": weights,
        "gradient_bytes": times["gradient"] * weights,
        "optimizer_bytes": times["optimizer"] * weights,
        "weight_bytes": (1 + sum(times.values())) * weights,
    }


def _with_whole_outputs(
    chains: dict[tuple[int, int], Chain],
) -> dict[tuple[int, int], Chain]:
    """Give layers in groups the outputs of one GPU, of which each GPU of a group sends a part."""
    found = {}
    for (tensor, samples), chain in chains.items():
        alone = chains.get((1, samples), chain)
        if alone is not chain and len(alone.layers) == len(chain.layers):
            layers = [
                Layer(**{**vars(layer), "activation_bytes": one.activation_bytes})
                for layer, one in zip(chain.layers, alone.layers, strict=True)
            ]
            chain = Chain(**{**_fields(chain), "layers": tuple(layers)})
        found[tensor, samples] = chain
    return found


def _fields(chain: Chain) -> dict[str, Any]:
    names = ("input_bytes", "samples", "provenance")
    return {name: getattr(chain, name) for name in names}


def _sailor(
    path: Path, model: str | None, gpu: str | None
) -> tuple[Variants, str, tuple[str, ...]]:
    beside = path.with_name("bytes.json")
    sizes: dict[tuple[str, int, int], Line] = {}
    with naming_file(beside):
        for line in read_table(beside, _SAILOR_BYTES):
            key = line["model"].text(), whole(line["tp"], 1), whole(line["layer"])
            sizes[key] = line
    lines = chosen(path, read_table(path, _SAILOR), "model", model, "model")
    lines = chosen(path, lines, "gpu", gpu, "gpu")
    name = lines[0]["model"].text() if lines else ""
    with naming_file(path):
        chains = {
            (whole(line["tp"], 1), whole(line["mbs"], 1)): _sailor_chain(name, line, sizes, beside)
            for line in lines
        }
    notes = (
        "Weights, gradients and two moments are in single precision, and two buffers of DeepSpeed "
        "as large come on top: 24 bytes a parameter.",
    )
    return _with_whole_outputs(chains), name, notes


def _sailor_chain(
    name: str, line: Line, sizes: Mapping[tuple[str, int, int], Line], beside: Path
) -> Chain:
    tensor, samples = whole(line["tp"], 1), whole(line["mbs"], 1)
    times = [line[column].entries() for column in ("forward_ns", "backward_ns", "update_ns")]
    count = len(times[0])
    if len({len(each) for each in times}) > 1:
        raise InputError(
            "the lists of a line are not as long as each other",
            field=line["forward_ns"].path,
            way_out="Give each layer its three times",
        )
    if missing := [layer for layer in range(count) if (name, tensor, layer) not in sizes]:
        raise InputError(
            f"has no bytes of layer {missing[0]} of {name} with tensor degree {tensor}, which has "
            f"{count} layers",
            field="layer",
            way_out=f"Add them, or take {line['tp'].path.partition('.')[0]} out of the profiles",
            source=str(beside),
        )
    timed = [tuple(map(whole, three)) for three in zip(*times, strict=True)]
    with naming_file(beside):
        layers = [
            _sailor_layer(layer, three, sizes[name, tensor, layer], samples)
            for layer, three in enumerate(timed)
        ]
        entering = sizes[name, tensor, 0]["act_input_bytes"].bytes() if count else 0
        return Chain(
            layers=tuple(layers),
            input_bytes=entering * samples,
            samples=samples,
            provenance={"format": "sailor", "gpu": line["gpu"].text()},
        )


def _sailor_layer(number: int, times: tuple[int, ...], line: Line, samples: int) -> Layer:
    forward, backward, update = times
    return Layer(
        name=f"layer {number}",
        forward_ns=forward,
        backward_ns=backward,
        update_ns=update,
        activation_bytes=line["act_output_bytes"].bytes() * samples,
        saved_bytes=line["act_mem_bytes"].bytes() * samples,
        **_state(line["params_bytes"].bytes(), _SINGLE),
    )
