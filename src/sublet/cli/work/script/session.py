"""A plain loop becomes one of a session."""

from __future__ import annotations

import ast

from sublet.cli.work.script import lines
from sublet.cli.work.script.carried import carried_in, rename
from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.extent import atom, counted, counters, refuse_endless, steps_of
from sublet.cli.work.script.frameworks import leave_group
from sublet.cli.work.script.looks import guard_files
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.models import is_summed, models_of
from sublet.cli.work.script.reading import CannotConvert, Script, last_of, stores_in
from sublet.cli.work.script.source import Source, source_of
from sublet.cli.work.script.update import Told, tell_update

__all__ = ["to_session"]

WIDE = 110
DRAWN = "drawn"  # batches that a function draws, by name where several are one step


NAMES = (("train", "elastic", "sublet_train"), ("s", "session", "sublet_session"), ("kept", "keeps", "sublet_kept"))


def to_session(script: Script, training: Training) -> tuple[str, list[str]]:
    """The new text, and names of what is remembered and not kept."""
    taken, edits = script.names | {each.arg for each in script.nodes if isinstance(each, ast.arg)}, Edits(script)
    module, session, kept = [next(name for name in names if name not in taken) for names in NAMES]  # the guide's first
    source = source_of(training)
    optimizers = list(dict.fromkeys(training.lifted(update.optimizer) for update in training.updates))
    turns = {text: _key(text, number) for number, text in enumerate(optimizers)} if len(optimizers) > 1 else {}
    told = tell_update(training, edits, session, turns)
    carried = carried_in(training, told.guard)
    data = DRAWN if source.drawn and told.times else source.data.replace("DRAWN(", f"{module}.drawn(", 1)
    options = _extent(training, source, told)
    if told.times:
        batch = f"{DRAWN if source.drawn else source.data}.batch_size"
        options |= {"global_batch": f"{batch} * {atom(told.times)}", "micro_batch": batch}
    options |= told.options
    if is_summed(training):
        options["reduction"] = '"sum"'
    if "steps" in options and _is_cut_by_files(script):
        options["shards"] = "4"
    if carried.whole:
        options["extra_state"] = carried.whole
    begins = _begins(training, carried.counts)
    parts = {each.removeprefix("self."): each for each in carried.parts}
    values = {name: name for name in carried.values}
    keeps = {**values, **begins, **parts, **carried.objects, **told.keeps}
    lines.pass_on(training, edits, session)
    lines.heads(training, edits, source, session, kept)
    lines.counts(training, edits, carried, told.guard, session, kept)
    lines.after_updates(training, edits, told, session)
    if not (told.times or turns or "reduction" in options):
        lines.tell_loss(training, edits, told, session)
    lines.keep_parts(training, edits, carried.parts, kept)
    guard_files(training, edits, session)
    rename(training, edits, carried.values, kept)
    for count, text in source.counts:
        edits.replace(count, text)
    leave_group(script, edits)
    _refuse_anew(training, (*optimizers, source.data))
    words = [_models(training, optimizers), _given(turns, optimizers), data]
    header = _header(module, session, [*words, *(f"{name}={value}" for name, value in options.items())])
    if keeps:
        given = ", ".join(f"{name}={value}" for name, value in keeps.items())
        header.append(f"    {f'{kept} = ' if values or parts or begins else ''}{session}.keep({given})")
    if source.drawn and told.times:
        source.above.append(f"{DRAWN} = {source.data.replace('DRAWN(', f'{module}.drawn(', 1)}")
    for line in source.above:
        edits.before(training.outer, line)
    edits.put_under([training.outer], "\n".join(header))
    _import(script, edits, module)
    return edits.result(), carried.lost


# ------------------------------------------------------------------------------------------- what the session is given


def _key(text: str, number: int) -> str:
    last = text.rsplit(".", 1)[-1]
    return last if last.isidentifier() else f"{number}"


def _models(training: Training, optimizers: list[str]) -> str:
    by_text = {training.lifted(update.optimizer): update.optimizer for update in training.updates}
    found = list(dict.fromkeys(model for text in optimizers for model in models_of(training, by_text[text])))
    if len(found) == 1:
        return found[0]
    return "{" + ", ".join(f'"{_key(each, number)}": {each}' for number, each in enumerate(found)) + "}"


def _given(turns: dict[str, str], optimizers: list[str]) -> str:
    return "{" + ", ".join(f'"{key}": {text}' for text, key in turns.items()) + "}" if turns else optimizers[0]


def _extent(training: Training, source: Source, told: Told) -> dict[str, str]:
    script, batches, epochs = training.script, training.batches, training.epochs
    outer = None if epochs is None else counted(script, epochs)
    if source.loader is None:
        found = counted(script, batches)
        if found is None or (epochs is not None and outer is None):
            raise refuse_endless(batches if found is None or epochs is None else epochs)
        turns = found.turns if told.guard is None else f"{atom(found.turns)} // {atom(told.times)}"
        return {"steps": turns if outer is None else f"{atom(outer.turns)} * {atom(turns)}"}
    count = _step_name(training, numbers=epochs is None)
    if epochs is None:
        assert isinstance(batches, ast.For)  # noqa: S101 - it goes over a loader
        limit = steps_of(script, batches, count, lines.start_of(script, batches.iter)) if count else None
        for node in ast.walk(batches.iter):
            if limit is None and isinstance(node, ast.Call) and script.full_name(node.func).endswith("islice"):
                limit = script.text(node.args[1]) if len(node.args) == 2 else None  # noqa: PLR2004 - it and N
        scope = training.scope
        if limit is None and isinstance(scope, ast.FunctionDef) and not any(script.calls_of(scope)):
            why = f"{scope.name}() goes over the batches once, and the loop over epochs is in another file"
            raise CannotConvert(why, batches.lineno, "both loops in one file")
        return {"epochs": "1"} if limit is None else {"steps": limit}
    if isinstance(epochs, ast.For):
        limit = steps_of(script, epochs, count) if outer is None and count else None
        if outer is None and limit is None:
            raise refuse_endless(epochs)
        return {"epochs": outer.turns} if outer is not None else {"steps": limit or ""}
    if outer is None:
        raise refuse_endless(epochs)
    stores = [script.text(target) for target, _, node in stores_in(batches) if isinstance(node, ast.AugAssign)]
    if outer.name not in stores:
        return {"epochs": outer.turns}
    if not any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(batches)):
        return {"epochs": f"-(-{atom(outer.turns)} // len({source.data}))"}  # which end with their last batch
    return {"steps": outer.turns}


def _step_name(training: Training, *, numbers: bool) -> str:
    """The number of a batch, as `enumerate` gives it, or a count."""
    loop = training.batches
    over = training.script.text(loop.iter) if numbers and isinstance(loop, ast.For) else ""
    if "enumerate" in over and isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple):
        return last_of(loop.target.elts[0])
    return next((training.script.text(each) for each in counters(loop)), "")


def _begins(training: Training, counts: dict[str, str]) -> dict[str, str]:
    """Numbers at which the script begins, where that is not 0 each time: those of the first start are kept."""
    script, kept = training.script, {name: name for name, first in counts.items() if not first}
    before = [(script.text(to), value) for to, value, node in stores_in(training.scope) if _is_before(training, node)]
    for loop in (training.epochs, training.batches):
        found = None if loop is None else counted(script, loop)
        if loop is None or found is None:
            continue
        late = [value for name, value in before if name == found.name and not isinstance(value, ast.Constant)]
        name = found.start if loop is training.batches else ""
        if isinstance(loop, ast.While) and late and found.name in script.text(loop.test):
            name = found.name
        if name:
            why = f"the turns begin at `{name}`, which is not 0 where the script goes on with its own checkpoint"
            raise CannotConvert(why, loop.lineno, "a count from 0: the session restores how many were made")
        kept |= {lines.begin_of(found): found.start} if found.start else {}
    return kept


def _is_before(training: Training, node: ast.stmt | ast.NamedExpr) -> bool:
    return node.lineno < training.outer.lineno and training.script.scope_of(node) is training.scope


def _refuse_anew(training: Training, known: tuple[str, ...]) -> None:
    """An optimizer or a loader that is made again in the loop: the session has the one that it was given."""
    for target, _, node in stores_in(training.outer):
        name = training.script.text(target)
        if isinstance(node, ast.Assign) and name in known and training.script.scope_of(node) is training.scope:
            do = "make it once, before the loop over epochs"
            raise CannotConvert(f"`{name}` is made anew in the loop", node.lineno, do)


def _is_cut_by_files(script: Script) -> bool:
    """A stream whose workers take every n-th of a list: of sixteen parts some would have nothing."""
    return any(
        isinstance(node, ast.Slice) and node.step is not None and "num_workers" in script.text(node.step)
        for each in script.classes
        if any("IterableDataset" in script.text(base) for base in each.bases)
        for node in ast.walk(each)
    )


def _header(module: str, session: str, words: list[str]) -> list[str]:
    line = f"with {module}.session({', '.join(words)}) as {session}:"
    if len(line) <= WIDE:
        return [line]
    return [f"with {module}.session(", *(f"    {word}," for word in words), f") as {session}:"]


def _import(script: Script, edits: Edits, module: str) -> None:
    last: ast.stmt | None = None
    for each in script.tree.body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            last = each
        elif last is not None and isinstance(each, ast.FunctionDef | ast.ClassDef | ast.For | ast.While):
            break
    line = f"from sublet import train{'' if module == 'train' else f' as {module}'}"
    if last is None:
        edits.before(script.tree.body[0], line)
    else:
        edits.after(last, "")
        edits.after(last, line)
