"""The diff that makes a script elastic, or why there is none."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from sublet.cli.work.script.bars import given_to
from sublet.cli.work.script.epoch_function import flat
from sublet.cli.work.script.facts import Facts, Loop, look_at
from sublet.cli.work.script.methods import as_functions
from sublet.cli.work.script.own_loop import to_own_loop
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.session import Names, to_session
from sublet.cli.work.script.splice import CannotConvert, Splice
from sublet.cli.work.script.trainers import refuse_apart, refuse_methods
from sublet.cli.work.script.with_bar import unwrapped

__all__ = ["Converted", "convert"]

WRAPS = (
    "DataParallel",
    "DistributedDataParallel",
    "init_process_group",
    "DistributedSampler",
    "FullyShardedDataParallel",
)

UNCOUNTED = ("itertools.count", "itertools.cycle")
PARTS = tuple(f"torch.distributed.{name}" for name in ("fsdp", "tensor", "device_mesh", "pipelining", "rpc", "_tensor"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The new text, and in which way: "session" or "checkpointed"."""

    how: str
    text: str

    def diff(self, script: Script) -> str:
        """As `diff -u` has it."""
        name = script.path.name
        lines = difflib.unified_diff(script.lines, self.text.splitlines(keepends=True), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def convert(script: Script, facts: Facts | None = None) -> Converted:
    """CannotConvert with what to do by hand."""
    return _looked_at(script, look_at(script) if facts is None else facts, _free_names(script))


def _looked_at(script: Script, facts: Facts, names: Names) -> Converted:
    """As it is, or as what it comes to once a bar, a class or a function is looked through."""
    seen = unwrapped(script) or as_functions(script) or flat(script)
    if seen is None:
        return _converted(script, facts, names)
    try:
        found = _looked_at(seen.script, look_at(seen.script), names)
    except CannotConvert as error:
        raise seen.refusal(error) from None
    if found.how != "session" and facts.loops:
        return _converted(script, facts, names)
    ours = names.session if found.how == "session" else names.keeper
    return Converted(how=found.how, text=seen.put_back(found.text, (ours, names.kept)))


def _converted(script: Script, facts: Facts, names: Names) -> Converted:
    loop = _the_loop(script, facts)
    _refuse_many_calls(script, loop)
    _refuse_caught(script, loop)
    over_loader = isinstance(loop.inner, ast.For) and _goes_over_loader(script, facts, loop.inner, loop.outer)
    if over_loader:
        for what, line in facts.distributed:
            if what in WRAPS:
                raise CannotConvert(
                    f"{what}: the script is distributed already",
                    line,
                    "take it out: a session is data parallel by itself; or keep the loop and use train.checkpointed",
                )
        if facts.streams:
            raise CannotConvert(
                "the dataset is a stream, whose steps nobody has counted",
                facts.streams[0].line,
                "hand the loader to train.session(..., steps=N): 'Streams' in docs/guides/make-a-script-elastic.md",
            )
        splice, how = to_session(script, facts, loop, names), "session"
    else:
        if parts := sorted(name for name in script.modules if name.startswith(PARTS)):
            raise CannotConvert(
                f"{parts[0]}: every rank has a part of the state, and train.checkpointed keeps that of rank 0",
                loop.inner.lineno,
                "save with torch.distributed.checkpoint below $SUBLET_CHECKPOINT_DIR; or a session with parts=",
            )
        splice, how = to_own_loop(script, facts, loop, names), "checkpointed"
    _import_ours(script, splice, names)
    return Converted(how=how, text=splice.result())


def _the_loop(script: Script, facts: Facts) -> Loop:
    if facts.has_session:
        raise CannotConvert("it imports sublet already", 1, "nothing, or see docs/guides/make-a-script-elastic.md")
    if facts.frameworks:
        name = facts.frameworks[0]
        raise CannotConvert(
            f"the loop is that of {name}",
            1,
            "sublet.integrations has sessions behind frameworks: see docs/README.md for the guides",
        )
    if not facts.loops:
        refuse_methods(script)
    if not facts.optimizers:
        refuse_apart(script)
        if facts.unnamed:
            raise CannotConvert(
                "the optimizer has no name where it is made",
                facts.unnamed[0],
                "a line of its own, `optimizer = ...`, where the loop is",
            )
        raise CannotConvert("no optimizer of torch.optim is made here", 1, "name the script that makes it")
    for made in facts.optimizers:
        if not made.name:
            raise CannotConvert("an optimizer has no name of its own", made.line, "give it a name")
    if not facts.loops:
        refuse_apart(script)
        _refuse_elsewhere(script, facts)
    if len(facts.loops) != 1:
        count = len(facts.loops)
        line = facts.loops[1].inner.lineno if count else facts.optimizers[0].line
        raise CannotConvert(
            f"{count or 'no'} loop{'s' * (count != 1)} in which an optimizer makes steps",
            line,
            "one session for the whole training, and its loop where the optimizer is made",
        )
    return facts.loops[0]


def _refuse_elsewhere(script: Script, facts: Facts) -> None:
    """The loop is there, and speaks of the optimizer by another name: as a part of an object, or as an argument."""
    names = {made.name for made in facts.optimizers}
    for node in ast.walk(script.tree):
        loop = next((each for each in script.above(node) if isinstance(each, ast.For | ast.While)), None)
        if (
            loop is None
            or not is_method(node, "step")
            or not any(is_method(each, "backward") for each in ast.walk(loop))
        ):
            continue
        called = script.text(node.func.value)
        if called not in names:
            raise CannotConvert(
                f"the loop steps `{called}`, which is made under another name, or elsewhere",
                loop.lineno,
                "make the optimizer where the loop is; or write the session by hand there",
            )


def _refuse_many_calls(script: Script, loop: Loop) -> None:
    """There is one training for each process: its loop is in no other, nor in a function that is called again."""
    within: list[ast.AST] = [loop.outer or loop.inner]
    around = script.scope_of(loop.inner)
    one_epoch = loop.outer is None and not _is_range(script, loop.inner) and not isinstance(around, ast.Module)
    seen: set[ast.AST] = set()
    _refuse_shared_loop(script, loop)
    while within:
        node = within.pop()
        scope = script.scope_of(node)
        looped = next((each for each in script.above(node) if isinstance(each, ast.For | ast.While)), None)
        if looped is not None and scope is around and script.scope_of(looped) is scope:
            raise CannotConvert(
                "the loop is in another one, and would be a training for each turn of that: a process has one",
                looped.lineno,
                "`for epoch in range(N)` and in it the batches, and nothing around; a job of its own for each fold, "
                "seed or stage; steps that are counted by hand: epochs=N of train.session, and leave by s.steps",
            )
        over = loop.inner.iter if isinstance(loop.inner, ast.For) else None
        if one_epoch and isinstance(over, ast.Call) and script.full_name(over.func) in UNCOUNTED:
            raise CannotConvert(
                f"`{script.text(over)}` does not say how many turns there are",
                loop.inner.lineno,
                "`for step in range(N)`: its steps are counted, and it may be left before",
            )
        if looped is not None or (one_epoch and scope is around):
            name = "" if isinstance(around, ast.Module) else around.name
            raise CannotConvert(
                f"the loop is in {name}(), which is one epoch, or is called again and again",
                loop.inner.lineno,
                "make the session around all epochs: `for epoch in s.epochs()`, and in it `for batch in s`",
            )
        if isinstance(scope, ast.Module) or scope in seen:
            continue
        seen.add(scope)
        called = [each for each in ast.walk(script.tree) if isinstance(each, ast.Call)]
        within += (calls := [each for each in called if script.full_name(each.func) == scope.name])
        if len(calls) > 1:
            raise CannotConvert(
                f"{scope.name}() is called more than once, and has a training in it: a process has one",
                calls[1].lineno,
                "a job of its own for each training",
            )


def _refuse_shared_loop(script: Script, loop: Loop) -> None:
    """Training and evaluation in one loop: over phases, or in a function that is called for both."""
    split = "two loops: `for batch in s` with s.step(loss) trains, and another one evaluates, under torch.no_grad()"
    if loop.outer is not None and isinstance(loop.outer.iter, ast.List | ast.Tuple):
        what = f"for {script.text(loop.outer.target)} in {script.text(loop.outer.iter)}"
        raise CannotConvert(f"training and evaluation go through one loop (`{what}`)", loop.outer.lineno, split)
    around = script.scope_of(loop.inner)
    if loop.outer is not None or isinstance(around, ast.Module):
        return
    calls = [node for node in ast.walk(script.tree) if isinstance(node, ast.Call) and root_of(node) == around.name]
    if len(calls) > 1 and len({script.parents[script.parents[call]] for call in calls}) < len(calls):
        lines = " and ".join(str(call.lineno) for call in sorted(calls, key=lambda call: call.lineno))
        raise CannotConvert(
            f"{around.name}() trains, and is called more than once in an epoch (lines {lines})",
            loop.inner.lineno,
            f"{split}; the function that trains is called once in `for epoch in s.epochs()`, and given s",
        )


def _refuse_caught(script: Script, loop: Loop) -> None:
    """A process leaves its loop by SystemExit: who takes that for an error goes on with a half-trained model."""
    around = script.scope_of(loop.inner)
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Try) or not any(_catches_all(script, each) for each in node.handlers):
            continue
        inside = [each for statement in node.body for each in ast.walk(statement)]
        called = {root_of(each.func) for each in inside if isinstance(each, ast.Call)}
        if loop.inner in inside or (not isinstance(around, ast.Module) and around.name in called):
            raise CannotConvert(
                "whatever ends the loop is caught around it, the order to leave with a checkpoint too",
                next(each.lineno for each in node.handlers if _catches_all(script, each)),
                "`except Exception:`, which lets SystemExit pass",
            )


def _catches_all(script: Script, handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    caught = any(kind is None or script.full_name(kind) in ("BaseException", "SystemExit") for kind in kinds)
    last = handler.body[-1]
    return caught and not (isinstance(last, ast.Raise) and last.exc is None)


def _is_range(script: Script, loop: ast.For | ast.While) -> bool:
    over = loop.iter if isinstance(loop, ast.For) else None
    return isinstance(over, ast.Call) and script.full_name(over.func) == "range"


def _goes_over_loader(script: Script, facts: Facts, loop: ast.For, outer: ast.For | None) -> bool:
    """`for ... in loader`, `in enumerate(loader)`, or `in tqdm(loader)`."""
    over = given_to(script, loop, outer)
    known = {made.name for made in facts.loaders}
    if isinstance(over, ast.Name) and over.id in known:
        return True
    wrapped = isinstance(over, ast.Call) and any(root_of(each) in known for each in over.args)
    if wrapped or isinstance(over, ast.Name):
        raise CannotConvert(
            f"`{script.text(loop.iter)}` is not a DataLoader that is made in this script",
            loop.lineno,
            "go over the DataLoader itself, enumerate(loader) or tqdm(loader): it is handed to the session; a bar with "
            "a name is made in every epoch, right before its batches",
        )
    return False


def _free_names(script: Script) -> Names:
    taken = script.names

    def free(*wanted: str) -> str:
        return next((name for name in wanted if name not in taken), f"sublet_{wanted[0]}")

    return Names(
        train=free("train", "elastic"),
        session=free("s", "session"),
        keeper=free("ck", "keeper"),
        kept=free("kept", "remembered"),
    )


def _import_ours(script: Script, splice: Splice, names: Names) -> None:
    """After the imports that it begins with."""
    line = "from sublet import train" + ("" if names.train == "train" else f" as {names.train}")
    last = None
    for node in script.tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node
        elif not is_text:
            break
    if last is None:
        raise CannotConvert("it does not begin with imports", 1, f"`{line}` at its top")
    splice.put_after(last.end_lineno or last.lineno, "")
    splice.put_after(last.end_lineno or last.lineno, line)
