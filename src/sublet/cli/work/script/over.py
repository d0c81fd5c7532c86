"""What loops go over: a loader, through bars and numbers around it; or numbers."""

from __future__ import annotations

import ast

from sublet.cli.work.script.reading import Scope, Script, is_method

__all__ = ["bar_of", "counted_in", "unwrapped"]

WRAPPERS = ("enumerate", "tqdm", "trange", "iter", "track", "islice", "cycle", "auto", "tqdm_notebook", "progress")


def _is_wrapper(script: Script, node: ast.expr) -> bool:
    """`enumerate(...)`, `tqdm(...)` and the like: they give what is in them."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = script.full_name(node.func).rsplit(".", 1)[-1]
    return name in WRAPPERS or name.endswith(("_progress", "log_every", "progress_bar"))


def unwrapped(script: Script, node: ast.expr, scope: Scope) -> ast.expr:
    """What a loop goes over, without bars and numbers around it; `bar = tqdm(loader)` is looked through."""
    for _ in range(6):
        if is_method(node, "log_every"):
            return node.args[0] if node.args else node
        if _is_wrapper(script, node):
            assert isinstance(node, ast.Call)  # noqa: S101 - _is_wrapper says so
            node = node.args[0]
        elif isinstance(node, ast.Name) and (value := bar_of(script, node, scope)) is not None:
            node = value
        else:
            break
    return node


def bar_of(script: Script, name: ast.Name, scope: Scope) -> ast.expr | None:
    """What a name stands for, where it is that of a bar, given to it right in this function."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.end_lineno and node.lineno < name.lineno:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name.id and _is_wrapper(script, node.value):
                return node.value
        if isinstance(node, ast.With) and node.lineno <= name.lineno:
            for item in node.items:
                same = isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name.id
                if same and _is_wrapper(script, item.context_expr):
                    return item.context_expr
    return None


def counted_in(script: Script, loop: ast.For | ast.While) -> ast.Call | None:
    """`range(...)` and its kin that a loop goes over."""
    if isinstance(loop, ast.While):
        return None
    over = loop.iter
    for _ in range(4):
        if isinstance(over, ast.Call) and script.full_name(over.func).rsplit(".", 1)[-1] in (
            "range",
            "trange",
            "count",
        ):
            return over
        inner = unwrapped(script, over, script.scope_of(loop))
        if inner is over:
            return None
        over = inner
    return None
