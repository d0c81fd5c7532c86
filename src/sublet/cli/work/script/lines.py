"""Lines of the loop as they are with a session: heads, counts, what follows an update, the loss that is printed."""

from __future__ import annotations

import ast
import itertools

from sublet.cli.work.script.carried import Carried
from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.extent import counted
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.over import bar_of
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in, statement_of
from sublet.cli.work.script.source import Source
from sublet.cli.work.script.update import Told

__all__ = ["after_updates", "counts", "heads", "keep_parts", "pass_on", "start_of", "tell_loss"]

SHOWN = ("print", "info", "debug", "write", "set_postfix", "set_description", "log", "format")


def pass_on(training: Training, edits: Edits, session: str) -> None:
    """Functions between the session and the update are given it."""
    done: set[ast.FunctionDef] = set()
    for hop in (*training.hops, *training.within):
        given, call = hop.function.args, hop.call
        text = training.script.text(call)[:-1].rstrip()
        comma = "" if text.endswith("(") else " " if text.endswith(",") else ", "
        edits.insert(call.end_lineno or 0, (call.end_col_offset or 1) - 1, f"{comma}{session}={session}")
        if hop.function in done:
            continue
        done.add(hop.function)
        formal = [*given.posonlyargs, *given.args]
        if given.vararg or given.kwarg or given.kwonlyargs:
            raise CannotConvert(
                f"{hop.function.name}() takes arguments of any number or by name alone",
                hop.function.lineno,
                "the loop over batches where the loop over epochs is",
            )
        default = "=None" if given.defaults else ""
        if formal:
            last: ast.expr | ast.arg = given.defaults[-1] if given.defaults else formal[-1]
            edits.insert(last.end_lineno or 0, last.end_col_offset or 0, f", {session}{default}")
        else:
            line = training.script.lines[hop.function.lineno - 1].encode()
            column = line.index(b"(", hop.function.col_offset) + 1
            edits.insert(hop.function.lineno, column, session)


def heads(training: Training, edits: Edits, source: Source, session: str) -> None:
    """The heads of both loops."""
    script, batches, epochs = training.script, training.batches, training.epochs
    if source.loader is not None:
        assert isinstance(batches, ast.For)  # noqa: S101 - it goes over a loader
        _over(training, edits, batches, source.loader, session)
    else:
        edits.remove(*source.gone)
        _new_head(script, edits, batches, f"for {source.target} in {session}:")
        found = counted(script, batches)
        used = {name for each in batches.body for name in names_in(each)} - {"_"}
        if found is not None and isinstance(batches, ast.For) and found.name in used:
            first = "" if found.first == "0" else f" + {found.first}"
            edits.before(batches.body[0], f"{found.name} = {session}.steps{first}")
        if training.micro is not None:
            _unroll(training, edits, session)
    if epochs is None:
        return
    if source.loader is None:
        raise CannotConvert(
            "batches are drawn in a loop within another", batches.lineno, "one loop over all steps; or a DataLoader"
        )
    found = counted(script, epochs)
    if isinstance(epochs, ast.While) or found is None or found.call is None:
        name = found.name if found is not None and found.name.isidentifier() else "_"
        inside = any(isinstance(node, ast.AugAssign) and script.text(node.target) == name for node in ast.walk(batches))
        name = "_" if inside else name
        if isinstance(epochs, ast.For):
            name = script.text(epochs.target)
        _new_head(script, edits, epochs, f"for {name} in {session}.epochs():")
        return
    if isinstance(epochs.iter, ast.Name):
        edits.replace(epochs.iter, f"{session}.epochs()")
    else:
        edits.replace(found.call, f"{session}.epochs()")
    first = found.first if found.first.isdigit() else "0"
    is_used = found.name in {name for each in epochs.body for name in names_in(each)}
    if first != "0" and found.name and is_used:
        edits.before(epochs.body[0], f"{found.name} += {first}")


def _over(training: Training, edits: Edits, loop: ast.For, loader: ast.expr, session: str) -> None:
    script, over = training.script, loop.iter
    for node in ast.walk(over):
        name = script.full_name(node.func) if isinstance(node, ast.Call) else ""
        if name.rsplit(".", 1)[-1] in ("islice", "cycle") and isinstance(node, ast.Call):
            edits.replace(node, session)
            return
    inside = any(node is loader for node in ast.walk(over))
    if inside:
        edits.replace(loader, session)
        return
    for node in ast.walk(over):
        if isinstance(node, ast.Name) and (bar := bar_of(script, node, script.scope_of(loop))) is not None:
            if bar.lineno >= training.outer.lineno or training.hops:
                edits.replace(loader, session)
            else:
                edits.replace(node, session)
            return
    edits.replace(over, session)


def _new_head(script: Script, edits: Edits, loop: ast.For | ast.While, text: str) -> None:
    """Another first line of a loop."""
    end = loop.iter if isinstance(loop, ast.For) else loop.test
    line = script.lines[(end.end_lineno or 1) - 1].encode()
    column = line.index(b":", end.end_col_offset or 0) + 1
    whole = ast.Pass(lineno=loop.lineno, col_offset=loop.col_offset, end_lineno=end.end_lineno, end_col_offset=column)
    edits.replace(whole, text)


def _unroll(training: Training, edits: Edits, session: str) -> None:
    """`for _ in range(k):` around the losses: the session gives these batches one by one."""
    micro, body = training.micro, training.batches.body
    assert micro is not None  # noqa: S101 - asked before
    if micro not in body:
        raise CannotConvert("the loop over micro-batches is under a condition", micro.lineno, "a loop of its own")
    at = body.index(micro)
    before = [each for each in body[:at] if not edits.is_removed(each)]
    if before:
        edits.before(training.outer, "begins = True")
        edits.put_under(before, "if begins:")
        edits.after(before[-1], "begins = False", inside=True)
    edits.dissolve(micro)
    name = last_of(micro.target)
    if name in {each for line in micro.body for each in names_in(line)}:
        assert isinstance(micro.iter, ast.Call)  # noqa: S101 - it is range(k)
        last = f"{training.script.text(micro.iter.args[0])} - 1"
        edits.before(micro.body[0], f"{name} = {last} if {session}.gives_last else 0")


def counts(training: Training, edits: Edits, carried: Carried, session: str) -> None:
    """A count of steps follows from the session's: a worker that joins has it, too."""
    top = training.batches.body[0]
    for name, first in carried.counts.items():
        edits.before(top, f"{name} = {session}.steps{'' if first == '0' else f' + {first}'}")
        if training.epochs is not None and _is_read_before(training, name):
            edits.before(training.epochs.body[0], f"{name} = {session}.steps{'' if first == '0' else f' + {first}'}")
    for name, first in carried.counts_in_epoch.items():
        edits.before(top, f"{name} = {session}.steps_in_epoch{'' if first == '0' else f' + {first}'}")
    loop = training.batches
    if isinstance(loop, ast.For) and _numbers(training, loop):
        target = loop.target
        if (
            isinstance(target, ast.Tuple)
            and isinstance(target.elts[0], ast.Name)
            and not _is_shown(training, target.elts[0].id)
        ):
            name, start = target.elts[0].id, start_of(training.script, _numbers(training, loop) or loop.iter)
            what = "steps_in_epoch" if training.epochs is not None else "steps"
            edits.before(top, f"{name} = {session}.{what}{'' if start == '0' else f' + {start}'}")


def _numbers(training: Training, loop: ast.For) -> ast.expr | None:
    """`enumerate(...)` in the loop's head, or in that of a bar with a name."""
    over: ast.expr | None = loop.iter
    if isinstance(over, ast.Name):
        over = bar_of(training.script, over, training.script.scope_of(loop))
    return over if over is not None and "enumerate" in training.script.text(over) else None


def keep_parts(training: Training, edits: Edits, parts: list[str], kept: str) -> None:
    """Values of `self` are those that are kept when an epoch begins, and are kept when it is over."""
    if parts and training.epochs is not None:
        ours, theirs = ", ".join(parts), ", ".join(f"{kept}.{each.removeprefix('self.')}" for each in parts)
        edits.before(training.epochs.body[0], f"{ours} = {theirs}")
        edits.after(training.epochs.body[-1], f"{theirs} = {ours}")


def start_of(script: Script, call: ast.expr) -> str:
    """The first number that `enumerate` gives."""
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and script.full_name(node.func) == "enumerate":
            given = [*node.args[1:], *(word.value for word in node.keywords)]
            return script.text(given[0]) if given else "0"
    return "0"


def _is_shown(training: Training, name: str) -> bool:
    """Whether nothing but what is printed goes by it; batches that are accumulated are counted by themselves."""
    script = training.script
    if any(
        isinstance(each, ast.If)
        and "%" in script.text(each.test)
        and each in list(script.above(training.updates[0].call))
        for each in ast.walk(training.batches)
    ):
        return True
    for node in training.lines():
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        statement: ast.AST = statement_of(script, node)
        if isinstance(statement, ast.If):
            shown = all(map(_prints, statement.body)) and not statement.orelse
        else:
            shown = _prints(statement)
        if not shown:
            return False
    return True


def _prints(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and _shows(statement)


def _shows(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_of(statement.value.func) in SHOWN
    if isinstance(statement, ast.If):
        return all(map(_shows, statement.body)) and all(map(_shows, statement.orelse))
    if isinstance(statement, ast.AugAssign):
        return any(is_method(node, "item", "sum", "size") for node in ast.walk(statement.value))
    if isinstance(statement, ast.Assign):
        return all(isinstance(each, ast.Name) for each in statement.targets) and not any(
            isinstance(node, ast.Attribute) and node.attr == "param_groups" for node in ast.walk(statement)
        )
    return isinstance(statement, ast.Return | ast.Pass)


def _is_read_before(training: Training, name: str) -> bool:
    assert training.epochs is not None  # noqa: S101 - asked before
    return any(name in names_in(each) for each in training.epochs.body if each.lineno < training.batches.lineno)


def after_updates(training: Training, edits: Edits, told: Told, session: str) -> None:
    """What follows an update is done once for each: not where a step was dropped with a worker that was lost."""
    script = training.script
    if told.guard is not None:
        edits.replace(told.guard.test, f"{session}.updated")
        return
    if training.micro is not None:
        body = training.batches.body
        rest = [each for each in body[body.index(training.micro) + 1 :] if not edits.is_removed(each)]
        if rest:
            edits.put_under(rest, f"if {session}.updated:")
            if body.index(training.micro):
                edits.after(rest[-1], "begins = True", inside=True)
        return
    node: ast.AST = told.steps[-1]
    path: list[ast.AST] = [node, *script.above(node)]
    if training.within:
        node = training.within[-1].call
        path = [node, *script.above(node)]
    for child, parent in itertools.pairwise(path):
        block = getattr(parent, "body", None)
        if isinstance(block, list) and child in block and not isinstance(parent, ast.FunctionDef):
            rest = [each for each in block[block.index(child) + 1 :] if not edits.is_removed(each)]
            if rest and not all(map(_shows, rest)):
                while rest and _shows(rest[0]) and not isinstance(rest[0], ast.AugAssign | ast.If | ast.Assign):
                    rest = rest[1:]
                edits.put_under(rest, f"if {session}.updated:")
        if parent is training.batches:
            return


def tell_loss(training: Training, edits: Edits, told: Told, session: str, *, plain: bool) -> None:
    """`loss.item()` after the step is that of a worker's part: `s.loss` is that of all."""
    if not (plain and told.loss.isidentifier()):
        return
    step = told.steps[-1]
    for node in ast.walk(training.inner_scope):
        if not isinstance(node, ast.Call) or node.lineno <= step.lineno or _is_another(training, node, told.loss, step):
            continue
        if is_method(node, "item") and _is_the_loss(node.func.value, told.loss) and _alone(training, node):
            edits.replace(node, f"{session}.loss")


def _is_another(training: Training, node: ast.Call, name: str, step: ast.stmt) -> bool:
    """Whether the name has been given something else since, such as the loss of an evaluation."""
    return any(
        isinstance(each, ast.Name)
        and each.id == name
        and isinstance(each.ctx, ast.Store)
        and step.lineno < each.lineno <= node.lineno
        for each in ast.walk(training.inner_scope)
    )


def _is_the_loss(node: ast.expr, name: str) -> bool:
    while is_method(node, "detach", "cpu") or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.func.value if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == name


def _alone(training: Training, node: ast.AST) -> bool:
    """In the loop, and not times the samples of a worker's part."""
    above = list(training.script.above(node))
    if not training.within and training.outer not in above and training.batches not in above:
        return False
    text = training.script.text(statement_of(training.script, node))
    statement = statement_of(training.script, node)
    return isinstance(statement, ast.If | ast.For) or not (
        ("size(" in text or "len(" in text or ".shape" in text) and "*" in text
    )
