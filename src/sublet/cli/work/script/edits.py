"""Changes of a text: what is not touched stays as it is, to the byte; what moves into a block is indented."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sublet.cli.work.script.reading import CannotConvert, Script

INDENT = "    "
Place = tuple[int, int]  # line and column, in bytes


class Edits:
    """Changes that are not made yet; lines are those of the script, counted from 1."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._removed: list[ast.stmt] = []
        self._changed: list[tuple[Place, Place, str]] = []
        self._before: defaultdict[int, list[str]] = defaultdict(list)
        self._after: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        self._blocks: list[tuple[int, int, list[str]]] = []  # first and last line, and what goes above them

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        """An expression, or a plain statement, by another."""
        self.put(begin_of(node), end_of(node), text)

    def put(self, begin: Place, end: Place, text: str) -> None:
        """In the place of what is between two."""
        self._changed.append((begin, end, text))

    def add_import(self, line: str) -> ast.stmt | None:
        """Below the imports at the top of the script; the last of them."""
        defines = ast.FunctionDef | ast.ClassDef | ast.For | ast.While
        top = itertools.takewhile(lambda each: not isinstance(each, defines), self._script.tree.body)
        imports = [each for each in top if isinstance(each, ast.Import | ast.ImportFrom)]
        if not imports:
            self.before(self._script.tree.body[0], line)
            return None
        self.after(imports[-1], "")
        self.after(imports[-1], line)
        return imports[-1]

    def remove(self, *statements: ast.stmt) -> None:
        """All lines of them."""
        for each in statements:
            self._alone(each)
            self._removed.append(each)

    def before(self, statement: ast.stmt, text: str) -> None:
        """A line as deep as the statement, above it and above whatever is put around it."""
        first = _first_line(statement)
        self._before[first].append(self._indent(first) + text)

    def after(self, statement: ast.stmt, text: str, *, inside: bool = False) -> None:
        """A line as deep as the statement, below it; `inside`: within what is put around it alone, too."""
        line = (statement.lineno + inside, self._indent(statement.lineno) + text)
        self._after[statement.end_lineno or 0].append(line)

    def put_under(self, statements: Sequence[ast.stmt], header: str) -> None:
        """A line that ends in a colon (or several, of which one does), and all of these one step deeper below it."""
        for each in statements:
            self._alone(each)
        first, last = _first_line(statements[0]), statements[-1].end_lineno or 0
        self._blocks.append((first, last, [self._indent(first) + line for line in header.split("\n")]))

    def is_removed(self, statement: ast.AST) -> bool:
        """Whether it goes."""
        return any(each is statement for each in self._removed)

    def result(self) -> str:
        """The new text; it is Python."""
        self.close_empty()
        gone = {line for each in self._removed for line in range(each.lineno, (each.end_lineno or 0) + 1)}
        lines = self._rewritten(gone)
        kept_as_is = _inside_texts(self._script.source)
        blocks = sorted(self._blocks, key=lambda block: (block[0], -block[1]))
        end = "\r\n" if "\r\n" in self._script.source else "\n"
        out: list[str] = []
        for number, line in enumerate(lines, 1):
            around = [block for block in blocks if block[0] < number <= block[1]]
            begun = [block for block in blocks if block[0] == number]
            out += [INDENT * len(around) + text + end for text in self._before[number]]
            for depth, block in enumerate(begun, len(around)):
                out += [INDENT * depth + text + end for text in block[2]]
            deeper = "" if number in kept_as_is else INDENT * (len(around) + len(begun))
            if number not in gone:
                out += [deeper + part if part.strip() else part for part in line.splitlines(keepends=True)]
            for first, text in self._after[number]:
                out.append(INDENT * sum(block[0] < first for block in around + begun) + text + end)
        made = "".join(out)
        try:
            ast.parse(made)
        except SyntaxError as error:
            why = f"the new text would not be Python ({error.msg} in its line {error.lineno})"
            raise CannotConvert(why, 1, "write the session by hand: docs/guides/make-a-script-elastic.md") from None
        return made

    def _rewritten(self, gone: set[int]) -> list[str]:
        lines, last, outer = list(self._script.lines), ((0, 0), (0, 0)), list[tuple[Place, Place, str]]()
        for begin, end, text in sorted(self._changed, key=lambda change: change[:2]):
            if begin[0] in gone or (begin < last[1] and end <= last[1] and (begin, end) != last):
                continue  # a part of what is replaced already
            outer.append((begin, end, text))
            last = (begin, end) if end >= last[1] else last
        for (first, start), (final, stop), text in reversed(outer):
            head, tail = lines[first - 1].encode()[:start].decode(), lines[final - 1].encode()[stop:].decode()
            lines[first - 1] = head + text + tail
            gone.update(range(first + 1, final + 1))
        return lines

    def close_empty(self) -> None:
        """A block of which nothing is left goes with its head, or passes."""
        for each in self._removed:  # which grows
            parent = self._script.parents[each]
            body, other = getattr(parent, "body", []), getattr(parent, "orelse", [])
            empty = all(map(self.is_removed, body)) and not any(self._after[line.end_lineno] for line in body)
            if not isinstance(parent, ast.stmt) or self.is_removed(parent) or not empty:
                continue
            if isinstance(parent, ast.If | ast.With) and all(map(self.is_removed, other)):
                self._removed.append(parent)
            elif not self._before[body[0].lineno]:
                self._before[body[0].lineno].append(self._indent(body[0].lineno) + "pass")

    def _indent(self, line: int) -> str:
        text = self._script.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def _alone(self, statement: ast.stmt) -> None:
        first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
        head = self._script.lines[first].encode()[: statement.col_offset].decode()
        tail = self._script.lines[last].encode()[statement.end_col_offset :].decode().split("#")[0]
        if head.strip() or tail.strip():
            raise CannotConvert("several statements are on one line", statement.lineno, "give each a line of its own")


def begin_of(node: Any) -> Place:
    """Of an expression, a statement, an argument or an import."""
    return node.lineno, node.col_offset


def end_of(node: Any) -> Place:
    """As `begin_of`."""
    return node.end_lineno, node.end_col_offset


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _inside_texts(source: str) -> set[int]:
    """Lines that begin within a text of several lines: they must not move."""
    found, open_at = set[int](), list[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # from Python 3.12 on, with an end of its own
            open_at.append(token.start[0])
        first = open_at.pop() if name == "FSTRING_END" else token.start[0]
        if name in ("STRING", "FSTRING_END"):
            found |= set(range(first + 1, token.end[0] + 1))
    return found
