"""Names of a script: what they were imported as, where they are given a value, and the text of a piece of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from sublet.errors import BadInput

__all__ = ["Method", "Scope", "Script", "is_method", "last_of", "names_in", "root_of", "statement_of"]

MOST_BYTES = 4 << 20  # a longer file is no script that somebody wrote
OF_MODULES = ("train", "eval", "forward", "step", "update")  # methods that others have, too
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


class Script:
    """A parsed file."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        try:
            self.tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            at = "" if line is None else f" in line {line}"
            raise BadInput(str(path), f"is no Python{at}: {error}", hint="a script that Python can read") from None
        self.lines = source.splitlines(keepends=True)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._imported = dict(_imports(self.tree))
        self.names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} | {
            node.name for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        self.names |= set(self._imported)

    @classmethod
    def read(cls, path: Path) -> Script:
        """From a file."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise BadInput(str(path), f"is larger than {MOST_BYTES >> 20} MiB", hint="the script that trains")
            return cls(path, path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise BadInput(str(path), f"cannot be read ({error.strerror})", hint="a script that is there") from None
        except UnicodeDecodeError:
            raise BadInput(str(path), "is not UTF-8", hint="a script in UTF-8") from None

    @property
    def modules(self) -> set[str]:
        """Whatever it imports, in full."""
        return set(self._imported.values())

    def full_name(self, node: ast.AST) -> str:
        """`F.mse_loss` as torch.nn.functional.mse_loss; "" for what is no name."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (before := self.full_name(node.value)):
            return f"{before}.{node.attr}"
        return ""

    def text(self, node: ast.AST) -> str:
        """As it stands there."""
        first, last = getattr(node, "lineno", 1) - 1, (getattr(node, "end_lineno", 1) or 1) - 1
        begin, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if first == last:
            return self.lines[first].encode()[begin:end].decode()
        between = "".join(self.lines[first + 1 : last])
        return (
            self.lines[first].encode()[begin:].decode() + between + self.lines[last].encode()[:end].decode()
        ).replace("\r\n", "\n")

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Whatever it is in, from the innermost on."""
        while (node := self.parents.get(node, self.tree)) is not self.tree:
            yield node

    def scope_of(self, node: ast.AST) -> Scope:
        """The function, or the module, that it is in."""
        while not isinstance(node := self.parents[node], Scope):
            pass
        return node

    def values_of(self, name: str) -> Iterator[ast.expr]:
        """Whatever a name, or an attribute of that name, is given in this file."""
        for node in ast.walk(self.tree):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign | ast.NamedExpr)
                else []
            )
            value = getattr(node, "value", None)
            if value is None:
                continue
            for target in targets:
                each = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                if any(last_of(one) == name for one in each):
                    yield value

    def made_by(self, node: ast.expr) -> str:
        """The full name of what is called for it; "" if that is not said here."""
        if isinstance(node, ast.Subscript):
            node = node.value
        calls = [value for value in self.values_of(last_of(node)) if isinstance(value, ast.Call)]
        names = [self.full_name(call.func) or last_of(call.func) for call in calls]
        return next((name for name in names if name), "")

    def calls_of(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
        """Where this file calls it: a method by its own object, or one of its class."""
        owner = self.parents.get(function)
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call) or last_of(node.func) != function.name:
                continue
            if isinstance(node.func, ast.Name):
                if not isinstance(owner, ast.ClassDef):
                    yield node
            elif isinstance(owner, ast.ClassDef) and isinstance(node.func, ast.Attribute):
                receiver = node.func.value
                own = self.text(receiver) == "self" and owner in self.above(node)
                made = receiver if isinstance(receiver, ast.Call) else None
                name = last_of(made.func) if made is not None else self.made_by(receiver)
                if own or name == owner.name or (not name and function.name not in OF_MODULES):
                    yield node


class Method(ast.Call):
    """A call whose function is an attribute."""

    func: ast.Attribute


def is_method(node: ast.AST, *names: str) -> TypeGuard[Method]:
    """Whether it is `something.name(...)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def root_of(node: ast.AST) -> str:
    """`model` of `model.inner.weight`; "" for what begins with no name."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def last_of(node: ast.AST) -> str:
    """`optimizer` of `self.optimizer`, and of itself."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """All that are spoken of in it."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def statement_of(script: Script, node: ast.AST) -> ast.stmt:
    """That it is in."""
    while not isinstance(node, ast.stmt):
        node = script.parents[node]
    return node


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
                yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
