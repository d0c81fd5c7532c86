"""Small changes of a module's logic, found in its syntax tree and drawn by a seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.figures import HERE

__all__ = ["MODULES", "Mutant", "drawn", "files_of", "mutants_of", "path_of"]

SOURCE = HERE / "src" / "sublet"
LAB = HERE / "lab" / "src"
MODULES = (
    "kernel",
    "solve",
    "policies",
    "sublet_lab/rivals",
    "runtime/controller/money/bill.py",
    "train/data/samples.py",
)
BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
OPPOSITE = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OTHER = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the characters from `start` to `end` of a file become `text`."""

    file: str  # below src/sublet, or sublet_lab/...
    line: int
    start: int
    end: int
    old: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.strip()[:50]!r} -> {self.text.strip()[:50]!r}"

    def source(self) -> str:
        """The whole file with the change."""
        text = path_of(self.file).read_text(encoding="utf-8")
        return text[: self.start] + self.text + text[self.end :]


def path_of(file: str) -> Path:
    """Where it lies: of the laboratory if it says so, else of the product."""
    return (LAB if file.startswith("sublet_lab/") else SOURCE) / file


def drawn(count: int, seed: int, modules: tuple[str, ...] = MODULES) -> list[Mutant]:
    """So many of all that there are, each as likely as any other."""
    every = [mutant for file in files_of(modules) for mutant in mutants_of(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


@cache
def mutants_of(file: str) -> list[Mutant]:
    """All of one file, in order."""
    text = path_of(file).read_text(encoding="utf-8")
    return list(_Finder(file, text).found())


def files_of(modules: tuple[str, ...] = MODULES) -> list[str]:
    """As `Mutant.file` names them."""
    paths = [path for each in modules for path in _files(path_of(each))]
    return [path.relative_to(SOURCE if path.is_relative_to(SOURCE) else LAB).as_posix() for path in paths]


def _files(path: Path) -> list[Path]:
    return [path] if path.suffix else sorted(path.rglob("*.py"))


class _Finder:
    def __init__(self, file: str, text: str) -> None:
        self._file, self._text, self._tree = file, text, ast.parse(text)
        lines = text.splitlines(keepends=True)
        self._bytes = [line.encode() for line in lines]  # the tree counts bytes, we count characters
        self._at = [0]
        for line in lines:
            self._at.append(self._at[-1] + len(line))

    def found(self) -> Iterator[Mutant]:
        skipped = {id(part) for node in ast.walk(self._tree) for part in _without_logic(node)}
        queue: list[ast.AST] = [self._tree]
        while queue:
            node = queue.pop(0)
            if id(node) in skipped:
                continue
            for start, end, text in self._changes(node):
                yield Mutant(
                    file=self._file,
                    line=self._text.count("\n", 0, start) + 1,
                    start=start,
                    end=end,
                    old=self._text[start:end],
                    text=text,
                )
            queue += ast.iter_child_nodes(node)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                for other in (BOUNDARY.get(type(op)), OPPOSITE.get(type(op))):
                    if other:
                        yield self._between(left, right, other)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
                yield self._between(left, right, OTHER[type(op)])
            case ast.BoolOp(op=op, values=[first, second, *_]):
                yield self._between(first, second, "or" if isinstance(op, ast.And) else "and")
            case ast.UnaryOp(op=ast.Not()):
                yield self._start(node), self._start(node) + len("not "), ""
            case ast.Constant(value=bool(value)):
                yield self._start(node), self._end(node), repr(not value)
            case ast.Constant(value=int() | float() as value):
                changed = value + 1 if isinstance(value, int) else (2.0 * value or 1.0)
                yield self._start(node), self._end(node), repr(changed)
            case ast.Call(func=ast.Name(id=name) as func) if name in WORDS:
                yield self._start(func), self._end(func), WORDS[name]
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield self._start(test), self._end(test), f"not ({self._said(test)})"
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
                yield self._start(node), self._end(node), "pass"

    def _between(self, left: ast.expr, right: ast.expr, operator: str) -> tuple[int, int, str]:
        """Brackets around an operand belong to it, and stay."""
        start, end = self._end(left), self._start(right)
        said = self._text[start:end]
        head = len(said) - len(said.lstrip(")\n "))
        tail = len(said) - len(said.rstrip("(\n "))
        return start + head, end - tail, f" {operator} "

    def _said(self, node: ast.expr) -> str:
        return self._text[self._start(node) : self._end(node)]

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _place(self, line: int, column: int) -> int:
        return self._at[line - 1] + len(self._bytes[line - 1][:column].decode())


def _without_logic(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations, decorators, what is only said when something is refused, and lengths that are asserted by `zip`."""
    match node:
        case (
            ast.FunctionDef(returns=returns, decorator_list=decorators)
            | ast.AsyncFunctionDef(returns=returns, decorator_list=decorators)
        ):
            yield from decorators
            if returns:
                yield returns
        case ast.ClassDef(decorator_list=decorators):
            yield from decorators
        case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation) if annotation:
            yield annotation
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict"):
            yield node
