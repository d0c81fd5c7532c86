"""What a script writes into files, or tells a tracker: unlike a line on the screen it is there after a restart."""

from __future__ import annotations

import ast
from enum import IntEnum

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import Function, within
from sublet.cli.work.script.moves import moves
from sublet.cli.work.script.reading import Scope, is_method, names_in, root_of

__all__ = ["SAVES", "Writes", "mode_of", "told_to", "writes_file", "written_by"]

WRITERS = ("json.dump", "pickle.dump", "wandb.log", "mlflow.log_metric", "mlflow.log_metrics")
METHODS = ("write_text", "write_bytes", "writerow", "writerows", "to_csv", "to_json")
NUMPY = ("numpy.save", "numpy.savez", "numpy.savetxt", "numpy.savez_compressed")
TRACKED = ("add_scalar", "add_scalars", "add_histogram")
SAVES = ("save_pretrained", "save_checkpoint", "save_model", "save_state")
OPENS = ("open", "gzip.open", "io.open", "codecs.open", "bz2.open", "lzma.open")
# What a second worker would do as well, and that bears on no result: neither what is told is looked at, nor by what.
TOLD = (
    "add_image",
    "add_images",
    "add_text",
    "add_figure",
    "add_graph",
    "add_hparams",
    "add_embedding",
    "add_pr_curve",
)
WHOLE = (
    "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.rmtree", "shutil.copytree", "shutil.make_archive",
    "torch.jit.save", "torch.onnx.export", "torchvision.utils.save_image", "matplotlib.pyplot.savefig",
)  # fmt: skip
COMMANDS = (
    "os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "subprocess.Popen",
)  # fmt: skip
ADDS = (">>", "tee -a")  # in words of a command
LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")


class Writes(IntEnum):
    """From what does no harm if each worker does it on."""

    NOTHING = 0
    LOG = 1  # lines of `logging`, into a file
    STATE = 2  # by torch.save, and the like
    FILE = 3  # whole
    MOVED = 4  # or removed, or made, which fails where it was done already
    ROWS = 5  # that are added to what is there


def writes_file(effects: Effects, call: ast.Call, scope: Scope) -> bool:
    """Whether what it is given lasts."""
    if effects.script.full_name(call.func) in WRITERS + NUMPY or is_method(call, *METHODS, *TRACKED):
        return True
    if is_method(call, "write", "writelines"):
        return _is_file(effects, call.func.value, scope)
    if any(word.arg == "file" and _is_file(effects, word.value, scope) for word in call.keywords):
        return True
    function = _called(effects, call, scope)
    return function is not None and written_by(effects, function, function) >= Writes.FILE


def written_by(effects: Effects, piece: ast.AST, scope: Scope, seen: tuple[ast.AST, ...] = ()) -> Writes:
    """What is written there, with what is called, at its worst; what speaks of a rank is left to one worker already."""
    calls = [node for node in _run(piece) if isinstance(node, ast.Call) and not _is_ranked(effects, node, piece)]
    modes = [mode_of(effects, call) for call in calls]
    emptied = any(mode.startswith(("w", "x")) for mode in modes)
    found = Writes.FILE if emptied else Writes.NOTHING
    if any("a" in mode or "+" in mode for mode in modes):
        return Writes.ROWS
    for call in calls:
        found = max(found, _written(effects, call, scope, fresh=emptied))
        function = _called(effects, call, scope)
        if function is not None and function not in seen and function is not piece:
            found = max(found, written_by(effects, function, function, (*seen, piece, function)))
    return found


def _run(piece: ast.AST) -> list[ast.AST]:
    """All that runs with it; of a function, its body."""
    return [node for each in piece.body for node in within(each)] if isinstance(piece, Function) else [*within(piece)]


def _written(effects: Effects, call: ast.Call, scope: Scope, *, fresh: bool) -> Writes:
    """By this call alone. `fresh`: rows go to a file that is begun there."""
    full = effects.script.full_name(call.func)
    if full == "torch.save" or is_method(call, *SAVES):
        return Writes.STATE
    if told_to(effects, call):
        return Writes.ROWS
    rows = is_method(call, "writerow", "writerows")
    if is_method(call, "write", "writelines"):
        rows = _is_file(effects, call.func.value, scope)
    if rows or any(word.arg == "file" and _is_file(effects, word.value, scope) for word in call.keywords):
        return Writes.FILE if fresh else Writes.ROWS
    if full in COMMANDS:
        return Writes.ROWS if any(word in effects.script.text(call) for word in ADDS) else Writes.FILE
    if moves(effects, call, scope):
        return Writes.MOVED
    if full in (*WRITERS, *NUMPY, *WHOLE, "os.mkdir") or is_method(call, *METHODS, "savefig", "unlink"):
        return Writes.FILE
    told = full.startswith("logging.") and full.rpartition(".")[2] in LEVELS
    told = told or (is_method(call, *LEVELS) and _is_logger(effects, root_of(call.func), scope))
    return Writes.LOG if told and _logs_to_file(effects) else Writes.NOTHING


def told_to(effects: Effects, call: ast.AST) -> bool:
    """Whether a tracker is told something."""
    full = effects.script.full_name(call.func) if isinstance(call, ast.Call) else ""
    return is_method(call, *TRACKED, *TOLD) or full.startswith(("wandb.log", "mlflow.log_"))


def _called(effects: Effects, call: ast.Call, scope: Scope) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function of the script, or the method of an object of it, that is called."""
    func = call.func
    if isinstance(func, ast.Name):
        if func.id in effects.functions:
            return effects.functions[func.id]
        owner, name = effects.class_of(func.id, scope), "__call__"
    elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        own = effects.script.parents.get(scope) if func.value.id == "self" else None
        owner = own if isinstance(own, ast.ClassDef) else effects.class_of(func.value.id, scope)
        name = func.attr
    else:
        return None
    methods = owner.body if owner is not None and not effects.is_module(owner) else []
    return next((each for each in methods if isinstance(each, Function) and each.name == name), None)


def _is_ranked(effects: Effects, node: ast.AST, piece: ast.AST) -> bool:
    """Whether a condition within the piece speaks of ranks."""
    for each in effects.script.above(node):
        if isinstance(each, ast.If | ast.IfExp) and any(
            word in effects.script.text(each.test).lower() for word in ("rank", "main", "master")
        ):
            return True
        if each is piece:
            return False
    return False


def _is_file(effects: Effects, value: ast.expr, scope: Scope) -> bool:
    names = names_in(value)
    held = effects.same_as(names, scope)
    if any(mode_of(effects, given) for name in held for given in effects.given(name, scope)):
        return True
    if any(mode_of(effects, node) for node in ast.walk(value)):  # open("log.txt", "a").write(...)
        return True
    owner = effects.script.parents.get(scope)
    if "self" in names and isinstance(owner, ast.ClassDef):
        return any(mode_of(effects, node) not in ("", "r", "rb", "rt") for node in ast.walk(owner))
    return isinstance(scope, Function) and root_of(value) in {each.arg for each in scope.args.args}


def _is_logger(effects: Effects, name: str, scope: Scope) -> bool:
    made = [effects.script.full_name(each.func) for each in effects.given(name, scope) if isinstance(each, ast.Call)]
    return any(full.rpartition(".")[2] == "getLogger" for full in made)


def _logs_to_file(effects: Effects) -> bool:
    for node in ast.walk(effects.script.tree):
        full = effects.script.full_name(node.func) if isinstance(node, ast.Call) else ""
        if full.rpartition(".")[2] in ("FileHandler", "RotatingFileHandler", "TimedRotatingFileHandler"):
            return True
        if full == "logging.basicConfig" and isinstance(node, ast.Call):
            return any(word.arg == "filename" for word in node.keywords)
    return False


def mode_of(effects: Effects, value: ast.AST) -> str:
    """In which a file is opened there; "" if none is."""
    if not isinstance(value, ast.Call):
        return ""
    by_name = effects.script.full_name(value.func) in OPENS
    if not by_name and (not is_method(value, "open") or effects.is_imported(value.func)):
        return ""
    place = value.args[1:2] if by_name else value.args[:1]
    given = [*place, *(word.value for word in value.keywords if word.arg == "mode")]
    said = str(given[0].value) if given and isinstance(given[0], ast.Constant) else "r"
    return said if set(said) <= set("rwxabtU+") else "r"
