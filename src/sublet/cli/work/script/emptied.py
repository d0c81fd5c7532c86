"""Files that begin empty in every process that goes on: what earlier ones wrote would be gone."""

from __future__ import annotations

import ast

from sublet.cli.work.script.course import exposed
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.files import mode_of
from sublet.cli.work.script.reading import is_method
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_emptied"]


def refuse_emptied(effects: Effects, around: ast.For | ast.While) -> None:
    """A file that is opened before the loop, and begins empty: what was written before a restart would be gone."""
    scope = effects.script.scope_of(around)
    asked, _ = exposed(effects, around.body, scope)
    for asks in sorted(asked):
        for name in sorted(effects.same_as({asks}, scope)):
            opened = [value for value in effects.given(name, scope) if value.lineno < around.lineno]
            if any(mode_of(effects, value).startswith(("w", "x")) for value in opened):
                raise CannotConvert(
                    f"`{name}` begins empty in every process that goes on: what earlier ones wrote is lost",
                    opened[0].lineno,
                    'open it with "a"; or s.keep() what is to be written, and write it after the loop',
                )
    _refuse_emptied_by_name(effects, around)


def _refuse_emptied_by_name(effects: Effects, around: ast.For | ast.While) -> None:
    """The same, of a file that is opened again in the loop, with rows for what is there."""
    script, scope = effects.script, effects.script.scope_of(around)
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call) and mode_of(effects, node)]
    inside = {id(node) for node in ast.walk(around)}
    added = {_path(effects, call) for call in calls if id(call) in inside and "a" in mode_of(effects, call)}
    for call in (each for each in calls if mode_of(effects, each).startswith("w")):
        asks = any(isinstance(each, ast.If) for each in script.above(call))  # whether it is there, mostly
        before = call.lineno < around.lineno and script.scope_of(call) is scope
        if before and not asks and (path := _path(effects, call)) in added:
            raise CannotConvert(
                f"{path} begins empty in every process: what earlier ones added is lost",
                call.lineno,
                "only where it is not there yet: `if not os.path.exists(...)`",
            )


def _path(effects: Effects, call: ast.Call) -> str:
    """Which file is opened there, as it is written."""
    if is_method(call, "open") and not effects.is_imported(call.func):
        return effects.script.text(call.func.value)
    return effects.script.text(call.args[0]) if call.args else ""
