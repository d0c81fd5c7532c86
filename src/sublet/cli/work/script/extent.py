"""How long a training is: the epochs or steps that its loops count, as `epochs=N` or `steps=N` of a session."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.edits import CannotConvert
from sublet.cli.work.script.over import counted_in
from sublet.cli.work.script.reading import Script, is_method, last_of

__all__ = ["Counted", "counted", "steps_of", "with_offset"]

MORE = (ast.Gt, ast.GtE, ast.Eq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """By a loop."""

    turns: str  # as an expression
    first: str  # the number of its first turn
    name: str  # of that number; "" if it has none
    call: ast.Call | None  # range(...), if it is that


def counted(script: Script, loop: ast.For | ast.While) -> Counted | None:
    """None if it does not say how often it turns."""
    if isinstance(loop, ast.While):
        return _by_condition(script, loop)
    call = counted_in(script, loop)
    if call is None:
        return None
    name = _first_name(loop.target)
    given = list(call.args)
    if script.full_name(call.func).rsplit(".", 1)[-1] == "count":
        first = script.text(given[0]) if given else "0"
        limit = _limit(script, loop, name, "0")
        return None if limit is None else Counted(turns=limit, first=first, name=name, call=call)
    if len(given) == 1:
        return Counted(turns=script.text(given[0]), first="0", name=name, call=call)
    first = str(_terms(given[0])[1])
    if len(given) > 2 and script.text(given[2]) != "1":  # noqa: PLR2004 - begin, end and step
        return None
    return Counted(turns=with_offset(given[1], given[0]), first=first, name=name, call=call)


def _first_name(target: ast.expr) -> str:
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[0]
    return last_of(target)


def with_offset(end: ast.expr, first: ast.expr) -> str:
    """How many numbers there are from one to another; a first that the script restores itself counts as 0."""
    names, number = _terms(end)
    less, start = _terms(first)
    known = [each for each in less if each in names]
    for each in known:
        names.remove(each)
    number -= start
    if not names:
        return str(number)
    if not number:
        return ast.unparse(ast.parse(" + ".join(names)))
    return f"{' + '.join(names)} {'+' if number > 0 else '-'} {abs(number)}"


def _terms(node: ast.expr) -> tuple[list[str], int]:
    """Of a sum: what is no number, and the numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        one, other = _terms(node.left), _terms(node.right)
        return one[0] + other[0], one[1] + other[1]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return [], node.value
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return [ast.unparse(node) if simple else f"({ast.unparse(node)})"], 0


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _by_condition(script: Script, loop: ast.While) -> Counted | None:
    """`while step < n:`, or `while True:` with `if step >= n: break`."""
    test = loop.test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for part in parts:
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Lt | ast.LtE):
            name = last_of(part.left)
            if not name or not _grows(loop, script, part.left):
                continue
            first = _begins(script, name)
            end = script.text(part.comparators[0])
            more = isinstance(part.ops[0], ast.LtE)
            return Counted(turns=_plus(end, int(more), first), first=first, name=script.text(part.left), call=None)
    for name in sorted({script.text(each) for each in _counters(loop)}):
        limit = _limit(script, loop, name, _begins(script, name.rsplit(".", 1)[-1]))
        if limit is not None:
            return Counted(turns=limit, first=_begins(script, name.rsplit(".", 1)[-1]), name=name, call=None)
    return None


def _grows(loop: ast.While, script: Script, name: ast.expr) -> bool:
    text = script.text(name)
    return any(script.text(each) == text for each in _counters(loop)) or any(
        isinstance(node, ast.For | ast.While) for node in ast.walk(loop) if node is not loop
    )


def _counters(loop: ast.AST) -> list[ast.expr]:
    """Names that grow by one."""
    return [
        node.target
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
    ]


def _begins(script: Script, name: str) -> str:
    """What a count is at first, if that is a plain number."""
    values = [value for value in script.values_of(name) if isinstance(value, ast.Constant)]
    first = [str(value.value) for value in values if isinstance(value.value, int) and value.value is not False]
    return first[0] if first else "0"


def _plus(end: str, more: int, first: str) -> str:
    less = more - (int(first) if _is_number(first) else 0)
    if not less:
        return end
    if _is_number(end):
        return str(int(end) + less)
    simple = isinstance(ast.parse(end, mode="eval").body, ast.Name | ast.Attribute | ast.Call)
    return f"{end if simple else f'({end})'} {'+' if less > 0 else '-'} {abs(less)}"


def _limit(script: Script, loop: ast.For | ast.While, name: str, first: str) -> str | None:
    """`if n >= limit: break` (or return) in it: how many turns are made until then."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not node.body or not isinstance(node.body[-1], ast.Break | ast.Return):
            continue
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        for test in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
            if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], MORE)):
                continue
            if both and isinstance(test.ops[0], ast.Eq):
                continue
            left, more = test.left, isinstance(test.ops[0], ast.Gt)
            plus = 0
            if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) and _is_number(script.text(left.right)):
                plus = int(script.text(left.right))
                left = left.left
            if script.text(left) != name:
                continue
            return _plus(script.text(test.comparators[0]), int(more) + _late(script, loop, node, name) - plus, first)
    return None


def _late(script: Script, loop: ast.For | ast.While, leaves: ast.If, name: str) -> int:
    """1 if a step is behind us that the count does not have yet."""
    stepped = [node.lineno for node in ast.walk(loop) if is_method(node, "step", "backward")]
    grown = [each.lineno for each in _counters(loop) if script.text(each) == name]
    after_step = bool(stepped) and max(stepped) < leaves.lineno
    after_count = bool(grown) and grown[-1] < leaves.lineno
    return int(after_step and not after_count)


def steps_of(script: Script, loop: ast.For | ast.While, name: str, first: str = "0") -> str | None:
    """Steps at which a loop over batches is left for good, by a count of them."""
    if first == "0":
        first = _begins(script, name.rsplit(".", 1)[-1])
    return _limit(script, loop, name, first)


def refuse_endless(loop: ast.For | ast.While) -> CannotConvert:
    """It does not say when it ends."""
    return CannotConvert(
        "nothing here says how many turns this loop makes",
        loop.lineno,
        "`for epoch in range(n)`, or `while step < n` with `step += 1` in it",
    )
