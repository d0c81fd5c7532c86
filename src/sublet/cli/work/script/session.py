"""A loop over a DataLoader becomes the loop of a session: the diff that its owner would have made by hand."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from sublet.cli.work.script.clipping import clip_of, edits_in
from sublet.cli.work.script.facts import Facts, Loop
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.remembering import changes, keep_names, remembered, saves_by_all
from sublet.cli.work.script.splice import INDENT, CannotConvert, Splice

__all__ = ["Names", "models_of", "to_session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the script calls what is ours: names that it does not have yet."""

    train: str = "train"
    session: str = "s"
    keeper: str = "ck"
    kept: str = "kept"


@dataclass(slots=True)
class _Body:
    """What the body of the loop has, by what becomes of it."""

    losses: list[tuple[ast.Expr, ast.expr]] = field(default_factory=list)  # the statement, what is computed
    stepped: list[str] = field(default_factory=list)  # optimizers, in order
    gone: list[ast.stmt] = field(default_factory=list)
    averaged: list[ast.stmt] = field(default_factory=list)
    norms: list[ast.Call] = field(default_factory=list)  # clips whose result is kept
    more: dict[str, str] = field(default_factory=dict)  # of the session


def to_session(script: Script, facts: Facts, loop: Loop, names: Names) -> Splice:
    """CannotConvert if something in it is not what is understood."""
    inner = loop.inner
    assert isinstance(inner, ast.For)  # noqa: S101 - who calls us has seen that it goes over a loader
    _refuse_jumps(inner)
    body = _sort(script, facts, inner)
    splice = Splice(script)
    made = _session_call(script, facts, loop, names, body)
    for statement in body.gone:
        splice.remove(statement)
    keys = _keys(script, facts, body.stepped) if len(body.stepped) > 1 else []
    for number, (statement, loss) in enumerate(body.losses):
        name = f', "{keys[number]}"' if keys else ""
        splice.replace(statement.value, f"{names.session}.step({script.text(loss)}{name})")
    for call in body.norms:
        splice.replace(call, f"{names.session}.grad_norm")
    for statement in body.averaged:
        splice.put_under(statement, f"{names.session}.updated")
    _loop_over(script, splice, loop, names, made)
    _keep(script, splice, loop, names, body)
    around = loop.outer or inner
    for saving in saves_by_all(script, around):
        splice.put_under(saving, f"{names.session}.rank == 0")
    return splice


def _keep(script: Script, splice: Splice, loop: Loop, names: Names, body: _Body) -> None:
    """What the loop remembers by itself: part of the state, and in the loop over batches changed once for each step."""
    around = loop.outer or loop.inner
    if not (kept := remembered(script, around)):
        return
    last = max(statement.lineno for statement, _ in body.losses)
    for statement in loop.inner.body:
        changed = [name for name in kept if changes(statement, name)]
        if changed and statement.lineno < last:
            raise CannotConvert(
                f"`{changed[0]}` is remembered from step to step, and changes before the step is made",
                kept[changed[0]],
                "after s.step(), where s.updated: a step that is made again would count twice; s.steps counts steps",
            )
        if changed:
            splice.put_under(statement, f"{names.session}.updated")
    given = ", ".join(f"{name}={name}" for name in kept)
    indent = splice.indent_of(around) + INDENT
    splice.put_before(around.lineno, f"{indent}{names.kept} = {names.session}.keep({given})")
    keep_names(script, splice, around, kept, names.kept)


def models_of(script: Script, facts: Facts) -> dict[str, str]:
    """Optimizer -> the model whose parameters it was given."""
    found = {}
    every = {root_of(node.func.value) for node in ast.walk(script.tree) if is_method(node, "parameters")} - {"self", ""}
    for made in facts.optimizers:
        given = made.call.args[:1] or [word.value for word in made.call.keywords if word.arg == "params"]
        own = {root_of(node) for each in given for node in ast.walk(each) if is_method(node, "parameters")}
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


def _sort(script: Script, facts: Facts, inner: ast.For) -> _Body:
    """Statement by statement, those of the loop itself; nothing of it may be deeper down."""
    body, optimizers = _Body(), {made.name for made in facts.optimizers}
    scalers, schedulers = {made.name for made in facts.scalers}, {made.name for made in facts.schedulers}
    averages, models = {made.name for made in facts.averages}, set(models_of(script, facts).values())
    changing = {node.id for node in ast.walk(inner) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for statement in inner.body:
        if (clip := clip_of(script, statement, models, changing)) is not None:
            body.more[clip.field] = clip.limit
            if clip.kept is None:
                body.gone.append(statement)
            else:
                body.norms.append(clip.kept)
            continue
        if edited := next(edits_in(script, statement), None):
            raise CannotConvert(
                f"`{script.text(edited)}` is used in the loop, where a session has no gradients any more",
                edited.lineno,
                "clip_norm= and clip_value= of the session, s.grad_norm, or parameter.register_hook()",
            )
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(statement, ast.Expr) or not isinstance(call, ast.Call):
            _refuse_hidden(script, statement, optimizers | scalers)
            continue
        root = root_of(call.func)
        if is_method(call, "zero_grad") and root in optimizers | models:
            body.gone.append(statement)
        elif is_method(call, "backward"):
            body.losses.append((statement, _loss_of(call, scalers)))
        elif is_method(call, "step") and root in optimizers | scalers:
            body.gone.append(statement)
            body.stepped.append(_whose(call, root, scalers))
            if len(body.losses) != len(body.stepped):
                raise CannotConvert(
                    "several losses go backward before one step, or none does",
                    call.lineno,
                    "add the losses up, and give the sum to s.step()",
                )
        elif root in scalers and is_method(call, "update", "unscale_"):
            body.gone.append(statement)
        elif is_method(call, "step") and root in schedulers:
            if call.args or call.keywords:
                raise CannotConvert(
                    f"{root}.step() is given something", call.lineno, "step it yourself, after the batches of an epoch"
                )
            body.gone.append(statement)
            body.more["scheduler"] = f"{body.more['scheduler']}, {root}" if "scheduler" in body.more else root
        elif root in averages:
            body.averaged.append(statement)
            body.more["extra_state"] = root
        else:
            _refuse_hidden(script, statement, optimizers | scalers)
    if not body.losses or len(body.losses) != len(body.stepped) or len(set(body.stepped)) != len(body.stepped):
        raise CannotConvert(
            "the loop is not one backward and one step for each optimizer",
            inner.lineno,
            "call s.step(loss) where it calls backward and step; micro_batch= accumulates gradients",
        )
    if len(body.stepped) > 1 and (scalers or body.more.keys() - {"scheduler", "extra_state"}):
        raise CannotConvert(
            "several optimizers, and a scaler or clipping", inner.lineno, "keep the loop: train.checkpointed"
        )
    if scalers:
        body.more["scaler"] = next(iter(scalers))
    return body


def _session_call(script: Script, facts: Facts, loop: Loop, names: Names, body: _Body) -> str:
    models, loader = models_of(script, facts), _loader_of(loop.inner)
    made = facts.named(loader)
    assert made is not None  # noqa: S101 - that is why it is to be a session
    if any(word.arg == "batch_sampler" for word in made.call.keywords):
        hint = "batch_size=, and sampler= for the order: the session makes the batches"
        raise CannotConvert(f"{loader} has a batch_sampler", made.line, hint)
    for name in (loader, *body.stepped, *(models[each] for each in body.stepped)):
        if not script.is_visible(name, loop.inner):
            raise CannotConvert(f"{name} comes from elsewhere", loop.inner.lineno, "make the session where the loop is")
    if len(body.stepped) == 1:
        parts = f"{models[body.stepped[0]]}, {body.stepped[0]}"
    else:
        keys = _keys(script, facts, body.stepped)
        given = zip(keys, body.stepped, strict=True)
        modules, steppers = zip(*((f'"{key}": {models[each]}', f'"{key}": {each}') for key, each in given), strict=True)
        parts = f"{{{', '.join(modules)}}}, {{{', '.join(steppers)}}}"
    if facts.sums:
        if facts.divides:
            raise CannotConvert(
                "the loss is a sum in one place, and divided in another",
                facts.sums[0],
                'say what s.step() is given: reduction="sum", or nothing for a mean',
            )
        body.more["reduction"] = '"sum"'
    if "scheduler" in body.more and "," in body.more["scheduler"]:
        body.more["scheduler"] = f"[{body.more['scheduler']}]"
    order = ("reduction", "scaler", "scheduler", "clip_norm", "clip_value", "extra_state")
    more = "".join(f", {name}={body.more[name]}" for name in order if name in body.more)
    return f"with {names.train}.session({parts}, {loader}, epochs={_epochs(script, loop)}{more}) as {names.session}:"


def _loop_over(script: Script, splice: Splice, loop: Loop, names: Names, made: str) -> None:
    """The session around it; where there is nothing but batches in an epoch, in the place of the outer loop."""
    inner, outer = loop.inner, loop.outer
    assert isinstance(inner, ast.For)  # noqa: S101 - as in to_session
    over = inner.iter.args[0] if isinstance(inner.iter, ast.Call) else inner.iter
    splice.replace(over, names.session)
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
    if outer.body == [inner] and not outer.orelse and not counted & (used | later):
        splice.head(outer, made)
        return
    splice.put_before(outer.lineno, splice.indent_of(outer) + made)
    splice.replace(outer.iter, f"{names.session}.epochs()")
    splice.indent(outer)


def _loader_of(loop: ast.For | ast.While) -> str:
    over = loop.iter if isinstance(loop, ast.For) else None
    return root_of(over.args[0] if isinstance(over, ast.Call) and over.args else over) if over is not None else ""


def _epochs(script: Script, loop: Loop) -> str:
    """How many, as the script says it."""
    if loop.outer is None:
        return "1"
    over = loop.outer.iter
    plain = isinstance(over, ast.Call) and script.full_name(over.func) == "range" and not over.keywords
    if not plain or not isinstance(over, ast.Call) or len(over.args) != 1:
        raise CannotConvert(
            "the loop around it is not `for epoch in range(N)`",
            loop.outer.lineno,
            "train.session(..., epochs=N), and `for epoch in s.epochs()`, which counts from 0",
        )
    return script.text(over.args[0])


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


def _loss_of(call: ast.Call, scalers: set[str]) -> ast.expr:
    """What `.backward()` is called on, without the scaler."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - it is a method
    if call.args or call.keywords:
        raise CannotConvert("backward() is given something", call.lineno, "s.step(loss), which calls it without")
    loss = call.func.value
    if is_method(loss, "scale") and root_of(loss.func) in scalers and len(loss.args) == 1:
        return loss.args[0]
    return loss


def _whose(call: ast.Call, root: str, scalers: set[str]) -> str:
    if root not in scalers:
        if call.args or call.keywords:
            raise CannotConvert(f"{root}.step() is given a closure", call.lineno, "keep the loop: train.checkpointed")
        return root
    return root_of(call.args[0]) if len(call.args) == 1 else ""


def _refuse_jumps(inner: ast.For) -> None:
    for node in ast.walk(inner):
        if isinstance(node, ast.Break | ast.Continue | ast.Return):
            word = type(node).__name__.lower()
            raise CannotConvert(
                f"`{word}` is in the loop",
                node.lineno,
                "every worker must take every batch to s.step(): leave by s.steps",
            )
    if inner.orelse:
        raise CannotConvert("the loop has an `else`", inner.lineno, "write it after the loop")


def _refuse_hidden(script: Script, statement: ast.stmt, steppers: set[str]) -> None:
    """A step, or a backward, that is done now and then, or elsewhere."""
    for node in ast.walk(statement):
        if is_method(node, "backward") or (is_method(node, "step", "zero_grad") and root_of(node.func) in steppers):
            raise CannotConvert(
                f"`{script.text(node)}` is not in every turn of the loop",
                node.lineno,
                "s.step(loss) for every batch; micro_batch= accumulates gradients",
            )
