"""Files that one worker writes, and lines to look at before a session is trusted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in
from sublet.cli.work.script.update import NO_GRADIENT

SAVES = (
    *("save", "savez", "savefig", "save_image", "dump", "to_csv", "save_pretrained", "write_text", "write_bytes"),
    *("imsave", "add_scalar", "add_scalars", "add_image", "add_images", "add_histogram", "add_figure", "add_text"),
    "add_hparams",
)
MOVES = ("copyfile", "rename", "replace_file", "remove", "rmtree", "unlink", "copy2")
SAVERS = ("save", "checkpoint")  # how names of functions begin that do nothing but write
OF_A_PART = ("size(", "len(", ".shape", "batch_size")


def guard_files(training: Training, edits: Edits, session: str) -> None:
    """`if s.rank == 0:` in the loop, in the lines of the same block behind it, and in the functions in between."""
    script, outer = training.script, training.outer
    block = getattr(script.parents[outer], "body", [])
    behind = block[block.index(outer) :] if outer in block else [outer]
    parts = [*behind, *(hop.function for hop in training.hops)]
    for statement in [node for part in parts for node in ast.walk(part) if isinstance(node, ast.stmt)]:
        call = statement.value if isinstance(statement, ast.Expr) else statement
        saver = isinstance(call, ast.Call) and last_of(call.func).lstrip("_").startswith(SAVERS)
        if (saver or _writes(script, call)) and not _is_guarded(script, statement, {session}):
            gone = edits.is_removed(statement) or ".grad" in script.text(statement)
            if not gone and script.scope_of(statement) in (training.scope, *parts):
                edits.put_under([statement], f"if {session}.rank == 0:")


def _writes(script: Script, node: ast.AST) -> bool:
    """A call, or a `with open(...)`, that makes a file, or adds to one."""
    if isinstance(node, ast.With):
        steps = any(is_method(each, "step") for each in ast.walk(node))
        return not steps and any(_writes(script, item.context_expr) for item in node.items)
    if not isinstance(node, ast.Call):
        return False
    name, full = last_of(node.func), script.full_name(node.func)
    if name == "open":
        modes = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
        return any(each in script.text(mode) for mode in modes for each in "wax")
    if name in SAVES:
        return isinstance(node.func, ast.Attribute) or name in ("savefig", "save_image")
    return full == "wandb.log" or (name in MOVES and full.startswith(("os.", "shutil.")))


def _is_guarded(script: Script, node: ast.AST, sessions: set[str]) -> bool:
    """Whether a condition around it asks the session's rank, or an outer `with` is guarded as a whole."""
    for each in script.above(node):
        if isinstance(each, ast.If) and any(
            re.search(rf"\b{name}\.rank\b", script.text(each.test)) for name in sessions
        ):
            return True
        if isinstance(each, ast.FunctionDef) or (isinstance(each, ast.With) and _writes(script, each)):
            return isinstance(each, ast.With)
    return False


@dataclass(frozen=True, kw_only=True)
class Look:
    """One kind of thing, with the lines that show it."""

    lines: tuple[int, ...]
    what: str
    do: str


def looks_of(script: Script, lost: list[str]) -> tuple[Look, ...]:
    """Of a script with a session; `lost`: names that the loop changes, and nothing keeps."""
    items = [item for node in script.nodes if isinstance(node, ast.With) for item in node.items]
    made = [item for item in items if last_of(getattr(item.context_expr, "func", item)) == "session"]
    names = {last_of(item.optional_vars) for item in made if item.optional_vars is not None}
    loops: list[ast.AST] = [
        *(node for node in script.nodes if isinstance(node, ast.For) and names & names_in(node.iter)),
        *(each for each in script.functions if names & {arg.arg for arg in each.args.args}),
    ]
    first = min((item.context_expr.lineno for item in made), default=1)
    remembered = f" ({', '.join(f'`{name}`' for name in sorted(set(lost)))})" if lost else ""
    found = {
        "`.item()` of the loss, or a gradient, is that of one worker's part of the batch": (
            _of_a_part(script, loops, names),
            "s.loss is the mean of all workers; s.grad_norm (with clip_norm=); s.global_batch, the samples of a step",
        ),
        "every worker writes this file": (_written(script, loops, names), "`if s.rank == 0:` above it"),
        f"the script saves, resumes or changes this itself{remembered}": (
            _remembered(script, loops, lost, first),
            "the session restores model, optimizer and position, and counts from 0; s.keep(name=value) keeps the rest",
        ),
    }
    looks = [Look(lines=tuple(sorted({*lines})), what=what, do=do) for what, (lines, do) in found.items()]
    return tuple(look for look in looks if look.lines)


def _of_a_part(script: Script, loops: list[ast.AST], names: set[str]) -> Iterator[int]:
    """`loss.item()` of what `s.step` was given; a mean of `.item()` times samples; a gradient that is left out."""
    inside = [node for loop in loops for node in ast.walk(loop)]
    steps = [node for node in inside if is_method(node, "step") and names & names_in(node.func.value) and node.args]
    given = {name for node in steps for name in names_in(node.args[0])}
    for node in inside:
        text = script.text(node.value) if isinstance(node, ast.AugAssign) else ""
        part = ".item()" in text and any(word in text for word in OF_A_PART)
        if part or (is_method(node, "item") and last_of(node.func.value) in given):
            yield node.lineno  # type: ignore[attr-defined]  # it is a call or an assignment
    yield from (number for number, line in enumerate(script.lines, 1) if line.strip() == NO_GRADIENT)


def _written(script: Script, loops: list[ast.AST], names: set[str]) -> Iterator[int]:
    """In the loops, and in functions of the script that they call."""
    for loop in loops:
        calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and not _is_guarded(script, node, names)]
        called = {last_of(call.func) for call in calls} - {"step"}
        parts = [loop, *(each for each in script.functions if each.name in called)]
        for node in [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]:
            if _writes(script, node) and not _is_guarded(script, node, names):
                yield node.lineno


def _remembered(script: Script, loops: list[ast.AST], lost: list[str], first: int) -> Iterator[int]:
    """Where the loop changes such a name, or where the session is; and what a script does that resumes by itself."""
    inside = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name | ast.Attribute)]
    for name in lost:
        nodes = [node for node in inside if script.text(node) == name]
        parts = [node for node in nodes if isinstance(script.parents[node], ast.Attribute | ast.Subscript)]
        yield min((node.lineno for node in nodes if isinstance(node.ctx, ast.Store) or node in parts), default=first)
    for call in script.calls if loops else ():
        scope = script.scope_of(call)
        runs = not isinstance(scope, ast.FunctionDef) or any(script.calls_of(scope))
        if runs and is_method(call, "load_state_dict") and "opt" in script.text(call.func.value).lower():
            yield call.lineno
