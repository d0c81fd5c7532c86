"""Lines of the loop as they are with a session: heads, counts, what follows an update, the loss that is printed."""

from __future__ import annotations

import ast
import itertools

from sublet.cli.work.script.carried import Carried
from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.extent import Counted, bar_of, counted, counters
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import CannotConvert, Script, is_method, last_of, names_in, statement_of, stores_in
from sublet.cli.work.script.source import Source
from sublet.cli.work.script.update import Told

__all__ = ["after_updates", "begin_of", "counts", "heads", "keep_parts", "pass_on", "start_of", "tell_loss"]

SHOWN = ("print", "info", "debug", "write", "set_postfix", "set_description", "log", "format")


def pass_on(training: Training, edits: Edits, session: str) -> None:
    """Functions between the session and the update are given it."""
    hops = [*training.hops, *training.within]
    for hop in hops:
        text = training.script.text(hop.call)[:-1].rstrip()
        comma = "" if text.endswith("(") else " " if text.endswith(",") else ", "
        edits.insert(hop.call.end_lineno or 0, (hop.call.end_col_offset or 1) - 1, f"{comma}{session}={session}")
    for function in dict.fromkeys(hop.function for hop in hops):
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs:
            why = f"{function.name}() takes arguments of any number or by name alone"
            raise CannotConvert(why, function.lineno, "the loop over batches where the loop over epochs is")
        formal: list[ast.arg | ast.expr] = [*given.posonlyargs, *given.args]
        last = [*formal, *given.defaults][-1:]
        if last:
            default = "=None" if given.defaults else ""
            edits.insert(last[0].end_lineno or 0, last[0].end_col_offset or 0, f", {session}{default}")
        else:
            line = training.script.lines[function.lineno - 1].encode()
            edits.insert(function.lineno, line.index(b"(", function.col_offset) + 1, session)


# ------------------------------------------------------------------------------------------- heads


def heads(training: Training, edits: Edits, source: Source, session: str, kept: str) -> None:
    """The heads of both loops."""
    script, batches, epochs = training.script, training.batches, training.epochs
    if source.loader is not None:
        _over(training, edits, source.loader, session)
    else:
        edits.remove(*source.gone)
        _new_head(script, edits, batches, f"for {source.target} in {session}:")
        found = counted(script, batches)
        used = {name for each in batches.body for name in names_in(each)} - {"_"}
        if found is not None and isinstance(batches, ast.For) and found.name in used:
            edits.before(batches.body[0], f"{found.name} = {_plus(f'{session}.steps', found.first)}")
        if training.micro is not None:
            _unroll(training, training.micro, edits, session)
        if epochs is not None:
            do = "one loop over all steps; or a DataLoader"
            raise CannotConvert("batches are drawn in a loop within another", batches.lineno, do)
    if epochs is not None:
        _epochs(training, edits, epochs, session, kept)


def _epochs(training: Training, edits: Edits, loop: ast.For | ast.While, session: str, kept: str) -> None:
    script = training.script
    found = counted(script, loop)
    if isinstance(loop, ast.While) or found is None or found.call is None:
        name = found.name if found is not None and found.name.isidentifier() else "_"
        steps = name in [script.text(each) for each in counters(training.batches)]
        name = script.text(loop.target) if isinstance(loop, ast.For) else "_" if steps else name
        _new_head(script, edits, loop, f"for {name} in {session}.epochs():")
        return
    edits.replace(loop.iter if isinstance(loop.iter, ast.Name) else found.call, f"{session}.epochs()")
    used = found.name in {name for each in loop.body for name in names_in(each)}
    if (found.first != "0" and found.name and used) or found.start:
        start = f"{kept}.{begin_of(found)}" if found.start else ""
        first = [each for each in (start, found.first) if each not in ("", "0")]
        edits.before(loop.body[0], f"{found.name} += {' + '.join(first)}")
    if found.end:
        edits.before(loop.body[0], f"if {found.name} >= {found.end}:")
        edits.before(loop.body[0], "    break")


def begin_of(found: Counted) -> str:
    """What a number of epochs that are behind it is kept as."""
    last = found.start.rsplit(".", 1)[-1]
    return last if last.isidentifier() else "begins"


def _plus(text: str, first: str) -> str:
    return text if first == "0" else f"{text} + {first}"


def _over(training: Training, edits: Edits, loader: ast.expr, session: str) -> None:
    script, loop = training.script, training.batches
    assert isinstance(loop, ast.For)  # noqa: S101 - it goes over a loader
    nodes = list(ast.walk(loop.iter))
    for node in nodes:
        if isinstance(node, ast.Call) and last_of(node.func) in ("islice", "cycle"):
            edits.replace(node, session)
            return
    if loader in nodes:
        edits.replace(loader, session)
        return
    for node in nodes:
        if isinstance(node, ast.Name) and (bar := bar_of(script, node, script.scope_of(loop))) is not None:
            edits.replace(loader if bar.lineno >= training.outer.lineno or training.hops else node, session)
            return
    edits.replace(loop.iter, session)


def _new_head(script: Script, edits: Edits, loop: ast.For | ast.While, text: str) -> None:
    """Another first line of a loop."""
    end = loop.iter if isinstance(loop, ast.For) else loop.test
    column = script.lines[(end.end_lineno or 1) - 1].encode().index(b":", end.end_col_offset or 0) + 1
    whole = ast.Pass(lineno=loop.lineno, col_offset=loop.col_offset, end_lineno=end.end_lineno, end_col_offset=column)
    edits.replace(whole, text)


def _unroll(training: Training, micro: ast.For, edits: Edits, session: str) -> None:
    """`for _ in range(k):` around the losses: the session gives these batches one by one."""
    body = training.batches.body
    if micro not in body:
        raise CannotConvert("the loop over micro-batches is under a condition", micro.lineno, "a loop of its own")
    before = [each for each in body[: body.index(micro)] if not edits.is_removed(each)]
    if before:
        edits.before(training.outer, "begins = True")
        edits.put_under(before, "if begins:")
        edits.after(before[-1], "begins = False", inside=True)
    edits.dissolve(micro)
    name = last_of(micro.target)
    if name in {each for line in micro.body for each in names_in(line)}:
        last = f"{training.script.text(micro.iter.args[0])} - 1"  # type: ignore[attr-defined]  # it is range(k)
        edits.before(micro.body[0], f"{name} = {last} if {session}.gives_last else 0")


# ------------------------------------------------------------------------------------------- counts and values


def counts(training: Training, edits: Edits, carried: Carried, guard: ast.If | None, session: str, kept: str) -> None:
    """A count of steps follows from the session's: a worker that joins has it, too."""
    script, epochs, loop = training.script, training.epochs, training.batches
    top = loop.body[0]
    for name, first in carried.counts.items():
        value = f"{name} = {_plus(f'{session}.steps', first or f'{kept}.{name}')}"
        edits.before(top, value)
        if epochs is not None and any(name in names_in(e) for e in epochs.body if e.lineno < loop.lineno):
            edits.before(epochs.body[0], value)
    for name, first in carried.counts_in_epoch.items():
        edits.before(top, f"{name} = {_plus(f'{session}.steps_in_epoch', first)}")
    if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple)):
        return
    number, what = loop.target.elts[0], "steps_in_epoch" if epochs is not None else "steps"
    over = bar_of(script, loop.iter, script.scope_of(loop)) if isinstance(loop.iter, ast.Name) else loop.iter
    used = {name for each in loop.body for name in names_in(each)}
    if over is not None and "enumerate" in script.text(over) and last_of(number) in used and guard is None:
        edits.before(top, f"{last_of(number)} = {_plus(f'{session}.{what}', start_of(script, over))}")


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


# ------------------------------------------------------------------------------------------- what follows an update


def _shows(statement: ast.stmt) -> bool:
    """Whether it may be done again for a step that was dropped: it prints, or adds up what is printed."""
    if isinstance(statement, ast.If):
        return all(map(_shows, [*statement.body, *statement.orelse]))
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and last_of(statement.value.func) in SHOWN
    if isinstance(statement, ast.AugAssign):
        return any(is_method(node, "item", "sum", "size") for node in ast.walk(statement.value))
    names = all(isinstance(each, ast.Name) for each in getattr(statement, "targets", ()))
    rates = any(last_of(node) == "param_groups" for node in ast.walk(statement))
    return names and not rates and isinstance(statement, ast.Assign | ast.Return | ast.Pass)


def _meters(script: Script, statement: ast.stmt) -> bool:
    """A meter is told in each turn, or it has nothing that it could print in one without an update."""
    if isinstance(statement, ast.Assign):
        names = [each for target in statement.targets for each in getattr(target, "elts", [target])]
        return all(isinstance(each, ast.Name) for each in names)
    text = script.text(statement).lower()
    return is_method(getattr(statement, "value", statement), "update") and ("meter" in text or "metric" in text)


def after_updates(training: Training, edits: Edits, told: Told, session: str) -> None:
    """What follows an update is done once for each: not where a step was dropped with a worker that was lost."""
    script, body = training.script, training.batches.body
    if told.guard is not None:
        edits.replace(told.guard.test, f"{session}.updated")
        return
    if training.micro is not None:
        rest = [each for each in body[body.index(training.micro) + 1 :] if not edits.is_removed(each)]
        if rest:
            edits.put_under(rest, f"if {session}.updated:")
            if body.index(training.micro):
                edits.after(rest[-1], "begins = True", inside=True)
        return
    node: ast.AST = training.within[-1].call if training.within else told.steps[-1]
    for child, parent in itertools.pairwise([node, *script.above(node)]):
        block = getattr(parent, "body", None)
        if isinstance(block, list) and child in block and not isinstance(parent, ast.FunctionDef):
            rest = [each for each in block[block.index(child) + 1 :] if not edits.is_removed(each)]
            if not all(map(_shows, rest)):
                plain = lambda each: isinstance(each, ast.Expr) and _shows(each)  # noqa: E731 - of one line
                rest = list(itertools.dropwhile(plain, rest))
                last = list(itertools.takewhile(lambda each: _meters(script, each), reversed(rest)))
                metered = any(isinstance(each, ast.Expr) for each in last)
                rest = rest[: len(rest) - len(last)] if metered else rest
                if rest:
                    edits.put_under(rest, f"if {session}.updated:")
        if parent is training.batches:
            return


def tell_loss(training: Training, edits: Edits, told: Told, session: str) -> None:
    """`loss.item()` after the step is that of a worker's part: `s.loss` is that of all."""
    script, name, step = training.script, told.loss, told.steps[-1].lineno
    if not name.isidentifier():
        return
    anew = [to.lineno for to, _, _ in stores_in(training.inner_scope) if last_of(to) == name and to.lineno > step]
    for node in ast.walk(training.inner_scope):
        if not is_method(node, "item") or node.lineno <= step or any(line <= node.lineno for line in anew):
            continue
        inner: ast.AST = node.func.value
        while is_method(inner, "detach", "cpu") or (isinstance(inner, ast.Attribute) and inner.attr == "data"):
            inner = inner.value if isinstance(inner, ast.Attribute) else inner.func.value
        above, statement = list(script.above(node)), statement_of(script, node)
        looped = bool(training.within) or training.outer in above or training.batches in above
        if not (isinstance(inner, ast.Name) and inner.id == name and looped):
            continue
        text = script.text(statement)
        part = "*" in text and any(word in text for word in ("size(", "len(", ".shape"))  # times the samples of a part
        if isinstance(statement, ast.If | ast.For) or not part:
            edits.replace(node, f"{session}.loss")
