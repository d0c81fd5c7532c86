"""Texts of several lines in a script: one would change with its indentation, while pieces side by side do not."""

from __future__ import annotations

import ast
import io
import tokenize

from sublet.cli.work.script.reading import Script

__all__ = ["long_texts"]


def long_texts(script: Script, node: ast.AST) -> list[ast.expr]:
    """Those within it that go on in a further line, by `\"\"\"` or a backslash; not pieces that stand side by side."""
    spans = _spans(script.source)
    return [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.JoinedStr | ast.Constant)
        and each.end_lineno != each.lineno
        and any(each.lineno <= first and last <= (each.end_lineno or 0) for first, last in spans)
    ]


def _spans(source: str) -> list[tuple[int, int]]:
    """First and last line of each piece of text that has more than one."""
    found, open_at = [], list[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # from Python 3.12 on, with an end of its own
            open_at.append(token.start[0])
        first = open_at.pop() if name == "FSTRING_END" else token.start[0]
        if name in ("STRING", "FSTRING_END") and first != token.end[0]:
            found.append((first, token.end[0]))
    return found
