"""A plain loop becomes one of a session."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.carried import carried_in, rename
from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.extent import counted, refuse_endless, steps_of
from sublet.cli.work.script.frameworks import flags_of, stay_alone
from sublet.cli.work.script.lines import after_updates, counts, heads, keep_parts, pass_on, start_of, tell_loss
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.models import models_of
from sublet.cli.work.script.reading import Script, last_of
from sublet.cli.work.script.source import Source, source_of
from sublet.cli.work.script.sums import is_summed
from sublet.cli.work.script.update import Told, tell_update
from sublet.cli.work.script.written import guard_files

__all__ = ["to_session"]

WIDE = 110
DRAWN = "drawn"  # batches that a function draws, by name where several are one step


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


def to_session(script: Script, training: Training) -> tuple[str, list[str]]:
    """The new text, and names of what is remembered and not kept."""
    names, edits = Names.free(script), Edits(script)
    source = source_of(training)
    optimizers = _optimizers(training)
    turns = {text: _key(text, number) for number, text in enumerate(optimizers)} if len(optimizers) > 1 else {}
    told = tell_update(training, edits, names.session, turns)
    carried = carried_in(training, told.guard)
    options = _extent(training, source, told)
    options |= _batch(source, told)
    options |= told.options
    if is_summed(training):
        options["reduction"] = '"sum"'
    if "steps" in options and _is_cut_by_files(script):
        options["shards"] = "4"
    if carried.whole:
        options["extra_state"] = carried.whole
    parts = {each.removeprefix("self."): each for each in carried.parts}
    keeps = {**{name: name for name in carried.values}, **parts, **carried.objects, **told.keeps}
    pass_on(training, edits, names.session)
    heads(training, edits, source, names.session)
    counts(training, edits, carried, names.session)
    after_updates(training, edits, told, names.session)
    tell_loss(training, edits, told, names.session, plain=not (told.times or turns or "reduction" in options))
    keep_parts(training, edits, carried.parts, names.kept)
    guard_files(training, edits, names.session)
    if carried.values:
        rename(training, edits, carried.values, names.kept)
    for count, text in source.counts:
        edits.replace(count, text)
    stay_alone(script, edits)
    for flag in flags_of(script):
        edits.replace(flag, "False")
    data = DRAWN if source.drawn and told.times else _data(source, names)
    _refuse_anew(training, source, optimizers)
    header = _header(names, options, _models(training, optimizers, turns), _given(turns, optimizers), data)
    if keeps:
        words = ", ".join(f"{name}={value}" for name, value in keeps.items())
        kept = f"{names.kept} = " if carried.values or parts else ""
        header.append(f"    {kept}{names.session}.keep({words})")
    for line in source.above:
        edits.before(training.outer, line)
    if source.drawn and told.times:
        edits.before(training.outer, f"{DRAWN} = {_data(source, names)}")
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
        first = start_of(script, batches.iter) if isinstance(batches, ast.For) else "0"
        limit = steps_of(script, batches, count, first) if count else None
        if limit is None and (limit := _cut_off(training)) is None:
            scope = training.scope
            if isinstance(scope, ast.FunctionDef) and not any(script.calls_of(scope)):
                raise CannotConvert(
                    f"{scope.name}() goes over the batches once, and the loop over epochs is in another file",
                    batches.lineno,
                    "both loops in one file",
                )
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
        if inside and not any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(batches)):
            return {"epochs": f"-(-{_atom(found.turns)} // len({source.data}))"}  # which end with their last batch
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


def _refuse_anew(training: Training, source: Source, optimizers: list[str]) -> None:
    """An optimizer or a loader that is made again in the loop: the session has the one that it was given."""
    for node in ast.walk(training.outer):
        if isinstance(node, ast.Assign) and training.script.scope_of(node) is training.scope:
            for target in node.targets:
                name = training.script.text(target)
                if name in (*optimizers, source.data):
                    raise CannotConvert(
                        f"`{name}` is made anew in the loop", node.lineno, "make it once, before the loop over epochs"
                    )


def _is_cut_by_files(script: Script) -> bool:
    """A stream whose workers take every n-th of a list: of sixteen parts some would have nothing."""
    return any(
        isinstance(node, ast.Slice) and node.step is not None and "num_workers" in script.text(node.step)
        for each in ast.walk(script.tree)
        if isinstance(each, ast.ClassDef) and any("IterableDataset" in script.text(base) for base in each.bases)
        for node in ast.walk(each)
    )


def _batch(source: Source, told: Told) -> dict[str, str]:
    if not told.times:
        return {}
    batch = f"{DRAWN if source.drawn else source.data}.batch_size"
    return {"global_batch": f"{batch} * {_atom(told.times)}", "micro_batch": batch}


def _header(names: Names, options: dict[str, str], models: str, optimizers: str, data: str) -> list[str]:
    words = [models, optimizers, data, *(f"{name}={value}" for name, value in options.items())]
    line = f"with {names.module}.session({', '.join(words)}) as {names.session}:"
    if len(line) <= WIDE:
        return [line]
    return [f"with {names.module}.session(", *(f"    {word}," for word in words), f") as {names.session}:"]


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
