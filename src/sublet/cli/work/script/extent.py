"""What loops go over, and how long a training is: the epochs or steps that its loops count."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.reading import CannotConvert, Scope, Script, is_method, last_of, stores_in

__all__ = ["Counted", "atom", "bar_of", "counted", "counters", "range_of", "refuse_endless", "steps_of"]
__all__ += ["unwrapped"]

MORE = (ast.Gt, ast.GtE, ast.Eq)
RANGES = ("range", "trange", "count")
WRAPPERS = ("enumerate", "tqdm", "trange", "iter", "track", "islice", "cycle", "auto", "tqdm_notebook", "progress")
Loop = ast.For | ast.While


# ------------------------------------------------------------------------------------------- through bars and numbers


def _is_wrapper(script: Script, node: ast.expr) -> bool:
    """`enumerate(...)`, `tqdm(...)` and the like: they give what is in them."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = script.full_name(node.func).rsplit(".", 1)[-1] or last_of(node.func)
    return name in WRAPPERS or name.endswith(("_progress", "log_every", "progress_bar"))


def unwrapped(script: Script, node: ast.expr, scope: Scope) -> ast.expr:
    """What a loop goes over, without bars and numbers around it; `bar = tqdm(loader)` is looked through."""
    for _ in range(6):
        if isinstance(node, ast.Call) and _is_wrapper(script, node):
            node = node.args[0]
        elif isinstance(node, ast.Name) and (value := bar_of(script, node, scope)) is not None:
            node = value
        else:
            break
    return node


def bar_of(script: Script, name: ast.Name, scope: Scope) -> ast.expr | None:
    """What a name stands for, where it is that of a bar, given to it right in this function."""
    pairs = [(target, value) for target, value, node in stores_in(scope) if node.lineno < name.lineno]
    for node in ast.walk(scope):
        if isinstance(node, ast.With) and node.lineno <= name.lineno:
            pairs += [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars]
    for target, value in pairs:
        if value and isinstance(target, ast.Name) and target.id == name.id and _is_wrapper(script, value):
            return value
    return None


def range_of(script: Script, loop: Loop) -> ast.Call | None:
    """`range(...)` and its kin that a loop goes over."""
    over = loop.iter if isinstance(loop, ast.For) else None
    while over is not None:
        if isinstance(over, ast.Call) and script.full_name(over.func).rsplit(".", 1)[-1] in RANGES:
            return over
        inner = unwrapped(script, over, script.scope_of(loop))
        over = None if inner is over else inner
    return None


# ------------------------------------------------------------------------------------------- sums of names and numbers


def atom(text: str) -> str:
    """In brackets, if it is to be a part of something."""
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, ast.Name | ast.Attribute | ast.Constant | ast.Call) else f"({text})"


def plus(text: str, number: int) -> str:
    """A sum, as one would write it."""
    if not number or text.lstrip("-").isdigit():
        return str(int(text) + number) if number else text
    return f"{atom(text)} {'+' if number > 0 else '-'} {abs(number)}"


def _terms(node: ast.expr) -> tuple[list[str], int]:
    """Of a sum: what is no number, and the numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        one, other = _terms(node.left), _terms(node.right)
        return one[0] + other[0], one[1] + other[1]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return [], node.value
    return [atom(ast.unparse(node)) if not isinstance(node, ast.Subscript) else ast.unparse(node)], 0


# ------------------------------------------------------------------------------------------- how often a loop turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """By a loop."""

    turns: str  # as an expression; at most so many, if it begins at what is no number, and has an `end`
    first: str = "0"  # the number of its first turn
    start: str = ""  # what is to be added to it, and is no number
    end: str = ""  # the number that no turn has
    name: str  # of that number; "" if it has none
    call: ast.Call | None = None  # range(...), if it is that


def counted(script: Script, loop: Loop) -> Counted | None:
    """None if it does not say how often it turns."""
    if isinstance(loop, ast.While):
        return _by_condition(script, loop)
    call, target = range_of(script, loop), loop.target
    if call is None:
        return None
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[0]
    name, given = last_of(target), list(call.args)
    if script.full_name(call.func).endswith("count"):
        limit = _limit(script, loop, name, "0")
        first = script.text(given[0]) if given else "0"
        return None if limit is None else Counted(turns=limit, first=first, name=name, call=call)
    if len(given) == 1:
        return Counted(turns=script.text(given[0]), name=name, call=call)
    if len(given) > 2 and script.text(given[2]) != "1":  # noqa: PLR2004 - begin, end and step
        return None
    (less, begin), (names, end) = _terms(given[0]), _terms(given[1])
    zeros = [name for name in less if {str(getattr(each, "value", "")) for each in script.values_of(name)} == {"0"}]
    less = [each for each in less if each not in zeros]
    start, known = " + ".join(less), all(each in names for each in less)
    for each in less if known else []:
        names.remove(each)
    turns = plus(" + ".join(names), end - begin) if names else str(end - begin)
    last = "" if known else script.text(given[1])
    return Counted(turns=turns, first=str(begin), start=start, end=last, name=name, call=call)


def _by_condition(script: Script, loop: ast.While) -> Counted | None:
    """`while step < n:`, or `while True:` with `if step >= n: break`."""
    test, grown = loop.test, {script.text(each) for each in counters(loop)}
    holds_loops = any(isinstance(node, Loop) for node in ast.walk(loop) if node is not loop)
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Lt | ast.LtE):
            name, first = script.text(part.left), _begins(script, last_of(part.left))
            if last_of(part.left) and (name in grown or holds_loops):
                more = int(isinstance(part.ops[0], ast.LtE)) - int(first)
                return Counted(turns=plus(script.text(part.comparators[0]), more), first=first, name=name)
    for name in sorted(grown):
        first = _begins(script, name.rsplit(".", 1)[-1])
        if (limit := _limit(script, loop, name, first)) is not None:
            return Counted(turns=limit, first=first, name=name)
    return None


def counters(loop: ast.AST) -> list[ast.expr]:
    """Names that grow by one."""
    grown = [node for node in ast.walk(loop) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)]
    return [each.target for each in grown if isinstance(each.value, ast.Constant) and each.value.value == 1]


def _begins(script: Script, name: str) -> str:
    """What a count is at first, if that is a plain number."""
    values = [value.value for value in script.values_of(name) if isinstance(value, ast.Constant)]
    return next((str(value) for value in values if type(value) is int), "0")


def _limit(script: Script, loop: Loop, name: str, first: str) -> str | None:
    """`if n >= limit: break` (or return) in it: how many turns are made until then."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Break | ast.Return):
            continue
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        for test in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
            if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], MORE)):
                continue
            if both and isinstance(test.ops[0], ast.Eq):
                continue
            left, more = test.left, int(isinstance(test.ops[0], ast.Gt)) + _late(script, loop, node, name)
            if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) and script.text(left.right).isdigit():
                more, left = more - int(script.text(left.right)), left.left
            if script.text(left) == name:
                return plus(script.text(test.comparators[0]), more - (int(first) if first.isdigit() else 0))
    return None


def _late(script: Script, loop: Loop, leaves: ast.If, name: str) -> int:
    """1 if a step is behind us that the count does not have yet."""
    stepped = [node.lineno for node in ast.walk(loop) if is_method(node, "step", "backward")]
    grown = [each.lineno for each in counters(loop) if script.text(each) == name]
    counts = bool(grown) and grown[-1] < leaves.lineno
    return int(bool(stepped) and max(stepped) < leaves.lineno and not counts)


def steps_of(script: Script, loop: Loop, name: str, first: str = "0") -> str | None:
    """Steps at which a loop over batches is left for good, by a count of them."""
    return _limit(script, loop, name, _begins(script, name.rsplit(".", 1)[-1]) if first == "0" else first)


def refuse_endless(loop: Loop) -> CannotConvert:
    """It does not say when it ends."""
    do = "`for epoch in range(n)`, or `while step < n` with `step += 1` in it"
    return CannotConvert("nothing here says how many turns this loop makes", loop.lineno, do)
