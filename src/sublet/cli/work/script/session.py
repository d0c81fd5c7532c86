"""A loop over a DataLoader becomes the loop of a session: the diff that its owner would have made by hand."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.bars import bar_name, epochs_of, first_number, given_to
from sublet.cli.work.script.by_one import rows_after, rows_before, written_in
from sublet.cli.work.script.dice import refuse_dice
from sublet.cli.work.script.effects import Done, Effects
from sublet.cli.work.script.emptied import refuse_emptied
from sublet.cli.work.script.facts import REFUSED, Facts, Loop, Made
from sublet.cli.work.script.files import Writes
from sublet.cli.work.script.flow import Flow, Roles
from sublet.cli.work.script.grades import Grade
from sublet.cli.work.script.ignored import refuse_ignored
from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.leaving import early_ends, is_left_early, refuse_skips
from sublet.cli.work.script.memories import refuse_memories
from sublet.cli.work.script.moves import refuse_folders, remove_once
from sublet.cli.work.script.now_and_then import KEEPS
from sublet.cli.work.script.padding import refuse_padding
from sublet.cli.work.script.reading import Script, is_method, names_in, root_of
from sublet.cli.work.script.remembering import keep_names, read_by_others, saves_by_all
from sublet.cli.work.script.splice import INDENT, CannotConvert, Splice
from sublet.cli.work.script.unfreezing import refuse_unfreezing
from sublet.cli.work.script.update import Update, update_of

__all__ = ["Names", "models_of", "roles_of", "to_session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the script calls what is ours: names that it does not have yet."""

    train: str = "train"
    session: str = "s"
    keeper: str = "ck"
    kept: str = "kept"


def to_session(script: Script, facts: Facts, loop: Loop, names: Names) -> Splice:
    """CannotConvert if something in it is not what is understood."""
    inner, around = loop.inner, loop.outer or loop.inner
    assert isinstance(inner, ast.For)  # noqa: S101 - who calls us has seen that it goes over a loader
    assert isinstance(around, ast.For)  # noqa: S101 - the same, or around it
    _refuse_closures(facts, loop)
    refuse_skips(inner)
    models = models_of(script, facts)
    roles = roles_of(facts, models)
    effects = Effects(script, around, roles.state | roles.loaders)
    refuse_unfreezing(effects, around, inner, roles)
    refuse_memories(effects, around)
    refuse_folders(effects)
    update = update_of(effects, around, inner, roles, models)
    flow = Flow(effects, around, inner, roles, loader=_loader_of(script, loop))
    kept = _carried(flow, update)
    under = flow.after_steps(update.statements, update.first, update.last)
    ends = early_ends(effects, around, inner, update.first, update.last)
    under += [each for each in ends if not any(each in ast.walk(other) for other in under)]
    parts = {each.name: each.part for each in flow.carried if each.how == "part"}
    flow.check_workers([*kept, *parts, update.more.get("extra_state", "")])
    refuse_dice(effects, around, inner, kept)
    splice = Splice(script)
    made = _session_call(script, facts, loop, names, update)
    for statement in update.gone:
        splice.remove(statement)
    keys = _keys(script, facts, update.stepped) if len(update.stepped) > 1 else []
    for number, (statement, loss) in enumerate(update.losses):
        name = f', "{keys[number]}"' if keys else ""
        splice.leave(statement.value, loss, f"{names.session}.step(", f"{name})")
    for call in update.norms:
        splice.replace(call, f"{names.session}.grad_norm")
    for name, (counted, first) in flow.counts.items():
        splice.replace(counted, f"{name} = {names.session}.steps + {first}")
    for statement in under:
        splice.put_under(statement, f"{names.session}.updated")
    _loop_over(script, splice, loop, flow, names, made)
    if kept or parts:
        given = ", ".join(f"{name}={value}" for name, value in sorted(({name: name for name in kept} | parts).items()))
        indent = splice.indent_of(around) + INDENT
        splice.put_before(around.lineno, f"{indent}{names.kept} = {names.session}.keep({given})")
        keep_names(script, splice, around, kept, names.kept)
    for statement, condition in _by_one(effects, around, inner, update, under, names).items():
        asks = remove_once(effects, splice, statement, {name: f"{names.kept}.{name}" for name in kept})
        splice.put_under(statement, f"{condition} and {asks}" if asks else condition)
    return splice


def _by_one(
    effects: Effects, around: ast.For, inner: ast.For, update: Update, under: list[ast.stmt], names: Names
) -> dict[ast.stmt, str]:
    """What one worker alone writes, and when; rows of a step only if it was made. CannotConvert if all would."""
    first = f"{names.session}.rank == 0"
    found: dict[ast.stmt, str] = dict.fromkeys(saves_by_all(effects.script, around), first)
    made = {each for other in under for each in ast.walk(other)}
    for each in (*rows_before(effects, around), *written_in(effects, around), *rows_after(effects, around)):
        if each.why and each.what >= Writes.MOVED:
            raise each.refusal()
        if not each.why and each.what is not Writes.STATE:
            at = each.statement.lineno
            stepped = update.last < at <= (inner.end_lineno or at) and each.statement not in made
            found.setdefault(each.statement, f"{names.session}.updated and {first}" if stepped else first)
    return found


def _carried(flow: Flow, update: Update) -> dict[str, int]:
    """What one turn leaves to the next: names that `s.keep()` keeps; an object with a state is told to the session."""
    flow.check_seeds()
    flow.check_given()
    refuse_emptied(flow.effects, flow.around)
    found = list(flow.carried)
    for each in found:
        if each.how == "lost" and each.matters:
            raise each.refusal()
    flow.check_epochs()
    extra = [each for each in found if each.how == "extra"]
    if len(extra) > 1:
        raise CannotConvert(
            f"`{extra[0].name}` and `{extra[1].name}` both come to something, and extra_state= is one object",
            extra[1].line,
            "an object with state_dict() and load_state_dict() of both",
        )
    if extra:
        update.more["extra_state"] = extra[0].name
    return {each.name: each.line for each in sorted(found, key=lambda each: each.name) if each.how == "kept"}


def roles_of(facts: Facts, models: dict[str, str]) -> Roles:
    """Names that the session knows."""
    return Roles(
        models=frozenset(models.values()),
        optimizers=frozenset(models),
        schedulers=frozenset(made.name for made in facts.schedulers),
        scalers=frozenset(made.name for made in facts.scalers),
        loaders=frozenset(made.name for made in facts.loaders),
    )


def models_of(script: Script, facts: Facts) -> dict[str, str]:
    """Optimizer -> the model whose parameters it was given."""
    found = {}
    every = {root_of(node.func.value) for node in ast.walk(script.tree) if is_method(node, "parameters")} - {"self", ""}
    for made in facts.optimizers:
        given = made.call.args[:1] or [word.value for word in made.call.keywords if word.arg == "params"]
        own = {root_of(node) for each in given for node in ast.walk(each) if is_method(node, "parameters")}
        if alone := _of_nobody(script, given):
            why = f"`{alone}` is a parameter that {made.name or 'an optimizer'} has and no model does"
            raise CannotConvert(why, made.line, "make it part of the module that the session is given")
        roots = own if len(own) == 1 else every
        if len(roots) == 1 and (model := next(iter(roots))):
            found[made.name] = model
            continue
        raise CannotConvert(
            f"it is not clear whose parameters {made.name or 'an optimizer'} has",
            made.line,
            "give the session the one module that has them all",
        )
    return found


def _of_nobody(script: Script, given: list[ast.expr]) -> str:
    """The name of a parameter of its own that an optimizer is given."""
    own = {
        name
        for name, value in bindings_in(script.tree)
        if isinstance(value, ast.Call) and script.full_name(value.func).endswith("nn.Parameter")
    }
    return next((name for each in given for name in sorted(names_in(each) & own)), "")


def _session_call(script: Script, facts: Facts, loop: Loop, names: Names, update: Update) -> str:
    models, loader = models_of(script, facts), _loader_of(script, loop)
    made = facts.named(loader)
    assert made is not None  # noqa: S101 - that is why it is to be a session
    _refuse_counting(script, [each for each in facts.loaders if each.name == loader])
    refuse_padding(script, made.call)
    refuse_ignored(script, made.call)
    if any(word.arg == "batch_sampler" for word in made.call.keywords):
        hint = "batch_size=, and sampler= for the order: the session makes the batches"
        raise CannotConvert(f"{loader} has a batch_sampler", made.line, hint)
    for name in (loader, *update.stepped, *(models[each] for each in update.stepped)):
        if not script.is_visible(name, loop.inner):
            raise CannotConvert(f"{name} comes from elsewhere", loop.inner.lineno, "make the session where the loop is")
    if len(update.stepped) == 1:
        parts = f"{models[update.stepped[0]]}, {update.stepped[0]}"
    else:
        keys = _keys(script, facts, update.stepped)
        given = zip(keys, update.stepped, strict=True)
        modules, steppers = zip(*((f'"{key}": {models[each]}', f'"{key}": {each}') for key, each in given), strict=True)
        parts = f"{{{', '.join(modules)}}}, {{{', '.join(steppers)}}}"
    _reduce(facts, update)
    if "scheduler" in update.more and "," in update.more["scheduler"]:
        update.more["scheduler"] = f"[{update.more['scheduler']}]"
    order = ("reduction", "scaler", "scheduler", "clip_norm", "clip_value", "extra_state")
    more = "".join(f", {name}={update.more[name]}" for name in order if name in update.more)
    return f"with {names.train}.session({parts}, {loader}, epochs={_epochs(script, loop)}{more}) as {names.session}:"


def _refuse_counting(script: Script, loaders: list[Made]) -> None:
    """A sampler of the script whose order is another each time that it is asked for: a restart asks once more."""
    effects = Effects(script)
    given = [word.value for made in loaders for word in made.call.keywords if word.arg == "sampler"]
    for value in given:
        calls = effects.given(value.id, script.tree) if isinstance(value, ast.Name) else [value]
        names = [root_of(each.func) for each in calls if isinstance(each, ast.Call)]
        for sampler in (effects.classes[name] for name in names if name in effects.classes):
            order = next((each for each in sampler.body if getattr(each, "name", "") == "__iter__"), None)
            changed = effects.done_by_function(order) if isinstance(order, ast.FunctionDef) else Done()
            if "self" in changed.writes:
                raise CannotConvert(
                    f"{sampler.name} changes as it gives an order, which is then another each time",
                    changed.writes["self"],
                    "an order that follows from set_epoch(), from torch's random numbers, or from a generator= of it",
                )


def _reduce(facts: Facts, update: Update) -> None:
    loss = facts.loss
    if loss is not None and loss.odd is not None:
        line, why, do = loss.odd
        raise CannotConvert(why, line, do)
    if loss is None or not loss.sums or loss.grade is Grade.MEAN:
        return
    if loss.penalty:
        raise CannotConvert(
            "a penalty that is of no sample is added to a sum over samples: it would count once for each worker",
            loss.sums[0],
            "weight_decay= of the optimizer, or a mean: the sum divided by len(batch), and a penalty divided alike",
        )
    if loss.grade is not Grade.SUM:
        raise CannotConvert(
            "the loss is a sum in one place, and a mean, or divided, in another",
            loss.sums[0],
            'say what s.step() is given: reduction="sum", nothing for a mean, "counted" for a mean over tokens',
        )
    update.more["reduction"] = '"sum"'


def _loop_over(script: Script, splice: Splice, loop: Loop, flow: Flow, names: Names, made: str) -> None:
    """The session around it; where there is nothing but batches in an epoch, in the place of the outer loop."""
    inner, outer = loop.inner, loop.outer
    assert isinstance(inner, ast.For)  # noqa: S101 - as in to_session
    bar = bar_name(script, inner, outer)
    if flow.counter_matters:
        _count_by_steps(script, splice, loop, flow, names)
    if bar or not flow.counter_matters:
        splice.replace(given_to(script, inner, outer), names.session)
    if outer is None:
        splice.put_before(inner.lineno, splice.indent_of(inner) + made)
        splice.indent(inner)
        return
    counted = {node.id for node in ast.walk(outer.target) if isinstance(node, ast.Name)}
    used = {node.id for node in ast.walk(inner) if isinstance(node, ast.Name)}
    later = {
        node.id
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > (outer.end_lineno or 0)
    }
    alone = outer.body == [inner] and not outer.orelse and not is_left_early(inner)
    if alone and not flow.counter and not counted & (used | later | read_by_others(script, outer)):
        splice.head(outer, made)
        return
    splice.put_before(outer.lineno, splice.indent_of(outer) + made)
    bare = epochs_of(script, outer)
    splice.replace(outer.iter if bare is None else bare, f"{names.session}.epochs()")
    if first := _first_epoch(script, outer):
        line = outer.body[0]
        if line.lineno == outer.lineno:
            raise CannotConvert("several statements are on one line", line.lineno, "give each a line of its own")
        counted_on = (
            f"{splice.indent_of(line)}{INDENT}{script.text(outer.target)} += {first}  # as it was: from {first}"
        )
        splice.put_before(line.lineno, counted_on)
    splice.indent(outer)


def _count_by_steps(script: Script, splice: Splice, loop: Loop, flow: Flow, names: Names) -> None:
    """`enumerate` counts the batches of a process; the session counts those of the training."""
    inner = loop.inner
    assert isinstance(inner, ast.For)  # noqa: S101 - as in to_session
    target, first = inner.target, inner.body[0]
    assert isinstance(target, ast.Tuple)  # noqa: S101 - a number, and the batch
    if first.lineno == inner.lineno:
        raise CannotConvert("several statements are on one line", inner.lineno, "give each a line of its own")
    indent = splice.indent_of(first) + INDENT
    splice.replace(target, ", ".join(script.text(each) for each in target.elts[1:]))
    splice.replace(inner.iter, bar_name(script, inner, loop.outer) or names.session)
    number = f"{names.session}.steps % len({_loader_of(script, loop)})"
    if is_left_early(inner):
        number = f"{names.session}.steps_in_epoch"
    if begins := first_number(script, inner):
        number += f" + {begins}"
    splice.put_before(first.lineno, f"{indent}{flow.counter} = {number}")


def _loader_of(script: Script, loop: Loop) -> str:
    return root_of(given_to(script, loop.inner, loop.outer)) if isinstance(loop.inner, ast.For) else ""


def _epochs(script: Script, loop: Loop) -> str:
    """How many, as the script says it."""
    if loop.outer is None:
        return "1"
    over = epochs_of(script, loop.outer)
    if over is not None and len(over.args) == 1:
        return script.text(over.args[0])
    first = _first_epoch(script, loop.outer)
    if first == 0 and over is not None:
        return script.text(over.args[1])
    if first is None or over is None:
        raise CannotConvert(
            "the loop around it is not `for epoch in range(N)`",
            loop.outer.lineno,
            "train.session(..., epochs=N), and `for epoch in s.epochs()`, which counts from 0",
        )
    end = over.args[1]
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and script.text(end.right) == str(first):
        return script.text(end.left)
    if isinstance(end, ast.Constant) and type(end.value) is int:
        return str(end.value - first)
    return f"{script.text(end) if isinstance(end, ast.Name | ast.Attribute) else f'({script.text(end)})'} - {first}"


def _first_epoch(script: Script, outer: ast.For) -> int | None:
    """1 of `for epoch in range(1, N + 1)`, 0 of `range(start, N)` where `start = 0` is all that it is; or None."""
    over = epochs_of(script, outer)
    if over is None or len(over.args) != 2 or not isinstance(outer.target, ast.Name):  # noqa: PLR2004 - from, and to
        return None
    first = over.args[0]
    if isinstance(first, ast.Name):
        first = _only_value(script, first.id, outer) or first
    number = first.value if isinstance(first, ast.Constant) else None
    return number if type(number) is int and number >= 0 else None


def _only_value(script: Script, name: str, outer: ast.For) -> ast.expr | None:
    """What a name is given before the loop, if nothing else in the script gives it a value, an argument neither."""
    stored = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name) and node.id == name]
    stored = [node for node in stored if not isinstance(node.ctx, ast.Load)]
    given = any(isinstance(node, ast.arg) and node.arg == name for node in ast.walk(script.tree))
    scopes = (script.scope_of(outer), script.tree)
    known = [value for scope in scopes for each, value in bindings_in(scope) if each == name]
    alone = len(stored) == 1 and not given and known and known[0].lineno < outer.lineno
    return known[0] if alone else None


def _keys(script: Script, facts: Facts, optimizers: list[str]) -> list[str]:
    """Short names: what models are called, without what all of them begin with."""
    models = models_of(script, facts)
    if len({models[each] for each in optimizers}) < len(optimizers):
        raise CannotConvert("two optimizers have one model", facts.optimizers[0].line, "one optimizer for each module")
    called = [models[each] for each in optimizers]
    shared = 0
    while len({name[: shared + 1] for name in called}) == 1 and shared < min(map(len, called)):
        shared += 1
    short = [name[shared:] for name in called]
    return short if all(short) else called


def _refuse_closures(facts: Facts, loop: Loop) -> None:
    """An optimizer that makes several passes for one step, or may."""
    steppers = {made.name for made in facts.optimizers}
    for call in loop.steps:
        root = root_of(call.func)
        kinds = [made.kind for made in facts.optimizers if made.name == root and made.kind in REFUSED]
        if kinds:
            raise CannotConvert(f"{root} is {kinds[0]}, which cannot be elastic", call.lineno, KEEPS)
        if root in steppers and (call.args or call.keywords):
            raise CannotConvert(
                f"{root}.step() is given a closure, which it calls as often as it likes",
                call.lineno,
                f"zero_grad, backward and step in the loop itself, if it needs no closure; {KEEPS}",
            )
