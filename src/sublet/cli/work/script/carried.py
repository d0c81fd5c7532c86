"""What a loop carries from turn to turn: counts follow from `s.steps`, plain values are kept, the rest is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Scope, is_method, last_of, names_in, root_of
from sublet.cli.work.script.values import (
    average_of,
    has_method,
    is_plain,
    is_reckoned,
    stays_plain,
    whole_number,
)

__all__ = ["Carried", "carried_in", "rename"]

CHANGES = ("append", "extend", "update", "add", "insert", "setdefault", "pop")


@dataclass(slots=True, kw_only=True)
class Carried:
    """By what is done about it."""

    counts: dict[str, str] = field(default_factory=dict)  # steps of the training: name -> the first value
    counts_in_epoch: dict[str, str] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)  # plain ones, which are renamed to what is kept
    objects: dict[str, str] = field(default_factory=dict)  # what has a state_dict: name -> where it is
    lost: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # plain values of `self`: kept from epoch to epoch
    whole: str = ""  # an object that says its own state: extra_state=


def carried_in(training: Training, guard: ast.If | None) -> Carried:
    """Of all names that were given a value before the session, in its own function."""
    script, found = training.script, Carried()
    known = {root_of(update.optimizer) for update in training.updates}
    known |= {root_of(update.scaler) for update in training.updates if update.scaler is not None}
    for name, value in _before(training).items():
        if name in known - {"self"}:
            continue
        changes = list(_changes(training, name))
        part = average_of(script, value)
        if part is not None and _is_mentioned(training, name):
            found.objects[name] = f"{name}{part}"
        elif changes and not _is_anew(training.outer, name):
            _sort(training, found, name, value, changes, guard)
    if training.epochs is not None and not training.hops and training.micro is None:
        for each in training.epochs.body:
            if (
                isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Constant)
                and each.lineno < training.batches.lineno
            ):
                name = last_of(each.targets[0])
                if name and type(each.value.value) is int and _counts_steps(training, name, guard):
                    found.counts_in_epoch[name] = str(each.value.value)
    for node in training.lines():
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            name = training.script.text(node.target)
            firsts = [first for value in training.script.values_of(node.target.attr) if (first := whole_number(value))]
            if firsts and _counts_steps(training, name, guard):
                found.counts[name] = firsts[0]
    _of_self(training, found)
    return found


def _of_self(training: Training, found: Carried) -> None:
    """What the object of a method remembers: by its own `state_dict`, if it has one."""
    owner = training.script.parents.get(training.scope)
    if not isinstance(owner, ast.ClassDef):
        return
    if has_method(owner, "state_dict") and has_method(owner, "load_state_dict"):
        found.whole = "self"
        return
    for node in training.lines():
        target = (
            node.target
            if isinstance(node, ast.AugAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if is_method(node, *CHANGES):
            target = node.func.value
        if isinstance(target, ast.Attribute) and root_of(target) == "self":
            name = training.script.text(target)
            known = name in found.lost or name in found.parts or name in found.counts
            if known or _is_reported(training, name, [node]) or _is_anew(training.outer, name):
                continue
            plain = name.count(".") == 1 and any(map(is_plain, _own_values(owner, name.rsplit(".", 1)[-1])))
            (found.parts if plain and training.epochs is not None else found.lost).append(name)


def _own_values(owner: ast.ClassDef, name: str) -> Iterator[ast.expr]:
    """What an attribute is given where the object is made."""
    for node in ast.walk(owner):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for line in ast.walk(node):
                if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
                    targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                    if any(isinstance(each, ast.Attribute) and each.attr == name for each in targets):
                        yield line.value


def _before(training: Training) -> dict[str, ast.expr]:
    """The last value of each name before the loop."""
    found: dict[str, ast.expr] = {}

    def give(name: str, value: ast.expr) -> None:
        average = average_of(training.script, value) is not None
        known = name in found and (is_plain(found[name]) or average_of(training.script, found[name]) is not None)
        if average or not known:
            found[name] = value

    said = {name for node in ast.walk(training.scope) if isinstance(node, ast.Global) for name in node.names}
    for line in training.script.tree.body if said and not isinstance(training.scope, ast.Module) else []:
        if isinstance(line, ast.Assign) and last_of(line.targets[0]) in said:
            give(last_of(line.targets[0]), line.value)
    for node in ast.walk(training.scope):
        if getattr(node, "lineno", training.outer.lineno) >= training.outer.lineno:
            continue
        if isinstance(node, ast.Assign) and training.script.scope_of(node) is training.scope:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    give(target.id, node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    for one, value in pairs:
                        if isinstance(one, ast.Name):
                            give(one.id, value)
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.value is not None
            and training.script.scope_of(node) is training.scope
        ):
            give(node.target.id, node.value)
    return found


def _changes(training: Training, name: str) -> Iterator[ast.AST]:
    """Lines of the loop that change what a name stands for, or what it holds."""
    others = _others(training, name)
    for node in (each for part in (training.outer, *others) for each in ast.walk(part)):
        if isinstance(node, ast.stmt) and training.script.scope_of(node) not in (training.scope, *others):
            continue
        if isinstance(node, ast.AugAssign | ast.AnnAssign) and root_of(node.target) == name:
            yield node
        elif isinstance(node, ast.Assign):
            targets = [one for each in node.targets for one in (each.elts if isinstance(each, ast.Tuple) else [each])]
            if any(root_of(each) == name for each in targets):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and root_of(node.func.value) == name:
            own = isinstance(node.func.value, ast.Name) and node.func.attr in CHANGES
            if own or (node.func.attr.endswith("_") and not node.func.attr.startswith("_")):
                yield node


def _is_anew(loop: ast.For | ast.While, name: str) -> bool:
    """Whether each turn begins by giving it a value that does not follow from the last."""
    if isinstance(loop, ast.For) and name in names_in(loop.target):
        return True
    if isinstance(loop, ast.While) and name in names_in(loop.test):
        return False
    for each in loop.body:
        if name not in names_in(each):
            continue
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None and name not in names_in(each.value):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            return any(isinstance(one, ast.Name) and one.id == name for t in targets for one in ast.walk(t))
        return isinstance(each, ast.For) and name in names_in(each.target)
    return False


def _sort(
    training: Training, found: Carried, name: str, value: ast.expr, changes: list[ast.AST], guard: ast.If | None
) -> None:
    if _counts_steps(training, name, guard) and (first := whole_number(value)) is not None:
        found.counts[name] = first
    elif _counts_epochs(training, name):
        return
    elif (
        (is_plain(value) or is_reckoned(value, changes))
        and stays_plain(name, value, changes)
        and not _is_shared(training, name)
    ):
        found.values.append(name)
    elif not _is_reported(training, name, changes):
        found.lost.append(name)


def _counts_steps(training: Training, name: str, guard: ast.If | None) -> bool:
    """It grows by one where a step is made, and nowhere else."""
    script = training.script
    grown = [
        node
        for node in dict.fromkeys(training.lines())
        if isinstance(node, ast.AugAssign) and script.text(node.target) == name
    ]
    given = [
        each
        for node in ast.walk(training.batches)
        if isinstance(node, ast.Assign)
        for each in node.targets
        if script.text(each) == name
    ]
    if len(grown) != 1 or given or script.text(grown[0].value) != "1" or not isinstance(grown[0].op, ast.Add):
        return False
    block = script.parents[grown[0]]
    if guard is not None:
        return block is guard
    return block is training.batches or (
        block is not training.epochs and block in script.above(training.updates[0].call)
    )


def _counts_epochs(training: Training, name: str) -> bool:
    loop = training.epochs
    return isinstance(loop, ast.While) and name in names_in(loop.test)


def _is_shared(training: Training, name: str) -> bool:
    """Lines that run before the session ask for it by its name, or a text tells its name: it cannot have another."""
    script, outer, others = training.script, training.outer, _others(training, name)
    inside = {id(node) for part in (outer, *others) for node in ast.walk(part)}
    if others and not isinstance(training.scope, ast.Module):
        return True
    if any(id(call) not in inside for each in others for call in script.calls_of(each)):
        return True
    if any(isinstance(node, ast.comprehension) and name in names_in(node.target) for node in ast.walk(outer)):
        return True
    if any(isinstance(node, ast.Lambda) and name in names_in(node) for node in ast.walk(training.scope)):
        return True
    return any(
        script.text(node) != name or isinstance(script.parents[node], ast.NamedExpr | ast.Delete)
        for node in _places(training, name)
    )


def _others(training: Training, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that speak of the same name, beside that of the session."""
    return [
        each
        for each in ast.walk(training.script.tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each is not training.scope
        and training.scope not in training.script.above(each)
        and name in names_in(each)
        and (_says_global(each, name) or not _has_own(each, name))
        and (isinstance(training.scope, ast.Module) or _says_global(training.scope, name))
    ] + [
        each
        for each in ast.walk(training.scope)
        if isinstance(each, ast.FunctionDef)
        and each is not training.scope
        and not isinstance(training.scope, ast.Module)
        and name in names_in(each)
        and not _has_own(each, name)
    ]


def _says_global(scope: Scope, name: str) -> bool:
    return any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(scope))


def _places(training: Training, name: str) -> Iterator[ast.Name]:
    """Where the name stands, from the loop on."""
    script, others = training.script, _others(training, name)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Name) and node.id == name:
            scope = script.scope_of(node)
            if scope in others or (scope is training.scope and node.lineno >= training.outer.lineno):
                yield node


def _has_own(scope: Scope, name: str) -> bool:
    if isinstance(scope, ast.Module):
        return False
    formal = scope.args
    if any(each.arg == name for each in (*formal.posonlyargs, *formal.args, *formal.kwonlyargs)):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in ast.walk(scope)
    )


def _is_reported(training: Training, name: str, changes: list[ast.AST]) -> bool:
    """Nothing hangs on it but what is printed: a clock, a bar, a meter."""
    script = training.script
    texts = " ".join(script.text(each) for each in changes).lower()
    words = ("time", "clock", "perf_counter", "bar", "meter", "tqdm")
    return any(word in texts or word in name.lower() for word in words)


def _is_mentioned(training: Training, name: str) -> bool:
    """In the loop, or in a function that it calls."""
    if name in names_in(training.outer):
        return True
    called = {last_of(node.func) for node in ast.walk(training.outer) if isinstance(node, ast.Call)}
    return any(
        isinstance(node, ast.FunctionDef) and node.name in called and name in names_in(node)
        for node in ast.walk(training.script.tree)
    )


def rename(training: Training, edits: Edits, names: list[str], kept: str) -> None:
    """From the loop on, and in functions that it calls."""
    for name in names:
        for node in _places(training, name):
            edits.replace(node, f"{kept}.{name}")
