"""What goes by the samples of a batch in a loop over batches, and so is another in each worker.

    n = len(x)                       # as many as this worker has
    for row in x: crop(row)          # as often as that
    columns = x.shape[1]             # the same in all

The functions that the loop calls, and the forward of each module of the script, are looked into.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from sublet.cli.work.script.bars import is_counted
from sublet.cli.work.script.effects import Effects, passed
from sublet.cli.work.script.kinds import Function, bindings_in, within
from sublet.cli.work.script.reading import is_method, names_in, root_of

__all__ = ["NO_SIZES", "ByBatch"]

Runs = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

ALIKE = ("device", "dtype", "ndim", "is_cuda", "requires_grad", "layout")  # of a tensor, whatever its samples
ASKED = ("isinstance", "type", "hasattr", "callable")
NO_SIZES = ("device", "dtype", "layout", "generator", "requires_grad", "pin_memory", "out", "memory_format")
NUMBERS = ("range", "trange", "itertools", "count")  # that a loop may go over
QUIET = ("no_grad", "inference_mode")


class ByBatch:
    """Of a loop over batches; `told` are nodes of it, by id, that are nobody's business."""

    def __init__(self, effects: Effects, inner: ast.AST, told: Container[int] = ()) -> None:
        self._effects, self._script, self._inner, self._told = effects, effects.script, inner, told
        self._rows: set[str] = set()  # names of tensors with a row for each sample, and of nothing else
        self._repeated: set[ast.AST] = set()  # functions that are called for each sample
        self.names: dict[ast.AST, set[str]] = {}  # of each piece that runs with a turn: its names that go by the batch
        if isinstance(inner, ast.For) and (drawn := self._drawn(inner)):
            self.names[inner] = drawn
            for made in effects.classes.values():
                methods = [each for each in made.body if isinstance(each, Function) and each.name == "forward"]
                if effects.is_module(made):
                    self.names |= {each: {arg.arg for arg in each.args.args[1:]} for each in methods}
            self._spread()

    def _drawn(self, inner: ast.For) -> set[str]:
        """What a batch is called; nothing if the loop goes over numbers."""
        over = inner.iter
        if isinstance(over, ast.Call) and (is_method(over, "epochs") or root_of(over) in NUMBERS):
            return set()
        target = inner.target
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        parts = parts[1:] if isinstance(target, ast.Tuple) and is_counted(self._script, inner) else parts
        parts = parts[0].elts if len(parts) == 1 and isinstance(parts[0], ast.Tuple) else parts
        if len(parts) > 1:  # of one name it may be a tuple: `batch[0]` is no sample
            self._rows = {part.id for part in parts if isinstance(part, ast.Name)}
        return {name for part in parts for name in names_in(part)}

    def _spread(self) -> None:
        known = -1
        while known != (known := sum(map(len, self.names.values())) + len(self._repeated)):
            for piece in list(self.names):
                for name, value in _given(piece):
                    if self.goes_by(value, piece):
                        self.names[piece].add(name)
                for call in [*self.calls(piece)]:
                    for function in self._called(call, piece):
                        self._hand_on(call, function, piece)

    def _hand_on(self, call: ast.Call, function: Runs, piece: ast.AST) -> None:
        mapped = is_name(call.func, "map")
        given = {} if mapped else passed(function, call)
        found = {name for name, value in given.items() if self.goes_by(value, piece)}
        repeated = self.is_repeated(call, piece) or (mapped and self.goes_by(call, piece))
        quiet = any(
            word in self._script.text(each) for each in getattr(function, "decorator_list", ()) for word in QUIET
        )
        if quiet and not found and not repeated:
            return  # an evaluation
        if isinstance(self._script.scope_of(self._inner), ast.Module):
            own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            found |= self.names[self._inner] & names_in(function) - own - {name for name, _ in bindings_in(function)}
        self.names.setdefault(function, set()).update(found)
        if repeated:
            self._repeated.add(function)

    def _called(self, call: ast.Call, piece: ast.AST) -> Iterator[Runs]:
        """Functions, lambdas and methods of the script; an object may be called itself."""
        func = call.args[0] if is_name(call.func, "map") and call.args else call.func
        scope = piece if isinstance(piece, Function) else self._script.scope_of(piece)
        if isinstance(func, ast.Name) and func.id in self._effects.functions:
            yield self._effects.functions[func.id]
            return
        whose = func.value if isinstance(func, ast.Attribute) else func
        if not isinstance(whose, ast.Name):
            return
        name = func.attr if isinstance(func, ast.Attribute) else "__call__"
        own = self._script.parents.get(scope) if whose.id == "self" else None
        owner = own if isinstance(own, ast.ClassDef) else self._effects.class_of(whose.id, scope)
        methods = [] if owner is None else [each for each in owner.body if isinstance(each, Function)]
        yield from (each for each in methods if each.name == name)
        if whose is func:
            yield from (each for each in self._effects.given(whose.id, scope) if isinstance(each, ast.Lambda))

    def calls(self, piece: ast.AST) -> Iterator[ast.Call]:
        """All that it makes, but for what is told."""
        body = piece.body if isinstance(piece, Function) else [piece.body if isinstance(piece, ast.Lambda) else piece]
        for statement in body:
            for node in within(statement):
                if isinstance(node, ast.Call) and id(node) not in self._told:
                    yield node

    def is_repeated(self, node: ast.AST, piece: ast.AST) -> bool:
        """Whether it runs once for each sample."""
        if piece in self._repeated:
            return True
        for each in self._above(node, piece):
            over = [each.iter] if isinstance(each, ast.For) else [each.test] if isinstance(each, ast.While) else []
            over += [part.iter for part in getattr(each, "generators", [])]
            if any(self.goes_by(value, piece) for value in over):
                return True
        return False

    def is_chosen(self, node: ast.AST, piece: ast.AST) -> bool:
        """Whether it runs, or not, by what the samples of a worker are."""
        for each in self._above(node, piece):
            tests = [each.test] if isinstance(each, ast.If | ast.IfExp) else []
            tests += each.values[:-1] if isinstance(each, ast.BoolOp) else []
            if any(self.goes_by(value, piece) and node not in ast.walk(value) for value in tests):
                return True
        return any(_is_before(each, node) and self.goes_by(each.test, piece) for each in _leaves_by(piece))

    def _above(self, node: ast.AST, piece: ast.AST) -> Iterator[ast.AST]:
        for each in self._script.above(node):
            if each is piece:
                return
            yield each

    def goes_by(self, value: ast.AST, piece: ast.AST) -> bool:
        """Whether a value has a part for each sample of the batch, or is made from some."""
        match value:
            case ast.Name():
                return value.id in self.names[piece]
            case ast.Attribute():
                return value.attr not in ALIKE and self.goes_by(value.value, piece)
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return False
            case ast.Subscript():
                return self._is_part(value, piece) and any(
                    self.goes_by(each, piece) for each in (value.value, value.slice)
                )
            case ast.Call():
                return any(self.goes_by(each, piece) for each in self._sized_by(value))
            case ast.Lambda():
                return False
            case _:
                return any(self.goes_by(each, piece) for each in ast.iter_child_nodes(value))

    def _is_part(self, value: ast.Subscript, piece: ast.AST) -> bool:
        """Whether it has still a part for each sample, as `x[:, 0]` and `x.shape[0]`; not `x[:2]`, nor `x.shape[1]`."""
        first = value.slice.elts[0] if isinstance(value.slice, ast.Tuple) and value.slice.elts else value.slice
        if _is_shape(value.value):
            begins = first.lower if isinstance(first, ast.Slice) else first
            return begins is None or (isinstance(begins, ast.Constant) and begins.value == 0)
        if isinstance(first, ast.Slice):
            return not isinstance(first.upper, ast.Constant)
        number = isinstance(first, ast.Constant) and isinstance(first.value, int)
        row = piece is self._inner and isinstance(value.value, ast.Name) and value.value.id in self._rows
        return not (number and row)

    def _sized_by(self, call: ast.Call) -> list[ast.expr]:
        """What the size of the value of a call may go by."""
        given = [*call.args, *(word.value for word in call.keywords if word.arg not in NO_SIZES)]
        if self._script.full_name(call.func) in ASKED or is_method(call, "dim", "ndimension", "is_floating_point"):
            return []
        if is_method(call, "size") and given:
            return [call.func.value] if isinstance(given[0], ast.Constant) and given[0].value == 0 else []
        if isinstance(call.func, ast.Attribute) and not self._effects.is_imported(call.func.value):
            new = call.func.attr.startswith("new_")
            return given if new else [call.func.value, *given]
        return given


def _leaves_by(piece: ast.AST) -> list[ast.If]:
    """Conditions by which a function is left."""
    found = [each for each in within(piece) if isinstance(each, ast.If)] if isinstance(piece, Function) else []
    return [each for each in found if any(isinstance(node, ast.Return) for node in ast.walk(each))]


def _is_before(condition: ast.If, node: ast.AST) -> bool:
    return (condition.end_lineno or 0) < getattr(node, "lineno", 0)


def _given(piece: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that are given something; of `rows, columns = x.shape` the first alone goes by the batch."""
    fixed = set()
    for node in within(piece):
        if isinstance(node, ast.Assign) and _is_shape(node.value) and isinstance(node.targets[0], ast.Tuple):
            fixed |= {(name, node.value) for part in node.targets[0].elts[1:] for name in names_in(part)}
    yield from (each for each in bindings_in(piece) if each not in fixed)


def _is_shape(value: ast.AST) -> bool:
    return (isinstance(value, ast.Attribute) and value.attr == "shape") or (
        is_method(value, "size") and not value.args and not value.keywords
    )


def is_name(node: ast.AST, name: str) -> bool:
    """Whether it is this one."""
    return isinstance(node, ast.Name) and node.id == name
