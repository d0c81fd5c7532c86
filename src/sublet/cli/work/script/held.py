"""An object of a class of the script that remembers by one module of its own, and by nothing else: an average, mostly.

class ModelEma:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model)        # whose state is kept: s.keep(ema=ema.module)
        self.decay = decay

    def update(self, model): ...                  # makes none of its attributes anew
"""

from __future__ import annotations

import ast
from typing import TypeGuard

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import MOVES, Function, Kind
from sublet.cli.work.script.reading import Scope, is_method, root_of

__all__ = ["held_module"]


def held_module(effects: Effects, name: str, scope: Scope) -> str:
    """The attribute that is the module; "" if there is none, or something else may be remembered."""
    made, calls = effects.class_of(name, scope), effects.given(name, scope)
    call = calls[0] if len(calls) == 1 else None
    if made is None or not isinstance(call, ast.Call) or made.bases or made.keywords or made.decorator_list:
        return ""
    methods = [each for each in made.body if isinstance(each, Function)]
    texts = [each for each in made.body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    init = next((each for each in methods if each.name == "__init__"), None)
    if init is None or len(methods) + len(texts) != len(made.body) or not _asks_only(effects, methods):
        return ""
    given, copied = _given(init, call), list[str]()
    for statement in init.body:
        stored = [node for node in ast.walk(statement) if _is_own(node) and not isinstance(node.ctx, ast.Load)]
        if not stored:
            continue
        if not isinstance(statement, ast.Assign) or statement.targets != stored:
            return ""
        if _is_copy(effects, statement.value, given, scope):
            copied.append(stored[0].attr)
        elif not _is_fixed(effects, statement.value, given, scope):
            return ""
    others = [method for method in methods if method is not init]
    anew = any(_is_stored(node) for method in others for node in ast.walk(method))
    return copied[0] if len(copied) == 1 and not anew else ""


def _asks_only(effects: Effects, methods: list[Function]) -> bool:
    """Whether `self` is there for its attributes alone: nobody else is handed it."""
    for method in methods:
        if not method.args.args or method.args.args[0].arg != "self":
            return False
        for node in ast.walk(method):
            if isinstance(node, ast.Name) and node.id == "self" and not _is_own(effects.script.parents[node]):
                return False
    return True


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_stored(node: ast.AST) -> bool:
    """`self.n = ...`, `self.of[name] = ...`, `del self.n`."""
    return (
        isinstance(node, ast.Attribute | ast.Subscript)
        and not isinstance(node.ctx, ast.Load)
        and root_of(node) == "self"
    )


def _given(init: Function, call: ast.Call) -> dict[str, ast.expr]:
    args = init.args
    plain = args.args[len(args.args) - len(args.defaults) :]
    pairs = [*zip(plain, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    given = {each.arg: value for each, value in pairs if value is not None}
    given |= dict(zip([each.arg for each in args.args[1:]], call.args, strict=False))
    return given | {word.arg: word.value for word in call.keywords if word.arg}


def _is_copy(effects: Effects, value: ast.expr, given: dict[str, ast.expr], scope: Scope) -> bool:
    """`copy.deepcopy(model)`, moved or put into a mode, of a model that says all of its state."""
    while is_method(value, *MOVES):
        value = value.func.value
    if (
        not isinstance(value, ast.Call)
        or effects.script.full_name(value.func) != "copy.deepcopy"
        or len(value.args) != 1
    ):
        return False
    of = value.args[0]
    model = given.get(of.id) if isinstance(of, ast.Name) else None
    known = isinstance(model, ast.Name) and effects.of(model.id, scope) is Kind.MODULE
    return known and isinstance(model, ast.Name) and effects.has_state(model.id, scope)


def _is_fixed(effects: Effects, value: ast.expr, given: dict[str, ast.expr], scope: Scope) -> bool:
    """A number, or what the session knows by itself."""
    if isinstance(value, ast.Name) and value.id in given:
        value = given[value.id]
    if isinstance(value, ast.Name):
        return value.id in effects.state or effects.is_number(value.id, scope)
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)
    )
