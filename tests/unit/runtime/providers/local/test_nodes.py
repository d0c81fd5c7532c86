"""Nodes of an earlier controller: what is ended is what was ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from sublet.runtime.agent.agent import AgentFacts, folder_of
from sublet.runtime.providers.local.nodes import Nodes
from sublet.runtime.providers.local.records import Life, NodeRecord, Records


class Machine:
    """In its second boot; everybody seems to live, since numbers of processes are given again."""

    boot = "second"

    def __init__(self):
        self.killed = []

    def look(self, life: Path) -> Life:
        return Life(held=False, process=None)

    def alive(self, pid, start):
        return True

    async def kill(self, pid, start):
        self.killed.append(pid)
        return True

    def watch(self, pid, start, died):
        return lambda: None


@pytest.mark.parametrize(("boot", "held", "killed"), [("first", [], []), ("second", ["n1"], [7])])
def test_a_process_that_has_the_number_of_ours_since_the_machine_booted_again_is_left_alone(
    boot, held, killed, tmp_path
):
    async def live():
        machine = Machine()
        records = Records(tmp_path, lives=machine)
        facts = {"node_id": "n1", "offer_id": "o", "token": "t", "began_s": 0.0, "pid": 7, "start": 9}
        records.write(NodeRecord(**facts, boot=boot))
        nodes = Nodes(records, SimpleNamespace(kill=machine.kill, watch=machine.watch), lambda node_id: None)
        found = [record.node_id async for record in nodes.find_again()]
        assert found == ["n1"]
        assert [*nodes.held] == held
        for record in list(nodes.held.values()):
            nodes.end(record)
        await nodes.wait_for_end("n1")
        assert machine.killed == killed
        assert records.read() == []

    asyncio.run(live())


def test_of_a_node_that_is_no_more_neither_its_key_nor_what_jobs_printed_is_left(tmp_path):
    records = Records(tmp_path, lives=Machine())
    for node_id in ("n1", "n11"):
        named = {"node_id": node_id, "token": "t"}
        records.write(NodeRecord(**named, offer_id="o", began_s=0.0))
        facts = AgentFacts(**named, address="", notice_file=str(records.path(node_id, "notice")))
        (folder_of(facts) / "logs").mkdir(parents=True)
        (folder_of(facts) / "logs" / "j-1.1.0.log").write_text("a secret")
        (tmp_path / f"{node_id}.pem").write_text("a key")
        records.path(node_id, "log").touch()
    of_the_other = [path for path in tmp_path.rglob("*") if "n11." in str(path)]
    records.remove("n1")
    assert sorted(tmp_path.rglob("*")) == sorted([*of_the_other, tmp_path / "n1.log"])
