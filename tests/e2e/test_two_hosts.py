"""Jobs over two machines that share no loopback: their workers meet by the addresses that their agents know."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.memory_cloud import api_over
from tests.rigs.hosts import Hosts, NoHosts

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)

SDK = """
import os
import torch
from torch import nn
from torch.utils.data import TensorDataset
from sublet import train

x = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
model = nn.Linear(4, 1)
with train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(x, x.sum(1)), global_batch=8) as s:
    for inputs, targets in s.batches(epochs=2):
        if s.steps == 0:
            print("with", s.world, "at", os.environ.get("SUBLET_HOST"), flush=True)
        s.step(((model(inputs).squeeze(1) - targets) ** 2).mean())
"""
PLAIN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
for _ in range(20):
    total[0] = dist.get_rank() + 1
    dist.all_reduce(total)
print("sum", int(total), "by", os.environ["MASTER_ADDR"], "at", os.environ.get("SUBLET_HOST"), flush=True)
dist.destroy_process_group()
"""
PATIENCE_S = 90.0  # for both


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Both jobs, one after the other on the same two machines: (view, what its workers printed) by name."""
    folder = tmp_path_factory.mktemp("hosts")
    hosts = Hosts(folder)
    try:
        hosts.build()
    except NoHosts as error:
        pytest.skip(str(error))
    try:
        yield asyncio.run(_lived(hosts, folder))
    finally:
        hosts.clear()


async def _lived(hosts, folder):
    found = {}
    policy = plugins.load("sublet.policies", "max-speedup")()
    with api_over(hosts, folder / "state", policy, limits={"on-demand": Limit(max_nodes=2)}) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        for name, text in (("with-sdk", SDK), ("unmodified", PLAIN)):
            script = folder / f"{name}.py"
            script.write_text(text, encoding="utf-8")
            argv = (sys.executable, str(script))
            facts = {"name": name, "argv": argv, "cwd": str(folder), "sdk": name == "with-sdk"}
            await api.submit(JobSpec(**facts, min_workers=2, max_workers=2))
        end_s = time.monotonic() + PATIENCE_S
        for name in ("with-sdk", "unmodified"):
            view = await _over(api, f"{name}-1", end_s)
            logs = (folder / "state" / "jobs" / f"{name}-1" / "logs").glob("*.log")
            found[name] = (view, "".join(path.read_text(encoding="utf-8") for path in logs))
        await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)
    return found


async def _over(api, job_id, end_s):
    """As it is when it has ended, or at `end_s`."""
    while True:
        view = await api.job(job_id)
        if view["phase"] in ("finished", "failed") or time.monotonic() > end_s:
            return view
        await asyncio.sleep(0.05)


def test_a_job_with_the_sdk_trains_over_two_hosts(ended):
    view, printed = ended["with-sdk"]
    assert (view["phase"], view["step"], view["failures_infra"]) == ("finished", 128, 0), printed
    assert {line for line in printed.splitlines() if line.startswith("with")} == {
        f"with 2 at {address}" for address in Hosts.addresses
    }


def test_an_unmodified_script_trains_over_two_hosts_and_ends(ended):
    view, printed = ended["unmodified"]
    assert (view["phase"], view["exit_code"], view["failures_infra"]) == ("finished", 0, 0), (view, printed)
    lines = [line for line in printed.splitlines() if line.startswith("sum")]
    meetings = {line.split(" at ")[0] for line in lines}
    assert meetings & {f"sum 3 by {address}" for address in Hosts.addresses}
    assert len(meetings) == 1, "all meet at the machine of rank 0"
    assert {line.split(" at ")[1] for line in lines} == set(Hosts.addresses)
