"""Changes of a text, statement by statement: what nobody touched stays as it is, to the byte."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass

from sublet.cli.work.script.reading import Script
from sublet.cli.work.script.texts import long_texts

__all__ = ["CannotConvert", "Splice", "renamed"]

INDENT = "    "
SAYS = re.compile(rb"\s*=\s*(?=[!:}])")


class CannotConvert(Exception):
    """Why not, at which line, and what to do by hand."""

    def __init__(self, why: str, line: int, do: str) -> None:
        super().__init__(why)
        self.why, self.line, self.do = why, line, do


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """From a place to another: lines counted from 1, and bytes in them."""

    begins: tuple[int, int]
    ends: tuple[int, int]

    @classmethod
    def of(cls, piece: ast.expr | ast.stmt) -> Span:
        """All of it."""
        end = (piece.end_lineno or piece.lineno, piece.end_col_offset or piece.col_offset)
        return cls((piece.lineno, piece.col_offset), end)

    def is_in(self, other: Span) -> bool:
        """Whether it is a part of the other."""
        inside = other.begins <= self.begins < self.ends <= other.ends
        return inside and self != other


class Splice:
    """Changes that are not made yet. Lines are those of the script, counted from 1."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lines = list(script.lines)
        self._gone: set[int] = set()
        self._deeper: defaultdict[int, int] = defaultdict(int)
        self._before: defaultdict[int, list[str]] = defaultdict(list)
        self._after: defaultdict[int, list[str]] = defaultdict(list)
        self._under: dict[int, str] = {}
        self._changed: list[tuple[Span, str]] = []

    def indent_of(self, node: ast.stmt) -> str:
        """The white space before it."""
        line = self._script.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def remove(self, statement: ast.stmt) -> None:
        """All lines of it."""
        self._own_lines(statement)
        self._gone |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))

    def replace(self, piece: ast.expr | ast.stmt, text: str) -> None:
        """An expression by another, or a plain statement; what else was to become of its parts is nothing then."""
        self._changed.append((Span.of(piece), text))

    def tell(self, piece: ast.Name, text: str) -> bool:
        """Another name in `f"{step=}"`, which says the first one still; False if it is nothing like that."""
        line = self._script.lines[piece.lineno - 1].encode()
        found = SAYS.match(line, piece.end_col_offset or 0)
        begins = len(line[: piece.col_offset].rstrip()) - 1
        if found is None or not self._is_in_text(piece) or line[begins : begins + 1] != b"{":
            return False
        said = line[begins + 1 : found.end()].decode()
        shown = "!r" if line[found.end() : found.end() + 1] == b"}" else ""
        self._changed.append((Span((piece.lineno, begins), (piece.lineno, found.end())), f"{said}{{{text}{shown}"))
        return True

    def _is_in_text(self, piece: ast.Name) -> bool:
        return isinstance(self._script.parents.get(piece), ast.FormattedValue)

    def leave(self, piece: ast.expr, part: ast.expr, before: str, after: str) -> None:
        """Of an expression only a part of it, as it is or will be, between two texts."""
        whole, kept = Span.of(piece), Span.of(part)
        self._changed += [(Span(whole.begins, kept.begins), before), (Span(kept.ends, whole.ends), after)]

    def put_word(self, call: ast.Call, text: str) -> None:
        """One more argument, at the end of a call."""
        line, column = call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1
        given = self._script.text(call)[:-1].rstrip()
        comma = "" if given.endswith("(") else " " if given.endswith(",") else ", "
        self._changed.append((Span((line, column), (line, column)), comma + text))

    def head(self, statement: ast.For, text: str) -> None:
        """Another beginning of a loop: `text` in place of its first line."""
        first, last = statement.lineno, statement.body[0].lineno - 1
        self._gone |= {line for line in range(first, last + 1) if not self._is_comment(line)}
        self._before[first].append(self.indent_of(statement) + text)

    def put_before(self, line: int, text: str) -> None:
        """A line of its own; it is not indented with what follows."""
        self._before[line].append(text)

    def put_after(self, line: int, text: str) -> None:
        """The same."""
        self._after[line].append(text)

    def put_under(self, statement: ast.stmt, condition: str) -> None:
        """`if condition:` above it, and all of it one step deeper; it moves with what it is in."""
        self._own_lines(statement)
        self.indent(statement)
        self._under[statement.lineno] = f"{self.indent_of(statement)}if {condition}:"

    def indent(self, statement: ast.stmt) -> None:
        """One step deeper, with everything in it."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if texts := long_texts(self._script, statement):
            raise CannotConvert(
                "a text of several lines is in the loop, and would change with its indentation",
                texts[0].lineno,
                "write it above the loop",
            )
        for line in range(first, last + 1):
            self._deeper[line] += 1

    def result(self) -> str:
        """The new text; it is Python."""
        changed = [each for each in self._changed if not any(each[0].is_in(other) for other, _ in self._changed)]
        for span, text in sorted(changed, reverse=True):  # from the end, so that what is before stays where it was
            (first, begin), (last, end) = (span.begins[0] - 1, span.begins[1]), (span.ends[0] - 1, span.ends[1])
            head = self._lines[first].encode()[:begin].decode()
            tail = self._lines[last].encode()[end:].decode()
            self._lines[first] = head + text + tail
            self._gone |= set(range(first + 2, last + 2))
        out: list[str] = []
        ending = "\r\n" if self._script.source.count("\r\n") * 2 > len(self._lines) else "\n"
        for number, line in enumerate(self._lines, 1):
            out += [text + ending for text in self._before[number]]
            if number in self._under:
                out.append(INDENT * (self._deeper[number] - 1) + self._under[number] + ending)
            if number not in self._gone:
                deeper = INDENT * self._deeper[number]
                out += [deeper + part if part.strip() else part for part in line.splitlines(keepends=True)]
            out += [text + ending for text in self._after[number]]
        made = "".join(out)
        try:
            ast.parse(made)
        except SyntaxError as error:  # never a wrong diff
            raise CannotConvert(
                f"what would come of it is no Python ({error.msg})",
                error.lineno or 1,
                "change it by hand, as the guide says",
            ) from None
        return made

    def _is_comment(self, line: int) -> bool:
        return self._script.lines[line - 1].lstrip().startswith("#") or not self._script.lines[line - 1].strip()

    def _own_lines(self, statement: ast.stmt) -> None:
        """Nothing else may be on its lines."""
        first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
        head = self._script.lines[first].encode()[: statement.col_offset].decode()
        tail = self._script.lines[last].encode()[statement.end_col_offset :].decode().split("#")[0]
        if head.strip() or tail.strip():
            raise CannotConvert("several statements are on one line", statement.lineno, "give each a line of its own")


def renamed(text: str, indent: str, names: dict[str, str]) -> str:
    """A body with other names; its lines stay its lines."""
    if not names:
        return text
    head = "if 1:\n" if indent else ""
    tree, lines = ast.parse(head + text), text.splitlines(keepends=True)
    places = [
        (node.lineno - bool(head) - 1, node.col_offset, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names
    ]
    for line, column, name in sorted(places, reverse=True):
        raw = lines[line].encode()
        if raw[column : column + len(name.encode())] != name.encode():
            raise CannotConvert(f"`{name}` is in a text", 1, "give the text a line of its own")
        lines[line] = (raw[:column] + names[name].encode() + raw[column + len(name.encode()) :]).decode()
    return "".join(lines)
