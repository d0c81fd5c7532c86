"""The course of a training loop: its lines in the order in which they run, and what of them bears on its result.

Of an epoch there are lines before its batches, in the loop over batches, and after it; then there is what comes after
the whole loop. A line bears on the result if something that lasts is made with it: an update, a file, an end. What is
only printed does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.effects import Done, Effects
from sublet.cli.work.script.files import SAVES, writes_file
from sublet.cli.work.script.reading import Scope, Script, is_method

__all__ = ["Around", "Course", "Line", "exposed", "following", "preceding"]

Around = ast.For | ast.While
EVENTS = ("backward", "step", "unscale_")
JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
NESTED = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


@dataclass(slots=True, kw_only=True)
class Line:
    """A statement, or the head of one that others are in."""

    node: ast.AST
    top: ast.stmt  # the statement of the loop itself that it is in
    done: Done
    asked: frozenset[str]  # names that conditions around it speak of
    sure: bool  # it runs whenever what it is in does
    jumps: bool = False
    saves: bool = False
    notes: bool = False  # into a file, or for a tracker: what it says lasts
    updates: bool = False

    @property
    def speaks_of(self) -> set[str]:
        """All names that it goes by."""
        return set(self.done.reads) | self.asked


@dataclass(slots=True, kw_only=True)
class Course:
    """Lines of a loop. One that goes over steps by itself has no lines before or after those of its turns."""

    before: list[Line] = field(default_factory=list)
    turns: list[Line] = field(default_factory=list)
    after: list[Line] = field(default_factory=list)
    later: list[Line] = field(default_factory=list)

    @classmethod
    def of(cls, effects: Effects, around: Around, inner: Around) -> Course:
        """`inner` is `around`, or directly in it."""
        script, scope = effects.script, effects.script.scope_of(around)
        at = around.body.index(inner) if inner is not around else 0
        pieces = [around.body[:at], inner.body, around.body[at + 1 :]] if inner is not around else [[], inner.body, []]
        pieces.append([*around.orelse, *following(script, around)])
        lines = [[each for top in piece for each in _lines(effects, top, top, scope)] for piece in pieces]
        return cls(before=lines[0], turns=lines[1], after=lines[2], later=lines[3])

    @property
    def inside(self) -> list[Line]:
        """Of the loop."""
        return [*self.before, *self.turns, *self.after]

    def relevant(self, state: Iterable[str]) -> set[str]:
        """Names that bear on the result; `state` is what training itself comes to."""
        found = set(state)
        for line in self.later:
            if line.saves or line.notes or line.jumps or line.done.writes or line.done.draws:
                found |= line.speaks_of
        count = -1
        while count != len(found):
            count = len(found)
            for line in self.inside:
                lasts = line.jumps or line.saves or line.notes or line.updates or line.done.draws
                if lasts or found & line.done.writes.keys():
                    found |= line.speaks_of | (line.done.changes.keys() & line.done.reads.keys())
        return found

    def local(self, drawn: Iterable[str]) -> set[str]:
        """Names that come from a worker's own part of a batch, in the loop over batches."""
        found = set(drawn)
        count = -1
        while count != len(found):
            count = len(found)
            _spread(self.turns, found, forgets=False)
        return found

    def goes_by(self, drawn: Iterable[str]) -> Iterator[tuple[Line, set[str]]]:
        """Each line of the loop over batches, and after it, with the names that are a worker's own there."""
        own = self.local(drawn)
        yield from ((line, own) for line in self.turns)
        own = set(own)
        for line in self.after:
            yield line, set(own)
            _spread([line], own, forgets=True)


def _spread(lines: list[Line], found: set[str], *, forgets: bool) -> None:
    for line in lines:
        if line.updates:
            continue
        if line.speaks_of & found:
            found.update(line.done.writes)
        elif line.sure and forgets:
            found.difference_update(line.done.binds)


def exposed(effects: Effects, statements: list[ast.stmt], scope: Scope) -> tuple[set[str], set[str]]:
    """Names whose last value may be asked for before they are given another; and those that surely are given one.

    Every loop in it counts as run: nobody trains on no batches.
    """
    asked: set[str] = set()
    bound: set[str] = set()
    for statement in statements:
        if isinstance(statement, NESTED):
            more, sure = _in_nested(effects, statement, scope)
        else:
            done = effects.done_by(statement, scope)
            more, sure = done.reads.keys() | done.changes.keys() | done.sets.keys(), set(done.binds)
        asked |= more - bound
        bound |= sure
    return asked, bound


def _in_nested(effects: Effects, statement: ast.stmt, scope: Scope) -> tuple[set[str], set[str]]:
    asked: set[str] = set()
    bound: set[str] = set()
    if isinstance(statement, ast.Match):
        return _in_cases(effects, statement, scope)
    for head in _heads(statement):
        done = effects.done_by(head, scope)
        asked |= (done.reads.keys() | done.changes.keys() | done.sets.keys()) - bound
        bound |= done.binds.keys()
    parts = [exposed(effects, block, scope) for block, _ in _blocks(statement)]
    asked |= {name for each, _ in parts for name in each} - bound
    surely = [names for (_, names), (_, sure) in zip(parts, _blocks(statement), strict=True) if sure]
    bound |= {name for names in surely for name in names}
    return asked, bound | _bound_in_any_case(effects, statement, scope)


def _bound_in_any_case(effects: Effects, statement: ast.stmt, scope: Scope) -> set[str]:
    """Names that are given a value whichever of several blocks runs."""
    ways: list[list[ast.stmt]] = []
    match statement:
        case ast.If():
            ways = [statement.body, statement.orelse]
        case ast.Try():  # what ends by `raise` does not go on from here
            handlers = [each.body for each in statement.handlers if not isinstance(each.body[-1], ast.Raise)]
            ways = [[*statement.body, *statement.orelse], *handlers]
        case _:
            pass
    bound = [exposed(effects, way, scope)[1] for way in ways]
    return set.intersection(*bound) if bound else set()


def _in_cases(effects: Effects, statement: ast.Match, scope: Scope) -> tuple[set[str], set[str]]:
    """Each case has the names of its pattern; one is sure to be taken if there is `case _`."""
    asked, bound = exposed(effects, [ast.Expr(statement.subject)], scope)
    ways: list[set[str]] = []
    for case in statement.cases:
        captured = set(effects.done_by(case.pattern, scope).binds)
        guard = [] if case.guard is None else [ast.Expr(case.guard)]
        more, sure = exposed(effects, [*guard, *case.body], scope)
        asked |= effects.done_by(case.pattern, scope).reads.keys() | (more - captured - bound)
        ways.append(sure | captured)
    return asked, bound | (set.intersection(*ways) if any(map(_takes_all, statement.cases)) else set())


def _takes_all(case: ast.match_case) -> bool:
    """`case _:`, or `case other:`."""
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """What of a statement with others in it runs first."""
    match statement:
        case ast.If() | ast.While():
            return [statement.test]
        case ast.For():
            return [ast.Assign(targets=[statement.target], value=statement.iter, lineno=statement.lineno)]
        case ast.With():
            return list(statement.items)
        case ast.Match():
            guards = [case.guard for case in statement.cases if case.guard is not None]
            return [statement.subject, *guards, *(case.pattern for case in statement.cases)]
        case _:
            return []


def _blocks(statement: ast.stmt) -> list[tuple[list[ast.stmt], bool]]:
    """The statements in it, and whether they surely run."""
    match statement:
        case ast.If():
            return [(statement.body, False), (statement.orelse, False)]
        case ast.For() | ast.While():
            return [(statement.body, True), (statement.orelse, False)]
        case ast.With():
            return [(statement.body, True)]
        case ast.Try():
            handlers = [(each.body, False) for each in statement.handlers]
            return [(statement.body, False), *handlers, (statement.orelse, False), (statement.finalbody, True)]
        case ast.Match():
            return [(case.body, False) for case in statement.cases]
        case _:
            return []


def _lines(
    effects: Effects,
    node: ast.stmt,
    top: ast.stmt,
    scope: Scope,
    asked: frozenset[str] = frozenset(),
    *,
    sure: bool = True,
) -> Iterator[Line]:
    if not isinstance(node, NESTED):
        yield _line(effects, node, top, scope, asked, sure=sure)
        return
    speaks: set[str] = set()
    for head in _heads(node):
        yield (line := _line(effects, head, top, scope, asked, sure=sure))
        if isinstance(node, ast.For) and effects.is_loader(node.iter, scope):
            line.done.draws = node.lineno  # a loader draws the seed of its workers
        speaks |= line.done.reads.keys() if not isinstance(node, ast.With) else set()
    for block, runs in _blocks(node):
        for each in block:
            yield from _lines(effects, each, top, scope, asked | speaks, sure=sure and runs)


def _line(effects: Effects, node: ast.AST, top: ast.stmt, scope: Scope, asked: frozenset[str], *, sure: bool) -> Line:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    full = effects.script.full_name
    return Line(
        node=node,
        top=top,
        done=effects.done_by(node, scope),
        asked=asked,
        sure=sure,
        jumps=isinstance(node, JUMPS),
        saves=any(full(call.func) == "torch.save" or is_method(call, *SAVES) for call in calls),
        notes=any(writes_file(effects, call, scope) for call in calls),
        updates=any(is_method(call, *EVENTS) for call in calls),
    )


def following(script: Script, around: ast.stmt) -> Iterator[ast.stmt]:
    """All statements of its scope that come after it."""
    for node, block in _around(script, around):
        yield from block[block.index(node) + 1 :]


def preceding(script: Script, around: ast.stmt) -> Iterator[ast.stmt]:
    """All statements of its scope that come before it."""
    for node, block in _around(script, around):
        yield from block[: block.index(node)]


def _around(script: Script, around: ast.stmt) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """It, and each statement that it is in, with the block that it is in."""
    node: ast.AST = around
    while not isinstance(node, Scope):
        parent = script.parents[node]
        for _, block in ast.iter_fields(parent):
            if isinstance(block, list) and isinstance(node, ast.stmt) and node in block:
                yield node, block
        node = parent
