"""Settings of a dataset that change between two epochs: how hard its samples are, how large, how many are mixed.

    for epoch in range(10):
        dataset.set_difficulty(0.1 * epoch)
        for x, y in loader: ...

A session has what a dataset keeps in plain attributes as part of its state, and hands it to loaders as it is when an
epoch begins. So such a line stays, if that is all that it does: it sets plain values, draws nothing, and leaves the
number of samples as it was.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.course import Line
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import Function, Kind
from sublet.cli.work.script.reading import Scope, root_of

__all__ = ["dataset_of", "is_number_set", "is_setting"]


def dataset_of(effects: Effects, loader: str, scope: Scope) -> str:
    """The name of the dataset that the loader is made with, if its class is in the script; or ""."""
    makes = effects.given(loader, scope)
    call = makes[0] if len(makes) == 1 else None
    if not isinstance(call, ast.Call):
        return ""
    words = {word.arg: word.value for word in call.keywords}
    given = call.args[0] if call.args else words.get("dataset")
    if not isinstance(given, ast.Name) or effects.class_of(given.id, scope) is None:
        return ""
    stays = words.get("persistent_workers", ast.Constant(value=False))  # then the script's own never hear of a change
    return given.id if isinstance(stays, ast.Constant) and stays.value is False else ""


def is_setting(effects: Effects, line: Line, dataset: str, scope: Scope) -> bool:
    """Whether a line does nothing but to set plain values of the dataset, which do not count its samples."""
    made = effects.class_of(dataset, scope)
    if made is None or line.done.draws or line.done.binds or not line.done.writes.keys() <= {dataset}:
        return False
    methods = {each.name: each for each in made.body if isinstance(each, Function)}
    node = line.node
    if isinstance(node, ast.Assign) and len(node.targets) == 1:  # dataset.level = 0.1 * epoch
        target, values = node.targets[0], [node.value]
        plain = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        changed = {target.attr} if plain and isinstance(target, ast.Attribute) else None
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # dataset.set_level(0.1 * epoch)
        call, values = node.value, [*node.value.args, *(word.value for word in node.value.keywords)]
        named = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        method = methods.get(call.func.attr) if named and isinstance(call.func, ast.Attribute) else None
        changed = None if method is None else _set_by(effects, method)
    else:
        return False
    known = changed is not None and all(effects.kind_of(each, scope) is Kind.PLAIN for each in values)
    return known and changed is not None and not changed & _asked_by(methods, "__len__", "__iter__")


def _set_by(effects: Effects, method: Function) -> set[str] | None:
    """Attributes that it gives plain values; None if it does anything else."""
    found = set[str]()
    for statement in method.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, ast.Assign | ast.AugAssign) or not _is_plain(effects, statement.value, method):
            return None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name) or root_of(target) != "self":
            return None
        found.add(target.attr)
    return found or None


def _is_plain(effects: Effects, value: ast.expr, method: Function) -> bool:
    """Made of its arguments, numbers, and attributes that are numbers by that."""
    given = {each.arg for each in ast.walk(method.args) if isinstance(each, ast.arg)}
    if isinstance(value, ast.Name) and value.id in given:
        return True
    if isinstance(value, ast.BinOp):
        return _is_plain(effects, value.left, method) and _is_plain(effects, value.right, method)
    if isinstance(value, ast.Call) and effects.script.full_name(value.func) in ("min", "max", "float", "int", "round"):
        return all(_is_plain(effects, each, method) for each in value.args) and not value.keywords
    if isinstance(value, ast.Attribute):
        return root_of(value) == "self" and isinstance(value.value, ast.Name)
    return isinstance(value, ast.Constant)


def _asked_by(methods: dict[str, Function], *names: str) -> set[str]:
    """Attributes that these speak of, and what they call."""
    found, left = set[str](), [name for name in names if name in methods]
    for name in left:
        for node in ast.walk(methods[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
                left += [node.attr] if node.attr in methods and node.attr not in left else []
    return found


def is_number_set(effects: Effects, node: ast.AST, scope: Scope, counted: set[str]) -> bool:
    """`model[1].p = 0.1 * epoch`: an attribute is given a number that is reckoned from the epoch alone."""
    if not isinstance(node, ast.Assign) or not all(isinstance(each, ast.Attribute) for each in node.targets):
        return False
    return _is_reckoned(effects, node.value, scope, counted)


def _is_reckoned(effects: Effects, value: ast.expr, scope: Scope, counted: set[str]) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.Name():
            return value.id in counted or effects.is_number(value.id, scope)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.IfExp():
            parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
        case ast.Call(keywords=[]) if effects.script.full_name(value.func) in ("min", "max", "float", "int"):
            parts = value.args
        case _:
            return False
    return all(_is_reckoned(effects, each, scope, counted) for each in parts)
