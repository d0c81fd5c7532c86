"""Programs of two versions meet: over a state directory that one left to the other, and over a line between them."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.domain.budget import Budget
from sublet.domain.money import Money
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay, version_of
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.archive import WholeLog
from sublet.runtime.clock import Clock
from sublet.runtime.store import Store
from sublet.wire.lines import from_line, to_line
from sublet.wire.messages import Profile
from sublet_lab.memory_cloud import Node, api_over
from tests.rigs.kept_state import KINDS
from tests.rigs.story import Story, adds_up, phase

pytestmark = pytest.mark.usefixtures("virtual_time")
DATA = Path(__file__).parents[2] / "data"
COMMITS = ("434ea1a", "1e1ae9c", "28748952", "kernel-11")  # of kernels 5, 9, 10 and 11
LEFT = [DATA / f"state-0.1-{commit}" for commit in COMMITS]
LINES = [line for path in sorted(DATA.glob("wire-*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)]


@pytest.fixture(params=LEFT, ids=lambda path: path.name)
def left(request, tmp_path):
    """What a release left, in a place of its own, and a cloud in which its node still runs."""
    story = Story(tmp_path, budget=Budget(purse=Money.from_usd(5)))
    shutil.copytree(request.param, story.folder)
    (story.folder / "log.sqlite").write_bytes(gzip.decompress((story.folder / "log.sqlite.gz").read_bytes()))
    return story, json.loads((request.param / "expected.json").read_text())


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
            phases = expected.get("phases", dict.fromkeys(expected["accounts"], "finished"))
            assert kernel.supply.budget.purse.grains == expected["purse_grains"]  # as it was changed
            assert {job_id: (await api.job(job_id))["phase"] for job_id in phases} == phases
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


@pytest.mark.parametrize("left", LEFT[-1:], indirect=True, ids=["last"])
def test_a_log_of_this_kernel_is_kept_and_lived_again_to_the_same_orders(left):
    """Who counts the kernel up keeps what it leaves then: `python -m tests.rigs.kept_state`."""
    story, expected = left
    store = Store(story.folder / "log.sqlite")
    lines = [store.get("header"), *WholeLog(store).lines()]
    store.close()
    assert version_of(lines[0]) == expected["kernel"] == KERNEL_VERSION
    kernel = replay(lines)  # or it says where the orders part
    assert (kernel.seen, sorted(kernel.cluster.nodes)) == (expected["seen"], expected["held"])
    orders = [order["type"] for line in lines[1:] for order in json.loads(line)["actions"]]
    assert {"RentNode", "ReleaseNode", "StartJob", "ResizeJob", "StopJob"} <= set(orders)
    assert kernel.ledger.spent(expected["now_s"]).grains == expected["spent_grains"]


# ---------------------------------------------------------------------- the line


def _as_far_as(said, understood):
    """What was said: a message of today may say more, and so may what is in it."""
    if not isinstance(said, dict):
        return understood
    return {name: _as_far_as(said[name], understood[name]) for name in said}


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["type"] for line in LINES])
def test_what_a_peer_of_the_release_says_is_understood_as_it_was_meant(line):
    said, understood = json.loads(line), json.loads(to_line(from_line(line)))
    assert _as_far_as(said, understood) == said


def test_every_message_is_kept_with_all_that_it_can_say():
    """Who adds a kind or a field keeps a line of it: `record_lines` of `tests/rigs/kept_state.py`."""
    kept = {}
    for line in LINES:
        kept.setdefault(json.loads(line)["type"], set()).update(json.loads(line).keys() - {"type"})
    said = {kind.__name__: {each.name for each in dataclasses.fields(kind)} for kind in KINDS}
    assert kept == said  # none was taken away, either


def test_a_profile_may_lack_whatever_an_older_script_does_not_measure():
    said = [json.loads(line).get("profile") for line in LINES if json.loads(line)["type"] == "Stepped"]
    (kept,) = [profile for profile in said if profile is not None]
    assert kept.keys() - {"type"} <= {each.name for each in dataclasses.fields(Profile)}  # none was taken away
    assert Profile() == Profile(step_s=0.0)  # and none is needed


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__))
def test_a_message_of_an_older_peer_lacks_only_what_has_a_default(kind):
    """Whoever adds a field without one stops every training that began before the upgrade."""
    line = next(line for line in LINES if json.loads(line)["type"] == kind.__name__)
    known = json.loads(line).keys()
    for each in dataclasses.fields(kind):
        optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        assert optional or each.name in known, f"{kind.__name__}.{each.name} needs a default"


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["type"] for line in LINES])
def test_what_a_newer_peer_adds_to_a_message_is_passed_over(line):
    newer = json.dumps({**json.loads(line), "of_a_later_version": [1, {"a": None}]}).encode()
    assert from_line(newer) == from_line(line)
