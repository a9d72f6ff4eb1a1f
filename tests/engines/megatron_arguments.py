"""Arguments of Megatron-LM, read by the fields of its own configurations.

Its script is not on the package index, but what it parses into is: each argument is a field of one
of these data classes, by the same name or the one that the field names.
"""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from dataclasses import fields
from functools import cache
from typing import Any, Final

from tests.engines.packages import load, quietly

_CONFIGS: Final = {
    "transformer": ("megatron.core.transformer.transformer_config", "TransformerConfig"),
    "gradients": ("megatron.core.distributed", "DistributedDataParallelConfig"),
    "optimizer": ("megatron.core.optimizer.optimizer_config", "OptimizerConfig"),
}
_OF_THE_SCRIPT: Final = ("micro_batch_size", "global_batch_size")


def parse(text: str) -> dict[str, Any]:
    """Return what a file says, by field; a word that is no argument ends the program."""
    words = shlex.split(text.partition("PIPELINE_ARGS=(")[2].rpartition(")")[0])
    found = vars(_parser().parse_args(words))
    return {name: value for name, value in found.items() if value is not None}


@cache
def _parser() -> ArgumentParser:
    parser = ArgumentParser(allow_abbrev=False)
    known = {one.name: one for name in _CONFIGS for one in fields(config_class(name))}
    for name, one in known.items():
        flags = one.metadata.get("argparse_meta", {}).get("arg_names", [_flag(name)])
        if one.default is False:
            parser.add_argument(*flags, dest=name, action="store_true", default=None)
        elif "List[str]" in str(one.type):
            parser.add_argument(*flags, dest=name, nargs="+")
        else:
            kind = int if re.search(r"\bint\b", str(one.type)) else str
            parser.add_argument(*flags, dest=name, type=kind)
    for name in _OF_THE_SCRIPT:
        parser.add_argument(_flag(name), type=int)
    parser.add_argument("--untie-embeddings-and-output-weights", action="store_true", default=None)
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def config_class(name: str) -> Any:
    module, own = _CONFIGS[name]
    return getattr(load(module), own)


def configured(name: str, found: dict[str, Any], **more: Any) -> Any:
    """Return a configuration of Megatron's with what was found for it, which validates it."""
    own = config_class(name)
    named = {one.name: found[one.name] for one in fields(own) if one.name in found}
    with quietly():
        return own(**named, **more)
