"""Samples that are made as long as the longest of those beside them: of a part of a batch, that is another."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.reading import Script, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_padding"]


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
