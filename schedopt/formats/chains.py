"""``schedopt.chain/1`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schedopt.chain import CHAIN_FORMAT, Chain
from schedopt.errors import InputError
from schedopt.formats.explaining import adapter, build
from schedopt.formats.reading import read_document
from schedopt.formats.writing import dump, write_whole


def chain_document(chain: Chain) -> dict[str, Any]:
    """Return a chain as a JSON document without its format; what is absent is left out."""
    document: dict[str, Any] = adapter(Chain).dump_python(chain, mode="json", exclude_none=True)
    ordered = {name: document[name] for name in ("name", "input_bytes", "layers")}
    ordered["layers"] = [
        {name: layer[name] for name in ("name", *layer) if layer[name] != ""}
        for layer in document["layers"]
    ]
    # What a person wrote in these is kept as it is, None included.
    free = adapter(Chain).dump_python(chain, mode="json", include={"recipe", "provenance"})
    rest = {"same_gpu": document["same_gpu"], **free}
    return ordered | {name: value for name, value in rest.items() if value}


def chain_to_json(chain: Chain) -> str:
    """Return the text of a ``schedopt.chain/1`` file."""
    return dump({"format": CHAIN_FORMAT, **chain_document(chain)}) + "\n"


def save_chain(chain: Chain, path: str | Path) -> None:
    """Write a chain, whole or not at all.

    Raises
    ------
    InputError
        If the path cannot be written.
    """
    write_whole(path, chain_to_json(chain))


def load_chain(path: str | Path) -> Chain:
    """Read a chain.

    Raises
    ------
    InputError
        Naming the file, the field, the rule and the way out.
    """
    document = read_document(path, CHAIN_FORMAT)
    try:
        return build(Chain, document)
    except InputError as error:
        raise error.in_file(str(path)) from None
