"""What a loop writes is written once, and not by each worker: statements that are put under `if s.rank == 0:`.

That is right for a statement that only writes: nobody asks later for what it makes, it draws no random numbers, and
leaves the model as it is. One that adds rows and does more is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from sublet.cli.work.script.course import exposed, following, preceding
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.files import Writes, mode_of, told_to, written_by
from sublet.cli.work.script.functions import statement_of
from sublet.cli.work.script.kinds import INNER, within
from sublet.cli.work.script.reading import Script, is_method
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Written", "rows_after", "rows_before", "written_in"]

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
BEFORE = "it is before the loop, and each start would write it, too"
WITH_THE_FIRST = "with the first row of the loop: `if epoch == 0:` after the batches, which is left to rank 0"
ASKS = ("exists", "isfile", "is_file", "size", "tell(", "rank")  # whether a row is there already, or who is asked
LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A statement that writes."""

    statement: ast.stmt
    what: Writes
    why: str = ""  # it cannot be left to one worker
    do: str = ""

    def refusal(self) -> CannotConvert:
        """Of rows, which would be there once for each worker, and of files that only the first worker finds."""
        moved = self.what is Writes.MOVED
        each = "each worker would do it, and fail where another has" if moved else "each worker would write it"
        only = "a line of its own for it, after what is computed: `old = names.pop(0)`, then `os.remove(old)`"
        return CannotConvert(
            f"{each}, and it cannot be left to one: {self.why}",
            self.statement.lineno,
            self.do or (only if moved else "a statement that only writes, after what is computed for it"),
        )


def written_in(effects: Effects, around: ast.AST) -> Iterator[Written]:
    """All that is written in a loop, by statements of it."""
    for block in _blocks(around):
        for statement in block:
            yield from _of(effects, statement)


def rows_after(effects: Effects, around: ast.stmt) -> Iterator[Written]:
    """Statements behind the loop that add rows; where the session is in another function they know of no rank."""
    script, behind, elsewhere = effects.script, around, ""
    while True:
        for statement in following(script, behind):
            between = script.lines[behind.end_lineno or behind.lineno : statement.lineno]
            put_back = any("# sublet: " in line for line in between)  # it is of another function then
            away = elsewhere or ("the session is in a function" if put_back else "")
            for each in _of(effects, statement):
                if each.what >= Writes.MOVED or (each.what is Writes.LOG and not (away or each.why)):
                    do = "do it in that function, behind the loop" if away else ""
                    yield Written(statement=each.statement, what=each.what, why=away or each.why, do=do)
        scope = script.scope_of(behind)
        calls = [] if isinstance(scope, ast.Module) else [*_calls_of(script, scope.name)]
        if len(calls) != 1 or script.scope_of(calls[0]) is scope:
            return
        behind, elsewhere = statement_of(script, calls[0]), "the session is in a function"


def rows_before(effects: Effects, around: ast.stmt) -> Iterator[Written]:
    """Statements before the loop that add rows to a file, and do not ask whether they are there."""
    script, behind = effects.script, around
    while True:
        for statement in preceding(script, behind):
            for each in _of(effects, statement):
                whole = isinstance(each.statement, ast.Expr | ast.With) and each.what is Writes.ROWS
                tests = [up.test for up in script.above(each.statement) if isinstance(up, ast.If)]
                asked = any(word in script.text(test) for test in tests for word in ASKS)
                run = [node for piece in (statement, *effects.reached(each.statement)) for node in ast.walk(piece)]
                logs = any(
                    told_to(effects, node) or _is_print(node) for node in run
                )  # of starts, as `logging` has them
                if whole and not asked and not logs:
                    yield Written(statement=each.statement, what=each.what, why=BEFORE, do=WITH_THE_FIRST)
        scope = script.scope_of(behind)
        calls = [] if isinstance(scope, ast.Module) else [*_calls_of(script, scope.name)]
        if len(calls) != 1 or script.scope_of(calls[0]) is scope:
            return
        behind = statement_of(script, calls[0])


def _is_print(node: ast.AST) -> bool:
    """Whether it is for the screen."""
    said = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    return said and isinstance(node, ast.Call) and not any(word.arg == "file" for word in node.keywords)


def _calls_of(script: Script, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _of(effects: Effects, statement: ast.stmt) -> Iterator[Written]:
    if isinstance(statement, INNER):
        return
    scope = effects.script.scope_of(statement)
    opens = isinstance(statement, ast.With) and any(
        mode_of(effects, node).strip("rbtU") for item in statement.items for node in ast.walk(item.context_expr)
    )
    if opens or isinstance(statement, ast.Expr):
        what = written_by(effects, statement, scope)
        if what is not Writes.NOTHING:
            yield Written(statement=statement, what=what, why=_why_not(effects, statement))
        return
    heads = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt | ast.excepthandler)]
    for head in heads:
        if isinstance(head, ast.match_case):
            continue
        if isinstance(statement, ast.Assign) and "a" in mode_of(effects, head):
            continue  # opened by each, and written to by one
        what = written_by(effects, head, scope)
        if what >= Writes.FILE:
            emptied = isinstance(statement, ast.Assign) and mode_of(effects, head).startswith(("w", "x"))
            why = "each opens the file, and empties it" if emptied else "what comes of it is used"
            rows = Writes.ROWS if emptied else what
            yield Written(statement=statement, what=rows, why=why)
    for block in _blocks(statement):
        for each in block:
            yield from _of(effects, each)


def _why_not(effects: Effects, statement: ast.stmt) -> str:
    """Why others may miss something if one worker alone runs it; "" if they do not."""
    scope = effects.script.scope_of(statement)
    done = effects.done_by(statement, scope)
    pieces = [statement, *effects.reached(statement)]
    if done.draws:
        return "random numbers are drawn there, and the others would draw others from then on"
    if any(is_method(node, "eval", "train") for piece in pieces for node in ast.walk(piece)):
        return "a model is put into another mode there"
    if any(isinstance(node, LEAVES) for node in within(statement)):
        return "the loop may be left there"
    if lasts := sorted((done.changes.keys() | done.sets.keys()) - done.binds.keys()):
        return f"`{lasts[0]}` changes there"
    asked = {name for each in _beside(effects, statement) for name in exposed(effects, [each], scope)[0]}
    used = sorted(done.binds.keys() & asked)
    return f"`{used[0]}` is given a value there, and used elsewhere" if used else ""


def _beside(effects: Effects, statement: ast.stmt) -> Iterator[ast.stmt]:
    """All statements of its scope that it is not in, and that are not in it."""
    node: ast.AST = statement
    while (parent := effects.script.parents.get(node)) is not None:
        for block in _blocks(parent):
            yield from (each for each in block if each is not node)
        if isinstance(parent, (*INNER, ast.Module)):
            return
        node = parent


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in BLOCKS:
        block = getattr(node, name, None)
        if isinstance(block, list):
            if block and isinstance(block[0], ast.excepthandler | ast.match_case):
                yield from (inner for each in block for inner in _blocks(each))
            elif block:
                yield block
