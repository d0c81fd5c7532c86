"""Files and folders that a script moves, removes or makes: what one worker has done is an error in the next."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.reading import Scope, is_method, names_in, root_of
from sublet.cli.work.script.splice import CannotConvert, Splice, renamed

__all__ = ["moves", "refuse_folders", "remove_once"]

ONCE = (
    "os.remove", "os.unlink", "os.rename", "os.renames", "os.replace", "os.rmdir", "os.removedirs", "os.symlink",
    "os.link", "shutil.move", "shutil.rmtree", "shutil.copytree",
)  # fmt: skip
OF_PATHS = ("rename", "replace", "rmdir", "unlink", "symlink_to", "hardlink_to")
FOLDERS = ("os.makedirs", "os.mkdir")
TWICE = ("ignore_errors", "missing_ok", "exist_ok", "dirs_exist_ok")  # words by which it may be done again
GIVES_PATHS = ("with_suffix", "with_name", "with_stem", "joinpath", "resolve", "absolute", "expanduser", "glob",
               "rglob", "iterdir")  # fmt: skip
ASKS = ("exists", "isdir", "is_dir", "isfile", "is_file")
REMOVED = ("os.remove", "os.unlink", "os.rmdir")
LISTS = ("glob", "iglob", "rglob", "iterdir", "listdir", "scandir")  # what is there


def moves(effects: Effects, call: ast.Call, scope: Scope) -> bool:
    """Whether it fails where it was done already."""
    known = effects.script.full_name(call.func) in (*ONCE, *FOLDERS)
    path = is_method(call, *OF_PATHS, "mkdir") and is_path(effects, call.func.value, scope)
    folder = effects.script.full_name(call.func) in FOLDERS or is_method(call, "mkdir")
    asked = folder and _is_asked(effects, call)  # two may ask at once: it is left to one where it can be
    return (known or path) and not asked and not _may_be_there(effects, call)


def refuse_folders(effects: Effects) -> None:
    """CannotConvert where a folder is made that may be there: a process that goes on makes it once more."""
    for node in ast.walk(effects.script.tree):
        if not isinstance(node, ast.Call) or _may_be_there(effects, node):
            continue
        made = effects.script.full_name(node.func) in FOLDERS
        made = made or (is_method(node, "mkdir") and is_path(effects, node.func.value, effects.script.scope_of(node)))
        if made and not _is_asked(effects, node):
            raise CannotConvert(
                "a folder is made that may be there: by another worker, or by the process before this one",
                node.lineno,
                "exist_ok=True",
            )


def remove_once(effects: Effects, splice: Splice, statement: ast.stmt, kept: dict[str, str]) -> str:
    """What is removed there may have been removed by the process before, after its last checkpoint.

    Whether it is there, to be asked in the condition of the statement; "" if that is said elsewhere, or goes without.
    """
    condition = ""
    for piece in (statement, *effects.reached(statement)):
        for call in [node for node in ast.walk(piece) if isinstance(node, ast.Call)]:
            if _may_be_there(effects, call) or _is_asked(effects, call) or _is_listed(effects, call):
                continue
            full, line = effects.script.full_name(call.func), effects.script.parents.get(call)
            if full == "shutil.rmtree":
                splice.put_word(call, "ignore_errors=True")
            elif is_method(call, "unlink") and is_path(effects, call.func.value, effects.script.scope_of(call)):
                splice.put_word(call, "missing_ok=True")
            elif full in REMOVED and call.args:
                asks = f"{root_of(call.func)}.path.exists({effects.script.text(call.args[0])})"
                if not isinstance(call.func, ast.Attribute) or not isinstance(line, ast.Expr):
                    raise CannotConvert(
                        "a file is removed, and a process that goes on from a checkpoint before that does it once more",
                        call.lineno,
                        "ask whether it is there: `if os.path.exists(path):` above it",
                    )
                if line is statement:
                    condition = renamed(asks, "", kept)
                else:
                    splice.put_under(line, asks)
    return condition


def _is_listed(effects: Effects, call: ast.Call) -> bool:
    """`for old in folder.glob("*.pt"): old.unlink()`."""
    names = names_in(call)
    above = [each for each in effects.script.above(call) if isinstance(each, ast.For)]
    return any(
        names & names_in(each.target) and any(is_listing(effects, node) for node in ast.walk(each.iter))
        for each in above
    )


def is_listing(effects: Effects, node: ast.AST) -> bool:
    """Whether it says what is there."""
    return isinstance(node, ast.Call) and effects.script.text(node.func).rpartition(".")[2] in LISTS


def is_path(effects: Effects, value: ast.expr, scope: Scope, seen: frozenset[str] = frozenset()) -> bool:
    """Whether it is one of pathlib's."""
    match value:
        case ast.Name():
            given = [] if value.id in seen else effects.given(value.id, scope)
            return any(is_path(effects, each, scope, seen | {value.id}) for each in given)
        case ast.BinOp(op=ast.Div()):
            return is_path(effects, value.left, scope, seen)
        case ast.Attribute(attr="parent"):
            return is_path(effects, value.value, scope, seen)
        case ast.Call(func=ast.Attribute(attr=name)) if name in GIVES_PATHS:
            return isinstance(value.func, ast.Attribute) and is_path(effects, value.func.value, scope, seen)
        case ast.Call(func=ast.Name(id="sorted" | "list")) if value.args:
            return is_path(effects, value.args[0], scope, seen)
        case ast.Call():
            return effects.script.full_name(value.func).startswith("pathlib.")
        case _:
            return False


def _may_be_there(effects: Effects, call: ast.Call) -> bool:
    said = [word.value for word in call.keywords if word.arg in TWICE]
    full = effects.script.full_name(call.func)
    places = {"os.makedirs": 2, "shutil.rmtree": 1, "os.mkdir": len(call.args)}
    place = places.get(full, 2 if is_method(call, "mkdir") else len(call.args))
    said += call.args[place : place + 1]
    return any(not isinstance(each, ast.Constant) or bool(each.value) for each in said)


def _is_asked(effects: Effects, node: ast.AST) -> bool:
    """Whether it is made only if it is not there, or nobody minds."""
    for each in effects.script.above(node):
        if isinstance(each, ast.If) and any(word in effects.script.text(each.test) for word in ASKS):
            return True
        if isinstance(each, ast.Try) and node not in [one for up in each.handlers for one in ast.walk(up)]:
            return True
    return False
