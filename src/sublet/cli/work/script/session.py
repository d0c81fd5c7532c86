"""A plain loop becomes one of a session."""

from __future__ import annotations

import ast
import itertools
import re

from sublet.cli.work.script.carried import carried_in, rename
from sublet.cli.work.script.edits import Edits, begin_of, end_of
from sublet.cli.work.script.extent import atom, bar_of, counted, counters, limit_of, plus
from sublet.cli.work.script.frameworks import leave_group
from sublet.cli.work.script.given import Source, is_summed, models_of, source_of
from sublet.cli.work.script.looks import guard_files
from sublet.cli.work.script.loops import Training, is_in
from sublet.cli.work.script.reading import CannotConvert, Script, is_method, last_of, names_in, statement_of, stores_in
from sublet.cli.work.script.update import Told, tell_update

WIDE = 110
SHOWN = ("print", "info", "debug", "write", "set_postfix", "set_description", "log", "format")
DRAWN = "drawn"  # the name of batches that a function draws, where several are one step
NAMES = (("train", "elastic", "sublet_train"), ("s", "session", "sublet_session"), ("kept", "keeps", "sublet_kept"))


def to_session(script: Script, training: Training) -> tuple[str, list[str]]:
    """The new text, and names of what the loop changes and nothing keeps."""
    edits = Edits(script)
    module, session, kept = [next(name for name in names if name not in script.names) for names in NAMES]
    source, model, optimizer = source_of(training), models_of(training), training.lifted(training.updates[0].optimizer)
    told = tell_update(training, edits, session)
    carried = carried_in(training, (model, optimizer, source.data), source.gone)
    last = edits.add_import(f"from sublet import train{'' if module == 'train' else f' as {module}'}")
    leave_group(script, edits, training.outer, last)
    data = f"{module}.drawn({source.data})" if source.drawn else source.data
    options = _extent(training, source, told)
    if told.times:
        if source.drawn:
            edits.before(training.outer, f"{DRAWN} = {data}")
            data = DRAWN
        options |= {"global_batch": f"{data}.batch_size * {atom(told.times)}", "micro_batch": f"{data}.batch_size"}
    options |= told.options
    if "steps" in options and re.search(r"::\s*[\w.]*num_workers\s*\]", script.source):
        options["shards"] = "4"  # a stream that deals its files: of 16 shards some would have none
    if is_summed(training):
        options["reduction"] = '"sum"'
    elif not told.times:
        _tell_loss(training, edits, told, session)
    if carried.whole:
        options["extra_state"] = carried.whole
    _pass_on(training, edits, session)
    _heads(training, edits, source, session)
    name, first = _number_of(training)
    if name in _names(training.batches.body) and told.guard is None:
        what = "steps" if training.epochs is None else "steps_in_epoch"
        edits.before(training.batches.body[0], f"{name} = {plus(f'{session}.{what}', first)}")
    _after_updates(training, edits, told, session)
    guard_files(training, edits, session)
    rename(training, edits, carried.values, kept)
    for count, text in source.counts:
        edits.replace(count, text)
    words = [model, optimizer, data, *(f"{name}={value}" for name, value in options.items())]
    header = _call(f"with {module}.session", words, f" as {session}:")
    if keeps := {name: name for name in (*carried.values, *carried.objects)} | told.keeps:
        gives = f"{kept} = " if carried.values else ""
        given = _call(f"{gives}{session}.keep", [f"{name}={value}" for name, value in keeps.items()], "")
        header += [f"    {line}" for line in given]
    edits.put_under([training.outer], "\n".join(header))
    return edits.result(), carried.lost


def _extent(training: Training, source: Source, told: Told) -> dict[str, str]:
    """`epochs=`, or `steps=` where the loops count steps."""
    script, batches, epochs, scope = training.script, training.batches, training.epochs, training.scope
    if epochs is None and source.loader is not None:
        name, first = _number_of(training)
        counts = {name: first} if name else dict.fromkeys(counters(script, batches))
        limits = [limit for each, at in counts.items() if (limit := limit_of(script, batches, each, at)) is not None]
        slices = [node for node in ast.walk(batches) if isinstance(node, ast.Call) and last_of(node.func) == "islice"]
        limits += [script.text(node.args[1]) for node in slices if len(node.args) == 2]  # noqa: PLR2004 - it, and how many
        if not limits and isinstance(scope, ast.FunctionDef) and not any(script.calls_of(scope)):
            why = f"{scope.name}() goes over the batches once, and the loop over epochs is in another file"
            raise CannotConvert(why, batches.lineno, "both loops in one file")
        return {"steps": limits[0]} if limits else {"epochs": "1"}
    if (outer := counted(script, training.outer)) is None:
        do = "`for epoch in range(n)`, or `while step < n` with `step += 1` in it"
        raise CannotConvert("the number of epochs or steps of this loop is not found", training.outer.lineno, do)
    if source.loader is None:
        return {"steps": outer.turns if told.guard is None else f"{atom(outer.turns)} // {atom(told.times)}"}
    if isinstance(epochs, ast.For) or outer.name not in counters(script, batches):
        return {"epochs": outer.turns}
    if not any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(batches)):
        return {"epochs": f"-(-{atom(outer.turns)} // len({source.data}))"}  # which end with their last batch
    return {"steps": outer.turns}


def _call(name: str, words: list[str], end: str) -> list[str]:
    line = f"{name}({', '.join(words)}){end}"
    return [line] if len(line) <= WIDE else [f"{name}(", *(f"    {word}," for word in words), f"){end}"]


def _pass_on(training: Training, edits: Edits, session: str) -> None:
    """Functions between the session and the update are given it."""
    for hop in training.hops:
        (line, column), text = end_of(hop.call), training.script.text(hop.call)[:-1].rstrip()
        comma = "" if text.endswith("(") else " " if text.endswith(",") else ", "
        edits.put((line, column - 1), (line, column - 1), f"{comma}{session}={session}")
    for function in dict.fromkeys(hop.function for hop in training.hops):
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs:
            why = f"{function.name}() has *args, **kwargs or keyword-only parameters"
            raise CannotConvert(why, function.lineno, "the loop over batches where the loop over epochs is")
        if last := [*given.posonlyargs, *given.args, *given.defaults][-1:]:
            edits.put(end_of(last[0]), end_of(last[0]), f", {session}{'=None' if given.defaults else ''}")
        else:
            head = training.script.lines[function.lineno - 1].encode()
            place = (function.lineno, head.index(b"(", function.col_offset) + 1)
            edits.put(place, place, session)


def _heads(training: Training, edits: Edits, source: Source, session: str) -> None:
    """The heads of both loops."""
    script, batches, epochs = training.script, training.batches, training.epochs
    if training.micro is not None:
        _unroll(training, training.micro, edits, source, session)
    if source.loader is not None:
        _over(training, edits, source.loader, session)
    else:
        edits.remove(*source.gone)
        _new_head(script, edits, batches, f"for {source.target} in {session}:")
        found = counted(script, batches)
        if found is not None and isinstance(batches, ast.For) and found.name in _names(batches.body):
            edits.before(batches.body[0], f"{found.name} = {plus(f'{session}.steps', found.first)}")
    found = None if epochs is None else counted(script, epochs)
    if isinstance(epochs, ast.For) and found is not None and found.call is not None:
        edits.replace(epochs.iter if isinstance(epochs.iter, ast.Name) else found.call, f"{session}.epochs()")
        if found.first and found.name in _names(epochs.body):
            edits.before(epochs.body[0], f"{found.name} += {found.first}")
    elif epochs is not None and found is not None:
        counts = not found.name.isidentifier() or found.name in counters(script, training.batches)
        _new_head(script, edits, epochs, f"for {'_' if counts else found.name} in {session}.epochs():")


def _names(block: list[ast.stmt]) -> set[str]:
    return {name for each in block for name in names_in(each)} - {"_"}


def _over(training: Training, edits: Edits, loader: ast.expr, session: str) -> None:
    """The loader in the head of the loop becomes the session, or the name of a bar in it, or the loader of that bar."""
    script, loop = training.script, training.batches
    assert isinstance(loop, ast.For)  # noqa: S101 - it goes over a loader
    nodes = list(ast.walk(loop.iter))
    ends = [node for node in nodes if isinstance(node, ast.Call) and last_of(node.func) in ("islice", "cycle")]
    bars = [node for node in nodes if isinstance(node, ast.Name) and bar_of(script, node, script.scope_of(loop))]
    where = [*ends, *(node for node in nodes if node is loader), *bars, loop.iter][0]
    made = bar_of(script, where, script.scope_of(loop)) if isinstance(where, ast.Name) and where is not loader else None
    inside = made is not None and (made.lineno >= training.outer.lineno or script.scope_of(loop) is not training.scope)
    edits.replace(loader if inside else where, session)


def _new_head(script: Script, edits: Edits, loop: ast.For | ast.While, text: str) -> None:
    line, column = end_of(loop.iter if isinstance(loop, ast.For) else loop.test)
    column = script.lines[line - 1].encode().index(b":", column) + 1
    edits.put(begin_of(loop), (line, column), text)


def _unroll(training: Training, micro: ast.For, edits: Edits, source: Source, session: str) -> None:
    """`for _ in range(k):` around the losses makes one turn: the session gives these batches one by one."""
    body = training.batches.body
    if micro not in body or not any(line in source.gone for line in micro.body):
        do = "`for _ in range(k)`, and next(batches) in it"
        raise CannotConvert("a turn of the loop over micro-batches takes no batch", micro.lineno, do)
    if before := [each for each in body[: body.index(micro)] if each not in source.gone]:
        edits.before(training.outer, "begins = True")
        edits.put_under(before, "if begins:")
        edits.after(before[-1], "begins = False", inside=True)
    assert isinstance(micro.iter, ast.Call)  # noqa: S101 - it is range(k)
    last = f"{training.script.text(micro.iter.args[0])} - 1 if {session}.gives_last else 0"
    edits.replace(micro.iter, f"[{last}]" if last_of(micro.target) in _names(micro.body) else "range(1)")


def _number_of(training: Training) -> tuple[str, int]:
    """The name that `enumerate` gives the number of a batch, and the first number; "" without it."""
    script, loop = training.script, training.batches
    if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple)):
        return "", 0
    over = bar_of(script, loop.iter, script.scope_of(loop)) if isinstance(loop.iter, ast.Name) else loop.iter
    for node in ast.walk(over) if over is not None else ():
        if isinstance(node, ast.Call) and script.full_name(node.func) == "enumerate":
            first = [script.text(each) for each in (*node.args[1:], *(word.value for word in node.keywords))]
            return last_of(loop.target.elts[0]), int(first[0]) if first and first[0].isdigit() else 0
    return "", 0


def _shows(line: ast.stmt) -> bool:
    """Whether it may run again for a step that is made again: it prints, or adds up what is printed."""
    if isinstance(line, ast.If):
        return all(map(_shows, [*line.body, *line.orelse]))
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
        text = ast.unparse(line).lower()
        return last_of(line.value.func) in SHOWN or (".update(" in text and ("meter" in text or "metric" in text))
    if isinstance(line, ast.AugAssign):
        return any(is_method(node, "item", "sum", "size") for node in ast.walk(line.value))
    targets = [to for target in getattr(line, "targets", ()) for to in getattr(target, "elts", [target])]
    names = all(isinstance(each, ast.Name) for each in targets) and "param_groups" not in ast.unparse(line)
    return names and isinstance(line, ast.Assign | ast.Return | ast.Pass)


def _after_updates(training: Training, edits: Edits, told: Told, session: str) -> None:
    """Lines after an update run once for each: not where a step was dropped with a worker that was lost."""
    node: ast.AST = training.micro or [training.backwards[-1], *(hop.call for hop in training.within)][-1]
    if told.guard is not None:
        edits.replace(told.guard.test, f"{session}.updated")
        return
    prints = lambda line: _shows(line) and not isinstance(line, ast.AugAssign)  # noqa: E731 - of one line
    for child, parent in itertools.pairwise([node, *training.script.above(node)]):
        block = getattr(parent, "body", None)
        if isinstance(block, list) and child in block and not isinstance(parent, ast.FunctionDef):
            rest = [each for each in block[block.index(child) + 1 :] if not edits.is_removed(each)]
            if training.micro is None:
                rest = [] if all(map(_shows, rest)) else list(itertools.dropwhile(prints, rest))
                rest = rest[: len(rest) - len(list(itertools.takewhile(prints, reversed(rest))))]
            if rest:
                edits.put_under(rest, f"if {session}.updated:")
                if child is training.micro and block[0] is not child:
                    edits.after(rest[-1], "begins = True", inside=True)
        if parent is training.batches:
            return


def _tell_loss(training: Training, edits: Edits, told: Told, session: str) -> None:
    """`loss.item()` after the step is that of a worker's part: `s.loss` is that of all."""
    script, name, step = training.script, told.loss, training.backwards[-1].lineno
    anew = [to.lineno for to, _, _ in stores_in(training.inner_scope) if last_of(to) == name and to.lineno > step]
    loops = [training.outer, training.batches, *(hop.function for hop in training.within)]
    for node in ast.walk(training.inner_scope):
        if is_method(node, "item") and step < node.lineno < min(anew, default=node.lineno + 1):
            inner: ast.AST = node.func.value
            while is_method(inner, "detach", "cpu") or (isinstance(inner, ast.Attribute) and inner.attr == "data"):
                inner = inner.value if isinstance(inner, ast.Attribute) else inner.func.value
            statement = statement_of(script, node)
            text = script.text(statement)
            part = "*" in text and any(word in text for word in ("size(", "len(", ".shape"))  # the samples of a part
            whole = isinstance(statement, ast.If | ast.For) or not part
            if isinstance(inner, ast.Name) and inner.id == name and is_in(script, node, loops) and whole:
                edits.replace(node, f"{session}.loss")
