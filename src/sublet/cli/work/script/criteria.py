"""Classes of a script that are called for a loss, and what objects of a class keep as their own.

What a network makes of a batch is one for each sample, whatever is in it; a criterion brings samples together, and
is looked into by whatever name it goes.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import Function

__all__ = ["is_criterion", "kept_as", "method_of"]


def is_criterion(effects: Effects, made: ast.ClassDef, name: str, call: ast.Call) -> bool:
    """Whether an object of this class that is called so is no network: neither the one that is trained nor a teacher.

    A network has layers, and is asked for its parameters, or given inputs alone.
    """
    alone = len(call.args) + len(call.keywords) < 2  # noqa: PLR2004 - what is predicted, and what is true
    trained = name in effects.asked_for_parameters
    return "Loss" in made.name or not _has_layers(effects, made) or not (alone or trained)


def _has_layers(effects: Effects, made: ast.ClassDef) -> bool:
    names = [effects.script.full_name(node.func) for node in ast.walk(made) if isinstance(node, ast.Call)]
    plain = ("Loss", "Parameter", "__init__")
    own = any(each in effects.classes and each != made.name and "Loss" not in each for each in names)
    return own or any(
        each.startswith("torch.nn.") and not each.startswith("torch.nn.functional.") and not each.endswith(plain)
        for each in names
    )


def method_of(made: ast.ClassDef | None, *names: str) -> Function | None:
    """The first method of the class that is called so."""
    body = made.body if made is not None else []
    return next((each for each in body if isinstance(each, Function) and each.name in names), None)


def kept_as(effects: Effects, func: ast.Attribute) -> tuple[ast.ClassDef | None, list[ast.expr]]:
    """The class in whose methods `self.mse` stands, and all that it is given there."""
    owner = effects.script.parents.get(effects.script.scope_of(func))
    if not isinstance(owner, ast.ClassDef) or not isinstance(func.value, ast.Name) or func.value.id != "self":
        return None, []
    makes = [node for node in ast.walk(owner) if isinstance(node, ast.Assign)]
    text = effects.script.text(func)
    return owner, [node.value for node in makes for each in node.targets if effects.script.text(each) == text]
