"""The functions that return a configuration of torchtitan 0.3, read without running them.

References
----------
torchtitan 0.3: ``Trainer.Config`` in ``trainer.py``, and ``config_registry.py`` of its models.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from schedopt.errors import InputError
from schedopt.importing.launch_files.python_values import (
    Code,
    dotted,
    parse,
    read_assignments,
    value_of,
)
from schedopt.validation import show

CHECKPOINT: Final = "activation_checkpoint"
MODE: Final = f"{CHECKPOINT}.mode"
EVERY: Final = f"{CHECKPOINT}.selective_ac_option"
_SELECTIVE: Final = {MODE: "selective", EVERY: "op"}
"""The default: operations of a layer are chosen that are computed again."""
CHECKPOINTS: Final[Mapping[str, Mapping[str, str]]] = {
    "None": {MODE: "none"},
    "FullAC.Config": {MODE: "full"},
    "SelectiveAC.Config": _SELECTIVE,
    "MemoryBudgetAC.Config": {MODE: "memory_budget"},
    "ActivationCheckpointConfig": {},
}
"""What their classes set."""
_WHOLE: Final = ("Trainer.Config", "TrainerConfig", "JobConfig")
"""How the classes of whole configurations end."""
_SECTIONS: Final = {"parallelism": "ParallelismConfig", "training": "TrainingConfig"}
"""Sections that are read."""
_DEEPEST: Final = 32
"""How deep functions that begin with what others return may be nested."""


def read_configuration(text: str, name: str | None = None) -> dict[str, Any]:
    """Return the settings by section and name that a function of a file returns.

    Where there is none they are what the file assigns to a ``config``, as ``schedopt export`` does.

    Parameters
    ----------
    text : str
        Python.
    name : str, optional
        Of the function. Default: the only one that returns a configuration and needs no parameters.

    Raises
    ------
    InputError
        If there are several, or it does more than assign.
    """
    tree = parse(text)
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    makers = [
        name
        for name, one in functions.items()
        if _returns_configuration(one) and not name.startswith("_") and not _needs(one.args)
    ]
    if name is None and len(makers) < 2:
        name = makers[0] if makers else None
    if name is None and not makers:
        return _read_assigned(text)
    if name not in makers:
        raise InputError(
            "the file has several configurations"
            if name is None
            else f"no function {show(name)} returns a configuration",
            field="config",
            way_out=f"Say import_launch(config={makers[0]})"
            + (f", or one of {', '.join(makers[1:])}" if makers[1:] else "")
            if makers
            else "Give the file that has it",
        )
    values: dict[str, Any] = {}
    for statement in tree.body:
        pairs = [*_assigned([statement])]
        for target, expression in pairs:
            if isinstance(target, ast.Name):
                values[target.id] = value_of(expression, values, {})
        values |= {} if pairs else _undecided(statement)
    found = _Function(functions, values).call(name, ast.Call(ast.Name(name), [], []))
    if not any(key.split(".")[0] == CHECKPOINT for key in found):
        found |= _SELECTIVE
    return found


def _read_assigned(text: str) -> dict[str, Any]:
    """Return what a file assigns to sections of a configuration that it is given."""
    assigned = read_assignments(text)
    found: dict[str, Any] = {}
    for name, value in assigned.items():
        section, _, key = name.removeprefix("config.").partition(".")
        if section == "activation_checkpoint" and not key:
            kind = str(value).removesuffix("()")
            found |= CHECKPOINTS.get(kind, {MODE: kind})
        elif key and name.startswith("config."):
            found[f"{section}.{key}"] = value
    if not found:
        raise InputError(
            "no function without parameters returns a Trainer.Config",
            way_out="Give the file that has it (def NAME() -> Trainer.Config), or what schedopt "
            "export writes",
        )
    return found


def _returns_configuration(function: ast.FunctionDef) -> bool:
    """Whether a function returns a configuration, or says so."""
    if function.returns is not None:
        return ast.unparse(function.returns).strip("'\"").endswith(_WHOLE)
    returned = (one.value for one in function.body if isinstance(one, ast.Return))
    return any(isinstance(one, ast.Call) and _callee(one).endswith(_WHOLE) for one in returned)


def _is_configuration(node: ast.expr | None) -> bool:
    """Whether an expression makes a configuration, or a section of one."""
    return isinstance(node, ast.Call) and _callee(node).endswith("Config")


def _callee(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _needs(parameters: ast.arguments) -> bool:
    """Whether a function has parameters without a default."""
    plain = len(parameters.posonlyargs) + len(parameters.args)
    return plain > len(parameters.defaults) or None in parameters.kw_defaults


def _arguments(parameters: ast.arguments, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield parameters with what a call gives them, defaults first."""
    names = [one.arg for one in parameters.args]
    yield from zip(reversed(names), reversed(parameters.defaults), strict=False)
    for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if default is not None:
            yield one.arg, default
    yield from zip(names, call.args, strict=False)
    for keyword in call.keywords:
        if keyword.arg is None:
            _refuse(call, "it unpacks arguments (**)", "Write out their names")
        yield keyword.arg, keyword.value


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned to each target."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _parts(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield statement.target, statement.value


def _undecided(statement: ast.stmt) -> dict[str, Code]:
    """Return the names that a statement may set otherwise than by an assignment, as not known."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {}
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id: Code(node.id) for node in nodes if isinstance(node.ctx, ast.Store)}


def _parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the parts of a target, as in ``ranks, size = 4, 2``, each with its value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


@dataclass
class _Function:
    """A function up to one of its statements.

    Parameters
    ----------
    functions, constants : mapping
        Of the file.
    depth : int
        Of functions that begin with what another one returns.
    nodes, values : dict
        What is assigned to names, and what it comes to.
    aliases : dict
        Names that stand for a section of the configuration.
    own : str
        The name of the configuration.
    found : dict
        Its settings.
    """

    functions: Mapping[str, ast.FunctionDef]
    constants: Mapping[str, Any]
    depth: int = 0
    nodes: dict[str, ast.expr] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    own: str = ""
    found: dict[str, Any] = field(default_factory=dict)

    def call(self, name: str, call: ast.Call) -> dict[str, Any]:
        """Return the settings of what another function returns that this one calls."""
        inner = _Function(self.functions, self.constants, self.depth + 1)
        for parameter, given in _arguments(self.functions[name].args, call):
            inner.nodes[parameter] = self._node(given)
            inner.values[parameter] = value_of(given, self._known(), self.aliases)
        return inner.run(name)

    def run(self, name: str) -> dict[str, Any]:
        """Return the settings of what the function returns."""
        for statement in self.functions[name].body:
            if isinstance(statement, ast.Return):
                if ast.unparse(statement).removeprefix("return ") == self.own:
                    return self.found
                made = None if statement.value is None else self._made(statement.value)
                if made is None:
                    _refuse(statement, "it returns what is made elsewhere", "Give the file that is")
                return made
            pairs = [*_assigned([statement])]
            for target, expression in pairs:
                self._assign(target, expression)
            if not pairs:
                self._pass(statement)
        return _refuse(self.functions[name], "it returns nothing", "Return the configuration")

    def _assign(self, target: ast.expr, expression: ast.expr) -> None:
        path = dotted(target, self.aliases) or ""
        if path.startswith(f"{self.own}.") and self.own:
            self._put(path.removeprefix(f"{self.own}."), expression)
        elif not path and self._touches(target):
            _refuse(target, "it changes what was made before", "Assign to its settings by name")
        elif isinstance(target, ast.Name):
            told = dotted(expression, self.aliases) or ""
            if self.own and f"{told}.".startswith(f"{self.own}."):
                self.aliases[target.id] = told
            elif (made := self._made(expression)) is not None:
                self.own, self.found = target.id, made
            elif target.id == self.own:
                _refuse(target, "the configuration is made elsewhere", "Assign to its settings")
            else:
                if self._is_given_away(expression):
                    self._keep_call(expression)
                self.nodes[target.id] = expression
                self.values[target.id] = value_of(expression, self._known(), self.aliases)
        elif _is_configuration(self.nodes.get(path.partition(".")[0])):
            _refuse(target, "it changes what was made before", "Give it where that is made")

    def _touches(self, node: ast.AST) -> bool:
        """Whether a part of a text names the configuration, or a section of one."""
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        sections = {name for name, made in self.nodes.items() if _is_configuration(made)}
        return bool(names & {self.own, *self.aliases, *sections})

    def _is_given_away(self, node: ast.expr) -> bool:
        """Whether a call, which may change it, is given the configuration or a section of it.

        Not where it is given a setting alone: ``registry(enabled=config.compile.enable)``.
        """
        if _is_configuration(node) or not self._touches(node):
            return False
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        given = (each for one in calls for each in (*one.args, *(k.value for k in one.keywords)))
        called = (one.func.value for one in calls if isinstance(one.func, ast.Attribute))
        return any(map(self._touches, called)) or any(map(self._has_section, given))

    def _has_section(self, node: ast.AST) -> bool:
        """Whether the configuration, or a section of one, stands in an expression as a whole."""
        if isinstance(node, ast.Name | ast.Attribute):
            path = dotted(node, self.aliases)
            if path is not None:
                root, *inner = path.split(".")
                return self._touches(node) and len(inner) < 1 + (root == self.own)
        return any(map(self._has_section, ast.iter_child_nodes(node)))

    def _keep_call(self, node: ast.expr) -> None:
        """Keep by its text a call that may change the configuration, as a setting not known."""
        if not self.own:
            _refuse(node, "it may change what was made before", "Leave it out of the function")
        self.found[ast.unparse(node)] = True

    def _known(self) -> dict[str, Any]:
        """Return the values of names and settings."""
        named = {**self.constants, **self.values}
        return named | {f"{self.own}.{key}": value for key, value in self.found.items()}

    def _made(self, node: ast.expr) -> dict[str, Any] | None:
        """Return the settings of a configuration that an expression makes; None: it does not."""
        if not isinstance(node, ast.Call):
            return None
        callee = _callee(node)
        if callee in self.functions and _returns_configuration(self.functions[callee]):
            if self.depth == _DEEPEST:
                _refuse(node, "functions begin with each other", "Write out where one begins")
            return self.call(callee, node)
        if not callee.endswith(_WHOLE):
            return None
        _refuse_unnamed(node)
        inner = replace(self, own="", found={})
        for keyword in node.keywords:
            inner._put(keyword.arg or f"**{ast.unparse(keyword.value)}", keyword.value)
        return inner.found

    def _node(self, node: ast.expr) -> ast.expr:
        """Return what is assigned to a name; anything else as it is."""
        return self.nodes.get(node.id, node) if isinstance(node, ast.Name) else node

    def _put(self, path: str, node: ast.expr) -> None:
        """Set a setting, or all of a section, whose class has defaults for the others."""
        for key in [key for key in self.found if key == path or key.startswith(f"{path}.")]:
            del self.found[key]
        node = self._node(node)
        kind = _callee(node) if isinstance(node, ast.Call) else ast.unparse(node)
        if path == CHECKPOINT:
            self.found |= CHECKPOINTS.get(kind, {MODE: kind})
        elif path == "optimizer" and "InBackward" in kind:
            self.found["optimizer.early_step_in_backward"] = True
        if isinstance(node, ast.Call) and _is_configuration(node):
            if path in _SECTIONS:
                _refuse_unnamed(node)
            for keyword in node.keywords:
                inner = keyword.arg or f"**{ast.unparse(keyword.value)}"
                self._put(f"{path}.{inner}", keyword.value)
        elif path in _SECTIONS:
            _refuse(node, f"{path} is made elsewhere", f"Write it there, {_SECTIONS[path]}(...)")
        elif path != CHECKPOINT:
            self.found[path] = value_of(node, self._known(), self.aliases)

    def _pass(self, statement: ast.stmt) -> None:
        """Refuse what may change the configuration by conditions and loops; keep calls by name."""
        if isinstance(statement, ast.Assert | ast.FunctionDef):
            return
        touches = self._touches(statement)
        if isinstance(statement, ast.Expr) and touches:
            self._keep_call(statement.value)
        elif touches or any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            _refuse(
                statement,
                "more than assignments decides what the configuration is",
                "Write what it comes to: config.parallelism.tensor_parallel_degree = 8",
            )
        undecided = _undecided(statement)
        self.values |= undecided
        self.nodes = {name: node for name, node in self.nodes.items() if name not in undecided}


def _refuse_unnamed(call: ast.Call) -> None:
    if call.args:
        _refuse(call, "it gives settings without their names", "Write NAME=VALUE for each")


def _refuse(node: ast.stmt | ast.expr, rule: str, way_out: str) -> NoReturn:
    raise InputError(rule, field=f"line {node.lineno}", way_out=way_out)
