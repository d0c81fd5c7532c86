"""Changes of a text: what is not touched stays as it is, to the byte; what moves into a block is indented."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Sequence

from sublet.cli.work.script.reading import CannotConvert, Script

__all__ = ["Edits"]

INDENT = "    "


class Edits:
    """Changes that are not made yet; lines are those of the script, counted from 1."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._removed: list[ast.stmt] = []
        self._changed: list[tuple[tuple[int, int], tuple[int, int], str]] = []
        self._before: defaultdict[int, list[str]] = defaultdict(list)
        self._after: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        self._dissolved: list[ast.For] = []
        self._blocks: list[tuple[int, int, list[str]]] = []  # first and last line, and what goes above them

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        """An expression, or a plain statement, by another."""
        begin = (node.lineno, node.col_offset)
        self._changed.append((begin, (node.end_lineno or 0, node.end_col_offset or 0), text))

    def leave(self, whole: ast.expr | ast.stmt, part: ast.expr, before: str = "", after: str = "") -> None:
        """Only a part of it, as it is or will be, between two texts."""
        self._changed.append(((whole.lineno, whole.col_offset), (part.lineno, part.col_offset), before))
        ends = (part.end_lineno or 0, part.end_col_offset or 0)
        self._changed.append((ends, (whole.end_lineno or 0, whole.end_col_offset or 0), after))

    def insert(self, line: int, column: int, text: str) -> None:
        """Between two characters; columns are bytes."""
        self._changed.append(((line, column), (line, column), text))

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
        first, last = statement.lineno + inside, statement.end_lineno or statement.lineno
        self._after[last].append((first, self._indent(statement.lineno) + text))

    def put_under(self, statements: Sequence[ast.stmt], header: str) -> None:
        """A line that ends in a colon (or several, of which one does), and all of these one step deeper below it."""
        for each in statements:
            self._alone(each)
        first, last = _first_line(statements[0]), statements[-1].end_lineno or 0
        self._blocks.append((first, last, [self._indent(first) + line for line in header.split("\n")]))

    def dissolve(self, loop: ast.For) -> None:
        """Its body stays, one step less deep; its head goes."""
        self._dissolved.append(loop)

    def is_removed(self, statement: ast.AST) -> bool:
        """Whether it goes."""
        return any(each is statement for each in self._removed)

    def result(self) -> str:
        """The new text; it is Python."""
        self.close_empty()
        gone = {line for each in self._removed for line in range(each.lineno, (each.end_lineno or 0) + 1)}
        lines = self._rewritten(gone)
        for loop in self._dissolved:
            gone |= set(range(loop.lineno, loop.body[0].lineno))
        kept_as_is = _inside_texts(self._script.source)
        blocks = sorted(self._blocks, key=lambda block: (block[0], -block[1]))
        end = "\r\n" if "\r\n" in self._script.source else "\n"
        out: list[str] = []
        for number, line in enumerate(lines, 1):
            around = [block for block in blocks if block[0] < number <= block[1]]
            begun = [block for block in blocks if block[0] == number]
            cut = sum(
                each.body[0].col_offset - each.col_offset
                for each in self._dissolved
                if each.body[0].lineno <= number <= (each.end_lineno or 0) and number not in kept_as_is
            )
            kept = line[cut:] if not line[:cut].strip() else line
            out += [INDENT * len(around) + text[cut:] + end for text in self._before[number]]
            for depth, block in enumerate(begun, len(around)):
                out += [INDENT * depth + text[cut:] + end for text in block[2]]
            deeper = "" if number in kept_as_is else INDENT * (len(around) + len(begun))
            if number not in gone:
                out += [deeper + part if part.strip() else part for part in kept.splitlines(keepends=True)]
            for first, text in self._after[number]:
                depth = sum(block[0] < first for block in around + begun)
                out.append(INDENT * depth + text[cut:] + end)
        made = "".join(out)
        try:
            ast.parse(made)
        except SyntaxError as error:
            why = f"what would come of it is no Python ({error.msg} in its line {error.lineno})"
            raise CannotConvert(why, 1, "write the session by hand: docs/guides/make-a-script-elastic.md") from None
        return made

    def _rewritten(self, gone: set[int]) -> list[str]:
        lines, last = list(self._script.lines), ((0, 0), (0, 0))
        spans = sorted(self._changed, key=lambda change: (change[0], change[1]))
        outer: list[tuple[tuple[int, int], tuple[int, int], str]] = []
        for begin, end, text in spans:
            if begin[0] in gone or (outer and begin < last[1] and end <= last[1] and (begin, end) != last):
                continue  # a part of what is replaced already
            outer.append((begin, end, text))
            last = (begin, end) if end >= last[1] else last
        for (first, start), (final, stop), text in reversed(outer):
            head = lines[first - 1].encode()[:start].decode()
            tail = lines[final - 1].encode()[stop:].decode()
            lines[first - 1] = head + text + tail
            for line in range(first + 1, final + 1):
                gone.add(line)
        return lines

    def close_empty(self) -> None:
        """A block of which nothing is left goes with its head, or passes."""
        changed = True
        while changed:
            changed = False
            for parent in {self._script.parents[each] for each in self._removed}:
                if not isinstance(parent, ast.stmt) or self.is_removed(parent):
                    continue
                body, other = getattr(parent, "body", []), getattr(parent, "orelse", [])
                empty = all(map(self.is_removed, body)) and not any(self._after[each.end_lineno] for each in body)
                if not empty:
                    continue
                if isinstance(parent, ast.If | ast.With) and all(map(self.is_removed, other)):
                    self._removed.append(parent)
                    changed = True
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


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _inside_texts(source: str) -> set[int]:
    r"""Lines that begin within a text of several lines, or after a backslash in one: they must not move."""
    found, open_at = set[int](), list[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # from Python 3.12 on, with an end of its own
            open_at.append(token.start[0])
        first = open_at.pop() if name == "FSTRING_END" else token.start[0]
        if name in ("STRING", "FSTRING_END"):
            found |= set(range(first + 1, token.end[0] + 1))
    return found
