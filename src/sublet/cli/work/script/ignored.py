"""Labels of -100, which torch leaves out of a mean without being told: how many a worker has of the others differs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.reading import Script, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_ignored"]

IGNORED = -100  # torch's default of ignore_index
LOSSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "NLLLoss2d")
COUNTED = (
    'reduction="counted" of train.session, and s.step(F.cross_entropy(..., reduction="sum"), counted=(labels != '
    "-100).sum()); or, if each sample has as many labels that count, a mean for each sample first"
)


def refuse_ignored(script: Script, loader: ast.Call) -> None:
    """Where a `collate_fn` or a dataset of this script makes such labels, and a loss takes the mean of the others."""
    effects = Effects(script)
    whose = next((each for each in ast.walk(script.tree) if _averages(script, each)), None)
    if whose is None:
        return
    for piece in _makers(effects, loader):
        for node in ast.walk(piece):
            if _is_ignored(effects, node):
                raise CannotConvert(
                    f"labels of {IGNORED} are made there, which the loss in line {getattr(whose, 'lineno', 0)} leaves "
                    "out of its mean: how many others a worker has in its part of the batch differs",
                    getattr(node, "lineno", loader.lineno),
                    COUNTED,
                )


def _averages(script: Script, node: ast.AST) -> bool:
    """Whether it is a mean over labels that count; also one that a model makes, which is asked for its `.loss`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "loss" and isinstance(node.ctx, ast.Load) and root_of(node) != "self"
    if not isinstance(node, ast.Call):
        return False
    full = script.full_name(node.func)
    if not full.startswith("torch.nn.") or full.rpartition(".")[2] not in LOSSES:
        return False
    said = [word.value for word in node.keywords if word.arg == "reduction"]
    return not said or not isinstance(said[0], ast.Constant) or said[0].value == "mean"


def _makers(effects: Effects, loader: ast.Call) -> Iterator[ast.AST]:
    """The script's own of what makes samples and batches: functions, lambdas and classes, with what they call."""
    scope = effects.script.scope_of(loader)
    for given in (*loader.args[:1], *(word.value for word in loader.keywords if word.arg in ("dataset", "collate_fn"))):
        values = [given, *(effects.given(given.id, scope) if isinstance(given, ast.Name) else [])]
        for value in values:
            name = root_of(value.func) if isinstance(value, ast.Call) else root_of(value)
            owned = effects.classes.get(name) or effects.functions.get(name)
            pieces: list[ast.AST] = [value] if owned is None else [value, owned]
            yield from pieces
            yield from (each for piece in pieces for each in effects.reached(piece))


def _is_ignored(effects: Effects, node: ast.AST) -> bool:
    """`-100`, or a name that stands for it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return any(_is_number(each) for each in effects.given(node.id, effects.script.scope_of(node)))
    return _is_number(node)


def _is_number(node: ast.AST) -> bool:
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    return minus and isinstance(node, ast.UnaryOp) and ast.unparse(node) == str(IGNORED)
