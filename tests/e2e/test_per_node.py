"""A file for SkyPilot on two nodes of this machine: its script runs once on each, with both GPUs and all addresses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.jobs.file import job_from_text
from sublet.testing.rigs import LocalRig
from sublet.testing.values import an_offer
from sublet_lab.memory_cloud import api_over

PATIENCE_S = 120.0

# The second node knocks, and the first ends when it has heard that: both run at a time. A failed command is nothing.
FILE = """
num_nodes: 2
resources: {accelerators: 'V100:2', infra: nowhere, cpus: 4+}
run: |
  false
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  each=$SKYPILOT_NUM_GPUS_PER_NODE
  echo node $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES x $each at $first sees $CUDA_VISIBLE_DEVICES
  echo task $SKYPILOT_TASK_ID rank ${RANK:-none} of $(echo "$SKYPILOT_NODE_IPS" | wc -l)
  if [ "$SKYPILOT_NODE_RANK" == 1 ]; then
    touch "$SUBLET_CHECKPOINT_DIR/knock"
    exit 0
  fi
  until [ -e "$SUBLET_CHECKPOINT_DIR/knock" ]; do sleep 0.05; done
  echo heard
"""


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


def test_a_script_for_nodes_runs_once_on_each_of_two_nodes_at_a_time(rig, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # what agents find on this machine, which may have none
    spec = job_from_text(FILE, source="two.yaml", base=rig.folder)
    assert (spec.per_node, spec.max_workers) == (2, 4)
    view, submitted = asyncio.run(_lived(rig, spec))
    logs = (rig.folder / "state" / "jobs" / "two-1" / "logs").glob("*.log")
    printed = sorted(line for path in logs for line in path.read_text().splitlines())
    assert (view["phase"], view["exit_code"], view["failures_infra"]) == ("finished", 0, 0), printed
    assert printed == [
        "heard",
        "node 0 of 2 x 2 at 127.0.0.1 sees 0,1",
        "node 1 of 2 x 2 at 127.0.0.1 sees 0,1",
        "task sublet-two-1 rank none of 2",
        "task sublet-two-1 rank none of 2",
    ]
    assert [note.partition(" = ")[0] for note in view["notes"]] == ["resources.infra", "resources.cpus"]
    assert submitted["notes"] == view["notes"]


async def _lived(rig, spec):
    cloud = SimpleNamespace(
        provider=rig.provider(offers=[an_offer("spot", gpus=2, gpu="V100")]), engine=rig.engine(), clock=rig.clock
    )
    policy = plugins.load("sublet.policies", "max-speedup")()
    with api_over(cloud, rig.folder / "state", policy, limits={"spot": Limit(max_nodes=2)}) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        submitted = await api.submit(spec)
        view = await api.job("two-1")
        for _ in range(int(PATIENCE_S / 0.05)):
            if view["phase"] in ("finished", "failed"):
                break
            await asyncio.sleep(0.05)
            view = await api.job("two-1")
        await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)
    return view, submitted
