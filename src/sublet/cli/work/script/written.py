"""Files that a loop writes: one worker does it, where a line does nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Script, last_of

__all__ = ["guard_files", "is_guarded", "writes"]

SAVES = (
    "save",
    "savez",
    "savefig",
    "save_image",
    "dump",
    "to_csv",
    "save_pretrained",
    "write_text",
    "write_bytes",
    "imsave",
)
LOGS = (
    "add_scalar",
    "add_scalars",
    "add_image",
    "add_images",
    "add_histogram",
    "add_figure",
    "add_text",
    "add_hparams",
)
MOVES = ("copyfile", "rename", "replace_file", "remove", "rmtree", "unlink", "copy2")


def guard_files(training: Training, edits: Edits, session: str) -> None:
    """In the loop, and in the lines of the same block behind it."""
    script, outer = training.script, training.outer
    block = getattr(script.parents[outer], "body", [])
    behind = block[block.index(outer) + 1 :] if outer in block else []
    for statement in [*_statements(outer), *(each for line in behind for each in [line, *_statements(line)])]:
        if script.scope_of(statement) is training.scope and not edits.is_removed(statement):
            _guard(script, edits, statement, session)
    for hop in (*training.hops, *training.within):
        for statement in _statements(hop.function):
            _guard(script, edits, statement, session)


def _guard(script: Script, edits: Edits, statement: ast.stmt, session: str) -> None:
    if _only_writes(script, statement) and not is_guarded(script, statement, {session}):
        edits.put_under([statement], f"if {session}.rank == 0:")


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for each in ast.walk(node):
        if isinstance(each, ast.stmt) and each is not node:
            yield each


def is_guarded(script: Script, node: ast.AST, sessions: set[str]) -> bool:
    """Whether a condition around it asks the session's rank, or an outer statement is guarded as a whole."""
    for each in script.above(node):
        if isinstance(each, ast.If) and any(f"{name}.rank" in script.text(each.test) for name in sessions):
            return True
        if isinstance(each, ast.With) and _opens(each):
            return True
        if isinstance(each, ast.FunctionDef):
            return False
    return False


def writes(script: Script, node: ast.AST) -> bool:
    """A call that makes a file, or adds to one."""
    if not isinstance(node, ast.Call):
        return False
    name = last_of(node.func)
    if name == "open":
        mode = node.args[1] if len(node.args) > 1 else next((w.value for w in node.keywords if w.arg == "mode"), None)
        return mode is not None and any(each in script.text(mode) for each in "wax")
    if name in LOGS or (name == "log" and script.full_name(node.func).startswith("wandb")):
        return True
    if name in SAVES:
        return isinstance(node.func, ast.Attribute) or name in ("savefig", "save_image")
    return name in MOVES and script.full_name(node.func).startswith(("os.", "shutil."))


def _opens(node: ast.With) -> bool:
    return any(
        isinstance(item.context_expr, ast.Call)
        and last_of(item.context_expr.func) == "open"
        and any(
            isinstance(arg, ast.Constant) and str(arg.value)[:1] in "wax"
            for arg in [*item.context_expr.args[1:], *(w.value for w in item.context_expr.keywords)]
        )
        for item in node.items
    )


def _only_writes(script: Script, statement: ast.stmt) -> bool:
    """One call, or a `with open(...)`, or a call of a function of this script that saves."""
    if isinstance(statement, ast.With):
        return _opens(statement) and not any(
            isinstance(each, ast.For | ast.While) and _trains(each) for each in statement.body
        )
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    if writes(script, statement.value):
        return True
    return _saves(script, last_of(statement.value.func))


def _saves(script: Script, name: str) -> bool:
    """A function of this script that does nothing but write: no model of it changes. Of another file, by its name."""
    own = {each.name for each in ast.walk(script.tree) if isinstance(each, ast.FunctionDef)}
    if name not in own:
        return name.startswith("save_")
    for function in ast.walk(script.tree):
        if isinstance(function, ast.FunctionDef) and function.name == name:
            nodes = list(ast.walk(function))
            changes = any(
                isinstance(each, ast.Return | ast.Yield | ast.Global | ast.Nonlocal) and getattr(each, "value", 1)
                for each in nodes
            )
            changes |= any(isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) for each in nodes)
            changes |= any(
                isinstance(each, ast.Call) and last_of(each.func) in ("backward", "train", "eval", "step")
                for each in nodes
            )
            return not changes and any(writes(script, each) for each in nodes)
    return False


def _trains(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_of(each.func) == "step" for each in ast.walk(node))
