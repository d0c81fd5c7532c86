"""What a function returns, where its body stands in place of its call.

loss = step(x, y)          ...                          total += step(x, y)          ...
is     loss = value                                       is     returned_by_step = value
total += returned_by_step
"""

from __future__ import annotations

import ast
import re

from sublet.cli.work.script.functions import statement_of
from sublet.cli.work.script.reading import Script

__all__ = ["RETURNS", "is_amid", "is_plain", "mark", "returned_by", "target_of", "with_result"]

RETURNS = "returns"
GIVES = ast.Assign | ast.AnnAssign
SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def mark(function: ast.FunctionDef, word: str) -> str:
    """One of its own: functions may be in functions."""
    return f"# sublet: {word} {function.name}()"


def with_result(
    script: Script, function: ast.FunctionDef, call: ast.Call, lines: list[tuple[int, str]], indent: str
) -> list[tuple[int, str]]:
    """`return value` as `name = value`, with a mark before it."""
    name, number = _result_of(script, call, function), function.body[-1].lineno
    if name is None:
        return lines
    at = next(at for at, (line, _) in enumerate(lines) if line == number)
    given = re.sub(r"\breturn\b", f"{name} =", lines[at][1], count=1)
    return [*lines[:at], (number, f"{indent}pass  {mark(function, RETURNS)}\n"), (number, given), *lines[at + 1 :]]


def _result_of(script: Script, call: ast.Call, function: ast.FunctionDef) -> str | None:
    """What takes the place of `return`."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    statement = statement_of(script, call)
    target = target_of(statement)
    if target is not None and isinstance(statement, GIVES) and statement.value is call:
        return script.text(target)
    return returned_by(function)


def target_of(statement: ast.stmt) -> ast.expr | None:
    """What `loss = step(x, y)`, or `loss: float = step(x, y)`, gives a value to."""
    if isinstance(statement, ast.AnnAssign):
        return statement.target
    return statement.targets[0] if isinstance(statement, ast.Assign) else None


def is_amid(script: Script, call: ast.Call) -> bool:
    """Whether more is done in its line with what it returns: `total += step(x, y)`."""
    statement = statement_of(script, call)
    whole = isinstance(statement, ast.Expr | GIVES) and statement.value is call
    return not whole and isinstance(statement, ast.Expr | GIVES | ast.AugAssign)


def returned_by(function: ast.FunctionDef) -> str:
    """The name of it where no other is given."""
    return f"returned_by_{function.name}"


def is_plain(script: Script, function: ast.FunctionDef, call: ast.Call) -> bool:
    """Whether the call is all of its line; or gives names what it returns; or is made once in one line of more."""
    statement, last = statement_of(script, call), function.body[-1]
    first, returns = script.lines[statement.lineno - 1], isinstance(last, ast.Return) and last.value is not None
    if first.encode()[: statement.col_offset].strip():
        return False
    if is_amid(script, call):
        always = not any(isinstance(each, SOMETIMES) for each in script.above(call))
        in_one = statement.lineno == statement.end_lineno and first.count(script.text(call)) == 1
        return returns and always and in_one and _is_alone(script, statement, call)
    if (target := target_of(statement)) is not None:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        alone = not isinstance(statement, ast.Assign) or len(statement.targets) == 1
        return returns and alone and all(isinstance(each, ast.Name) for each in parts)
    return isinstance(statement, ast.Expr)


def _is_alone(script: Script, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether nothing else in its line is asked: what stands left of it would see what was before the step."""
    around, inside = {*script.above(call)}, {*ast.walk(call)}
    heads = {each.func for each in around if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)}
    asks = (ast.Call, ast.Attribute, ast.Subscript)
    others = [each for each in ast.walk(statement) if isinstance(each, asks) and each not in around | inside | heads]
    return not others and all(isinstance(each.value, ast.Name) for each in heads)
