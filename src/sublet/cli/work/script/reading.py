"""Names of a script: what they were imported as, what they are given, and what they stand for across calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from sublet.errors import BadInput

OF_MODULES = ("train", "eval", "forward", "step", "update")  # methods that other objects have, too
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Store = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr


class CannotConvert(Exception):
    """Why not, at which line, and what to write instead."""

    def __init__(self, why: str, line: int, do: str, elsewhere: Path | None = None) -> None:
        super().__init__(why)
        self.why, self.line, self.do = why, line, do
        self.elsewhere = elsewhere  # the file that has the loop


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
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.functions = [node for node in self.nodes if isinstance(node, ast.FunctionDef)]
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._given: dict[str, list[ast.expr]] = {}
        for target, value, node in stores_in(self.tree):
            if value is not None and not isinstance(node, ast.AugAssign):
                self._given.setdefault(last_of(target), []).append(value)
        self._imported = dict(_imports(self.nodes))
        self.modules = set(self._imported.values())
        self.is_elastic = any(name.split(".")[0] == "sublet" for name in self.modules)
        self.own = {each.name for each in self.functions} | {each.name for each in self.classes}
        self.names = names_in(self.tree) | {*self._imported, *self.own}
        self.names |= {each.arg for each in self.nodes if isinstance(each, ast.arg)}

    @classmethod
    def read(cls, path: Path) -> Script:
        """From a file."""
        try:
            return cls(path, path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise BadInput(str(path), f"cannot be read ({error.strerror})", hint="a script that is there") from None
        except UnicodeDecodeError:
            raise BadInput(str(path), "is not UTF-8", hint="a script in UTF-8") from None

    def full_name(self, node: ast.AST) -> str:
        """`F.mse_loss` as torch.nn.functional.mse_loss; "" for what is no name."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (before := self.full_name(node.value)):
            return f"{before}.{node.attr}"
        return ""

    def text(self, node: Any) -> str:
        """The text of a node."""
        lines = [line.encode() for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"".join(lines).decode().replace("\r\n", "\n")

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around it, innermost first."""
        while (node := self.parents.get(node, self.tree)) is not self.tree:
            yield node

    def within(self, node: ast.AST, outer: ast.AST) -> Iterator[ast.AST]:
        """The nodes around it, up to the loop or the function."""
        for each in self.above(node):
            if each is outer or isinstance(each, ast.FunctionDef):
                return
            yield each

    def scope_of(self, node: ast.AST) -> Scope:
        """The function, or the module, around it."""
        while not isinstance(node := self.parents[node], Scope):
            pass
        return node

    def values_of(self, name: str) -> list[ast.expr]:
        """The values that this file assigns to a name, or to an attribute of that name."""
        return self._given.get(name, [])

    def made_by(self, node: ast.expr) -> str:
        """The full name of what is called for it; "" if that is not said here."""
        node = node.value if isinstance(node, ast.Subscript) else node
        calls = [value for value in self.values_of(last_of(node)) if isinstance(value, ast.Call)]
        return next((name for call in calls if (name := self.full_name(call.func) or last_of(call.func))), "")

    def calls_of(self, function: ast.FunctionDef) -> Iterator[ast.Call]:
        """Where this file calls it: a method by its own object, or one of its class."""
        owner = self.parents.get(function)
        for node in [each for each in self.calls if last_of(each.func) == function.name]:
            if not isinstance(owner, ast.ClassDef):
                yield from [node] if isinstance(node.func, ast.Name) else ()
            elif isinstance(node.func, ast.Attribute):
                receiver = node.func.value
                own = self.text(receiver) == "self" and owner in self.above(node)
                name = last_of(receiver.func) if isinstance(receiver, ast.Call) else self.made_by(receiver)
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
    """All names in it."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def stores_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, Store]]:
    """Each target of an assignment in it, with what it is given, and the assignment."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                ones = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                many = each.value.elts if len(ones) > 1 and isinstance(each.value, ast.Tuple) else []
                values = many if len(many) == len(ones) else [each.value] * len(ones)
                yield from ((one, value, each) for one, value in zip(ones, values, strict=True))
        elif isinstance(each, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            yield each.target, each.value, each


def statement_of(script: Script, node: ast.AST) -> ast.stmt:
    """The statement that it is a part of."""
    while not isinstance(node, ast.stmt):
        node = script.parents[node]
    return node


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
                yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


class Hop(NamedTuple):
    """A function of the script, and the one call by which it is run."""

    call: ast.Call
    function: ast.FunctionDef


def lifted(script: Script, hop: Hop, text: str) -> str:
    """An expression of a function, in the names that it has where the function is called."""
    given, (call, function) = dict[str, str](), hop
    formal = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if formal and formal[0] in ("self", "cls") and isinstance(call.func, ast.Attribute):
        given[formal.pop(0)] = script.text(call.func.value)
    pairs = [*zip(reversed(formal), reversed(function.args.defaults), strict=False)]
    pairs += [*zip(formal, call.args, strict=False), *((word.arg, word.value) for word in call.keywords if word.arg)]
    given |= {name: script.text(value) for name, value in pairs}
    tree = ast.parse(text, mode="eval")
    for name in sorted(names_in(tree) - given.keys()):
        if is_local(function, name):
            why = f"`{name}` is made in {function.name}(), which is called again and again"
            do = f"make `{name}` once, before the loop over epochs, and hand it to {function.name}()"
            raise CannotConvert(why, function.lineno, do)

    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(given[node.id], mode="eval").body if node.id in given else node

    return ast.unparse(Names().visit(tree)) if names_in(tree) & given.keys() else text


def is_local(scope: Scope, name: str) -> bool:
    """Whether a function gives it a value, or has it for a parameter."""
    given = scope.args if not isinstance(scope, ast.Module) else None
    formal = [] if given is None else [*given.posonlyargs, *given.args, *given.kwonlyargs]
    named = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
    return any(each.arg == name for each in formal) or any(isinstance(node.ctx, ast.Store) for node in named)
