"""Samples that are made as long as the longest of those beside them, or put end to end: of a part, that is another."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.mixing import place_of
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_padding"]

JOINED = ("cat", "concat", "concatenate", "hstack", "vstack")
MADE = ("torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.LongTensor", "torch.FloatTensor", "numpy.array")


def refuse_padding(script: Script, loader: ast.Call) -> None:
    """Where a `collate_fn` of this script does so."""
    effects = Effects(script)
    for word in loader.keywords:
        if word.arg != "collate_fn":
            continue
        named = effects.functions.get(root_of(word.value)) if isinstance(word.value, ast.Name) else None
        values = effects.given(word.value.id, script.scope_of(loader)) if isinstance(word.value, ast.Name) else []
        pieces: list[ast.AST] = [named] if named is not None else [word.value, *values]
        pieces += [each for piece in list(pieces) for each in effects.reached(piece)]
        calls = [node for piece in pieces for node in ast.walk(piece) if isinstance(node, ast.Call)]
        longest = any(script.full_name(call.func) == "max" for call in calls)
        for call in calls:
            if _joins(effects, call):
                raise CannotConvert(
                    "samples are put end to end, and a worker has a part of the batch: a mean over tokens would be "
                    "another, if samples are of several lengths",
                    call.lineno,
                    "torch.stack, if all are of one length; or a sum over tokens, and how many they are: "
                    'reduction="counted" of train.session',
                )
            last = script.full_name(call.func).rpartition(".")[2]
            if last == "pad_sequence" or (last == "pad" and longest) or _pads(call):
                raise CannotConvert(
                    "samples are padded to the longest of those beside them, and a worker has a part of the batch: "
                    "a mean over tokens would be another",
                    call.lineno,
                    "pad all to one length, the longest that there is; or ignore what is padded, and "
                    'reduction="counted" of train.session',
                )


def _pads(call: ast.Call) -> bool:
    """`tokenizer(texts, padding=True)`."""
    told = [word.value for word in call.keywords if word.arg == "padding"]
    return any(isinstance(each, ast.Constant) and each.value in (True, "longest") for each in told)


def _joins(effects: Effects, call: ast.Call) -> bool:
    """`torch.cat(rows)`; not `torch.cat([x, y], dim=1)`, nor `torch.cat([x, noise])`, nor where each is one row."""
    script, full = effects.script, effects.script.full_name(call.func)
    first = place_of(script, call) in ("", "0")
    if not full.startswith(("torch.", "numpy.")) or full.rpartition(".")[2] not in JOINED or not call.args or not first:
        return False
    pieces, scope = [call.args[0]], script.scope_of(call)
    if isinstance(pieces[0], ast.Name):
        name = pieces[0].id
        grown = [node for node in ast.walk(scope) if is_method(node, "append") and root_of(node.func) == name]
        if grown:
            return not all(_is_row(script, node.args[0]) for node in grown if node.args)
        pieces = effects.given_in(scope, name) or pieces
    return not all(_are_rows(script, each) for each in pieces)


def _are_rows(script: Script, pieces: ast.expr) -> bool:
    """Whether they are written out, or one row for each sample."""
    if isinstance(pieces, ast.ListComp | ast.GeneratorExp):
        return _is_row(script, pieces.elt)
    return isinstance(pieces, ast.List | ast.Tuple) and bool(pieces.elts)


def _is_row(script: Script, piece: ast.expr) -> bool:
    """`r[None]`, `r.unsqueeze(0)`, `r.view(1, -1)`, `torch.tensor([n])`."""
    if isinstance(piece, ast.Subscript):
        return script.text(piece.slice).startswith("None")
    if not isinstance(piece, ast.Call) or not piece.args:
        return False
    given = script.text(piece.args[0])
    if script.full_name(piece.func) in MADE:
        return isinstance(piece.args[0], ast.List) and len(piece.args[0].elts) == 1
    return given == "0" if is_method(piece, "unsqueeze") else given == "1" and is_method(piece, "view", "reshape")
