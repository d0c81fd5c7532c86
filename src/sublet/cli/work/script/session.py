"""A plain loop becomes one of a session."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.carried import Carried, carried_in, rename
from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.extent import Counted, counted, refuse_endless, steps_of
from sublet.cli.work.script.loops import Hop, Training, bar_of, statement_of
from sublet.cli.work.script.models import models_of
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in
from sublet.cli.work.script.source import Source, source_of
from sublet.cli.work.script.sums import is_summed
from sublet.cli.work.script.update import Told, tell_update
from sublet.cli.work.script.written import guard_files

__all__ = ["to_session"]

WIDE = 110
SHOWN = ("print", "info", "debug", "write", "set_postfix", "set_description", "log", "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """That nothing else in the script has."""

    module: str
    session: str
    kept: str

    @classmethod
    def free(cls, script: Script) -> Names:
        """The guide's, where they are."""
        taken = script.names | {each.arg for each in ast.walk(script.tree) if isinstance(each, ast.arg)}
        found = [
            next(name for name in names if name not in taken)
            for names in (
                ("train", "elastic", "sublet_train"),
                ("s", "session", "sublet_session"),
                ("kept", "sublet_kept"),
            )
        ]
        return cls(module=found[0], session=found[1], kept=found[2])


def to_session(script: Script, training: Training) -> tuple[str, list[tuple[str, int]]]:
    """The new text, and what is remembered and not kept: its names and lines."""
    names, edits = Names.free(script), Edits(script)
    source = source_of(training)
    optimizers = _optimizers(training)
    turns = {text: _key(text, number) for number, text in enumerate(optimizers)} if len(optimizers) > 1 else {}
    told = tell_update(training, edits, names.session, turns)
    carried = carried_in(training, micro=training.micro is not None)
    options = _extent(training, source, told)
    options |= _batch(source, told, training)
    options |= told.options
    if is_summed(training):
        options["reduction"] = '"sum"'
    keeps = {**{name: name for name in (*carried.values, *carried.objects)}, **told.keeps}
    _pass_on(training, edits, names.session)
    _head(training, edits, source, names.session)
    _counts(training, edits, carried, names.session)
    _after_updates(training, edits, told, names.session)
    _tell_loss(training, edits, told, names.session, plain=not (told.times or turns or "reduction" in options))
    guard_files(training, edits, names.session)
    if carried.values:
        rename(training, edits, carried.values, names.kept)
    header = _header(
        names, options, _models(training, optimizers, turns), _given(turns, optimizers), _data(source, names)
    )
    if keeps:
        words = ", ".join(f"{name}={value}" for name, value in keeps.items())
        kept = f"{names.kept} = " if carried.values else ""
        header.append(f"    {kept}{names.session}.keep({words})")
    for line in source.above:
        edits.before(training.outer, line)
    edits.put_under([training.outer], "\n".join(header))
    _import(script, edits, names.module)
    return edits.result(), carried.lost


# ------------------------------------------------------------------------------------------- what the session is given


def _optimizers(training: Training) -> list[str]:
    return list(dict.fromkeys(training.lifted(update.optimizer) for update in training.updates))


def _key(text: str, number: int) -> str:
    last = text.rsplit(".", 1)[-1]
    return last if last.isidentifier() else f"{number}"


def _models(training: Training, optimizers: list[str], turns: dict[str, str]) -> str:
    by_text = {training.lifted(update.optimizer): update.optimizer for update in training.updates}
    if not turns:
        models = models_of(training, by_text[optimizers[0]])
        if len(models) == 1:
            return models[0]
        return "{" + ", ".join(f'"{_key(each, number)}": {each}' for number, each in enumerate(models)) + "}"
    parts: dict[str, str] = {}
    for text in optimizers:
        for number, model in enumerate(models_of(training, by_text[text])):
            parts[_key(model, number)] = model
    if len(set(parts.values())) == 1:
        return next(iter(parts.values()))
    return "{" + ", ".join(f'"{key}": {model}' for key, model in parts.items()) + "}"


def _given(turns: dict[str, str], optimizers: list[str]) -> str:
    if not turns:
        return optimizers[0]
    return "{" + ", ".join(f'"{key}": {text}' for text, key in turns.items()) + "}"


def _data(source: Source, names: Names) -> str:
    return source.data.replace("DRAWN(", f"{names.module}.drawn(", 1)


def _extent(training: Training, source: Source, told: Told) -> dict[str, str]:
    script, batches, epochs = training.script, training.batches, training.epochs
    if source.loader is None:
        found = counted(script, batches)
        if found is None:
            raise refuse_endless(batches)
        turns = found.turns
        if told.guard is not None:
            turns = f"{_atom(turns)} // {_atom(told.times)}"
        if epochs is not None:
            outer = counted(script, epochs)
            if outer is None:
                raise refuse_endless(epochs)
            turns = f"{_atom(outer.turns)} * {_atom(turns)}"
        return {"steps": turns}
    if epochs is None:
        count = _step_name(training)
        limit = steps_of(script, batches, count) if count else None
        if limit is None and (limit := _cut_off(training)) is None:
            return {"epochs": "1"}
        return {"steps": limit}
    found = counted(script, epochs)
    if isinstance(epochs, ast.While):
        if found is None:
            raise refuse_endless(epochs)
        inside = any(
            isinstance(node, ast.AugAssign) and training.script.text(node.target) == found.name
            for node in ast.walk(batches)
        )
        return {"steps" if inside else "epochs": found.turns}
    if found is None:
        count = _counter_in(training)
        limit = steps_of(script, epochs, count) if count else None
        if limit is None:
            raise refuse_endless(epochs)
        return {"steps": limit}
    return {"epochs": found.turns}


def _atom(text: str) -> str:
    tree = ast.parse(text, mode="eval").body
    return text if isinstance(tree, ast.Name | ast.Attribute | ast.Constant | ast.Call) else f"({text})"


def _step_name(training: Training) -> str:
    """The number of a batch, as `enumerate` gives it."""
    loop = training.batches
    if (
        isinstance(loop, ast.For)
        and isinstance(loop.target, ast.Tuple)
        and "enumerate" in training.script.text(loop.iter)
    ):
        return last_of(loop.target.elts[0])
    return _counter_in(training)


def _counter_in(training: Training) -> str:
    for node in ast.walk(training.batches):
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant) and node.value.value == 1:
            return training.script.text(node.target)
    return ""


def _cut_off(training: Training) -> str | None:
    """N of `islice(loader, N)`."""
    loop = training.batches
    assert isinstance(loop, ast.For)  # noqa: S101 - it goes over a loader
    for node in ast.walk(loop.iter):
        name = training.script.full_name(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name.endswith("islice") and len(node.args) == 2:  # noqa: PLR2004 - it and N
            return training.script.text(node.args[1])
    return None


def _batch(source: Source, told: Told, training: Training) -> dict[str, str]:
    if not told.times:
        return {}
    if source.drawn:
        return {"accumulate": told.times}
    return {"global_batch": f"{source.batch} * {_atom(told.times)}", "micro_batch": source.batch}


def _header(names: Names, options: dict[str, str], models: str, optimizers: str, data: str) -> list[str]:
    options = dict(options)
    accumulate = options.pop("accumulate", None)
    if accumulate is not None:
        data = f"{data[:-1]}, accumulate={accumulate})"
    words = [models, optimizers, data, *(f"{name}={value}" for name, value in options.items())]
    line = f"with {names.module}.session({', '.join(words)}) as {names.session}:"
    if len(line) <= WIDE:
        return [line]
    return [f"with {names.module}.session(", *(f"    {word}," for word in words), f") as {names.session}:"]


# ------------------------------------------------------------------------------------------- lines of the loop


def _pass_on(training: Training, edits: Edits, session: str) -> None:
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


def _head(training: Training, edits: Edits, source: Source, session: str) -> None:
    """The heads of both loops."""
    script, batches, epochs = training.script, training.batches, training.epochs
    if source.loader is not None:
        assert isinstance(batches, ast.For)  # noqa: S101 - it goes over a loader
        _over(training, edits, batches, source.loader, session)
    else:
        edits.remove(*source.gone)
        _new_head(script, edits, batches, f"for {source.target} in {session}:")
        found = counted(script, batches)
        if found is not None and found.name and isinstance(batches, ast.For) and found.name != "_":
            if found.name in {name for each in batches.body for name in names_in(each)}:
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
    used = found.name in {name for each in epochs.body for name in names_in(each)}
    if first != "0" and found.name and used:
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
        edits.after(before[-1], "begins = False")
    edits.dissolve(micro)
    name = last_of(micro.target)
    if name in {each for line in micro.body for each in names_in(line)}:
        times = _atom(training.script.text(micro.iter.args[0]))  # type: ignore[attr-defined]  # it is range(k)
        edits.before(micro.body[0], f"{name} = {times} - 1 if {session}.gives_last else 0")


def _counts(training: Training, edits: Edits, carried: Carried, session: str) -> None:
    """A count of steps follows from the session's: a worker that joins has it, too."""
    top = training.batches.body[0]
    for name, first in carried.counts.items():
        edits.before(top, f"{name} = {session}.steps{'' if first == '0' else f' + {first}'}")
        if training.epochs is not None and _is_read_before(training, name):
            edits.before(training.epochs.body[0], f"{name} = {session}.steps{'' if first == '0' else f' + {first}'}")
    for name, first in carried.counts_in_epoch.items():
        edits.before(top, f"{name} = {session}.steps_in_epoch{'' if first == '0' else f' + {first}'}")
    loop = training.batches
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and "enumerate" in training.script.text(loop.iter):
        target = loop.target
        if (
            isinstance(target, ast.Tuple)
            and isinstance(target.elts[0], ast.Name)
            and not _is_shown(training, target.elts[0].id)
        ):
            name, start = target.elts[0].id, _start(training.script, loop.iter)
            what = "steps_in_epoch" if training.epochs is not None else "steps"
            edits.before(top, f"{name} = {session}.{what}{'' if start == '0' else f' + {start}'}")


def _start(script: Script, call: ast.expr) -> str:
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
    for node in ast.walk(training.batches):
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        statement: ast.AST = statement_of(script, node)
        if isinstance(statement, ast.If):
            shown = all(_shows(each) for each in statement.body) and not statement.orelse
        else:
            shown = _shows(statement)
        if not shown:
            return False
    return True


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


def _after_updates(training: Training, edits: Edits, told: Told, session: str) -> None:
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
                edits.after(rest[-1], "begins = True")
        return
    node: ast.AST = told.steps[-1]
    path: list[ast.AST] = [node, *script.above(node)]
    if training.within:
        node = training.within[-1].call
        path = [node, *script.above(node)]
    for child, parent in zip(path, path[1:], strict=False):
        block = getattr(parent, "body", None)
        if isinstance(block, list) and child in block and not isinstance(parent, ast.FunctionDef):
            rest = [each for each in block[block.index(child) + 1 :] if not edits.is_removed(each)]
            if rest and not all(map(_shows, rest)):
                while rest and _shows(rest[0]) and not isinstance(rest[0], ast.AugAssign | ast.If | ast.Assign):
                    rest = rest[1:]
                edits.put_under(rest, f"if {session}.updated:")
        if parent is training.batches:
            return


def _tell_loss(training: Training, edits: Edits, told: Told, session: str, *, plain: bool) -> None:
    """`loss.item()` after the step is that of a worker's part: `s.loss` is that of all."""
    if not (plain and told.loss.isidentifier()):
        return
    step = told.steps[-1]
    for node in ast.walk(training.inner_scope):
        if not isinstance(node, ast.Call) or node.lineno <= step.lineno:
            continue
        if is_method(node, "item") and _is_the_loss(node.func.value, told.loss) and _alone(training, node):
            edits.replace(node, f"{session}.loss")


def _is_the_loss(node: ast.expr, name: str) -> bool:
    while is_method(node, "detach", "cpu") or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.func.value if isinstance(node, ast.Call) else node.value  # type: ignore[attr-defined]  # both have it
    return isinstance(node, ast.Name) and node.id == name


def _alone(training: Training, node: ast.AST) -> bool:
    """In the loop, and not times the samples of a worker's part."""
    above = list(training.script.above(node))
    if not training.within and training.batches not in above:
        return False
    text = training.script.text(statement_of(training.script, node))
    statement = statement_of(training.script, node)
    return isinstance(statement, ast.If | ast.For) or not (
        ("size(" in text or "len(" in text or ".shape" in text) and "*" in text
    )


def _import(script: Script, edits: Edits, module: str) -> None:
    last: ast.stmt | None = None
    for each in script.tree.body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            last = each
        elif last is not None and isinstance(each, ast.FunctionDef | ast.ClassDef | ast.For | ast.While):
            break
    name = "" if module == "train" else f" as {module}"
    if last is None:
        edits.before(script.tree.body[0], f"from sublet import train{name}")
        return
    edits.after(last, "")
    edits.after(last, f"from sublet import train{name}")


_ = Hop, Counted
