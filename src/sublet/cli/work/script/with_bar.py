"""A bar in a `with` around the batches of an epoch: looked at as a bar with a name, and written as it was.

    with tqdm(loader) as bar:                          bar = tqdm(loader)
        for x, y in bar:                 is            for x, y in bar:
            ...                                            ...

The lines that are looked at are marked by `pass` at both ends, so that the `with` can be put back around them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sublet.cli.work.script.bars import is_shown
from sublet.cli.work.script.functions import trains
from sublet.cli.work.script.reading import Script
from sublet.cli.work.script.splice import CannotConvert
from sublet.cli.work.script.texts import long_texts

__all__ = ["Unwrapped", "unwrapped"]

BEGINS, ENDS = "# sublet: a bar begins", "# sublet: a bar ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    """The script with a name for the bar in place of its `with`."""

    script: Script
    lines: tuple[int, ...]  # of the script that it was, for each of this
    name: str
    said: int  # lines in which the bar is made
    deeper: str  # than the `with` its body was
    tail: str  # of the line of the `with`

    def put_back(self, text: str, ours: Iterable[str]) -> str:
        """The converted text with a `with` again."""
        del ours  # nothing is handed to anybody here
        lines = text.splitlines(keepends=True)
        begin, end = (next(at for at, line in enumerate(lines) if mark in line) for mark in (BEGINS, ENDS))
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        head, body = lines[begin + 1 : begin + 1 + self.said], lines[begin + 1 + self.said : end]
        head[0] = f"{indent}with {head[0].strip(' ').removeprefix(f'{self.name} = ')}"
        head[-1] = f"{head[-1].rstrip()} as {self.name}{self.tail}"
        body = [indent + self.deeper + line[len(indent) :] if line.startswith(indent) else line for line in body]
        lines[begin : end + 1] = [*head, *body]
        return "".join(lines)

    def refusal(self, error: CannotConvert) -> CannotConvert:
        """At the line of the script as it was."""
        line = self.lines[min(max(error.line, 1), len(self.lines)) - 1]
        return CannotConvert(error.why, line, error.do)


def unwrapped(script: Script) -> Unwrapped | None:
    """None if there is no such bar, or it is in a form that is not known."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.With) and _is_around_batches(script, node):
            return _unwrapped(script, node)
    return None


def _is_around_batches(script: Script, node: ast.With) -> bool:
    item, above = node.items[0], script.parents[node]
    return (
        len(node.items) == 1
        and isinstance(item.optional_vars, ast.Name)
        and is_shown(script, item.context_expr)
        and isinstance(above, ast.For | ast.FunctionDef)
        and any(isinstance(each, ast.For) and trains(each) for each in node.body)
        and not long_texts(script, node)
        and node.body[0].lineno > (item.optional_vars.end_lineno or 0)
    )


def _unwrapped(script: Script, node: ast.With) -> Unwrapped | None:
    bar, name = node.items[0].context_expr, node.items[0].optional_vars
    assert isinstance(name, ast.Name)  # noqa: S101 - that is why we are asked
    first, head_ends, last = node.lineno, name.end_lineno or name.lineno, node.end_lineno or node.lineno
    head = script.lines[first - 1]
    own = head[: len(head) - len(head.lstrip())]
    deep = script.lines[node.body[0].lineno - 1]
    deep = deep[: len(deep) - len(deep.lstrip())]
    tail = script.lines[head_ends - 1].encode()[name.end_col_offset :].decode()
    plain = head[: bar.col_offset] == f"{own}with " and re.fullmatch(r"\s*:\s*(#.*)?\s*", tail)
    if not plain or bar.end_lineno != head_ends:
        return None
    made = f"{own}{name.id} = {script.text(bar)}\n".splitlines(keepends=True)
    lines = [(number, line) for number, line in enumerate(script.lines[: first - 1], 1)]
    lines.append((first, f"{own}pass  {BEGINS}\n"))
    lines += [(first + at, line) for at, line in enumerate(made)]
    for number in range(head_ends + 1, last + 1):
        line = script.lines[number - 1]
        line = line if line.endswith("\n") else f"{line}\n"
        lines.append((number, own + line[len(deep) :] if line.startswith(deep) else line))
    lines.append((last, f"{own}pass  {ENDS}\n"))
    lines += [(number, script.lines[number - 1]) for number in range(last + 1, len(script.lines) + 1)]
    return Unwrapped(
        script=Script(script.path, "".join(line for _, line in lines)),
        lines=tuple(number for number, _ in lines),
        name=name.id,
        said=len(made),
        deeper=deep[len(own) :],
        tail=tail,
    )
