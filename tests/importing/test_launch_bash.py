"""Random scripts mean to the reader of launch files what they mean to bash."""

from __future__ import annotations

import subprocess
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schedopt.importing.launch_files.shell import read_flags
from tests.budgets import trials

SWITCHES = frozenset({"on", "bf16"})
VALUED = ("tp", "pp", "layout", "lr", "save_path")
COMMENTS = ("", "  # a comment", "\n  # it's one with --tp 9 \\", "\n")


@st.composite
def flags(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Draw lines that set variables, and words of a command, a flag each."""
    lines, words = [], []
    names = draw(st.lists(st.sampled_from([*VALUED, *SWITCHES]), min_size=1, unique=True))
    for number, name in enumerate(names):
        if name in SWITCHES:
            words.append(draw(st.sampled_from([f"--{name}", f'"--{name}"'])))
            continue
        value = draw(st.sampled_from(["8", "0.5", "Et*2|(t|)*2L", "a#b", "/a/b"]))
        variable, flag = f"V{number}", f"--{name}"
        way = draw(st.sampled_from(["plain", "equals", "variable", "default", "pair", "sum"]))
        if way == "variable":
            lines.append(f"{variable}='{value}'")
            value = draw(st.sampled_from([f'"${variable}"', f'"${{{variable}}}"']))
        elif way == "default":
            value = f'"${{{variable}:-{value}}}"'
        elif way == "sum" and value == "8":
            lines.append(f"{variable}=2")
            value = draw(st.sampled_from([f"$(({variable} * 4))", f"$((10-${variable}))"]))
        elif way == "pair":
            words.append(f'"{flag} {value}"')
            continue
        else:
            value = f"'{value}'"
        words.append(f"{flag}={value}" if way == "equals" else f"{flag} {value}")
    return lines, words


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Draw a script that runs a command with flags: in arrays, or behind each other."""
    lines, words = draw(flags())
    if any(word.startswith('"--') and " " in word for word in words) or draw(st.booleans()):
        rows = [f"  {word}{draw(st.sampled_from(COMMENTS))}\n" for word in words]
        body = f"ARGS=(\n{''.join(rows)})\n"
        return "\n".join([*lines, f"{body}run ${{ARGS[@]}}", ""])
    parts = draw(st.sampled_from([" ", " \\\n    "]))
    return "\n".join([*lines, parts.join(["run", *words]), ""])


USAGE = "cat <<EOF\nIt's run with --tp 3 << 4\nEOF\n"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Draw a script, perhaps as a here-document, and perhaps behind one that it prints."""
    script = draw(scripts())
    if draw(st.booleans()):
        script = f"bash <<'END'  # it's one\nset -f\n{script}END\n"
    # What it prints goes elsewhere, so that the flags of the command come alone.
    return draw(st.sampled_from(["", USAGE.replace("<<", ">&2 <<", 1)])) + script


def by_bash(script: str) -> dict[str, Any]:
    """Return the flags that the command gets when bash runs the script."""
    text = "set -f\nrun() { printf '%s\\n' \"$@\"; }\nexport -f run\n" + script
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=True, timeout=20
    )
    found: dict[str, Any] = {}
    name = ""
    for word in done.stdout.splitlines():
        if word.startswith("--"):
            name, is_set, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = value if is_set else True
        else:
            found[name] = word
    return found


@trials(150)
@given(documents())
def test_flags_are_those_that_bash_gives_a_command(script: str) -> None:
    assert read_flags(script, SWITCHES).values == by_bash(script)
