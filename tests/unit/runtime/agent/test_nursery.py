"""Where workers come from: it imports beside its agent, says when it is done, and whoever is born there is warm."""

from __future__ import annotations

import json
import subprocess
import sys

AGENT = """
import json, os, pathlib, select, sys, time
from sublet.runtime.agent import processes
from sublet.runtime.agent.forking import Forked, begin
from sublet.runtime.agent.nursery import Nursery
from sublet.wire.messages import StartWorker

os.setsid()
root = pathlib.Path(sys.argv[1])
nursery = Nursery(begin, ["no_such_module", "broken_module", "slow_module"])
processes.adopt_orphans()
seen = {"ready at once": nursery.ready, "word at once": bool(select.select([nursery], [], [], 0.0)[0])}
(root / "go").touch()
seen["word"] = bool(select.select([nursery], [], [], 60.0)[0])
nursery.attend()
forked = Forked(nursery=nursery)
(root / "look.py").write_text("import sys; print('slow_module' in sys.modules)")
log = root / "w.log"
order = StartWorker(worker_id="w", job_id="j", argv=(sys.executable, "look.py"), cwd=str(root), log=str(log))
worker = forked.start(order, {})
ends = time.monotonic() + 60.0
while not (over := dict(forked.ended())) and time.monotonic() < ends:
    time.sleep(0.005)
print(json.dumps({**seen, "code": over.get(worker.pid), "printed": log.read_text()}))
"""
SLOW = """
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.005)
"""


def test_it_imports_beside_the_agent_and_its_children_have_what_it_imported(tmp_path):
    (tmp_path / "slow_module.py").write_text(SLOW.format(go=str(tmp_path / "go")))
    (tmp_path / "broken_module.py").write_text("raise OSError('libcudart.so is missing')")
    command = [sys.executable, "-c", AGENT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ready at once": False,
        "word at once": False,
        "word": True,
        "code": 0,
        "printed": "True\n",
    }
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == ["no_such_module", "broken_module"]
