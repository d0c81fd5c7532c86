"""Which values `s.keep()` can keep: numbers, text, tensors, generators, lists and dicts, each a copy of its own."""

from __future__ import annotations

import ast

from sublet.cli.work.script.calls import GROWS, is_known
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import ENDLESS, GENERATORS, Kind, bindings_in, within
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in, root_of

__all__ = ["cannot_keep", "goes_on"]

PLAIN_CALLS = ("float", "int", "list", "dict", "str", "bool", "len", "max", "min", "sum", "round", "range")
MAKERS = ("zeros", "ones", "full", "tensor", "empty", "zeros_like", "ones_like", "full_like", "rand", "randn", "eye")
COLLECTIONS = ("collections.deque", "collections.Counter", "collections.OrderedDict")
FACTORIES = ("int", "float", "str", "list", "dict", "set")
COPIES = ("item", "clone", "tolist", "copy")
ENDS = ast.Return | ast.Yield | ast.YieldFrom | ast.Await
LAZY = ("iter", "map", "filter", "zip", "enumerate", "reversed")


def cannot_keep(effects: Effects, loop: ast.stmt, name: str, others: frozenset[str]) -> tuple[str, str] | None:
    """Why a name that the loop changes cannot be kept, and what to do; None if it can. `others`: parts of the state."""
    scope = effects.script.scope_of(loop)
    if (made := effects.class_of(name, scope)) is not None:
        return (
            f"`{name}` is of class {made.name}, which remembers something from turn to turn",
            f"give {made.name} state_dict() and load_state_dict() of all of it, or keep what it remembers by s.keep()",
        )
    if effects.of(name, scope) is Kind.MODULE:
        return (
            f"`{name}` is another module after some turns",
            f"keep its state: {name} = copy.deepcopy(model.state_dict()); or change it in place",
        )
    before, inside = _values(loop, name, scope)
    if not before and (reason := _of_the_process(effects, loop, name)):
        return reason
    if name in effects.functions:
        return (
            f"`{name}` is a function, and remembers something from call to call",
            "let what it gives follow from s.steps; or a value of its own, which s.keep() keeps",
        )
    if goes_on(effects.script, loop, name):
        return (
            f"`{name}` is an iterator, whose place is lost when another process goes on",
            "let what it gives follow from s.steps, or make one dataset of both",
        )
    if not before and _is_argument(name, scope):
        return (
            f"`{name}` is given to the function of the loop, and may be changed there by what is not in this script",
            f"give a copy, or a part, of `{name}` to what is called in the loop",
        )
    if not before:
        return f"`{name}` is left to a later turn, and has no value before the loop", "give it one before the loop"
    ordered = _is_ordered(loop, name)
    bad = [value for value in before if not _is_plain(effects, value, scope)]
    bad += [value for value in inside if not _is_new(effects, value, scope)]
    foreign = [value for value in before if isinstance(value, ast.Call) and _is_foreign(effects, value)]
    if reason := next((found for value in before if (found := _of_library(effects, name, value))), None):
        return reason
    if bad and foreign and not ordered:
        return (
            f"`{name}` is of `{effects.script.text(foreign[0].func)}`, which is not in this script: it may remember",
            "write the session by hand; with a state_dict() it is extra_state=, and if it remembers nothing, nothing",
        )
    if bad and not ordered:
        return (
            f"`{name}` is remembered from turn to turn, and is nothing that s.keep() is known to keep",
            "numbers, text, tensors, generators, lists, dicts can be kept; an object with state_dict() is extra_state=",
        )
    if not ordered:
        for value in inside:
            if shared := effects.same_as(effects.held(value), scope) - {name}:
                lasting = {each for each in shared if each in others or not _within_loop(effects, loop, each, scope)}
                if lasting:
                    return (
                        f"`{name}` may be `{min(lasting)}` itself, or a part of it, and a kept one is a copy",
                        "copy it: copy.deepcopy(), .clone(), .item()",
                    )
    for other, value in bindings_in(scope):
        if other != name and value.lineno < loop.lineno and name in effects.held(value):
            return f"`{name}` is also `{other}`, and a kept one is another", "one name for it"
    return None


def _of_the_process(effects: Effects, loop: ast.stmt, name: str) -> tuple[str, str] | None:
    """A class, or a module of Python: what is written into it is there in this process alone."""
    parts = [node for node in within(loop) if isinstance(node, ast.Attribute | ast.Subscript) and root_of(node) == name]
    part = next((effects.script.text(node) for node in parts if isinstance(node.ctx, ast.Store)), name)
    own = "a name of its own in the loop, with a value before it, which s.keep() keeps"
    if name in effects.classes:
        return f"`{part}` is of the class itself, which begins anew in a process that goes on", f"{own}; or use s.steps"
    if effects.script.is_imported(name):
        return f"`{part}` is this process's alone, and begins anew in one that goes on", f"{own}; or use s.steps"
    return None


def _of_library(effects: Effects, name: str, value: ast.expr) -> tuple[str, str] | None:
    full = effects.script.full_name(value.func) if isinstance(value, ast.Call) else ""
    if full == "collections.defaultdict" and not _is_plain(effects, value, effects.script.scope_of(value)):
        return (
            f"`{name}` is a defaultdict, and of what it makes s.keep() knows only {', '.join(FACTORIES)}",
            "defaultdict(int), say, in place of a function of your own",
        )
    if full.startswith("torchvision.transforms."):
        return (
            f"`{name}` is called in the loop, and may draw for the whole batch what each worker would draw for its own",
            "give it to the dataset, as its transform, where it draws for each sample",
        )
    return None


def _is_argument(name: str, scope: Scope) -> bool:
    arguments = [] if isinstance(scope, ast.Module) else ast.walk(scope.args)
    return any(isinstance(each, ast.arg) and each.arg == name for each in arguments)


def _is_foreign(effects: Effects, call: ast.Call) -> bool:
    """Whether a class, or a function, of another file makes it."""
    full = effects.script.full_name(call.func)
    return bool(full) and not is_known(full) and full not in effects.functions and full not in effects.classes


def goes_on(script: Script, loop: ast.AST, name: str) -> bool:
    """Whether each turn takes something from it by `next`."""
    calls = [node for node in within(loop) if isinstance(node, ast.Call) and script.full_name(node.func) == "next"]
    return any(name in names_in(call) for call in calls)


def _values(loop: ast.stmt, name: str, scope: Scope) -> tuple[list[ast.expr], list[ast.expr]]:
    """What it is given before the loop, and in it; what is put into it, too."""
    before = [value for each, value in bindings_in(scope) if each == name and value.lineno < loop.lineno]
    inside = [value for each, value in bindings_in(loop) if each == name]
    for node in within(loop):
        if is_method(node, *GROWS) and isinstance(node.func.value, ast.Name) and node.func.value.id == name:
            inside += node.args
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name:
                    inside.append(node.value)
    return before, inside


def _gives_new(effects: Effects, value: ast.expr, scope: Scope) -> bool:
    """Whether it comes from a function of the script that returns plain values which are nobody else's."""
    if isinstance(value, ast.Name):
        given = effects.given(value.id, scope)
        return bool(given) and all(_gives_new(effects, each, scope) for each in given if each is not value)
    function = effects.functions.get(effects.script.full_name(value.func)) if isinstance(value, ast.Call) else None
    if function is None:
        return effects.kind_of(value, scope) is Kind.PLAIN
    ends = [node for each in function.body for node in within(each) if isinstance(node, ENDS)]
    given = [node.value for node in ends if isinstance(node, ast.Return) and node.value is not None]
    parts = [part for each in given for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    plain = all(
        effects.kind_of(part, function) is Kind.PLAIN and not _is_lazy(effects, part, function) for part in parts
    )
    return len(ends) == len(given) > 0 and plain and not effects.held(value)


def _is_new(effects: Effects, value: ast.expr, scope: Scope) -> bool:
    return effects.kind_of(value, scope) is Kind.PLAIN or _gives_new(effects, value, scope)


def _is_lazy(effects: Effects, value: ast.expr, scope: Scope) -> bool:
    """Whether it gives its values one after the other."""
    if isinstance(value, ast.Name):
        return any(
            _is_lazy(effects, each, scope) for each in effects.given(value.id, scope) if names_in(each) != {value.id}
        )
    return isinstance(value, ast.GeneratorExp) or (
        isinstance(value, ast.Call) and effects.script.full_name(value.func) in LAZY
    )


def _within_loop(effects: Effects, loop: ast.stmt, name: str, scope: Scope) -> bool:
    """Whether it is the loop's alone, or can be changed by nobody."""
    return all(each != name for each, value in bindings_in(scope) if value.lineno < loop.lineno) or effects.is_number(
        name, scope
    )


def _is_ordered(loop: ast.AST, name: str) -> bool:
    """Whether it is compared by < or >: then it is a number."""
    signs = (ast.Lt, ast.Gt, ast.LtE, ast.GtE)
    for node in ast.walk(loop):
        orders = isinstance(node, ast.Compare) and all(isinstance(sign, signs) for sign in node.ops)
        if orders and name in {each.id for each in ast.iter_child_nodes(node) if isinstance(each, ast.Name)}:
            return True
    return False


def _is_plain(effects: Effects, value: ast.expr, scope: Scope) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.UnaryOp():
            return _is_plain(effects, value.operand, scope)
        case ast.BinOp():
            return _is_plain(effects, value.left, scope) and _is_plain(effects, value.right, scope)
        case ast.List() | ast.Tuple():
            return all(_is_plain(effects, each, scope) for each in value.elts)
        case ast.Dict():
            return all(_is_plain(effects, each, scope) for each in value.values)
        case ast.ListComp():
            return _is_plain(effects, value.elt, scope)
        case ast.DictComp():
            return _is_plain(effects, value.value, scope)
        case ast.Call():
            return _is_plain_call(effects, value, scope)
        case ast.Attribute():
            return effects.script.full_name(value) in ENDLESS
        case ast.Name() if effects.script.full_name(value) in ENDLESS:
            return True
        case ast.Name():
            given = effects.given(value.id, scope)
            return bool(given) and effects.is_number(value.id, scope)
        case _:
            return False


def _is_plain_call(effects: Effects, call: ast.Call, scope: Scope) -> bool:
    full = effects.script.full_name(call.func)
    if full in effects.functions:
        return _gives_new(effects, call, scope)
    if is_method(call, "manual_seed") and isinstance(call.func.value, ast.Call):
        return _is_plain_call(effects, call.func.value, scope)
    if full in GENERATORS:
        return True
    if full == "collections.defaultdict":
        return len(call.args) == 1 and effects.script.full_name(call.args[0]) in FACTORIES
    if full in COLLECTIONS:
        return all(_is_plain(effects, each, scope) for each in call.args)
    if full == "copy.deepcopy" and len(call.args) == 1:
        return is_method(call.args[0], "state_dict") or _is_plain(effects, call.args[0], scope)
    if full in PLAIN_CALLS:
        return full in ("float", "int", "len", "str", "bool") or all(
            _is_plain(effects, each, scope) for each in call.args
        )
    if full.startswith("torch.") and full.rpartition(".")[2] in MAKERS:
        return True
    return is_method(call, *COPIES) and call.func.attr != "copy"
