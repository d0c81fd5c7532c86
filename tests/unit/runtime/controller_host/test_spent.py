"""When an anchor is to cost no more: its controller may rent nothing, and rents nothing."""

from __future__ import annotations

import json

import pytest

from sublet.runtime.controller_host.spent import is_over, is_spent
from tests.rigs.in_memory_api import served


@pytest.mark.parametrize(
    ("exhausted", "phases", "over"),
    [(True, [], True), (True, ["gone"], True), (True, ["ready", "gone"], False), (False, [], False)],
)
def test_it_is_over_once_the_purse_is_spent_and_the_last_node_is_gone(exhausted, phases, over):
    assert is_over({"exhausted": exhausted}, [{"phase": phase} for phase in phases]) is over


def test_the_controller_is_asked_with_the_token_that_only_reads(tmp_path):
    with served(tmp_path) as there:
        (there.state.path / "token.read").stat()
        facts = json.loads((there.state.path / "controller.json").read_text(encoding="utf-8"))
        assert facts["port"] == there.client.port
        assert is_spent(there.state.path) is False
    with pytest.raises(OSError, match=r"controller\.json"):
        is_spent(there.state.path)
