"""Which models a loop trains, as expressions where the session is made; and whether its loss is a sum."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import CannotConvert, Script, is_local, is_method, last_of, names_in, stores_in

__all__ = ["is_summed", "models_of"]

LOSSES = ("loss", "crit", "metric", "nll", "mse", "bce")


def models_of(training: Training, optimizer: ast.expr) -> list[str]:
    """Those whose parameters an optimizer has; if that is not said here, the one that the loop calls."""
    script, lifted = training.script, training.lifted(optimizer)
    for value in script.values_of(last_of(ast.parse(lifted, mode="eval").body) or last_of(optimizer)):
        nodes = _receivers(script, value, 0) if isinstance(value, ast.Call) else ()
        found = [text for node in nodes if (text := _seen_from(training, node, lifted)) is not None]
        if found:
            return list(dict.fromkeys(found))
    return [_called(training)]


def _receivers(script: Script, value: ast.AST, depth: int) -> Iterator[ast.expr]:
    """Objects whose `parameters()` are in it, also by the name of a list of them."""
    for node in ast.walk(value):
        if is_method(node, "parameters", "named_parameters", "configure_optimizers"):
            if script.text(node.func.value) not in ("self", "super()") or node.func.attr == "parameters":
                yield _whole(script, node.func.value)
        elif isinstance(node, ast.Name) and depth < 2:  # noqa: PLR2004 - a list of groups of a list of parameters
            for target, given, each in stores_in(script.scope_of(node)):
                if last_of(target) == node.id and each.lineno < node.lineno and given is not None:
                    yield from _receivers(script, given, depth + 1)


def _whole(script: Script, node: ast.expr) -> ast.expr:
    """`model` of `model.head`, `self.model` of `self.model.head`, `model` of `model.module`."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute | ast.Subscript):
        chain.append(chain[-1].value)
    if isinstance(chain[-1], ast.Call) and isinstance(chain[-1].func, ast.Attribute):
        return _whole(script, chain[-1].func.value)
    return chain[-2 if script.text(chain[-1]) == "self" and len(chain) > 1 else -1]


def _seen_from(training: Training, node: ast.expr, optimizer: str) -> str | None:
    """The model as it is called where the session is; None if it is another function's own."""
    script, text, holder = training.script, training.script.text(node), optimizer.rpartition(".")[0]
    if holder and text.isidentifier():  # self.optimizer, and self.model beside it
        own = any(isinstance(to, ast.Attribute) and to.attr == text for to, _, _ in stores_in(script.tree))
        return f"{holder}.{text}" if own else None
    if text.startswith("self."):
        return holder + text.removeprefix("self") if holder else None
    if script.scope_of(node) in (training.scope, script.tree):
        return text
    return text if text.isidentifier() and is_local(training.scope, text) else None


def _called(training: Training) -> str:
    script = training.script
    own = {each.name for each in script.functions} | {each.name for each in script.classes}
    scopes = [training.outer, *(hop.function for hop in (*training.hops, *training.within))]
    calls = [node for scope in reversed(scopes) for node in ast.walk(scope) if isinstance(node, ast.Call)]
    for node in calls:
        name = last_of(node.func.value) if is_method(node, "train", "eval") and not node.args else ""
        if name and name != "self" and name not in own:
            return training.lifted(_whole(script, node.func.value))  # type: ignore[attr-defined]  # it is a method
    for node in calls:
        name = last_of(node.func)
        is_loss = any(word in name.lower() for word in LOSSES)
        if node.args and name not in own and not is_loss and ("model" in name.lower() or "net" in name.lower()):
            return training.lifted(node.func)
    why, do = "which model the optimizer has is not said in this file", "train.session(model, optimizer, ...) by hand"
    raise CannotConvert(why, training.updates[0].call.lineno, do)


# ------------------------------------------------------------------------------------------- the loss


def is_summed(training: Training) -> bool:
    """A sum that nothing divides, in the lines that make the loss: a session has to be told."""
    script, call = training.script, training.backwards[-1]
    lines, made = list(stores_in(training.inner_scope)), list[ast.AST]([call])
    for each in made:  # which grows: by what its names are given, and the functions and criteria that it calls
        names = names_in(each)
        given = [(value, line) for to, value, line in lines if last_of(to) in names and line.lineno <= call.lineno]
        found: list[ast.AST | None] = [line if isinstance(line, ast.AugAssign) else value for value, line in given]
        for inner in [node for node in ast.walk(each) if isinstance(node, ast.Call)]:
            name = last_of(inner.func)
            found += [value for value in script.values_of(name) if isinstance(value, ast.Call)]
            found += [function for function in script.functions if function.name == name and "loss" in name.lower()]
        made += [node for node in found if node is not None and node not in made][: 99 - len(made)]
    nodes = [node for each in made for node in ast.walk(each)]
    divided = any(isinstance(getattr(node, "op", None), ast.Div) for node in nodes)
    means = any(last_of(node.func) == "mean" for node in nodes if isinstance(node, ast.Call))
    return not divided and not means and any(_sums(script, node) for node in nodes)


def _sums(script: Script, node: ast.AST) -> bool:
    """`reduction="sum"`, and `.sum()` of a whole."""
    if not isinstance(node, ast.Call):
        return False
    words = {word.arg: script.text(word.value).strip("\"'") for word in node.keywords}
    module = script.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    whole = is_method(node, "sum") and not (node.args or words) and module not in ("torch", "np", "numpy")
    return whole or words.get("reduction") == "sum" or words.get("size_average") == "False"
