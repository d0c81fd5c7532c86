"""Values that a loop carries from turn to turn: counts follow from `s.steps`, plain ones are kept, others are shown."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.extent import counted, counters
from sublet.cli.work.script.loops import Training, is_in
from sublet.cli.work.script.reading import CannotConvert, Script, is_local, last_of, names_in, root_of, stores_in

CHANGES = ("append", "extend", "update", "add", "insert", "setdefault", "pop")
AVERAGES = ("AveragedModel", "EMA", "Ema", "ExponentialMovingAverage", "ModelEma", "ModelEmaV2", "EMAModel")
SAVES = ("state_dict", "deepcopy", "item", "clone", "float", "min", "max", "mean", "sum", "len", "copy")
REPORTS = ("time", "clock", "perf_counter", "bar", "meter", "tqdm")  # in names of what is only printed
FIRSTS = ("inf", "Inf", "infty", "maxsize", "float", "list", "dict", "zeros", "ones", "tensor", "full")
PLAIN = ast.Name | ast.Constant | ast.Dict | ast.DictComp | ast.Compare | ast.BinOp
Change = tuple[ast.AST, ast.expr | None]  # a line, and what it gives


@dataclass(slots=True, kw_only=True)
class Carried:
    """Names that the loop changes, by their treatment."""

    values: list[str] = field(default_factory=list)  # plain ones, which are renamed to what is kept
    objects: list[str] = field(default_factory=list)  # with a state_dict
    lost: list[str] = field(default_factory=list)  # to look at
    whole: str = ""  # the object of the method that trains, if it has a state_dict: extra_state=


def carried_in(training: Training, known: tuple[str, ...], gone: list[ast.stmt]) -> Carried:
    """Of names that have a value before the loop, and of attributes of `self`; `known`: the session has these."""
    script, found, owner = training.script, Carried(), training.script.parents.get(training.scope)
    if isinstance(owner, ast.ClassDef) and _says_its_state(owner):
        found.whole = "self"
    before, changed = _before(training), _changed(training)
    found.objects = [name for name, values in before.items() if any(_has_state(script, each) for each in values)]
    epochs = None if training.epochs is None else counted(script, training.epochs)
    scalers = {root_of(update.scaler) for update in training.updates if update.scaler is not None}
    for name, changes in changed.items():
        own = name.startswith("self.")
        values = script.values_of(name.removeprefix("self.")) if own else before.get(name, [])
        for node in [node for node, _ in changes if name in known and isinstance(node, ast.Assign)]:
            if any(script.text(to) == name for to, _, _ in stores_in(node)):
                raise CannotConvert(f"`{name}` is made anew in the loop", node.lineno, "make it once, before the loop")
        told = name in (*known, *scalers, *found.objects) or (found.whole and own)
        told = told or all(is_in(script, node, gone) for node, _ in changes)
        if not values or told or _is_anew(script, training.outer, name):
            continue
        if epochs is not None and epochs.name == name and name not in counters(script, training.batches):
            continue  # its number is that of `s.epochs()`
        if _can_be_kept(values, [given for _, given in changes]) and _can_be_renamed(training, name):
            found.values.append(name)
        elif not any(word in f"{name} {[script.text(node) for node, _ in changes]}".lower() for word in REPORTS):
            found.lost.append(name)
    starts = [each.start for each in (epochs, counted(script, training.batches)) if each is not None]
    found.lost += [start for start in starts if start]
    return found


def _before(training: Training) -> dict[str, list[ast.expr]]:
    """The values of each name before the loop, or in the module where a function says `global`."""
    script, scope, found = training.script, training.scope, dict[str, list[ast.expr]]()
    said = {name for node in script.nodes if isinstance(node, ast.Global) for name in node.names}
    for target, value, node in stores_in(script.tree):
        where, name = script.scope_of(node), target.id if isinstance(target, ast.Name) else ""
        early = where is scope and node.lineno < training.outer.lineno
        if (early or (where is script.tree and name in said)) and value is not None and name:
            found.setdefault(name, []).append(value)
    return found


def _changed(training: Training) -> dict[str, list[Change]]:
    """Names, and attributes of `self`, that lines of the loop give a value, or whose content they change."""
    script, found = training.script, dict[str, list[Change]]()
    scopes = {script.scope_of(node): set(node.names) for node in script.nodes if isinstance(node, ast.Global)}
    others = [node for scope in scopes if scope is not training.scope for node in ast.walk(scope)]
    for node in dict.fromkeys([*training.lines(), *others]):
        changes = list[tuple[ast.expr, ast.expr | None]]()
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            augments = isinstance(node, ast.AugAssign)
            changes = [(to, None if augments else value) for to, value, each in stores_in(node) if each is node]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            in_place = node.func.attr.endswith("_") and not node.func.attr.startswith("_")
            changes = [(node.func.value, node)] if in_place or node.func.attr in CHANGES else []
        for target, value in changes:
            own = isinstance(target, ast.Attribute) and script.text(target.value) == "self"
            name, scope = script.text(target) if own else root_of(target), script.scope_of(node)
            if own or scope is training.scope or name in scopes.get(scope, ()) or not is_local(scope, name):
                found.setdefault(name, []).append((node, value))
    return found


def _is_anew(script: Script, statement: ast.stmt, name: str) -> bool:
    """Whether the first line that speaks of it gives it a value that does not follow from the last."""

    def says(*nodes: ast.AST | None) -> bool:
        parts = [node for each in nodes if each is not None for node in ast.walk(each)]
        return any(last_of(node) == name.rsplit(".", 1)[-1] and script.text(node) == name for node in parts)

    if isinstance(statement, ast.Assign):
        return says(*statement.targets) and not says(statement.value)
    if isinstance(statement, ast.For) and says(statement.target):
        return True
    if isinstance(statement, ast.If) or says(getattr(statement, "test", None)):
        return False
    first = next((each for each in getattr(statement, "body", []) if says(each)), None)
    return first is not None and _is_anew(script, first, name)


def rename(training: Training, edits: Edits, names: list[str], kept: str) -> None:
    """From the loop on, to what is kept."""
    for name in names:
        for node in _places(training, name):
            edits.replace(node, f"{kept}.{name}")


def _places(training: Training, name: str) -> list[ast.Name]:
    script, first = training.script, training.outer.lineno
    named = [node for node in script.nodes if isinstance(node, ast.Name) and node.id == name and node.lineno >= first]
    return [node for node in named if script.scope_of(node) is training.scope]


def _can_be_renamed(training: Training, name: str) -> bool:
    """No other function, comprehension or `del` speaks of it, and its place in the text is known."""
    script, scope = training.script, training.scope
    said = {name for each in script.nodes if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    shared = isinstance(scope, ast.Module) or name in said
    inner = [each for each in script.functions if each is not scope and (shared or scope in script.above(each))]
    bound = list[ast.AST](node.target for node in ast.walk(scope) if isinstance(node, ast.comprehension))
    bound += [node for node in ast.walk(scope) if isinstance(node, ast.Lambda | ast.NamedExpr | ast.Delete)]
    bound += [each for each in inner if name in said or not is_local(each, name)]
    free = name.isidentifier() and not any(name in names_in(each) for each in bound)
    return free and all(script.text(node) == name for node in _places(training, name))


def _can_be_kept(values: list[ast.expr], changes: list[ast.expr | None]) -> bool:
    """Whether its first value, and those in the loop, can be kept, as far as is seen; a checkpoint need not be."""
    value = next((each for each in values if _is_plain(each)), values[-1])
    if isinstance(value, ast.Name | ast.Attribute) and not any(changes):
        return True  # `rate = first_rate`, and then `rate /= 3`
    if not isinstance(value, ast.Constant) or value.value is not None:
        return _is_plain(value)
    calls = [given for given in changes if isinstance(given, ast.Call)]
    written = [each for each in changes if isinstance(each, ast.Dict) and "state_dict" in ast.unparse(each)]
    plain = all(isinstance(each, ast.Call | PLAIN) for each in changes)
    return plain and not written and all(last_of(call.func) in SAVES for call in calls)


def _is_plain(value: ast.expr) -> bool:
    """A number, a text, a tensor; a list or a dict of them, or copied weights."""
    if isinstance(value, ast.Call | ast.Attribute):
        name = last_of(value.func if isinstance(value, ast.Call) else value)
        return name in FIRSTS or (name == "deepcopy" and "state_dict()" in ast.unparse(value))
    parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
    return isinstance(value, ast.Constant | ast.UnaryOp | ast.List | ast.Tuple | ast.Dict) and all(
        map(_is_plain, parts)
    )


def _has_state(script: Script, value: ast.expr) -> bool:
    """An average of the weights, a copy of a model, or an object of a class that has a state_dict."""
    name = last_of(value.func) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.Call) and name == "deepcopy":
        return bool(value.args) and isinstance(value.args[0], ast.Name | ast.Attribute)
    return name in AVERAGES or any(each.name == name and _says_its_state(each) for each in script.classes)


def _says_its_state(own: ast.ClassDef) -> bool:
    return {"state_dict", "load_state_dict"} <= {each.name for each in own.body if isinstance(each, ast.FunctionDef)}
