"""Updates in methods (`class Trainer`), and apart from their loop: not converted, and told what to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.bars import epochs_of, given_to
from sublet.cli.work.script.clipping import CLIPS, clips_in
from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.reading import Method, Script, is_method
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_apart", "refuse_methods"]


def refuse_methods(script: Script) -> None:
    """CannotConvert if the loop in which a step is made is in a method."""
    for node in ast.walk(script.tree):
        loop = next((each for each in script.above(node) if isinstance(each, ast.For)), None)
        if loop is None or not is_method(node, "backward"):
            continue
        method = script.scope_of(loop)
        owner = script.parents.get(method)
        if isinstance(method, ast.Module) or not isinstance(owner, ast.ClassDef):
            continue
        update = _Update(script, owner, loop)
        if not update.optimizer:
            continue
        around = _epochs(script, owner, method, loop)
        loader = script.text(given_to(script, loop, None))
        lines = ", ".join(map(str, sorted(update.lines)))
        given = f"{_model(script, owner)}, {update.optimizer}, {loader}, epochs={_count(script, around)}{update.more}"
        handed = f", with s handed to {method.name}()" if script.scope_of(around) is not method else ""
        raise CannotConvert(
            f"the loop is in a method, {owner.name}.{method.name}(), and what it trains is in `self`",
            loop.lineno,
            f"by hand: `with train.session({given}) as s:` and in it "
            f"`for epoch in s.epochs():` in line {around.lineno}; `for {script.text(loop.target)} in s:` in line "
            f"{loop.lineno}{handed}; `s.step({update.loss(node)})` in place of lines {lines}; what the object "
            "remembers (a count, a best) is kept by kept = s.keep(best=...)",
        )


def refuse_apart(script: Script) -> None:
    """CannotConvert if a function, or a method, makes one step, and a loop somewhere else calls it."""
    for function in (each for each in ast.walk(script.tree) if isinstance(each, Function)):
        inside = list(ast.walk(function))
        made = [each for word in ("backward", "step") for each in inside if is_method(each, word)]
        if {each.func.attr for each in made} != {"backward", "step"} or any(isinstance(e, ast.For) for e in inside):
            continue
        calls = [each for each in ast.walk(script.tree) if isinstance(each, ast.Call) and _is_call_of(each, function)]
        loops = [loop for call in calls if (loop := _around(script, call)) is not None]
        if len(loops) > 1:
            lines = " and ".join(str(call.lineno) for call in sorted(calls, key=lambda call: call.lineno))
            raise CannotConvert(
                f"{function.name}() makes a step, and is called in more than one place (lines {lines}): a process has "
                "one training",
                calls[1].lineno,
                "one loop over epochs with one loop over batches that calls it; or a job of its own for each training",
            )
        if loops:
            _refuse_counting(script, function, loops[0])
            _refuse_deeper(script, function, calls[0], loops[0])
            raise CannotConvert(
                f"the update is in {function.name}(), and the loop in line {loops[0].lineno} calls it",
                made[0].lineno,
                "backward, step and zero_grad in the loop itself, where s.step(loss) takes their place; or "
                "train.checkpointed",
            )


def _around(script: Script, call: ast.AST) -> ast.For | ast.While | None:
    return next((each for each in script.above(call) if isinstance(each, ast.For | ast.While)), None)


def _refuse_deeper(script: Script, function: ast.stmt, call: ast.Call, loop: ast.For | ast.While) -> None:
    """A step that is called amid an expression, in a statement that is not the loop's own: `with open(...)`."""
    statement = next(each for each in script.above(call) if isinstance(each, ast.stmt))
    if statement not in loop.body and getattr(statement, "value", None) is not call:
        name, called = getattr(function, "name", ""), script.text(call)
        raise CannotConvert(
            f"{name}() makes a step, and is called amid an expression, within another statement of the loop",
            call.lineno,
            f"a line of its own in the loop, before it: `loss = {called}`, and loss in its place",
        )


def _refuse_counting(
    script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For | ast.While
) -> None:
    """A method that makes a step, and something else of its object anew: `self.n += 1`."""
    if not isinstance(script.parents.get(function), ast.ClassDef):
        return
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        own = [each for each in targets if each is not None and _is_own(each)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and own:
            caller = getattr(script.scope_of(loop), "name", "the loop")
            raise CannotConvert(
                f"`{script.text(own[0])}` is made anew in {function.name}(), which makes a step: what an object "
                f"remembers is looked for where its epochs are",
                node.lineno,
                f"in {caller}(), after {function.name}() in line {loop.lineno} is called: `{script.text(node)}`",
            )


def _is_call_of(node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name
    return plain or (is_method(node, function.name) and _is_own(node.func))


class _Update:
    """Of a loop in a method: what a session is given, and the lines that it takes the place of."""

    def __init__(self, script: Script, owner: ast.ClassDef, loop: ast.For) -> None:
        self._script = script
        self.optimizer, self.more, self._scaler = "", "", ""
        self.lines: set[int] = set()
        made = dict(_made(script, owner))
        for node in ast.walk(loop):
            if is_method(node, "backward", "zero_grad"):
                self.lines.add(node.lineno)
            elif is_method(node, "step", "update", "unscale_") and _is_own(node.func.value):
                self._see(node, made.get(script.text(node.func.value), ""))
        for clip in clips_in(script, loop):
            field = CLIPS[script.full_name(clip.func).rpartition(".")[2]]
            limit = [script.text(each) for each in (*clip.args[1:2], *(word.value for word in clip.keywords))]
            self.more += f", {field}={limit[0] if limit else '...'}"
            self.lines.add(clip.lineno)

    def _see(self, node: Method, made: str) -> None:
        name = self._script.text(node.func.value)
        if made.startswith("torch.optim.lr_scheduler.") or made.endswith(".SWALR"):
            self.more += f", scheduler={name}"
        elif made.endswith("GradScaler"):
            self.more += f", scaler={name}" if not self._scaler else ""
            self._scaler = name
            self.optimizer = self._script.text(node.args[0]) if node.args else self.optimizer
        elif node.func.attr == "step" and not self.optimizer:
            self.optimizer = name
        else:
            return
        self.lines.add(node.lineno)

    def loss(self, backward: Method) -> str:
        """What goes backward, without its scaler."""
        value = backward.func.value
        scaled = is_method(value, "scale") and self._script.text(value.func.value) == self._scaler and value.args
        text = self._script.text(value.args[0] if scaled and is_method(value, "scale") else value)
        return text if text.isidentifier() else "loss"


def _made(script: Script, owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """`self.name`, and by whom it is made."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_own(node.targets[0]):
            yield script.text(node.targets[0]), script.full_name(node.value.func)


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _epochs(
    script: Script, owner: ast.ClassDef, method: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For
) -> ast.For:
    """The loop over epochs: around it, or around a call of its method; itself if there is none."""
    above = [each for each in script.above(loop) if isinstance(each, ast.For)]
    if above:
        return above[0]
    calls = [node for node in ast.walk(owner) if is_method(node, method.name)]
    around = [each for call in calls for each in script.above(call) if isinstance(each, ast.For)]
    return around[0] if around else loop


def _count(script: Script, around: ast.For) -> str:
    """How many epochs, where it goes over that number."""
    over = epochs_of(script, around)
    return script.text(over.args[0]) if over is not None and len(over.args) == 1 else "N"


def _model(script: Script, owner: ast.ClassDef) -> str:
    """What is put into its training mode, or has parameters."""
    for word in ("parameters", "train"):
        for node in ast.walk(owner):
            if is_method(node, word) and _is_own(node.func.value):
                return script.text(node.func.value)
    every = [script.text(node.func.value) for node in ast.walk(script.tree) if is_method(node, "parameters")]
    said = script.text(owner)
    return next((f"self.{name}" for name in every if f"self.{name}" in said), every[0] if every else "model")
