"""What a name of a script stands for, as far as the text says: what is made by whom, and what it may remember."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from sublet.cli.work.script.calls import BUILTINS, CONTAINERS, READING, is_known
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in, root_of

__all__ = ["ENDLESS", "GENERATORS", "Function", "Kind", "Kinds", "bindings_in", "goes_by_itself", "within"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
MOVES = ("to", "cuda", "cpu", "float", "double", "half", "eval", "train", "requires_grad_", "share_memory", "compile")
TELLERS = ("getLogger", "SummaryWriter", "tqdm", "trange", "open", "writer", "DictWriter", "Progress", "Console")
ENDLESS = ("math.inf", "numpy.inf", "torch.inf", "math.nan", "numpy.nan", "torch.nan")
GENERATORS = ("torch.Generator", "random.Random", "numpy.random.default_rng", "numpy.random.RandomState")
CALM = ("Normalize", "Resize", "CenterCrop", "Pad", "Grayscale", "ConvertImageDtype", "ToDtype")  # of torchvision
ODD = (*GENERATORS, "itertools.cycle")


class Kind(Enum):
    """From what is best understood on."""

    PLAIN = "a value"  # numbers, text, lists and dicts of them, tensors
    MODULE = "a module"
    OWN = "an object of a class of this script"
    TELLER = "somebody who is told"
    LAZY = "a function"
    ODD = "something that is not understood"


class Kinds:
    """Of the names of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.classes = {node.name: node for node in ast.walk(script.tree) if isinstance(node, ast.ClassDef)}
        self.functions = {
            node.name: node
            for node in ast.walk(script.tree)
            if isinstance(node, Function) and not isinstance(script.parents.get(node), ast.ClassDef)
        }
        calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call)]
        self.asked_for_parameters = {root_of(node.func) for node in calls if is_method(node, "parameters")}
        self._calmed = {root_of(node.func) for node in calls if is_method(node, "eval")}
        self._given: dict[ast.AST, dict[str, list[ast.expr]]] = {}

    def given(self, name: str, scope: Scope) -> list[ast.expr]:
        """All that the name is given in this scope, or, if nothing, in the module."""
        return next((found for where in (scope, self.script.tree) if (found := self.given_in(where, name))), [])

    def given_in(self, where: ast.AST, name: str) -> list[ast.expr]:
        """All that the name is given within this piece."""
        if where not in self._given:
            self._given[where] = {}
            for each, value in bindings_in(where):
                self._given[where].setdefault(each, []).append(value)
        return self._given[where].get(name, [])

    def of(self, name: str, scope: Scope, seen: frozenset[str] = frozenset()) -> Kind:
        """What it is at its worst."""
        if name in self.functions:
            return Kind.LAZY
        given = [] if name in seen else self.given(name, scope)
        found = {self.kind_of(value, scope, seen | {name}) for value in given}
        if name in seen:
            return Kind.PLAIN
        worst = max(found, key=list(Kind).index) if found else Kind.ODD
        return Kind.MODULE if worst is Kind.ODD and name in self.asked_for_parameters else worst

    def is_calm(self, name: str, scope: Scope) -> bool:
        """Whether a module is the same after it was called: running means are not, where they are not told to be."""
        if name in self._calmed:
            return True
        text = "".join(self.script.text(value) for value in self.given(name, scope))
        made = self.class_of(name, scope)
        text += self.script.text(made) if made is not None else ""
        known = all(self.kind_of(value, scope) is Kind.MODULE for value in self.given(name, scope))
        return known and "BatchNorm" not in text and "InstanceNorm" not in text

    def class_of(self, name: str, scope: Scope) -> ast.ClassDef | None:
        """That of the script which it is made by, if it is always the same."""
        return self.made_by(self.given(name, scope))

    def made_by(self, given: list[ast.expr]) -> ast.ClassDef | None:
        """The class of the script that all of these are objects of."""
        made = {self.script.full_name(_made_by(value)) for value in given}
        return self.classes.get(next(iter(made))) if len(made) == 1 else None

    def is_told(self, value: ast.expr, scope: Scope) -> bool:
        """Whether it is `self.file` in a method, of an object that keeps a file, or a writer, there."""
        owner = self.script.parents.get(scope)
        if not isinstance(owner, ast.ClassDef) or not isinstance(value, ast.Attribute) or root_of(value) != "self":
            return False
        makes = [node for node in ast.walk(owner) if isinstance(node, ast.Assign)]
        given = [node.value for node in makes if self.script.text(node.targets[0]) == self.script.text(value)]
        return bool(given) and all(self.kind_of(each, scope) is Kind.TELLER for each in given)

    def is_generator(self, value: ast.expr, scope: Scope) -> bool:
        """Whether it is the name of a generator of random numbers that the script has made."""
        given = self.given(value.id, scope) if isinstance(value, ast.Name) else []
        calls = [each.func.value if is_method(each, "manual_seed") else each for each in given]
        return any(isinstance(each, ast.Call) and self.script.full_name(each.func) in GENERATORS for each in calls)

    def is_distribution(self, value: ast.expr, scope: Scope) -> bool:
        """Whether it is one of torch.distributions: made there, or given to this name, or to this attribute."""
        if isinstance(value, ast.Call):
            return self.script.full_name(value.func).startswith("torch.distributions.")
        if isinstance(value, ast.Name):
            given = [each for each in self.given(value.id, scope) if isinstance(each, ast.Call)]
            return any(self.is_distribution(each, scope) for each in given)
        makes = [node for node in ast.walk(self.script.tree) if isinstance(node, ast.Assign)]
        made = [node.value for node in makes if self.script.text(node.targets[0]) == self.script.text(value)]
        return any(self.is_distribution(each, scope) for each in made if isinstance(each, ast.Call))

    def is_module(self, made: ast.ClassDef) -> bool:
        """Whether it is one of torch, or derived from one."""
        bases = [self.script.full_name(base) for base in made.bases]
        return any(base.startswith("torch.nn.") or "Module" in base for base in bases) or any(
            self.is_module(self.classes[base]) for base in bases if base in self.classes and base != made.name
        )

    def has_state(self, name: str, scope: Scope) -> bool:
        """Whether it can say all that it has come to, and take it up again."""
        made = self.class_of(name, scope)
        if made is None:
            return self.of(name, scope) is Kind.MODULE
        methods = {each.name for each in made.body if isinstance(each, Function)}
        return {"state_dict", "load_state_dict"} <= methods or (self.is_module(made) and not _counts(made))

    def kind_of(self, value: ast.expr, scope: Scope, seen: frozenset[str] = frozenset()) -> Kind:
        """What a value is."""
        match value:
            case ast.Name() | ast.Attribute() if self.script.full_name(value) in ENDLESS:
                return Kind.PLAIN
            case ast.Name():
                return self.of(value.id, scope, seen)
            case ast.Lambda():
                return Kind.LAZY
            case ast.Attribute() | ast.Await() | ast.Yield():
                return Kind.ODD
            case ast.Subscript() | ast.Starred():
                return Kind.PLAIN if self.kind_of(value.value, scope, seen) is Kind.PLAIN else Kind.ODD
            case ast.Call():
                return self._of_call(value, scope, seen)
            case ast.IfExp():
                both = self.kind_of(value.body, scope, seen), self.kind_of(value.orelse, scope, seen)
                return max(both, key=list(Kind).index)
            case _:
                return Kind.PLAIN

    def _of_call(self, call: ast.Call, scope: Scope, seen: frozenset[str]) -> Kind:
        full = self.script.full_name(call.func)
        last = full.rpartition(".")[2]
        if full in self.classes:
            return Kind.MODULE if self.is_module(self.classes[full]) else Kind.OWN
        if full.startswith("torch.nn.") and not full.startswith(
            ("torch.nn.functional.", "torch.nn.utils.", "torch.nn.init.")
        ):
            return Kind.PLAIN if last == "Parameter" else Kind.MODULE
        if full in ("torch.optim.swa_utils.AveragedModel", "torch.compile"):
            return Kind.MODULE
        if full in ("copy.deepcopy", "copy.copy") and len(call.args) == 1:
            return self.kind_of(call.args[0], scope, seen)
        if last in TELLERS or is_method(call, "open"):
            return Kind.TELLER
        if full == "functools.partial":
            return Kind.PLAIN if call.args and is_known(self.script.full_name(call.args[0])) else Kind.ODD
        if full.startswith("torchvision.transforms.") and self._is_calm_transform(call):
            return Kind.PLAIN
        if full in ODD or full.startswith(("torch.optim.", "torch.utils.data.", "torchvision.")):
            return Kind.ODD
        if isinstance(call.func, ast.Attribute) and not self.is_imported(call.func.value):
            whose = self.kind_of(call.func.value, scope, seen)
            if call.func.attr in MOVES and whose in (Kind.MODULE, Kind.OWN):
                return whose
            return Kind.PLAIN if call.func.attr in READING or whose is Kind.PLAIN else Kind.ODD
        if full in CONTAINERS:
            parts = [self.kind_of(each, scope, seen) for each in call.args]
            return Kind.PLAIN if all(each is Kind.PLAIN for each in parts) else Kind.ODD
        return Kind.PLAIN if full in BUILTINS or is_known(full) else Kind.ODD

    def _is_calm_transform(self, call: ast.Call) -> bool:
        """Whether it does the same to every sample, and draws nothing: `Normalize(...)`, or several of these."""
        last = self.script.full_name(call.func).rpartition(".")[2]
        inner = call.args[0].elts if call.args and isinstance(call.args[0], ast.List) else []
        several = last == "Compose" and bool(inner)
        return last in CALM or (several and all(isinstance(e, ast.Call) and self._is_calm_transform(e) for e in inner))

    def is_imported(self, node: ast.AST) -> bool:
        """Whether it is a module of Python, or something in one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and self.script.is_imported(node.id)


def within(node: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk, without the bodies of functions and classes in it, which are no part of its run."""
    left = [node]
    while left:
        each = left.pop()
        yield each
        left += [child for child in ast.iter_child_nodes(each) if not isinstance(child, INNER)]


def bindings_in(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each name that is given a value within it, and what the value is of, or drawn from."""
    for each in within(node):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                yield from _paired(target, each.value)
        elif isinstance(each, ast.AugAssign) and not isinstance(each.op, ast.Add | ast.BitOr):
            yield from _paired(each.target, _reckoned(each.value))
        elif isinstance(each, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and each.value is not None:
            yield from _paired(each.target, each.value)
        elif isinstance(each, ast.For | ast.comprehension):
            yield from _drawn(each.target, each.iter)
        elif isinstance(each, ast.withitem) and each.optional_vars is not None:
            yield from _paired(each.optional_vars, each.context_expr)


def _reckoned(value: ast.expr) -> ast.expr:
    """`x *= args.weight`: what comes of arithmetic is no part of what it is made from, as `+args.weight` is none."""
    return ast.copy_location(ast.UnaryOp(op=ast.UAdd(), operand=value), value)


def goes_by_itself(node: ast.AST) -> bool:
    """`self.n += 1`, `self.n = self.n + 1`: what an object is goes by what it was."""
    if isinstance(node, ast.AugAssign):
        return root_of(node.target) == "self"
    if not isinstance(node, ast.Assign):
        return False
    own = {ast.dump(each) for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
    return any(ast.dump(each).replace("Store()", "Load()") in own for each in _targets(node))


def _counts(made: ast.ClassDef) -> bool:
    """Whether a module goes by plain values of its own, which are in no state_dict; buffers are."""
    methods = [each for each in made.body if isinstance(each, Function) and each.name != "__init__"]
    kept = {
        node.args[0].value
        for node in ast.walk(made)
        if is_method(node, "register_buffer") and node.args and isinstance(node.args[0], ast.Constant)
    }
    changed = [node for method in methods for node in ast.walk(method) if isinstance(node, ast.Assign | ast.AugAssign)]
    return any(
        isinstance(each, ast.Attribute) and root_of(each) == "self" and each.attr not in kept
        for node in changed
        for each in _targets(node)
    )


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    if isinstance(node, ast.AugAssign):
        return [node.target]
    return [part for each in node.targets for part in _elements(each) or [each]]


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    given = _elements(value)
    if given and len(given) == len(_elements(target)):
        for one, other in zip(_elements(target), given, strict=True):
            yield from _paired(one, other)
    elif isinstance(target, ast.Name):
        if not isinstance(value, ast.Name) or value.id != target.id:  # itself is nothing new
            yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List | ast.Starred):
        yield from ((name, value) for name in names_in(target))


def _drawn(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """`for i, (a, b) in enumerate(zip(x, y))`: what each name is drawn from."""
    call = over if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else None
    how, elements = root_of(call) if call is not None else "", _elements(target)
    if call is not None and how == "enumerate" and call.args and len(elements) == 2:  # noqa: PLR2004 - a number and the rest
        yield from _paired(elements[0], ast.copy_location(ast.Constant(0), over))
        yield from _drawn(elements[1], call.args[0])
    elif call is not None and how == "zip" and len(elements) == len(call.args):
        for one, other in zip(elements, call.args, strict=True):
            yield from _drawn(one, other)
    else:
        yield from ((name, over) for name in names_in(target))


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


def _made_by(value: ast.expr) -> ast.AST:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVES:
        value = value.func.value
    return value.func if isinstance(value, ast.Call) else value
