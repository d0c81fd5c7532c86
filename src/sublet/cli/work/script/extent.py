"""The iterables of loops, and how many turns loops make."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.reading import Scope, Script, is_method, last_of, stores_in

MORE = (ast.Gt, ast.GtE, ast.Eq)
WRAPPERS = ("enumerate", "tqdm", "trange", "iter", "track", "islice", "cycle", "auto", "tqdm_notebook", "progress")
Loop = ast.For | ast.While


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How often a loop turns."""

    turns: str  # as an expression
    name: str  # of the number of a turn; "" if it has none
    first: int = 0  # that number in the first turn
    start: str = ""  # what the script adds to it: 0, unless it resumes by itself
    call: ast.Call | None = None  # range(...), if the loop has it


def _inside(script: Script, node: ast.expr, scope: Scope) -> ast.expr | None:
    """The iterable inside `enumerate(...)`, `tqdm(...)` and the like, also by the name of a bar; None for all else."""
    if isinstance(node, ast.Name):
        return bar_of(script, node, scope)
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = script.full_name(node.func).rsplit(".", 1)[-1] or last_of(node.func)
    return node.args[0] if name in WRAPPERS or name.endswith(("_progress", "log_every", "progress_bar")) else None


def unwrapped(script: Script, node: ast.expr, scope: Scope) -> ast.expr:
    """The iterable of a loop, without bars and numbers around it, also where `bar = tqdm(loader)` stands above it."""
    inner = _inside(script, node, scope)
    return node if inner is None else unwrapped(script, inner, scope)


def bar_of(script: Script, name: ast.Name, scope: Scope) -> ast.expr | None:
    """The bar that a name stands for, where this function makes it above."""
    pairs = [(target, value) for target, value, node in stores_in(scope) if node.lineno < name.lineno]
    for node in ast.walk(scope):
        if isinstance(node, ast.With) and node.lineno <= name.lineno:
            pairs += [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars]
    bars = [(target, value) for target, value in pairs if isinstance(value, ast.Call) and _inside(script, value, scope)]
    return next((value for to, value in bars if isinstance(to, ast.Name) and to.id == name.id), None)


def range_of(script: Script, loop: Loop) -> ast.Call | None:
    """`range(...)` that a loop goes over, or `trange(...)`."""
    over = loop.iter if isinstance(loop, ast.For) else None
    while over is not None:
        if isinstance(over, ast.Call) and script.full_name(over.func).rsplit(".", 1)[-1] in ("range", "trange"):
            return over
        over = _inside(script, over, script.scope_of(loop))
    return None


def atom(text: str) -> str:
    """In brackets, if it is to be a part of something."""
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, ast.Name | ast.Attribute | ast.Constant | ast.Call) else f"({text})"


def plus(text: str, number: int) -> str:
    """A sum, as one would write it."""
    if not number or text.lstrip("-").isdigit():
        return str(int(text) + number) if number else text
    return f"{atom(text)} {'+' if number > 0 else '-'} {abs(number)}" if text else str(number)


def _sum(script: Script, node: ast.expr) -> tuple[str, int]:
    """`n + 1` as ("n", 1), `1` as ("", 1)."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(other, ast.Constant) and type(other.value) is int:
                return script.text(one), other.value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return "", node.value
    return script.text(node), 0


def counted(script: Script, loop: Loop) -> Counted | None:
    """None if it does not say how often it turns."""
    if isinstance(loop, ast.While):
        return _by_condition(script, loop)
    call, target = range_of(script, loop), loop.target
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[0]
    if call is None or (len(call.args) > 2 and script.text(call.args[2]) != "1"):  # noqa: PLR2004 - begin, end and step
        return None
    begin, end = ([ast.Constant(0), *call.args] if len(call.args) == 1 else call.args)[:2]
    (start, first), (stop, last) = _sum(script, begin), _sum(script, end)
    values = script.values_of(start.rsplit(".", 1)[-1]) if start else []
    begins = _first_of(values)
    if f"{stop} + ".startswith(f"{start} + "):  # range(start, start + 20)
        stop, last = stop[len(start) + 3 :], last + begins
    turns, start = plus(stop, last - first - begins), start if _resumes(values) else ""
    return Counted(turns=turns, first=first + begins, start=start, name=last_of(target), call=call)


def _by_condition(script: Script, loop: ast.While) -> Counted | None:
    """`while step < n:`, or `while True:` with `if step >= n: break`."""
    test, grown = loop.test, counters(script, loop)
    holds_loops = any(isinstance(node, Loop) for node in ast.walk(loop) if node is not loop)
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Lt | ast.LtE):
            name, values = script.text(part.left), script.values_of(last_of(part.left))
            if last_of(part.left) and (name in grown or holds_loops):
                first, more = _first_of(values), int(isinstance(part.ops[0], ast.LtE))
                turns, start = plus(script.text(part.comparators[0]), more - first), name if _resumes(values) else ""
                return Counted(turns=turns, first=first, start=start, name=name)
    for name in grown:
        if (limit := limit_of(script, loop, name)) is not None:
            return Counted(turns=limit, first=_first_of(script.values_of(name.rsplit(".", 1)[-1])), name=name)
    return None


def _resumes(values: list[ast.expr]) -> bool:
    """Whether a count may begin at another number, as where the script goes on by a checkpoint of its own."""
    return not values or not all(isinstance(each, ast.Constant) for each in values)


def counters(script: Script, loop: ast.AST) -> dict[str, int]:
    """Names that grow by one, with the line."""
    grown = [node for node in ast.walk(loop) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)]
    return {script.text(each.target): each.lineno for each in grown if script.text(each.value) == "1"}


def _first_of(values: list[ast.expr]) -> int:
    """The number that a count begins at; 0 if this file does not say it."""
    numbers = [value.value for value in values if isinstance(value, ast.Constant)]
    return next((number for number in numbers if type(number) is int), 0)


def limit_of(script: Script, loop: Loop, name: str, first: int | None = None) -> str | None:
    """`if n >= limit: break` (or return) in it: how many turns are made until then."""
    first = _first_of(script.values_of(name.rsplit(".", 1)[-1])) if first is None else first
    stepped = max((node.lineno for node in ast.walk(loop) if is_method(node, "step", "backward")), default=0)
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Break | ast.Return):
            continue
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        for test in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], MORE):
                (left, added), more = _sum(script, test.left), int(isinstance(test.ops[0], ast.Gt))
                if left == name and not (both and isinstance(test.ops[0], ast.Eq)):
                    counts = counters(script, loop).get(name, node.lineno) < node.lineno
                    more += 0 < stepped < node.lineno and not counts  # a step that the count does not have yet
                    return plus(script.text(test.comparators[0]), more - added - first)
    return None
