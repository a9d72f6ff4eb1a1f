"""``schedopt.profile/1`` files; that of a chain is one of a single variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schedopt.chain import CHAIN_FORMAT
from schedopt.errors import naming_file
from schedopt.formats.chains import chain_document, load_chain
from schedopt.formats.explaining import build
from schedopt.formats.reading import read_document, read_format
from schedopt.formats.writing import to_text
from schedopt.profile import PROFILE_FORMAT, Profile, Variant


def variant_document(variant: Variant) -> dict[str, Any]:
    """Return a variant as a JSON document."""
    return {"tensor": variant.tensor, "chain": chain_document(variant.chain)}


def profile_to_json(profile: Profile) -> str:
    """Return the text of a ``schedopt.profile/1`` file."""
    return to_text(
        {
            "format": PROFILE_FORMAT,
            **({"name": profile.name} if profile.name else {}),
            "variants": [variant_document(variant) for variant in profile.variants],
        }
    )


def load_profile(path: str | Path) -> Profile:
    """Read a profile, or a chain as the profile that it is."""
    if read_format(path) == CHAIN_FORMAT:
        chain = load_chain(path)
        return Profile(name=chain.name, variants=(Variant(tensor=1, chain=chain),))
    document = read_document(path, CHAIN_FORMAT, PROFILE_FORMAT)
    with naming_file(path):
        return build(Profile, document)
