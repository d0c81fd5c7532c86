"""What lines of a script do to what its names stand for: which they read, give a value to, and change in place.

A name may stand for what another stands for (`for p in ema.parameters()`), and functions of the script are looked into.
Nothing is run, so all of it is "may": what is not known to leave an object as it is changes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from sublet.cli.work.script.calls import (
    CONTAINERS,
    FRESH,
    GROWS,
    METHODS,
    MODES,
    READING,
    SAMPLED,
    draws,
    is_known,
    tells,
)
from sublet.cli.work.script.kinds import ENDLESS, Function, Kind, Kinds, bindings_in, goes_by_itself, within
from sublet.cli.work.script.reading import Scope, Script, names_in, root_of

__all__ = ["Done", "Effects", "passed"]

LOADERS = ("DataLoader", "StatefulDataLoader")
TAKES = ("next", "setattr", "delattr", "exec", "eval")  # functions that change what they are given first


@dataclass(slots=True)
class Done:
    """By a piece of a script, and by the functions of the script that it calls; name -> line."""

    reads: dict[str, int] = field(default_factory=dict)
    binds: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)  # in place
    sets: dict[str, int] = field(default_factory=dict)  # in place, to what does not depend on what it was
    draws: int = 0  # the line where random numbers are taken, or a seed is set

    @property
    def writes(self) -> dict[str, int]:
        """In any way."""
        return self.sets | self.changes | self.binds

    def add(self, other: Done) -> None:
        """What the other does, after this."""
        for name in ("reads", "binds", "changes", "sets"):
            setattr(self, name, getattr(other, name) | getattr(self, name))
        self.draws = self.draws or other.draws


class Effects(Kinds):
    """Of the pieces of one script; `loop` is the one that is looked at, `state` names of what the session knows."""

    def __init__(self, script: Script, loop: ast.stmt | None = None, state: frozenset[str] = frozenset()) -> None:
        super().__init__(script)
        self.loop, self.state = loop, state
        self._of_function: dict[Function, Done] = {}
        self._asked: list[Function] = []

    def same_as(self, names: Iterable[str], scope: Scope) -> set[str]:
        """Names of all that these may stand for, or for a part of; themselves among them."""
        found, left = set(names), list(names)
        while left:
            for value in self.given(left.pop(), scope):
                if not self.is_loader(value, scope):  # batches are new
                    left += (new := self.held(value) - found)
                    found |= new
        return found

    def rests_on(self, names: Iterable[str], scope: Scope) -> set[str]:
        """All names that their values are made from in a turn of the loop, or a call, in any way, and themselves."""
        where = self.loop if self.loop is not None and self.script.scope_of(self.loop) is scope else scope
        found, left = set(names), list(names)
        while left:
            for value in self.given_in(where, left.pop()):
                left += (new := names_in(value) - found)
                found |= new
        return found

    def held(self, value: ast.expr) -> set[str]:
        """Names whose objects, or parts of them, this value may be; none for one that is new."""
        match value:
            case ast.Name():
                return {value.id}
            case ast.Attribute(attr="shape" | "ndim" | "dtype" | "device"):
                return set()
            case ast.Attribute() | ast.Subscript() | ast.Starred() | ast.Await() | ast.NamedExpr():
                return self.held(value.value)
            case ast.Tuple() | ast.List() | ast.Set():
                parts: list[ast.expr] = value.elts
            case ast.Dict() | ast.BoolOp():
                parts = value.values
            case ast.IfExp():
                parts = [value.body, value.orelse]
            case ast.BinOp(op=ast.Add()):  # of lists
                parts = [value.left, value.right]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                parts = [value.elt]
            case ast.DictComp():
                parts = [value.value]
            case ast.Call():
                return self._held_by_call(value)
            case _:
                parts = []
        return {name for part in parts for name in self.held(part)}

    def _held_by_call(self, call: ast.Call) -> set[str]:
        full = self.script.full_name(call.func)
        if isinstance(call.func, ast.Attribute) and not self.is_imported(call.func.value):
            return set() if call.func.attr in FRESH else self.held(call.func.value)
        if is_known(full) and full not in CONTAINERS and not full.startswith("csv."):  # a writer has its file
            return set()
        if isinstance(call.func, ast.Name) and call.func.id in self.functions:
            return self._returned(call, self.functions[call.func.id])
        return {name for each in _arguments(call) for name in self.held(each)}

    def makes(self, value: ast.expr) -> bool:
        """Whether an object with a memory of its own may be made there, whatever else it holds: `EMA(model)`."""
        inside = [value, *self.reached(value)]
        calls = [node for each in inside for node in ast.walk(each) if isinstance(node, ast.Call)]
        return any(
            not is_known(full := self.script.full_name(call.func)) and full not in self.functions
            for call in calls
            if isinstance(call.func, ast.Name) or self.is_imported(call.func)
        )

    def _returned(self, call: ast.Call, function: Function) -> set[str]:
        """Of a function of the script: what it returns may be of what it is given, or of what is not its own."""
        if function in self._asked:
            return set()  # it calls itself
        self._asked.append(function)
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield) and node.value]
        names = self.same_as({name for each in returns for name in self.held(each)}, function)
        self._asked.pop()
        given = passed(function, call)
        own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        own |= {name for name, _ in bindings_in(function)}
        return (names - own) | {name for each in names & given.keys() for name in self.held(given[each])}

    def is_loader(self, over: ast.expr, scope: Scope) -> bool:
        """Whether it is a DataLoader of this script, or goes over one."""
        if isinstance(over, ast.Call):
            if self.script.full_name(over.func).rpartition(".")[2] in LOADERS:
                return True
            return (
                bool(over.args)
                and self.script.full_name(over.func) in ("enumerate", "iter", "tqdm.tqdm", "zip")
                and any(self.is_loader(each, scope) for each in over.args)
            )
        return isinstance(over, ast.Name) and any(
            isinstance(value, ast.Call) and self.is_loader(value, scope) for value in self.given(over.id, scope)
        )

    # ------------------------------------------------------------------------------------------- what is done

    def done_by(self, node: ast.AST, scope: Scope) -> Done:
        """All of it, with what it calls."""
        done, inner = Done(), _of_comprehensions(node)
        for each in within(node):
            if each in inner:
                continue
            match each:
                case ast.Name(ctx=ast.Load()):
                    done.reads.setdefault(each.id, each.lineno)
                case ast.Name():
                    done.binds.setdefault(each.id, each.lineno)
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                    done.binds.setdefault(name, each.lineno)
                case ast.AugAssign():
                    done.reads |= dict.fromkeys(names_in(each.target), each.lineno)
                    self._change(done, each.target, scope, rebound=True)
                case ast.Assign():
                    for target in each.targets:
                        self._store(done, target, each.value, scope)
                case ast.AnnAssign(value=ast.expr() as value):
                    self._store(done, each.target, value, scope)
                case ast.Delete():
                    for target in each.targets:
                        self._change(done, target, scope)
                case ast.For() | ast.comprehension() if self.is_loader(each.iter, scope):
                    done.draws = done.draws or each.iter.lineno  # a loader draws the seed of its workers
                case ast.Call():
                    self._call(done, each, scope)
                case _:
                    pass
        return done

    def only_tells(self, statement: ast.stmt) -> bool:
        """Whether it prints, or logs, and does nothing else."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return isinstance(statement, ast.Pass | ast.Expr) or (
                isinstance(statement, ast.If) and all(map(self.only_tells, (*statement.body, *statement.orelse)))
            )
        done = self.done_by(statement, self.script.scope_of(statement))
        told = (
            tells(self.script.full_name(call.func))
            or self.of(root_of(call.func), self.script.scope_of(statement)) is Kind.TELLER
        )
        return told and not done.writes and not done.draws

    def reached(self, node: ast.AST) -> list[Function]:
        """Functions and methods of the script that may be called from it."""
        methods: dict[str, list[Function]] = {}
        for made in self.classes.values():
            for method in made.body:
                if isinstance(method, Function):
                    methods.setdefault(method.name, []).append(method)
        found: list[Function] = []
        left: list[ast.AST] = [node]
        while left:
            for each in ast.walk(left.pop()):
                called: list[Function] = []
                if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
                    called = [self.functions[each.func.id]] if each.func.id in self.functions else []
                elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
                    called = methods.get(each.func.attr, [])
                new = [function for function in called if function not in found]
                found += new
                left += new
        return found

    def _store(self, done: Done, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        for each in ast.walk(target):
            if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store):
                roots = self.same_as({root_of(each)}, scope)
                if roots & self.rests_on(names_in(value), scope):
                    self._change(done, each, scope)
                else:
                    _note(done.sets, roots, each.lineno)

    def _change(self, done: Done, piece: ast.expr, scope: Scope, *, rebound: bool = False) -> None:
        """`rebound`: the name itself is given a new value; what else it stood for may change with it, if it can."""
        names = self.same_as(self.held(piece), scope)
        if rebound and isinstance(piece, ast.Name):
            names = {name for name in names - {piece.id} if not self.is_number(name, scope)}
        _note(done.changes, names, piece.lineno)

    def is_number(self, name: str, scope: Scope) -> bool:
        """Whether no line can change it without giving its name a new value."""
        return all(_is_number(self.script, value) for value in self.given(name, scope)) and bool(
            self.given(name, scope)
        )

    def _call(self, done: Done, call: ast.Call, scope: Scope) -> None:
        full, func, given = self.script.full_name(call.func), call.func, _arguments(call)
        if draws(full) or self.draws_into(call, scope):
            done.draws = done.draws or call.lineno
        for word in call.keywords:
            if word.arg in ("generator", "out"):
                self._change(done, word.value, scope)
        if isinstance(func, ast.Name) and func.id in self.functions:
            self._call_function(done, call, self.functions[func.id], scope)
        elif isinstance(func, ast.Attribute) and not self.is_imported(func.value):
            if self.remembers(call, root_of(func.value), func.attr, scope):
                _note(done.changes, self.same_as(self.held(func.value), scope), call.lineno)
        elif full == "next" and given and isinstance(given[0], ast.Call) and self.is_loader(given[0], scope):
            done.draws = done.draws or call.lineno  # of an iterator of its own
        elif full in TAKES or (full.startswith("torch.") and full.endswith("_")):
            for each in given[:1]:
                self._change(done, each, scope)
        elif isinstance(func, ast.Name) and self.given(func.id, scope):
            for each in self.given(func.id, scope):
                if isinstance(each, ast.Lambda):
                    done.add(self.done_by(each.body, scope))
            if self.remembers(call, func.id, "__call__", scope):
                _note(done.changes, self.same_as({func.id}, scope), call.lineno)
        elif not is_known(full) and full not in self.classes:
            told = not isinstance(self.script.parents.get(call), ast.Expr)
            for each in given:  # a function that is not in this script; one of which something is asked looks at models
                if not (told and root_of(each) in self.state):
                    self._change(done, each, scope)

    def draws_into(self, call: ast.Call, scope: Scope) -> bool:
        """Whether torch's random numbers are drawn by a method: `t.uniform_()`, `p.multinomial(1)`, `d.sample()`."""
        if not isinstance(call.func, ast.Attribute) or self.is_imported(call.func.value):
            return False
        sampled = call.func.attr in SAMPLED and self.is_distribution(call.func.value, scope)
        return call.func.attr in METHODS or sampled

    def remembers(self, call: ast.Call, name: str, method: str, scope: Scope) -> bool:
        """Whether this call of an object may leave it as another."""
        if isinstance(call.func, ast.Attribute) and self.is_told(call.func.value, scope):
            return False
        kind, made = self.of(name, scope), self.class_of(name, scope)
        own = made is not None and any(isinstance(each, Function) and each.name == method for each in made.body)
        if not own and (method in READING or method in MODES):  # `log` of a tensor; an object's own may be anything
            return False
        if method in GROWS or (method.endswith("_") and not method.endswith("__")):
            return kind is not Kind.TELLER
        if kind in (Kind.TELLER, Kind.LAZY):
            return False
        if kind is Kind.MODULE and method == "__call__" and name not in self.state and not self.is_calm(name, scope):
            return True
        if made is not None and isinstance(call.func, ast.Name | ast.Attribute):
            return self._class_remembers(made, method)
        if kind in (Kind.PLAIN, Kind.MODULE):
            return method != "__call__" and isinstance(self.script.parents.get(call), ast.Expr)
        return True

    def _class_remembers(self, made: ast.ClassDef, method: str) -> bool:
        module = self.is_module(made)
        names = ("forward", "__call__") if method == "__call__" else (method,)
        found = [each for each in made.body if isinstance(each, Function) and each.name in names]
        if not found:
            return not module
        if module and method == "__call__":  # what it only notes is nothing that it goes by
            return any(goes_by_itself(node) for node in ast.walk(found[0]))
        done = self.done_by_function(found[0])
        return "self" in done.changes or "self" in done.sets

    def _call_function(self, done: Done, call: ast.Call, function: Function, scope: Scope) -> None:
        inner = self.done_by_function(function)
        given = passed(function, call)
        own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for kind in ("changes", "sets"):
            for name, line in getattr(inner, kind).items():
                if name in given:
                    _note(getattr(done, kind), self.same_as(self.held(given[name]), scope), call.lineno)
                elif name not in own:
                    getattr(done, kind).setdefault(name, line)
        _note(done.reads, inner.reads, call.lineno)
        _note(done.binds, inner.binds, call.lineno)
        done.draws = done.draws or (call.lineno if inner.draws else 0)

    def done_by_function(self, function: Function) -> Done:
        """What a call of it does to its arguments, and to what is not its own."""
        if function in self._of_function:
            return self._of_function[function]
        found = self._of_function[function] = Done()  # as if it did nothing, where it calls itself
        total = Done()
        for statement in function.body:
            total.add(self.done_by(statement, function))
        shared = {
            name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
        }
        arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        own = (set(total.binds) | arguments) - shared
        found.binds = {name: line for name, line in total.binds.items() if name in shared}
        found.reads = {name: line for name, line in total.reads.items() if name not in own}
        found.changes = {name: line for name, line in total.changes.items() if name in arguments or name not in own}
        found.sets = {name: line for name, line in total.sets.items() if name in arguments or name not in own}
        found.draws = total.draws
        return found


def passed(function: Function | ast.Lambda, call: ast.Call) -> dict[str, ast.expr]:
    """Which argument each name of a function gets; a method has its object already."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    given = dict(zip(names[names[:1] == ["self"] :], call.args, strict=False))
    return given | {word.arg: word.value for word in call.keywords if word.arg}


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _of_comprehensions(node: ast.AST) -> set[ast.AST]:
    """Names that are a comprehension's own."""
    found: set[ast.AST] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            own = {name for part in each.generators for name in names_in(part.target)}
            outside = set(ast.walk(each.generators[0].iter))  # `[n for n in n]` goes over the other one
            names = (name for name in ast.walk(each) if isinstance(name, ast.Name) and name not in outside)
            found |= {name for name in names if name.id in own}
    return found


def _note(where: dict[str, int], names: Iterable[str], line: int) -> None:
    for name in names:
        where.setdefault(name, line)


def _is_number(script: Script, value: ast.expr) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.UnaryOp():
            return _is_number(script, value.operand)
        case ast.BinOp():
            return _is_number(script, value.left) and _is_number(script, value.right)
        case ast.Call():
            full = script.full_name(value.func)
            item = isinstance(value.func, ast.Attribute) and value.func.attr == "item"
            return item or full in ("float", "int", "len", "round", "str") or full.startswith("math.")
        case ast.Attribute() | ast.Name():
            return script.full_name(value) in ENDLESS
        case _:
            return False
