"""A class of a script whose one object trains: its methods, its attributes, and what `__init__` comes to."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from sublet.cli.work.script.functions import statement_of
from sublet.cli.work.script.kinds import MOVES, Kind, Kinds
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in

__all__ = ["SELF", "Odd", "TrainerClass", "indent_of", "is_name", "made_by"]

SELF = "self"


class Odd(Exception):
    """It is in a form that is not known."""


@dataclass(slots=True)
class TrainerClass:
    """A class, its methods, and the one object that is made of it."""

    script: Script
    owner: ast.ClassDef
    methods: dict[str, ast.FunctionDef] = field(init=False)
    attributes: list[str] = field(init=False)
    made: ast.Call = field(init=False)
    called: ast.Call = field(init=False)  # its method, from outside

    def __post_init__(self) -> None:
        said = [each for each in self.owner.body if not _is_text(each)]
        if self.owner.bases or self.owner.keywords or self.owner.decorator_list:
            raise Odd
        self.methods = {each.name: each for each in said if isinstance(each, ast.FunctionDef)}
        if "__init__" not in self.methods or len(self.methods) != len(said):
            raise Odd
        self.attributes = [each.targets[0].attr for each in self._init.body if _is_attribute(each)]
        self._find_object()
        for method in self.methods.values():
            self._check(method)

    @property
    def outer(self) -> str:
        """The method that is called from outside."""
        assert isinstance(self.called.func, ast.Attribute)  # noqa: S101 - that is how it was found
        return self.called.func.attr

    def _find_object(self) -> None:
        spoken = [node for node in ast.walk(self.script.tree) if is_name(node, self.owner.name)]
        made = [self.script.parents[node] for node in spoken]
        if len(made) != 1 or not isinstance(made[0], ast.Call) or made[0].func is not spoken[0]:
            raise Odd
        self.made, above = made[0], self.script.parents[made[0]]
        if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
            uses = [node for node in ast.walk(self.script.tree) if is_name(node, above.targets[0].id)]
            around = [self.script.parents[node] for node in uses if node is not above.targets[0]]
            rebound = {each for method in self.methods.values() for each in _stored(method) if method is not self._init}
            called = [each for each in around if getattr(each, "attr", "") in self.methods]
            read = [each for each in around if getattr(each, "attr", "") in {*self.attributes} - rebound]
            if len(called) != 1 or len(read) != len(around) - 1 or not all(_is_read(each) for each in read):
                raise Odd
            above = called[0]
        call = self.script.parents[above]
        if not isinstance(above, ast.Attribute) or above.attr not in self.methods or not isinstance(call, ast.Call):
            raise Odd
        self.called = call
        for call in (self.made, self.called):
            statement = statement_of(self.script, call)
            looped = any(isinstance(each, ast.For | ast.While | ast.ClassDef) for each in self.script.above(call))
            if looped or not isinstance(statement, ast.Expr | ast.Assign) or self._shares_its_line(statement):
                raise Odd
        scopes = {self.script.scope_of(each) for each in (self.made, self.called)}
        if len(scopes) != 1 or not isinstance(statement_of(self.script, self.called), ast.Expr):
            raise Odd

    def _shares_its_line(self, statement: ast.stmt) -> bool:
        last = self.script.lines[(statement.end_lineno or statement.lineno) - 1].encode()
        head = self.script.lines[statement.lineno - 1].encode()[: statement.col_offset]
        return bool(head.strip() or last[statement.end_col_offset :].split(b"#")[0].strip())

    @property
    def _init(self) -> ast.FunctionDef:
        return self.methods["__init__"]

    def _check(self, method: ast.FunctionDef) -> None:
        """`self` is there to ask for attributes and to call methods; who makes attributes anew is called once."""
        args = method.args
        if not args.args or args.posonlyargs or args.args[0].arg != SELF or args.args[0].annotation is not None:
            raise Odd
        if method.name.startswith("__") and method is not self._init:
            raise Odd
        if any(
            _decorator(self.script, each) in ("property", "staticmethod", "classmethod")
            for each in method.decorator_list
        ):
            raise Odd
        if method is not self._init and method.name != self.outer and any(_stored(method)):
            raise Odd
        for node in ast.walk(method):
            if not is_name(node, SELF):
                continue
            above = self.script.parents[node]
            known = isinstance(above, ast.Attribute) and above.attr in self.attributes
            calls = isinstance(above, ast.Attribute) and above.attr in self.methods and method is not self._init
            if not known and not (calls and getattr(self.script.parents[above], "func", None) is above):
                raise Odd

    def given(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Attributes that a method asks for, or those that it calls do."""
        found: set[str] = set()
        for node in ast.walk(self.methods[name]):
            if isinstance(node, ast.Attribute) and is_name(node.value, SELF):
                if node.attr in self.attributes:
                    found.add(node.attr)
                elif node.attr not in seen:
                    found |= self.given(node.attr, seen | {name})
        return found


def made_by(script: Script, found: TrainerClass) -> tuple[list[str], dict[str, str]]:
    """What `__init__` does, by the names of who makes the object; and which name is which attribute there."""
    given, scope = _given(found), script.scope_of(found.made)
    stored = _stored_names(script, {scope, script.tree})
    own = set(_stored_names(script, {scope})) if not isinstance(scope, ast.Module) else set()
    anew = {each for name, method in found.methods.items() if name != "__init__" for each in _stored(method)}
    texts = {name: ast.unparse(value) for name, value in given.items() if isinstance(value, ast.Name | ast.Constant)}
    lines: list[str] = []
    values: dict[str, str] = {}

    def put(attribute: str, text: str) -> None:
        values[attribute] = f"{SELF}_{attribute}"
        lines.append(f"{SELF}_{attribute} = {text}")

    for statement in found.methods["__init__"].body:
        if _is_text(statement):
            continue
        if names_in(statement) & own - given.keys():
            raise Odd  # another there than where the object is made
        stands = statement.targets[0].attr if _is_attribute(statement) else ""
        whole = bool(stands) and _is_attribute(statement) and _is_one_of(statement.value, given)
        for name in sorted(names_in(statement) & given.keys() - texts.keys()):
            texts[name] = f"{SELF}_{stands}" if whole else f"{name}_of_{found.owner.name}"
            if not whole:
                lines.append(f"{texts[name]} = {ast.unparse(given[name])}")
            elif stands not in values:
                put(stands, ast.unparse(given[name]))
        if not _is_attribute(statement):
            if not isinstance(statement, ast.Expr):
                raise Odd
            lines.append(ast.unparse(_Renamed(texts, values).visit(copy.deepcopy(statement))))
            continue
        attribute, value = statement.targets[0].attr, statement.value
        if whole and values.get(attribute) == texts[ast.unparse(value)]:
            continue
        if attribute in values:
            raise Odd
        name = texts.get(value.id, value.id) if isinstance(value, ast.Name) else ""
        if moved := _moved(value):  # a module that is moved is the same
            own_name = texts.get(moved, moved)
            name = own_name if Kinds(script).of(own_name, scope) is Kind.MODULE else ""
        if stored.count(name) == 1 and attribute not in anew and name not in values.values():
            values[attribute] = name
            lines += [ast.unparse(_Renamed(texts, values).visit(copy.deepcopy(value)))] if moved else []
        else:
            put(attribute, ast.unparse(_Renamed(texts, values).visit(copy.deepcopy(value))))
    return lines, values


def _given(found: TrainerClass) -> dict[str, ast.expr]:
    """To `__init__`, by name."""
    args, call = found.methods["__init__"].args, found.made
    names = [each.arg for each in (*args.args[1:], *args.kwonlyargs)]
    starred = args.vararg or args.kwarg or any(isinstance(each, ast.Starred) for each in call.args)
    plain = args.args[len(args.args) - len(args.defaults) :]
    pairs = [*zip(plain, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    values = {each.arg: value for each, value in pairs if value is not None}
    values |= dict(zip(names, call.args, strict=False))
    values |= {word.arg or "": word.value for word in call.keywords}
    if starred or {*values} != {*names} or len(call.args) > len(args.args) - 1:
        raise Odd
    return values


class _Renamed(ast.NodeTransformer):
    """Arguments and attributes by other names."""

    def __init__(self, texts: dict[str, str], values: dict[str, str]) -> None:
        self._texts, self._values = texts, values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._texts[node.id], mode="eval").body if node.id in self._texts else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if is_name(node.value, SELF):
            if node.attr not in self._values:
                raise Odd
            return ast.Name(self._values[node.attr], ast.Load())
        node.value = self.visit(node.value)
        return node


def _is_attribute(node: ast.AST) -> TypeGuard[_Attribute]:
    """`self.name = value`."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return isinstance(target, ast.Attribute) and is_name(target.value, SELF)


class _Attribute(ast.Assign):
    """Of an attribute of `self`."""

    targets: list[ast.Attribute]  # type: ignore[assignment]  # of one kind alone


def _stored(method: ast.FunctionDef) -> Iterator[str]:
    """Attributes that it makes anew."""
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and is_name(node.value, SELF) and not isinstance(node.ctx, ast.Load):
            yield node.attr


def _is_one_of(value: ast.expr, given: dict[str, ast.expr]) -> bool:
    return isinstance(value, ast.Name) and value.id in given


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)


def _moved(value: ast.expr) -> str:
    """`model` of `model.to(device).train()`; "" of anything else."""
    calls = 0
    while is_method(value, *MOVES):
        value, calls = value.func.value, calls + 1
    return value.id if calls and isinstance(value, ast.Name) else ""


def _stored_names(script: Script, scopes: set[Scope]) -> list[str]:
    """Names that are given values in these, each time that they are."""
    named = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [node.id for node in named if script.scope_of(node) in scopes]


def _decorator(script: Script, node: ast.expr) -> str:
    return script.full_name(node.func if isinstance(node, ast.Call) else node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_name(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    """Whether it is this name."""
    return isinstance(node, ast.Name) and node.id == name


def indent_of(line: str) -> str:
    """The white space before it."""
    return line[: len(line) - len(line.lstrip())]
