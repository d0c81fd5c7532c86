"""Whatever Ray's worker dies of, nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from sublet.runtime.agent import processes

# A steward without Ray: starts a template, has it fork an agent, tells who they are, and waits.
STEWARD = """
import asyncio, json, os, sys
from pathlib import Path
from sublet.runtime.providers.local.forking import TemplateForker
from sublet.runtime.providers.local.nodes import Nodes
from sublet.runtime.providers.local.records import NodeRecord, Records
from sublet.runtime.providers.ray.template import TiedTemplate

async def main(folder):
    template = TiedTemplate((), folder / "template.log", os.environ)
    nodes = Nodes(Records(folder / "nodes"), TemplateForker(template), print)
    record = NodeRecord(node_id="n", offer_id="o", token="t", began_s=0.0)
    facts = {"node_id": "n", "token": "t", "address": f"unix:{folder}/none", "notice_file": "x", "log": f"{folder}/log"}
    born = await nodes.fork(record, facts)
    print(json.dumps([template.pid, born.pid]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_template_and_agent_end_when_the_steward_is_killed(tmp_path):
    steward = subprocess.Popen([sys.executable, "-c", STEWARD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        template, agent = json.loads(steward.stdout.readline())
        seen = [processes.look(pid) for pid in (template, agent)]
        assert all(seen)
        assert seen[1].session == agent  # a session of its own, which Ray would not end
    finally:
        os.kill(steward.pid, signal.SIGKILL)
        steward.wait()
        steward.stdout.close()
    ends_s = time.monotonic() + 120.0
    while any(processes.alive(process.pid, process.start) for process in seen):
        assert time.monotonic() < ends_s, "something outlives the steward"
        time.sleep(0.01)
