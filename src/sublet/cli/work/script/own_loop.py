"""A loop over steps keeps its own, with `train.checkpointed`: it is resumed, saved, and told of."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.facts import Facts, Loop
from sublet.cli.work.script.flow import Flow
from sublet.cli.work.script.memories import refuse_memories
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.remembering import keep_names
from sublet.cli.work.script.session import Names, models_of, roles_of
from sublet.cli.work.script.splice import CannotConvert, Splice

__all__ = ["to_own_loop"]


def to_own_loop(script: Script, facts: Facts, loop: Loop, names: Names) -> Splice:
    """CannotConvert if it is not `for step in range(N)`, or where it is in its data does not follow from that."""
    inner = loop.inner
    if not isinstance(inner, ast.For) or loop.outer is not None:
        raise CannotConvert(
            "the loop is not one over steps",
            inner.lineno,
            "ck = train.checkpointed(...), `for step in range(ck.resume(), N)`, and ck.tick(step + 1) at its end",
        )
    over, target = inner.iter, inner.target
    plain = isinstance(over, ast.Call) and script.full_name(over.func) == "range" and not over.keywords
    if not plain or not isinstance(over, ast.Call) or len(over.args) != 1 or not isinstance(target, ast.Name):
        raise CannotConvert(
            "the loop is not `for step in range(N)`", inner.lineno, "`for step in range(ck.resume(), N)`"
        )
    for node in ast.walk(inner):
        if isinstance(node, ast.Continue | ast.Return):
            raise CannotConvert("a turn may end early", node.lineno, "call ck.tick(step + 1) at the end of every turn")
        if isinstance(node, ast.Call) and script.full_name(node.func) in ("next", "iter"):
            raise CannotConvert(
                "it goes on with an iterator, whose place is lost when it is started again",
                node.lineno,
                "let the samples follow from the step, or use a session with the loader",
            )
    splice, steps = Splice(script), script.text(over.args[0])
    kept = _kept(script, facts, inner)
    roles = roles_of(facts, models_of(script, facts))
    effects = Effects(script, inner, roles.state | roles.loaders)
    _refuse_gradients(effects, inner)
    refuse_memories(effects, inner)
    flow = Flow(effects, inner, inner, roles, own_loop=True)
    flow.check_given()
    own = _carried(flow, kept)
    step = target.id if target.id != "_" else "step"
    if step != target.id:
        if step in script.names:
            raise CannotConvert("the steps have no name", inner.lineno, "`for step in range(ck.resume(), N)`")
        splice.replace(target, step)
    parts = ", ".join(f"{part}={name}" for part, name in kept.items())
    indent = splice.indent_of(inner)
    splice.put_before(inner.lineno, f"{indent}{names.keeper} = {names.train}.checkpointed({parts}, steps={steps})")
    if own:
        given = ", ".join(f"{name}={name}" for name in own)
        splice.put_before(inner.lineno, f"{indent}{names.kept} = {names.keeper}.keep({given})")
        keep_names(script, splice, inner, own, names.kept)
    splice.replace(over, f"range({names.keeper}.resume(), {steps})")
    last = inner.body[-1]
    splice.put_after(
        last.end_lineno or last.lineno, f"{splice.indent_of(inner.body[0])}{names.keeper}.tick({step} + 1)"
    )
    return splice


def _carried(flow: Flow, parts: dict[str, str]) -> dict[str, int]:
    """What one turn leaves to the next: values are kept, objects with a state are parts."""
    own: dict[str, int] = {}
    for each in flow.carried:
        if each.how == "lost" and each.matters:
            raise each.refusal()
        if (
            each.how in ("extra", "part")
            and (each.name in parts or each.name == "steps")
            and each.name not in parts.values()
        ):
            raise CannotConvert(f"`{each.name}` is also the name of a part", each.line, "give it another name")
        if each.how == "extra" and each.name not in parts.values():
            parts[each.name] = each.name
        elif each.how == "part":
            parts[each.name] = each.part
        elif each.how == "kept":
            own[each.name] = each.line
    return dict(sorted(own.items()))


def _refuse_gradients(effects: Effects, inner: ast.For) -> None:
    """They are in no checkpoint: each turn has to begin, or to end, without any."""
    events: list[tuple[int, str]] = []
    for statement in inner.body:
        sure = isinstance(statement, ast.Expr | ast.Assign | ast.With)
        pieces: list[ast.AST] = [statement, *effects.reached(statement)]
        closures = [word for node in ast.walk(statement) if is_method(node, "step") for word in node.args]
        pieces += [effects.functions[root_of(word)] for word in closures if root_of(word) in effects.functions]
        found = sorted(
            (node.lineno, node.func.attr)
            for piece in pieces
            for node in ast.walk(piece)
            if is_method(node, "backward", "zero_grad")
        )
        events += [(statement.lineno, what) for _, what in found if sure or what == "backward"]
    kinds = [what for _, what in events]
    if "backward" in kinds and kinds[0] != "zero_grad" and kinds[-1] != "zero_grad":
        raise CannotConvert(
            "gradients are left from one turn to the next, and are in no checkpoint",
            next(line for line, what in events if what == "backward"),
            "zero_grad() in every turn, before the first backward or after the last; a turn for each update",
        )


def _kept(script: Script, facts: Facts, inner: ast.For) -> dict[str, str]:
    """All that training comes to, by the names of the parts."""
    models = models_of(script, facts)
    kept: dict[str, str] = {}
    several = len(models) > 1
    for optimizer, model in models.items():
        kept[model if several else "model"] = model
        kept[optimizer if several else "optimizer"] = optimizer
    for part, found in (("scheduler", facts.schedulers), ("scaler", facts.scalers), ("average", facts.averages)):
        for made in found:
            kept[part if len(found) == 1 else made.name] = made.name
    for name in kept.values():
        if not name or not script.is_visible(name, inner):
            raise CannotConvert(
                f"{name or 'a part of it'} comes from elsewhere", inner.lineno, "give all parts names there"
            )
    return kept
