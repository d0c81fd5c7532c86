"""What will go wrong with a script when its nodes come and go, and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sublet.cli.work.script.convert import Converted, convert
from sublet.cli.work.script.dice import ALIKE, OWN
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.facts import REFUSED, Facts, Made, Stream, batches_in
from sublet.cli.work.script.flow import Carried, Flow, Roles
from sublet.cli.work.script.grades import Grade
from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import Script, is_method, names_in, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Finding", "Inspected", "inspect"]

STREAMS = "'Streams' in docs/guides/make-a-script-elastic.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that will go wrong, or differently than it looks; line 0 = the script as a whole."""

    line: int
    what: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """All that can be told of a script from its text."""

    facts: Facts
    findings: tuple[Finding, ...]
    remembers: tuple[Carried, ...]  # what one turn of the loop leaves to the next
    converted: Converted | None
    by_hand: Finding | None  # why it is not converted

    def document(self, path: str) -> dict[str, Any]:
        """For `--json`."""
        facts = self.facts
        return {
            "schema_version": 1,
            "script": path,
            "frameworks": facts.frameworks,
            "distributed": [{"what": what, "line": line} for what, line in facts.distributed],
            "optimizers": _listed(facts.optimizers),
            "schedulers": _listed(facts.schedulers),
            "scalers": _listed(facts.scalers),
            "averages": _listed(facts.averages),
            "loaders": _listed(facts.loaders),
            "streams": [stream.line for stream in facts.streams],
            "trackers": facts.trackers,
            "loss": loss_of(facts),
            "saves": facts.saves,
            "saves_in_loop": facts.saves_in_loop,
            "loads": facts.loads,
            "clips": facts.clips,
            "remembers": [{"name": each.name, "line": each.line} for each in self.remembers],
            "loops": [loop.inner.lineno for loop in facts.loops],
            "findings": [{"line": each.line, "what": each.what, "do": each.do} for each in self.findings],
            "converts_to": None if self.converted is None else self.converted.how,
            "by_hand": None
            if self.by_hand is None
            else {"line": self.by_hand.line, "what": self.by_hand.what, "do": self.by_hand.do},
        }


def inspect(script: Script, facts: Facts) -> Inspected:
    """Nothing of it is run."""
    converted, by_hand = None, None
    try:
        converted = convert(script, facts)
    except CannotConvert as error:
        by_hand = Finding(line=error.line, what=error.why, do=error.do)
    by_script = not facts.frameworks or facts.frameworks == ["accelerate"]  # which leaves the loop to it
    accelerator = _accelerator(script)
    remembers = tuple(each for each in _remembered(script, facts) if by_script and each.name != accelerator)
    return Inspected(
        facts=facts,
        findings=tuple(_findings(facts, remembers, accelerator)),
        remembers=remembers,
        converted=converted,
        by_hand=by_hand,
    )


def _remembered(script: Script, facts: Facts) -> Iterator[Carried]:
    """Of all loops that train, by name; what the session, or a part of it, has is none."""
    for around in facts.trainings:
        roles = _roles(script, facts)
        effects = Effects(script, around, roles.state | roles.loaders)
        inner = next((each.inner for each in facts.loops if around in (each.inner, each.outer)), batches_in(around))
        found = [each for each in Flow(effects, around, inner, roles).carried if each.matters or each.how != "lost"]
        known = {made.name for made in facts.averages} if facts.has_session else set()
        yield from sorted((each for each in found if each.name not in known), key=lambda each: each.name)


def _roles(script: Script, facts: Facts) -> Roles:
    """As far as they are clear."""
    models = {
        root_of(node.func.value)
        for made in facts.optimizers
        for node in ast.walk(made.call)
        if is_method(node, "parameters")
    }
    ours = {
        name
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and script.full_name(node.func).startswith("sublet.")
        for name in names_in(node)
    }
    for name, value in bindings_in(script.tree):
        if isinstance(value, ast.Call) and (
            is_method(value, "keep") or script.full_name(value.func).startswith("sublet.")
        ):
            ours.add(name)
    makes = (facts.optimizers, facts.schedulers, facts.scalers)
    return Roles(
        models=frozenset(models | ours),
        optimizers=frozenset(made.name for made in facts.optimizers),
        schedulers=frozenset(made.name for every in makes[1:] for made in every),
        loaders=frozenset(made.name for made in facts.loaders),
    )


def loss_of(facts: Facts) -> str:
    """In a word."""
    if not facts.loops:
        return "unknown"
    if facts.loss is not None and facts.loss.odd is not None:
        return facts.loss.grade.value
    if facts.loss is None or not facts.loss.sums or facts.loss.grade is Grade.MEAN:
        return "mean, as far as the text says"
    return "sum" if facts.loss.grade is Grade.SUM else "a sum, and something else"


def _accelerator(script: Script) -> str:
    """What the script calls its Accelerator; "" if it has none."""
    makes = [(name, value) for name, value in bindings_in(script.tree) if isinstance(value, ast.Call)]
    return next((name for name, made in makes if script.full_name(made.func).endswith("accelerate.Accelerator")), "")


def _findings(facts: Facts, remembers: tuple[Carried, ...], accelerator: str) -> Iterator[Finding]:
    yield from _of_gradients(facts)
    yield from _of_memory(facts, remembers, accelerator)
    if facts.has_session:
        return
    if not facts.loads:
        saved = f"it saves in line {facts.saves[0]}, and" if facts.saves_in_loop else "it saves nothing on its way, and"
        yield Finding(line=0, what=f"{saved} loads nothing: every start begins at the beginning", do="use sublet.train")
    elif not facts.saves_in_loop:
        yield Finding(
            line=facts.loads[0],
            what="it loads, and saves nothing on its way: what a loss takes is all since its start",
            do="save below $SUBLET_CHECKPOINT_DIR, or use sublet.train",
        )
    if not facts.distributed and not facts.frameworks:
        yield Finding(
            line=0,
            what="it is one process: with --workers 2 two of it train two models",
            do="--workers 1, or a session, which is data parallel at any width",
        )
    for made in facts.loaders:
        if facts.distributed and not any(word.arg == "sampler" for word in made.call.keywords):
            yield Finding(
                line=made.line,
                what=f"{made.name} deals all samples to every rank",
                do="a DistributedSampler, or a session, which deals each sample once",
            )
    if facts.distributed:
        yield Finding(
            line=facts.distributed[0][1],
            what="its batch is as many times as large as there are workers: the result depends on the width",
            do="a session keeps the global batch; or let the batch follow from WORLD_SIZE",
        )
    if facts.loss is not None and facts.loss.odd is not None:
        line, why, do = facts.loss.odd
        yield Finding(line=line, what=why, do=do)
    elif facts.loss is not None and facts.loss.sums and facts.loss.grade is not Grade.MEAN:
        yield Finding(
            line=facts.loss.sums[0],
            what="the loss is a sum: its gradient grows with the samples of a worker",
            do='train.session(..., reduction="sum")',
        )
    for made in facts.optimizers:
        if made.kind in REFUSED:
            yield Finding(line=made.line, what=f"{made.kind} cannot be elastic", do="keep the loop: train.checkpointed")
    for made in facts.schedulers:
        if made.kind == "ReduceLROnPlateau":
            yield Finding(
                line=made.line,
                what="ReduceLROnPlateau follows a number that differs from rank to rank",
                do="step it with s.evaluate(), which is the same in all",
            )
    for stream in facts.streams:
        yield from _of_stream(stream)
    for name in facts.trackers:
        yield Finding(
            line=0,
            what=f"{name}: a start over logs steps again, and every rank logs",
            do="tracker= of the session, and s.log()",
        )


def _of_gradients(facts: Facts) -> Iterator[Finding]:
    """A session has none between its steps. A loop with `train.checkpointed` has its own."""
    if facts.frameworks or (facts.has_session and facts.loops):
        return
    for line in facts.clips:
        yield Finding(
            line=line,
            what="gradients are clipped by hand: a session sums them over the workers first, and refuses it",
            do="train.session(..., clip_norm=1.0), or clip_value=; s.grad_norm is the norm",
        )
    for line in facts.edits:
        yield Finding(
            line=line,
            what="`.grad` is used in the loop: in a session there is none between steps, and edits of it are refused",
            do="s.grad_norm with clip_norm=; parameter.register_hook() for an edit of the part of one worker",
        )


def _of_accelerator(remembers: tuple[Carried, ...], accelerator: str) -> Iterator[Finding]:
    """Its loop is the script's own, and so is what it counts."""
    for each in remembers:
        name, part = each.name, each.part or each.name
        do = f"kept = {accelerator}.keep({name}={part}) before {accelerator}.epochs(), and kept.{name} in the loop"
        do = f"{accelerator}.register_for_checkpointing({name})" if each.how == "extra" else do
        yield Finding(
            line=each.line,
            what=f"`{name}` is remembered from turn to turn, and lost with the process: it then begins anew",
            do=each.do if each.how == "lost" else do,
        )


def _of_memory(facts: Facts, remembers: tuple[Carried, ...], accelerator: str = "") -> Iterator[Finding]:
    """What the script keeps by itself, in memory and in files."""
    if accelerator:
        yield from _of_accelerator(remembers, accelerator)
        return
    if facts.frameworks:
        return
    if facts.resumes and facts.has_session and not facts.loops:
        yield Finding(
            line=facts.resumes[0],
            what="it resumes by itself, and so does the session: before its first checkpoint it would begin at epoch 0 "
            "with what is loaded here",
            do="take it out; to begin with given weights, load the model alone",
        )
    for each in remembers:
        name, ways = (
            each.name,
            {"extra": f"extra_state={each.name}, or train.checkpointed(..., {each.name}={each.name})"},
        )
        ways["part"] = f"s.keep({name}={each.part}) before the loop, or train.checkpointed(..., {name}={each.part})"
        ways["kept"] = f"kept = s.keep({name}={name}) before the loop, or ck.keep(), and kept.{name} in it"
        yield Finding(
            line=each.line,
            what=f"`{name}` is remembered from turn to turn, and lost with the process: it then begins anew",
            do=ways.get(each.how, each.do),
        )
    for line in facts.saves_by_all:
        yield Finding(
            line=line, what="every rank writes it, to the same file", do="if s.rank == 0: (one process alone: nothing)"
        )
    for lines, words in ((facts.own_dice, OWN), (facts.dice_of_samples, ALIKE)):
        do = f"{words['do']} (one process alone: nothing)"
        yield from (Finding(line=line, what=words["why"], do=do) for line in lines)
    for line in facts.rows_by_all:
        yield Finding(
            line=line,
            what="every rank writes it: its rows are there once for each",
            do="if s.rank == 0: (one process alone: nothing); s.log() for a tracker",
        )


def _of_stream(stream: Stream) -> Iterator[Finding]:
    yield Finding(line=stream.line, what="a stream has no epochs", do=f"train.session(..., steps=N): {STREAMS}")
    if not stream.asks:
        yield Finding(
            line=stream.line,
            what="nothing asks get_worker_info(): each worker of a loader, and each shard, gives the same samples",
            do="in __iter__, give part `id` of `num_workers`; a session refuses it without",
        )
    if not stream.has_state:
        yield Finding(
            line=stream.line,
            what="a restart reads it from its beginning, and passes over what was trained on",
            do="state_dict and load_state_dict in the dataset: it then goes on from where it was",
        )


def _listed(made: list[Made]) -> list[dict[str, Any]]:
    return [{"name": each.name, "kind": each.kind, "line": each.line} for each in made]
