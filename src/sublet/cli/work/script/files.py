"""What a script writes into files, or tells a tracker: unlike a line on the screen it is there after a restart."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.reading import Scope, is_method, names_in
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_emptied", "writes_file"]

WRITERS = ("json.dump", "pickle.dump", "wandb.log", "mlflow.log_metric", "mlflow.log_metrics")
METHODS = ("write_text", "write_bytes", "writerow", "writerows", "to_csv", "to_json")
NUMPY = ("numpy.save", "numpy.savez", "numpy.savetxt", "numpy.savez_compressed")
TRACKED = ("add_scalar", "add_scalars", "add_histogram")


def writes_file(effects: Effects, call: ast.Call, scope: Scope) -> bool:
    """Whether what it is given lasts."""
    if effects.script.full_name(call.func) in WRITERS + NUMPY or is_method(call, *METHODS, *TRACKED):
        return True
    if is_method(call, "write", "writelines"):
        return _is_file(effects, names_in(call.func.value), scope)
    return any(word.arg == "file" and _is_file(effects, names_in(word.value), scope) for word in call.keywords)


def _is_file(effects: Effects, names: set[str], scope: Scope) -> bool:
    held = effects.same_as(names, scope)
    return any(_mode(effects, value) for name in held for value in effects.given(name, scope))


def _mode(effects: Effects, value: ast.expr) -> str:
    """In which a file is opened there; "" if none is."""
    if not isinstance(value, ast.Call):
        return ""
    by_name = effects.script.full_name(value.func) in ("open", "gzip.open", "io.open", "codecs.open")
    if not by_name and not is_method(value, "open"):
        return ""
    place = value.args[1:2] if by_name else value.args[:1]
    given = [*place, *(word.value for word in value.keywords if word.arg == "mode")]
    return str(given[0].value) if given and isinstance(given[0], ast.Constant) else "r"


def refuse_emptied(effects: Effects, around: ast.For | ast.While) -> None:
    """A file that is opened before the loop, and begins empty: what was written before a restart would be gone."""
    scope = effects.script.scope_of(around)
    for node in ast.walk(around):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        for name in sorted(effects.same_as({node.id}, scope)):
            opened = [value for value in effects.given(name, scope) if value.lineno < around.lineno]
            if any(_mode(effects, value).startswith(("w", "x")) for value in opened):
                raise CannotConvert(
                    f"`{name}` begins empty in every process that goes on: what earlier ones wrote is lost",
                    opened[0].lineno,
                    'open it with "a"; or s.keep() what is to be written, and write it after the loop',
                )
