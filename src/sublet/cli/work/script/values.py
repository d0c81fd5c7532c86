"""Which values a session can keep: plain ones, copied weights, averages of a model."""

from __future__ import annotations

import ast

from sublet.cli.work.script.reading import Script, is_method, last_of, root_of

__all__ = ["average_of", "has_method", "is_plain", "is_reckoned", "stays_plain", "whole_number"]

AVERAGES = ("AveragedModel", "EMA", "Ema", "ExponentialMovingAverage", "ModelEma", "ModelEmaV2", "EMAModel")
TENSORS = ("zeros", "ones", "tensor", "full")
SAVES = ("state_dict", "deepcopy", "item", "clone", "float", "min", "max", "mean", "sum", "len", "copy")


def whole_number(value: ast.expr) -> str | None:
    """As text; None for anything else."""
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return str(value.value)
    return None


def is_plain(value: ast.expr) -> bool:
    """A value that can be kept: a number, a text, a list or a dict of them, copied weights."""
    if isinstance(value, ast.UnaryOp):
        return is_plain(value.operand)
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.List | ast.Tuple):
        return all(map(is_plain, value.elts))
    if isinstance(value, ast.Dict):
        return all(map(is_plain, value.values))
    if isinstance(value, ast.DictComp | ast.ListComp):
        made = value.value if isinstance(value, ast.DictComp) else value.elt
        return isinstance(made, ast.Call) and last_of(made.func) in ("clone", "zeros_like")
    if isinstance(value, ast.Attribute):
        return value.attr in ("inf", "Inf", "infty", "maxsize")
    if isinstance(value, ast.Call):
        name = last_of(value.func)
        return (
            name == "float"
            or (name in ("list", "dict") and not value.args)
            or (root_of(value.func) == "torch" and name in TENSORS)
            or (name == "deepcopy" and _has_state(value))
        )
    return False


def is_reckoned(value: ast.expr, changes: list[ast.AST]) -> bool:
    """`rate = first_rate`, and then `rate /= 3`: a number."""
    return isinstance(value, ast.Name | ast.Attribute) and all(isinstance(each, ast.AugAssign) for each in changes)


def _has_state(value: ast.Call) -> bool:
    return any(is_method(node, "state_dict") for node in ast.walk(value))


def stays_plain(name: str, value: ast.expr, changes: list[ast.AST]) -> bool:
    """What it is given in the loop can be kept as well, as far as that is seen."""
    if not (isinstance(value, ast.Constant) and value.value is None):
        return True
    for each in changes:
        given = getattr(each, "value", None)
        if isinstance(given, ast.Tuple) and isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Tuple):
            given = next(
                value for to, value in zip(each.targets[0].elts, given.elts, strict=False) if last_of(to) == name
            )
        if isinstance(given, ast.Dict) and any(is_method(node, "state_dict") for node in ast.walk(given)):
            return False  # what is only written to a file, most likely
        if isinstance(given, ast.Name | ast.Constant | ast.Dict | ast.DictComp | ast.Compare | ast.BinOp):
            continue
        if isinstance(given, ast.Call) and last_of(given.func) in SAVES:
            continue
        return False
    return True


def average_of(script: Script, value: ast.expr) -> str | None:
    """Of a moving average of the weights, or a copy of the model: which part of it has the state; None for others."""
    if not isinstance(value, ast.Call):
        return None
    name = last_of(value.func)
    if name == "deepcopy":
        copies = bool(value.args) and isinstance(value.args[0], ast.Name | ast.Attribute) and not _has_state(value)
        return "" if copies else None
    own = next((each for each in ast.walk(script.tree) if isinstance(each, ast.ClassDef) and each.name == name), None)
    if own is None:
        return "" if name in AVERAGES else None
    if has_method(own, "state_dict") and has_method(own, "load_state_dict"):
        return ""
    if any("Module" in ast.unparse(base) for base in own.bases):
        return "" if name in AVERAGES else None
    parts = [
        node.targets[0].attr
        for node in ast.walk(own)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        if any(isinstance(each, ast.Call) and last_of(each.func) == "deepcopy" for each in ast.walk(node.value))
        if not any(is_method(each, "state_dict") for each in ast.walk(node.value))
    ]
    return f".{parts[0]}" if parts else None


def has_method(own: ast.ClassDef, name: str) -> bool:
    """Whether a class of the script has it itself."""
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in own.body)
