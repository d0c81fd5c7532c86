"""Lines to look at before a session is trusted: five kinds, each with its evidence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sublet.cli.work.script.reading import Script, is_method, last_of, names_in
from sublet.cli.work.script.written import is_guarded, writes

__all__ = ["Look", "looks_of"]

MOST = 5
OWN_DICE = ("random.", "numpy.random.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One kind of thing, with the lines that show it."""

    lines: tuple[int, ...]
    what: str
    do: str

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {"lines": list(self.lines), "what": self.what, "do": self.do}


def looks_of(script: Script, lost: list[str]) -> tuple[Look, ...]:
    """Of a script with a session; `lost`: names that the loop remembers, which nothing keeps."""
    loops = list(_loops(script))
    found = [
        _look(
            _printed(script, loops),
            "`.item()` of a loss is that of this worker's part of the batch",
            "s.loss is that of all workers",
        ),
        _look(_written(script, loops), "every worker writes this file", "`if s.rank == 0:` above it"),
        _look(
            _drawn(script, loops),
            "Python's and NumPy's dice are alike in all workers, as long as all draw equally often",
            "draw once for a batch; for each sample, in the dataset or by torch",
        ),
        _look(
            _lengths(script, loops),
            "the loader's batch is that of all workers together: a worker sees a part of it",
            "s.global_batch for the samples of a step, s.steps_in_epoch for its number",
        ),
        _look(
            [*_resumes(script, loops), *_remembered(script, loops, lost)],
            "saved, resumed or remembered by the script itself" + _named(lost),
            "the session restores model, optimizer and position; s.keep(name=value) for what else must last",
        ),
    ]
    return tuple(each for each in found if each is not None)[:MOST]


def _named(lost: list[str]) -> str:
    return f" ({', '.join(f'`{name}`' for name in sorted(lost))})" if lost else ""


def _look(lines: list[int] | Iterator[int], what: str, do: str) -> Look | None:
    found = tuple(sorted({*lines}))
    return Look(lines=found, what=what, do=do) if found else None


def _session_names(script: Script) -> set[str]:
    """What sessions are called: `with train.session(...) as s`, and parameters that are given one."""
    names = {
        item.optional_vars.id
        for node in ast.walk(script.tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and last_of(item.context_expr.func) == "session"
        and isinstance(item.optional_vars, ast.Name)
    }
    return names


def _loops(script: Script) -> Iterator[ast.AST]:
    """Those over a session, and functions that are given it."""
    names = _session_names(script)
    for node in ast.walk(script.tree):
        if (isinstance(node, ast.For) and names & names_in(node.iter)) or (
            isinstance(node, ast.FunctionDef) and names & {each.arg for each in node.args.args}
        ):
            yield node


def _printed(script: Script, loops: list[ast.AST]) -> Iterator[int]:
    """`loss.item()`, where the loss is what `s.step` was given."""
    names = _session_names(script)
    for loop in loops:
        given = {
            each
            for node in ast.walk(loop)
            if is_method(node, "step") and names & names_in(node.func.value) and node.args
            for each in names_in(node.args[0])
        }
        for node in ast.walk(loop):
            if is_method(node, "item") and isinstance(node.func.value, ast.Name) and node.func.value.id in given:
                yield node.lineno


def _written(script: Script, loops: list[ast.AST]) -> Iterator[int]:
    names = _session_names(script)
    for loop in loops:
        for node in (each for part in [loop, *_called(script, loop)] for each in ast.walk(part)):
            if writes(script, node) and not is_guarded(script, node, names):
                yield node.lineno  # type: ignore[attr-defined]  # it is a call


def _called(script: Script, loop: ast.AST) -> Iterator[ast.AST]:
    """Functions of the script that the loop calls for what they do, by whatever worker."""
    names = _session_names(script)
    for call in ast.walk(loop):
        if isinstance(call, ast.Call) and not is_guarded(script, call, names):
            yield from (
                each
                for each in ast.walk(script.tree)
                if isinstance(each, ast.FunctionDef) and each.name == last_of(call.func) and each.name != "step"
            )


def _drawn(script: Script, loops: list[ast.AST]) -> Iterator[int]:
    for loop in loops:
        for node in ast.walk(loop):
            if isinstance(node, ast.Call) and script.full_name(node.func).startswith(OWN_DICE):
                if script.full_name(node.func).endswith(("seed", "get_state", "getstate")):
                    continue
                if (
                    any(isinstance(each, ast.For | ast.comprehension) for each in _between(script, node, loop))
                    or node.args
                ):
                    yield node.lineno


def _between(script: Script, node: ast.AST, loop: ast.AST) -> Iterator[ast.AST]:
    for each in script.above(node):
        if each is loop:
            return
        yield each
        if isinstance(each, ast.ListComp | ast.GeneratorExp):
            yield from each.generators


def _lengths(script: Script, loops: list[ast.AST]) -> Iterator[int]:
    """A mean that is put together from the samples of a part: `total += loss.item() * len(x)`."""
    for loop in loops:
        for node in ast.walk(loop):
            if isinstance(node, ast.AugAssign) and any(is_method(each, "item") for each in ast.walk(node.value)):
                text = script.text(node.value)
                if "size(" in text or "len(" in text or ".shape" in text or "batch_size" in text:
                    yield node.lineno


def _remembered(script: Script, loops: list[ast.AST], lost: list[str]) -> Iterator[int]:
    """Where such a name is given its next value."""
    for name in lost:
        for loop in loops:
            lines = [
                node.lineno
                for node in ast.walk(loop)
                if isinstance(node, ast.Name | ast.Attribute) and script.text(node) == name and _changes(script, node)
            ]
            if lines:
                yield min(lines)
                break


def _changes(script: Script, node: ast.AST) -> bool:
    parent = script.parents[node]
    return isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(parent, ast.Attribute | ast.Subscript)


def _resumes(script: Script, loops: list[ast.AST]) -> Iterator[int]:
    """`optimizer.load_state_dict(...)`: what only a script that resumes by itself does."""
    if not loops:
        return
    for node in ast.walk(script.tree):
        if is_method(node, "load_state_dict") and "opt" in script.text(node.func.value).lower():
            scope = script.scope_of(node)
            if not isinstance(scope, ast.FunctionDef) or any(script.calls_of(scope)):
                yield node.lineno
