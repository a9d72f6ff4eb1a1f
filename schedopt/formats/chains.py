"""``schedopt.chain/1`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schedopt.chain import CHAIN_FORMAT, Chain
from schedopt.errors import naming_file
from schedopt.formats.explaining import build, dump_plain
from schedopt.formats.reading import read_document
from schedopt.formats.writing import to_text


def chain_document(chain: Chain) -> dict[str, Any]:
    """Return a chain as a JSON document without its format; absent fields are left out."""
    document = dump_plain(chain, Chain, exclude={"provenance": True, "recipe": {"arguments"}})
    layers = [
        {name: layer[name] for name in ("name", *layer) if layer[name] != ""}
        for layer in document["layers"]
    ]
    recipe = document.get("recipe")
    # What a person wrote in the two mappings is kept as it is, null included.
    if recipe is not None and chain.recipe is not None:
        first = {"factory": recipe.pop("factory"), "arguments": dict(chain.recipe.arguments)}
        recipe = first | recipe
    optional = {
        "same_gpu": document["same_gpu"],
        "copied": document["copied"],
        **{
            name: count
            for name in ("samples", "context", "expert")
            if (count := getattr(chain, name)) > 1
        },
        "recomputed_modules": document["recomputed_modules"],
        "recipe": recipe,
        "provenance": dict(chain.provenance),
    }
    return {
        **({"name": chain.name} if chain.name else {}),
        "input_bytes": chain.input_bytes,
        "layers": layers,
        **{name: value for name, value in optional.items() if value},
    }


def chain_to_json(chain: Chain) -> str:
    """Return the text of a ``schedopt.chain/1`` file."""
    return to_text({"format": CHAIN_FORMAT, **chain_document(chain)})


def load_chain(path: str | Path) -> Chain:
    """Read a chain."""
    document = read_document(path, CHAIN_FORMAT)
    with naming_file(path):
        return build(Chain, document)
