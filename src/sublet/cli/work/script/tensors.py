"""Whether a value of a loop is surely one tensor with a row for each sample, and no tuple or list of such."""

from __future__ import annotations

import ast
from collections.abc import Collection

from sublet.cli.work.script.calls import READING
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import Function, bindings_in
from sublet.cli.work.script.reading import Scope

__all__ = ["is_beyond_first", "is_tensor", "number_of"]

SEVERAL = (  # that give tuples, or may
    "max", "min", "topk", "sort", "kthvalue", "median", "mode", "split", "chunk", "unbind", "size", "values", "items",
    "keys", "get", "var_mean", "std_mean", "unique", "nonzero", "numpy", "tolist", "parameters", "copy", "where",
    "cummax", "meshgrid", "tensor_split", "where", "svd", "qr", "eigh", "lu", "aminmax",
)  # fmt: skip
RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention", "ModuleList", "ModuleDict", "Module", "Adaptive")
DEEPEST = 8


def number_of(index: ast.expr) -> int | None:
    """3 of `[3]`, -1 of `[-1]`; None of what is no number."""
    sign = -1 if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) else 1
    value = index.operand if isinstance(index, ast.UnaryOp) else index
    return sign * value.value if isinstance(value, ast.Constant) and type(value.value) is int else None


def is_beyond_first(place: ast.expr) -> bool:
    """Whether it is a dimension that is not that of samples: a negative one may be."""
    return isinstance(place, ast.Constant) and type(place.value) is int and place.value > 0


def is_tensor(
    effects: Effects, value: ast.expr, loop: ast.For | ast.While | None, drawn: Collection[str], depth: int = 0
) -> bool:
    """`drawn`: names that the loader gives, each a tensor."""
    if depth > DEEPEST or loop is None:
        return False
    scope = effects.script.scope_of(loop)

    def inner(each: ast.expr) -> bool:
        return is_tensor(effects, each, loop, drawn, depth + 1)

    match value:
        case ast.Name():
            loaded = value.id in drawn
            own = set(ast.walk(loop.iter)) if isinstance(loop, ast.For) else set()
            given = [each for name, each in bindings_in(loop) if name == value.id]
            made = [each for each in given if not (loaded and (each in own or effects.is_loader(each, scope)))]
            return (loaded or bool(made)) and all(map(inner, made))
        case ast.BinOp():
            return inner(value.left) or inner(value.right)
        case ast.UnaryOp():
            return inner(value.operand)
        case ast.Call(func=ast.Attribute() as func) if not effects.is_imported(func.value):
            return func.attr in READING and func.attr not in SEVERAL and inner(func.value)
        case ast.Call():
            full = effects.script.full_name(value.func)
            if full.startswith("torch."):
                return full.rpartition(".")[2] not in SEVERAL and bool(value.args) and inner(value.args[0])
            return bool(value.args) and inner(value.args[0]) and _gives_one(effects, value.func, scope)
        case _:
            return False


def _gives_one(effects: Effects, func: ast.expr, scope: Scope) -> bool:
    """Whether a module gives one tensor for one: those of torch that do, and classes whose forward returns a call."""
    given = effects.given(func.id, scope) if isinstance(func, ast.Name) else []
    return bool(given) and all(_is_plain(effects, each) for each in given)


def _is_plain(effects: Effects, made: ast.expr) -> bool:
    if not isinstance(made, ast.Call):
        return False
    if isinstance(made.func, ast.Attribute) and made.func.attr in ("to", "cuda", "cpu", "float", "double"):
        return _is_plain(effects, made.func.value)
    names = [effects.script.full_name(node.func) for node in ast.walk(made) if isinstance(node, ast.Call)]
    own = effects.classes.get(effects.script.full_name(made.func))
    if own is not None:
        forward = next((each for each in own.body if isinstance(each, Function) and each.name == "forward"), None)
        return forward is not None and _returns_one(effects, own, forward)
    return all(full.startswith("torch.nn.") and not full.rpartition(".")[2].startswith(RECURRENT) for full in names)


def _returns_one(effects: Effects, own: ast.ClassDef, forward: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """`return self.head(...)`, of a layer that gives one."""
    returned = [node.value for node in ast.walk(forward) if isinstance(node, ast.Return)]
    layers = {
        effects.script.text(target): node.value
        for node in ast.walk(own)
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    return bool(returned) and all(
        isinstance(each, ast.Call)
        and (layer := layers.get(effects.script.text(each.func))) is not None
        and _is_plain(effects, layer)
        for each in returned
    )
