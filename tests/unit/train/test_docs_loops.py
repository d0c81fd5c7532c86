"""Loops that the documentation shows: what each asks for is known, so that all of them are tried under changes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.adoption import drifts
from tests.rigs.docs_loops import IN_STAGES, NAMES, ROOT, Loop, loops


def test_every_loop_of_the_docs_can_be_tried():
    found = loops().values()
    for loop in found:
        if loop.kind == "framework":
            assert (ROOT / "tests" / "adoption" / "scripts" / loop.script / "after.py").exists(), loop.name
        else:
            assert loop.asks_for <= {*NAMES, *IN_STAGES, "corpus"}, (
                f"{loop.name}: say in docs_loops.NAMES what they stand for"
            )
            assert loop.kind in drifts.SCENARIOS
    kinds = [loop.kind for loop in found]
    assert set(kinds) == {"session", "framework", "parts", "own"}
    assert kinds.count("session") >= 11  # they are found as pages are written


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("with train.session(net) as s:\n    for x in s: s.step(loss(net, x))", {"train", "net", "loss"}),
        ("def f(a):\n    return a + b\nf(c)", {"b", "c"}),
        ("class A(Base):\n    def __init__(self, given):\n        self.a = given\nA(given)", {"Base", "given"}),
        ("import json\nfrom a import b as c\njson.dumps(c)\n[i for i in range(n)]", {"n"}),
    ],
)
def test_names_that_a_loop_does_not_make_are_asked_for(code, names):
    assert Loop("a loop", code).asks_for == names
