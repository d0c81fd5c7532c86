"""Whose agents are whose: by a lock that is let go of a moment before a process is gone."""

from __future__ import annotations

import os

import pytest

from sublet.runtime.agent import processes
from sublet.runtime.providers.local.records import Life, NodeRecord, Records

FACTS = {"node_id": "n1", "offer_id": "o", "token": "t", "began_s": 0.0, "pid": 7, "start": 9}
A_NODE = NodeRecord(**FACTS, boot="now")


class Machine:
    """One agent, listed for as long as the machine pleases."""

    boot = "now"

    def __init__(self, *, held: bool, listed: bool, ending: bool, ends_when_looked_at: bool = False) -> None:
        self.held, self.listed, self.ending, self.ends_when_looked_at = held, listed, ending, ends_when_looked_at

    def look(self, life):
        if self.ends_when_looked_at:
            self.held, self.ending = False, True
        return Life(held=self.held, process=(7, 9))

    def alive(self, pid, start):
        return self.listed

    def runs(self, pid, start):
        return self.listed and not self.ending

    def members(self, pid, start):
        return [processes.Process(pid, 1, pid, start, self.ending)] if self.listed else []


@pytest.mark.parametrize(
    ("machine", "anothers"),
    [
        (Machine(held=True, listed=True, ending=False), False),
        (Machine(held=False, listed=True, ending=False), True),  # it holds the lock of the original
        (Machine(held=False, listed=True, ending=True), False),  # it has just been killed
        (Machine(held=True, listed=True, ending=False, ends_when_looked_at=True), False),
        (Machine(held=False, listed=False, ending=False), False),
    ],
)
def test_an_agent_that_is_on_its_way_out_does_not_make_a_copy_of_its_directory(machine, anothers, tmp_path):
    assert Records(tmp_path, lives=machine).is_anothers(A_NODE) is anothers


def test_a_process_that_runs_is_not_on_its_way_out():
    me = processes.look(os.getpid())
    assert me is not None
    assert not me.ending
    assert processes.runs(me.pid, me.start)
    assert not processes.runs(me.pid, me.start + 1)
