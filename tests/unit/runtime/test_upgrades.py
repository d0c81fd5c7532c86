"""Programs of two versions meet: over a state directory that one left to the other, and over a line between them."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import shutil
import typing
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.domain.budget import Budget
from sublet.domain.money import Money
from sublet.kernel.invariants import check
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.archive import WholeLog
from sublet.runtime.clock import Clock
from sublet.runtime.store import Store
from sublet.testing.memory_cloud import Node, api_over
from sublet.wire import messages as wire
from sublet.wire.lines import from_line, to_line
from tests.rigs.story import Story, adds_up, phase

pytestmark = pytest.mark.usefixtures("virtual_time")
DATA = Path(__file__).parents[2] / "data"
OURS = DATA / "state-0.1-434ea1a"  # the first with a fence, an archive and a shelf
LINES = (DATA / "wire-1.jsonl").read_bytes().splitlines(keepends=True)
KINDS = {kind for union in (wire.ToAgent, wire.ToController, wire.FromWorkerMessage) for kind in typing.get_args(union)}


@pytest.fixture
def left(tmp_path):
    """What the release left, in a place of its own, and a cloud in which its node still runs."""
    story = Story(tmp_path, budget=Budget(purse=Money.from_usd(5)))
    shutil.copytree(OURS, story.folder)
    (story.folder / "log.sqlite").write_bytes(gzip.decompress((story.folder / "log.sqlite.gz").read_bytes()))
    return story, json.loads((OURS / "expected.json").read_text())


def test_a_state_directory_of_the_release_goes_on_with_its_jobs_its_money_and_its_node(left):
    story, expected = left
    story.cloud.clock = Clock(speedup=60.0, began_s=expected["now_s"])

    async def live():
        with api_over(
            story.cloud, story.folder, story.policy, budget=story.budget, limits=story.limits, clock=story.cloud.clock
        ) as api:
            controller = api._controller
            (held,) = expected["held"]
            story.cloud.nodes[held] = Node(held, "spot", controller.leases.token(held))
            running = asyncio.create_task(api.run())
            await api.started()
            kernel = controller.kernel
            assert kernel.supply.budget.purse.grains == expected["purse_grains"]  # as it was changed
            assert [(await api.job(job_id))["phase"] for job_id in ("short-1", "third-1")] == ["finished"] * 2
            found = {job_id: controller.bill.jobs[job_id].total.grains for job_id in expected["accounts"]}
            assert found == expected["accounts"]
            assert kernel.ledger.spent(kernel.now_s).grains >= expected["spent_grains"]
            assert held in kernel.cluster.nodes  # nothing was rented anew, and nothing given back
            await phase(api, "long-1", "running")
            assert story.cloud.rented == []
            check(kernel)
            adds_up(api)
            await api.shutdown()
            await story.cloud.close()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


def test_its_log_is_whole_and_is_compared_where_this_kernel_is_of_its_version(left, capsys):
    story, expected = left
    store = Store(story.folder / "log.sqlite")
    log = WholeLog(store)
    assert (log.is_whole, log.cut, sum(1 for _ in log.lines())) == (True, expected["cut"], expected["seen"])
    store.close()
    assert run(["replay", str(story.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["events"], found["verified"]) == (expected["seen"], expected["kernel"] == KERNEL_VERSION)


# ---------------------------------------------------------------------- the line


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["type"] for line in LINES])
def test_what_a_peer_of_the_release_says_is_understood_as_it_was_meant(line):
    said, understood = json.loads(line), json.loads(to_line(from_line(line)))
    assert {name: understood[name] for name in said} == said


def test_every_kind_of_message_of_the_release_is_kept(tmp_path):
    kept = {json.loads(line)["type"] for line in LINES}
    assert kept <= {kind.__name__ for kind in KINDS}  # none was taken away


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__))
def test_a_message_of_an_older_peer_lacks_only_what_has_a_default(kind):
    """Whoever adds a field without one stops every training that began before the upgrade."""
    line = next((line for line in LINES if json.loads(line)["type"] == kind.__name__), None)
    if line is None:  # newer than the release: nobody older says it
        return
    known = json.loads(line).keys()
    for each in dataclasses.fields(kind):
        optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        assert optional or each.name in known, f"{kind.__name__}.{each.name} needs a default"


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["type"] for line in LINES])
def test_what_a_newer_peer_adds_to_a_message_is_passed_over(line):
    newer = json.dumps({**json.loads(line), "of_a_later_version": [1, {"a": None}]}).encode()
    assert from_line(newer) == from_line(line)
