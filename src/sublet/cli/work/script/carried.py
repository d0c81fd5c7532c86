"""What a loop carries from turn to turn: counts follow from `s.steps`, plain values are kept, the rest is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Script, is_local, is_method, last_of, names_in, root_of, stores_in

__all__ = ["Carried", "carried_in", "rename"]

CHANGES = ("append", "extend", "update", "add", "insert", "setdefault", "pop")
AVERAGES = ("AveragedModel", "EMA", "Ema", "ExponentialMovingAverage", "ModelEma", "ModelEmaV2", "EMAModel")
SAVES = ("state_dict", "deepcopy", "item", "clone", "float", "min", "max", "mean", "sum", "len", "copy")
REPORTS = ("time", "clock", "perf_counter", "bar", "meter", "tqdm")  # only what is printed hangs on these


@dataclass(slots=True, kw_only=True)
class Carried:
    """By what is done about it."""

    counts: dict[str, str] = field(default_factory=dict)  # steps: name -> the first value; "" = that it has before
    counts_in_epoch: dict[str, str] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)  # plain ones, which are renamed to what is kept
    objects: dict[str, str] = field(default_factory=dict)  # what has a state_dict: name -> where it is
    parts: list[str] = field(default_factory=list)  # plain values of `self`: kept from epoch to epoch
    lost: list[str] = field(default_factory=list)
    whole: str = ""  # an object that says its own state: extra_state=


def carried_in(training: Training, guard: ast.If | None) -> Carried:
    """Of all names that were given a value before the session, in its own function."""
    script, found, epochs = training.script, Carried(), training.epochs
    known = {root_of(each) for update in training.updates for each in (update.optimizer, update.scaler) if each}
    for name, values in _before(training).items():
        changes, value = list(_changes(training, name)), _telling(script, values)
        part, begins = _average_of(script, value), _number(value)
        if name in known - {"self"}:
            continue
        if part is not None:
            found.objects[name] = f"{name}{part}"
        elif not changes or _is_anew(training.outer, name):
            continue
        elif begins and _counts_steps(training, name, guard):
            found.counts[name] = begins if all(map(_number, values)) else ""
        elif isinstance(epochs, ast.While) and name in names_in(epochs.test):
            continue  # it counts epochs
        elif _stays_plain(value, [given for _, given in changes]) and not _is_shared(training, name):
            found.values.append(name)
        elif not _is_reported(script, name, [node for node, _ in changes]):
            found.lost.append(name)
    for each in epochs.body if epochs is not None and not training.hops and training.micro is None else ():
        first = _number(each.value) if isinstance(each, ast.Assign) else ""
        name = script.text(each.targets[0]) if isinstance(each, ast.Assign) and first else ""
        if name and each.lineno < training.batches.lineno and _counts_steps(training, name, guard):
            found.counts_in_epoch[name] = first
    for target, node in _stores(training):
        if isinstance(target, ast.Attribute) and _counts_steps(training, script.text(target), guard):
            firsts = [number for each in script.values_of(target.attr) if (number := _number(each))]
            found.counts |= {script.text(target): firsts[0]} if firsts and isinstance(node, ast.AugAssign) else {}
    _of_self(training, found)
    return found


def _number(value: ast.expr) -> str:
    """A whole one, as text; or nothing."""
    return str(value.value) if isinstance(value, ast.Constant) and type(value.value) is int else ""


def _stores(training: Training) -> list[tuple[ast.expr, ast.AST]]:
    lines = [node for node in training.lines() if isinstance(node, ast.Assign | ast.AugAssign)]
    return [(target, node) for node in lines for target, _, each in stores_in(node) if each is node]


def _of_self(training: Training, found: Carried) -> None:
    """What the object of a method remembers: by its own `state_dict`, if it has one."""
    script, owner = training.script, training.script.parents.get(training.scope)
    if not isinstance(owner, ast.ClassDef):
        return
    if _has_state(owner):
        found.whole = "self"
        return
    changed = [(node.func.value, node) for node in training.lines() if is_method(node, *CHANGES)]
    made = [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    for target, node in [*_stores(training), *changed]:
        name = script.text(target)
        known = name in (*found.lost, *found.parts, *found.counts) or _is_reported(script, name, [node])
        known |= _is_anew(training.outer, name)
        if isinstance(target, ast.Attribute) and root_of(target) == "self" and not known:
            firsts = [value for one in made for to, value, _ in stores_in(one) if script.text(to) == name]
            plain = name.count(".") == 1 and training.epochs is not None and any(map(_is_plain, firsts))
            (found.parts if plain else found.lost).append(name)


def _before(training: Training) -> dict[str, list[ast.expr]]:
    """What each name is given before the loop."""
    script, scope, found = training.script, training.scope, dict[str, list[ast.expr]]()
    said = {name for node in ast.walk(scope) if isinstance(node, ast.Global) for name in node.names}
    for target, value, node in stores_in(script.tree):
        if not isinstance(target, ast.Name) or value is None or isinstance(node, ast.AugAssign | ast.NamedExpr):
            continue
        where, name = script.scope_of(node), target.id
        if (where is scope and node.lineno < training.outer.lineno) or (where is script.tree and name in said):
            found.setdefault(name, []).append(value)
    return found


def _telling(script: Script, values: list[ast.expr]) -> ast.expr:
    """That which says the most of what it is: a copy of a model, a plain value, or the last."""
    copies = [each for each in values if _average_of(script, each) is not None]
    return [*copies[-1:], *(each for each in values if _is_plain(each)), values[-1]][0]


def _changes(training: Training, name: str) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Lines of the loop that change what a name stands for, or what it holds; and what it is given."""
    others = _others(training, name)
    for part in (training.outer, *others):
        for target, value, node in stores_in(part):
            if root_of(target) == name and training.script.scope_of(node) in (training.scope, *others):
                yield node, None if isinstance(node, ast.AugAssign) else value
        for each in ast.walk(part):
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and root_of(each.func.value) == name:
                own = isinstance(each.func.value, ast.Name) and each.func.attr in CHANGES
                if own or (each.func.attr.endswith("_") and not each.func.attr.startswith("_")):
                    yield each, each


def _is_anew(loop: ast.For | ast.While, name: str) -> bool:
    """Whether each turn begins by giving it a value that does not follow from the last."""
    if isinstance(loop, ast.While) and name in names_in(loop.test):
        return False
    first = next((each for each in loop.body if name in names_in(each)), None)
    own = isinstance(loop, ast.For) and name in names_in(loop.target)
    if isinstance(first, ast.Assign | ast.AnnAssign):
        given = first.value is not None and name not in names_in(first.value)
        return own or (given and any(name in names_in(target) for target, _, _ in stores_in(first)))
    return own or (isinstance(first, ast.For) and name in names_in(first.target))


def _counts_steps(training: Training, name: str, guard: ast.If | None) -> bool:
    """It grows by one where a step is made, and nowhere else."""
    script, inside = training.script, set(ast.walk(training.batches))
    stores = [node for target, node in _stores(training) if script.text(target) == name]
    grown = [node for node in stores if isinstance(node, ast.AugAssign)]
    if len(grown) != 1 or any(node in inside for node in stores if node is not grown[0]):
        return False
    if script.text(grown[0].value) != "1" or not isinstance(grown[0].op, ast.Add):
        return False
    block = script.parents[grown[0]]
    if guard is not None:
        return block is guard
    return block is training.batches or (block is not training.epochs and block in training.around)


def _is_shared(training: Training, name: str) -> bool:
    """Lines that run before the session ask for it by its name, or a text tells its name: it cannot have another."""
    script, outer, others = training.script, training.outer, _others(training, name)
    inside = {id(node) for part in (outer, *others) for node in ast.walk(part)}
    early = any(id(call) not in inside for each in others for call in script.calls_of(each))
    bound = [node.target for node in ast.walk(outer) if isinstance(node, ast.comprehension)]
    bound += [node.body for node in ast.walk(training.scope) if isinstance(node, ast.Lambda)]
    inner = bool(others) and not isinstance(training.scope, ast.Module)
    if early or inner or any(name in names_in(each) for each in bound):
        return True
    kinds, places = ast.NamedExpr | ast.Delete, list(_places(training, name))
    return any(script.text(node) != name or isinstance(script.parents[node], kinds) for node in places)


def _others(training: Training, name: str) -> list[ast.FunctionDef]:
    """Functions that speak of the same name, beside that of the session."""

    def says(each: ast.AST) -> bool:
        return any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(each))

    scope, script, found = training.scope, training.script, list[ast.FunctionDef]()
    is_global = isinstance(scope, ast.Module) or says(scope)
    for each in script.functions:
        if each is not scope and scope not in script.above(each) and name in names_in(each):
            inner = not isinstance(scope, ast.Module) and scope in [*script.above(each)]
            if (is_global and says(each)) or ((is_global or inner) and not is_local(each, name)):
                found.append(each)
    return found


def _places(training: Training, name: str) -> Iterator[ast.Name]:
    """Where the name stands, from the loop on."""
    script, others = training.script, _others(training, name)
    for node in script.nodes:
        if isinstance(node, ast.Name) and node.id == name:
            scope = script.scope_of(node)
            if scope in others or (scope is training.scope and node.lineno >= training.outer.lineno):
                yield node


def rename(training: Training, edits: Edits, names: list[str], kept: str) -> None:
    """From the loop on, and in functions that it calls."""
    for name in names:
        for node in _places(training, name):
            edits.replace(node, f"{kept}.{name}")


def _is_reported(script: Script, name: str, changes: list[ast.AST]) -> bool:
    """Nothing hangs on it but what is printed: a clock, a bar, a meter."""
    texts = " ".join([name, *(script.text(each) for each in changes)]).lower()
    return any(word in texts for word in REPORTS)


# ------------------------------------------------------------------------------------------- which values can be kept


def _is_plain(value: ast.expr | None) -> bool:
    """A value that can be kept: a number, a text, a list or a dict of them, copied weights."""
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    if isinstance(value, ast.List | ast.Tuple | ast.Dict):
        return all(map(_is_plain, value.values if isinstance(value, ast.Dict) else value.elts))
    if isinstance(value, ast.DictComp | ast.ListComp):
        made = value.value if isinstance(value, ast.DictComp) else value.elt
        return isinstance(made, ast.Call) and last_of(made.func) in ("clone", "zeros_like")
    if isinstance(value, ast.Attribute):
        return value.attr in ("inf", "Inf", "infty", "maxsize")
    if isinstance(value, ast.Call):
        name = last_of(value.func)
        tensor = root_of(value.func) == "torch" and name in ("zeros", "ones", "tensor", "full")
        return tensor or name == "float" or (name in ("list", "dict") and not value.args) or _copies_state(value)
    return isinstance(value, ast.Constant)


def _copies_state(value: ast.Call) -> bool:
    return last_of(value.func) == "deepcopy" and any(is_method(node, "state_dict") for node in ast.walk(value))


def _stays_plain(value: ast.expr, changes: list[ast.expr | None]) -> bool:
    """What it is given first, and in the loop, can be kept, as far as that is seen; an own checkpoint is not."""
    if isinstance(value, ast.Name | ast.Attribute) and not any(changes):
        return True  # `rate = first_rate`, and then `rate /= 3`
    if not isinstance(value, ast.Constant) or value.value is not None:
        return _is_plain(value)
    for given in changes:
        written = isinstance(given, ast.Dict) and any(is_method(node, "state_dict") for node in ast.walk(given))
        plain = isinstance(given, ast.Name | ast.Constant | ast.Dict | ast.DictComp | ast.Compare | ast.BinOp)
        if written or not (plain or (isinstance(given, ast.Call) and last_of(given.func) in SAVES)):
            return False
    return True


def _average_of(script: Script, value: ast.expr) -> str | None:
    """Of a moving average of the weights, or a copy of the model: which part of it has the state; None for others."""
    name = last_of(value.func) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.Call) and name == "deepcopy":
        copies = bool(value.args) and isinstance(value.args[0], ast.Name | ast.Attribute) and not _copies_state(value)
        return "" if copies else None
    own = next((each for each in script.classes if each.name == name), None)
    if own is None or _has_state(own) or any("Module" in ast.unparse(base) for base in own.bases):
        return "" if name in AVERAGES or (own is not None and _has_state(own)) else None
    for target, _, node in stores_in(own):
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and last_of(each.func) == "deepcopy"]
        if isinstance(target, ast.Attribute) and calls and not any(map(_copies_state, calls)):
            return f".{target.attr}"
    return None


def _has_state(own: ast.ClassDef) -> bool:
    """Whether a class of the script says its own state."""
    return {"state_dict", "load_state_dict"} <= {each.name for each in own.body if isinstance(each, ast.FunctionDef)}
