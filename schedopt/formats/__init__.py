"""Files: chains, platforms and plans as JSON, read strictly and written whole or not at all."""

from __future__ import annotations

from schedopt.formats.chains import chain_to_json, load_chain
from schedopt.formats.platforms import load_platform, platform_to_json
from schedopt.formats.profiles import load_profile, profile_to_json
from schedopt.formats.reading import read_format
from schedopt.formats.results import load_result, result_to_json
from schedopt.formats.writing import check_writable, make_folder, to_text, write_whole

__all__ = [
    "chain_to_json",
    "check_writable",
    "load_chain",
    "load_platform",
    "load_profile",
    "load_result",
    "make_folder",
    "platform_to_json",
    "profile_to_json",
    "read_format",
    "result_to_json",
    "to_text",
    "write_whole",
]
