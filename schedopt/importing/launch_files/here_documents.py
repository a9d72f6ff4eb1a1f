"""Here-documents of scripts: what stands between ``<<EOF`` and ``EOF``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_BEGIN: Final = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"\\]?)([A-Za-z_]\w*)['\"]?(?!\w)")
_FLAG: Final = re.compile(r"(?:^|[\s\"'])--[A-Za-z]")
_KEPT: Final = re.compile(r"\b(?:cat|tee)\b")
"""Commands that do nothing with a text but print it or keep it."""
_TAKEN: Final = re.compile(r"(?:[$<]\(|`)\s*(?:cat|tee)\b")
"""What they print is taken by another command, or by a variable."""
_INTO_FILE: Final = re.compile(r"[^<>&\d]>{1,2}[ \t]*[^&\s]|\btee\b[ \t]+[^|<\s]|\|")


def unfold(text: str) -> str:
    """Return a script with its here-documents as commands, less those that are none.

    A document is for a command such as ``bash`` or ``sbatch``, or becomes a file that is run, and
    has flags. What is printed, and files without flags, such as JSON, are left out.
    """
    lines, found = text.splitlines(), list[str]()
    while lines:
        line = lines.pop(0)
        match = None if line.lstrip().startswith("#") else _BEGIN.search(line)
        # Without a line that ends it, it is a shift, as in $((1 << N)).
        end = None if match is None else _end(lines, match[3], strips=bool(match[1]))
        if match is None or end is None:
            found.append(line)
            continue
        command = f"{line[: match.start()]} {line[match.end() :]}"
        found.append(command)
        body = "\n".join(lines[:end])
        is_used = _INTO_FILE.search(command) or _TAKEN.search(command)
        is_printed = _KEPT.search(command) and not is_used
        is_read = _FLAG.search(body) and not is_printed
        # Lines stay where they are, for errors.
        found += [*(unfold(body).split("\n") if is_read else [""] * end), ""]
        del lines[: end + 1]
    return "\n".join(found)


def _end(lines: Sequence[str], word: str, *, strips: bool) -> int | None:
    """Return the line that is the word that ends a document, perhaps behind tabs."""
    return next(
        (
            place
            for place, line in enumerate(lines)
            if (line.lstrip("\t") if strips else line) == word
        ),
        None,
    )
