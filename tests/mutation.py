"""Would the tests of ``schedopt.checking`` notice a fault in it? Try many small ones.

``python -m tests.mutation`` changes one operator, constant, condition or statement of the check at
a time and runs the tests that hold it until one fails. What no test notices is printed. The command
fails where fewer than `LEAST` of them are noticed, without those in `EXPLAINED`. Each mutant is a
fork of one process that has loaded all tests: it replaces the code of the functions that are there,
and runs the tests that call them. Those that have noticed a mutant are tried first on the next.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

import schedopt.checking

ROOT: Final = Path(__file__).parents[1]
CHECKING: Final = Path(schedopt.checking.__file__).parent
TESTS: Final = ("checking", "account")
LEAST: Final = 0.8
SECONDS: Final = 15
"""Of the processor, for the tests of one mutant. Mutants that need more hang: noticed."""

OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.Continue: ast.Break,
}  # fmt: skip
NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}

EXPLAINED: Final[dict[str, str]] = {
    "checks._gpus_of_layers: return {layer: stage.gpus for stage in stages for layer in "
    "range(stage.first, stage.last + 2)}": (
        "the next stage says it again, and behind the last one there is no layer"
    ),
    "collectives._Ending.arrivals: found, end = ({}, 1)": "no transfer ends sooner",
    "collectives._Ending.arrivals: for hop in hops(collective, around, around.rounds - 2)": (
        "what comes in the last round comes later"
    ),
    "completeness._find_spread: if not 1 <= item.covers <= k": "one micro-batch lies on one GPU",
    "deadlock._add_dependencies: if timeline.span(needed, i)[1] >= start": (
        "each circle has a dependency that is broken"
    ),
    "deadlock._count_periods: return (max(shifts) - min(shifts) + together) // "
    "timeline.plan.pattern.k + 4": "a wider window shows the same circle",
    "deadlock._report: for (here, there), name, following in zip(pairwise((*circle, circle[0])), "
    "names, (*names[1:], names[0]), strict=False)": "there is a name for each",
    "deadlock.find_deadlock: if periods * len(timeline.items) >= MOST_OCCURRENCES": (
        "a limit is a limit"
    ),
    "engine.find_inexpressible: covers = f' of {operation.covers} micro-batches' if "
    "operation.covers >= 1 else ''": "words",
    "gathers._Gathering._find_readers: if slot.item.covers >= 1": (
        "one micro-batch reads one version"
    ),
    "gradients._Replay.push: self.pushed += 2": "only their order counts",
    "gradients._Replay.report: if micro_batch <= self.checked": (
        "an earlier micro-batch says the same"
    ),
    "replay.replay: last = together + max((length for _, _, _, length, _ in repeated), "
    "default=1)": "nothing comes",
    "resources._find_overlaps_in_round: busy_until = busy_number = busy_first = -2": (
        "the first round says what is busy"
    ),
    "resources._find_overlaps_in_round: if start + length >= busy_until": "both end then",
    "weights.follow_weights: if window.replayed * _count_items(timeline, stage) >= MOST_REPLAYED": (
        "a limit is a limit"
    ),
    "window.Window.readers: return (3 * self.rounds + (not self.is_closed)) * self.every": (
        "more is replayed than needed"
    ),
    "window.Window.replayed: return (2 * self.rounds + 3 * (not self.is_closed)) * self.every": (
        "more is replayed than needed"
    ),
    "window.Window.replayed: return (3 * self.rounds + 2 * (not self.is_closed)) * self.every": (
        "more is replayed than needed"
    ),
    "window._list_moments: (yield (first + item.covers - 1, moment)) if False else None": (
        "more is replayed than needed"
    ),
    "window._list_moments: yield (first + item.covers - 2, moment)": "more is replayed than needed",
    "window._list_moments: yield (first + item.covers + 1, moment)": "more is replayed than needed",
    "window.open_window: return Window(every, crossing - -delay * m // every + 2, is_closed)": (
        "more is replayed than needed"
    ),
}
"""Mutants that no test can notice: the function, its line afterwards, and why."""


Function = tuple[str, int]
"""Its module and first line."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module: of the node with this number, in the order of `_nodes`."""

    module: str
    node: int

    def __str__(self) -> str:
        """Name the function, and its line before and after: what stays where other lines move."""
        tree = ast.parse((CHECKING / self.module).read_text())
        above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        node = _nodes(tree)[self.node]
        chain = [node]
        while chain[-1] is not tree:
            chain.append(above[chain[-1]])
        line = next((part for part in chain if isinstance(part, ast.stmt)), node)
        named = [part.name for part in chain if isinstance(part, (ast.FunctionDef, ast.ClassDef))]
        before = _words(line)
        _change(node)
        place = ".".join([self.module.removesuffix(".py"), *reversed(named)])
        return f"{place}: {before} -> {_words(line)}"

    def explanation(self) -> str:
        """Say why no test can notice it; empty where nobody knows."""
        place, _, change = str(self).partition(": ")
        return EXPLAINED.get(f"{place}: {change.partition(' -> ')[2]}", "")

    def function(self) -> Function:
        """Return the outermost function that changes."""
        tree = ast.parse((CHECKING / self.module).read_text())
        node = _nodes(tree)[self.node]
        outer = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
        line = min(
            min([one.lineno, *(part.lineno for part in one.decorator_list)])
            for one in outer
            if any(part is node for part in ast.walk(one))
        )
        return self.module, line

    def code(self) -> CodeType:
        """Return the changed module, compiled."""
        path = CHECKING / self.module
        tree = ast.parse(path.read_text())
        _change(_nodes(tree)[self.node])
        return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


def _nodes(tree: ast.Module) -> list[ast.AST]:
    """Return what functions compute with, without texts and types."""
    found: list[ast.AST] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, (ast.JoinedStr, ast.arguments, ast.Raise)):
            return
        if inside:
            found.append(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, inside or isinstance(node, ast.FunctionDef))

    visit(tree, inside=False)
    return found


def _change(node: ast.AST) -> bool:
    """Change a node in its tree. Return whether it can be changed."""
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in OPERATORS:
            node.ops = [OPERATORS[type(first)](), *others]  # type: ignore[list-item]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            node.op = OPERATORS[type(op)]()  # type: ignore[assignment]
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.UnaryOp(op=ast.Not()):
            node.op = ast.UAdd()
            node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case ast.If() | ast.IfExp() | ast.While() if not isinstance(node.test, ast.Compare):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.comprehension(ifs=[_, *others]):
            node.ifs = others
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            node.id = NAMES[name]
        case ast.Expr(value=ast.Yield() | ast.YieldFrom() | ast.Call()):
            node.value = ast.IfExp(ast.Constant(False), node.value, ast.Constant(None))
        case _:
            return False
    return True


def mutants() -> list[Mutant]:
    """Return every mutant of the room."""
    return [
        Mutant(path.name, number)
        for path in sorted(CHECKING.glob("*.py"))
        for number, node in enumerate(_nodes(ast.parse(path.read_text())))
        if _change(node)
    ]


def _words(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).split(":\n")[0].replace("\n", " ")


def _put_in(code: CodeType) -> None:
    """Replace the code of the functions that were loaded from the same file."""
    changed: dict[tuple[str, int], CodeType] = {}
    left = [code]
    while left:
        one = left.pop()
        changed[one.co_qualname, one.co_firstlineno] = one
        left += [part for part in one.co_consts if isinstance(part, CodeType)]
    # What is frozen is not listed.
    gc.unfreeze()
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == code.co_filename:
            old = function.__code__
            new = changed.get((old.co_qualname, old.co_firstlineno))
            if new is not None:
                function.__code__ = new


class Mutation:
    """Runs the tests on mutants instead of running them."""

    def __init__(self, chosen: Sequence[Mutant], jobs: int, seconds: float | None) -> None:
        self.chosen = chosen
        self.jobs = jobs
        self.seconds = seconds
        self.survivors: list[Mutant] = []
        self.tried = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork for each mutant, some at a time."""
        # Once without a fault: what tests load on their way need not be loaded for each mutant.
        called = {item: _called(item) for item in session.items}
        order = list(session.items)
        end = None if self.seconds is None else time.monotonic() + self.seconds
        running: dict[int, tuple[Mutant, int]] = {}
        left = list(reversed(self.chosen))
        while left or running:
            if end is not None and time.monotonic() > end:
                left.clear()
            while left and len(running) < self.jobs:
                mutant = left.pop()
                reader, writer = os.pipe()
                child = os.fork()
                if not child:
                    _try(mutant, order, called, writer)
                os.close(writer)
                running[child] = mutant, reader
            if not running:
                break
            child, status = os.wait()
            mutant, reader = running.pop(child)
            with os.fdopen(reader) as stream:
                noticed = stream.read()
            self.tried += 1
            if noticed.isdigit():
                order.insert(0, order.pop(int(noticed)))
            elif status == 0:
                self.survivors.append(mutant)
                print(f"\nnot noticed: {mutant}", flush=True)
            if self.tried % 25 == 0:
                print(f"{self.tried} tried", flush=True)
        return True


def _called(item: pytest.Item) -> set[Function]:
    """Run a test, which must pass. Return the functions of the check that it calls."""
    functions: set[Function] = set()

    def note(frame: FrameType, _event: str, _what: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(str(CHECKING)):
            functions.add((Path(code.co_filename).name, code.co_firstlineno))

    sys.setprofile(note)
    try:
        reports = runtestprotocol(item, log=False, nextitem=None)
    finally:
        sys.setprofile(None)
    assert not any(report.failed for report in reports), item.nodeid
    return functions


def _try(
    mutant: Mutant,
    order: Sequence[pytest.Item],
    called: Mapping[pytest.Item, set[Function]],
    writer: int,
) -> None:
    """Run the tests on a mutant, tell which one fails, and end the process."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    _put_in(mutant.code())
    function = mutant.function()
    for number, item in enumerate(order):
        if function not in called[item]:
            continue
        reports = runtestprotocol(item, log=False, nextitem=None)
        if any(report.failed for report in reports):
            os.write(writer, str(number).encode())
            break
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if enough mutants are noticed or explained."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutation")
    parser.add_argument("--sample", type=int, help="how many mutants, by chance; default: all")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, help="after which no other mutant begins")
    parser.add_argument("--only", default="", help="the module")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants() if mutant.module.startswith(options.only)]
    number = len(chosen)
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.sample]
    mutation = Mutation(chosen, options.jobs, options.seconds)
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    pytest.main([*tests, "-q", "--no-header", "-p", "no:cacheprovider"], plugins=[mutation])
    unexplained = [mutant for mutant in mutation.survivors if not mutant.explanation()]
    print(
        f"\n{mutation.tried} of {number} mutants (seed {options.seed}): "
        f"{mutation.tried - len(mutation.survivors)} noticed, "
        f"{len(mutation.survivors) - len(unexplained)} explained, {len(unexplained)} not noticed"
    )
    return int(len(unexplained) > (1 - LEAST) * mutation.tried or not mutation.tried)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
