"""Intervals of a live job's tiers, and what each tier cost it and saved."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import OfferState
from sublet.domain.saving import MOST_SLOWDOWN, cost_of_write
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.checkpoints import PulledJobs, Pulling
from sublet.runtime.controller.files.logs import JobLogs
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.controller.memory.tiers import LONGEST_S, Losses, Pace, Tiers, intervals, losses_of
from sublet.runtime.controller.money.bill import Account
from sublet.runtime.controller_api.money import tier_views
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.files import ANCHOR, DISK
from sublet.wire.messages import Saved
from tests.rigs.sizes import examples

seconds = st.floats(0.0, 500.0)
rates = st.floats(1e-4, 10.0)


def state(market=Market.SPOT, hazard_per_h=0.5, share=0.0):
    offer = Offer(
        id=str(market),
        gpu="T4",
        gpus_per_node=1,
        market=market,
        price=Price.from_usd_per_h("1"),
        hazard_per_h=hazard_per_h,
        reclaim_share=share,
    )
    return OfferState(offer=offer, price=offer.price, limit=Limit(), held=0, available=None)


@settings(max_examples=examples(100), deadline=None)
@given(
    pace=st.builds(Pace, blocked_s=seconds, write_s=seconds, carry_s=seconds, copy_s=seconds),
    losses=st.builds(Losses, some_per_h=rates, all_per_h=rates),
    speedup=st.sampled_from([1.0, 60.0]),
)
def test_checkpoints_slow_a_job_by_at_most_two_percent_whatever_they_cost(pace, losses, speedup):
    found = intervals(pace, losses, speedup=speedup, copies=True)
    spent_s = cost_of_write(pace.blocked_s, pace.write_s) + cost_of_write(0.0, pace.carry_s)
    assert spent_s / found.worker_s <= MOST_SLOWDOWN * 1.02  # to the digits that measurements are taken at
    assert found.worker_s >= pace.blocked_s / MOST_SLOWDOWN / 1.01
    assert found.worker_s >= max(pace.write_s, pace.carry_s) / 1.01  # none begins before the last has ended
    times = found.bucket_s / found.worker_s
    assert times == pytest.approx(round(times))
    assert times >= 1.0


@settings(max_examples=examples(60), deadline=None)
@given(pace=st.builds(Pace, blocked_s=seconds, write_s=seconds), all_per_h=rates, more=st.floats(1.1, 20.0))
def test_whoever_is_lost_more_often_saves_more_often_and_whoever_writes_longer_less(pace, all_per_h, more):
    once = intervals(pace, Losses(some_per_h=0.0, all_per_h=all_per_h)).worker_s
    assert intervals(pace, Losses(some_per_h=0.0, all_per_h=all_per_h * more)).worker_s <= once * 1.001
    slower = Pace(blocked_s=pace.blocked_s * more, write_s=pace.write_s * more)
    assert intervals(slower, Losses(some_per_h=0.0, all_per_h=all_per_h)).worker_s >= once * 0.999


def test_a_job_that_is_hardly_ever_lost_and_pays_nothing_still_saves_now_and_then():
    calm = intervals(Pace(), Losses(some_per_h=0.0, all_per_h=0.0, fails_per_h=1e-9))
    assert calm.worker_s == LONGEST_S
    assert math.isinf(calm.bucket_s)  # where the controller copies nothing


def test_survivors_need_a_checkpoint_only_where_all_nodes_go():
    alone = losses_of([(state(), 4)], survives=False)
    assert (alone.some_per_h, alone.all_per_h) == (0.0, 2.0)
    kept = losses_of([(state(), 4)], survives=True)
    assert kept.some_per_h + kept.all_per_h == pytest.approx(2.0)
    assert kept.all_per_h == pytest.approx(0.2)
    together = losses_of([(state(share=0.9), 4)], survives=True)
    assert together.all_per_h == pytest.approx(0.9**3 * (together.some_per_h + together.all_per_h))
    assert losses_of([(state(), 1)], survives=True).all_per_h == 0.5  # nobody is left of one
    held = losses_of([(state(), 3), (state(Market.ON_DEMAND, 0.0), 1)], survives=True)
    assert held.all_per_h == 0.001  # a node on demand stays


class Books:
    """A bill whose every second costs ten grains."""

    def __init__(self):
        self.jobs = {"job": Account(useful=10_000)}

    def book_checkpoint(self, job_id, cloud_s):
        return round(10 * cloud_s)


def saved(tiers, bill, tier, step, **facts):
    facts = {"done": 0.0, "seconds": 1.0, "blocked_s": 0.5, "size_bytes": 100} | facts
    tiers.saved("job", Saved(worker_id="job.1.0", step=step, tier=tier, **facts), bill, speedup=2.0)


def test_a_tier_is_told_by_what_it_cost_and_by_the_steps_that_only_it_had():
    tiers, bill = Tiers(), Books()
    assert tiers.newest == ""
    saved(tiers, bill, "disk", 100)
    saved(tiers, bill, "anchor", 100, blocked_s=0.0)
    assert tiers.newest == "anchor"
    saved(tiers, bill, "disk", 200)
    assert tiers.newest == "disk"
    tiers.resumed("job", 200, "checkpoint", bill, steps_made=1000)  # its nodes were there still
    tiers.resumed("job", 250, "peer", bill, steps_made=1000)  # survivors went on
    tiers.resumed("job", 100, "checkpoint", bill, steps_made=1000)  # all nodes were gone
    found = {view["tier"]: view for view in tier_views([tiers])}
    assert list(found) == ["peers", "disk", "anchor"]
    assert {tier: view["steps_kept"] for tier, view in found.items()} == {"peers": 50, "disk": 100, "anchor": 100}
    assert {tier: view["resumes"] for tier, view in found.items()} == {"peers": 1, "disk": 1, "anchor": 1}
    assert (found["disk"]["commits"], found["disk"]["size_bytes"], found["disk"]["blocked_s"]) == (2, 200, 2.0)
    assert tiers.of("disk").grains == 20
    assert tiers.of("anchor").kept_grains == 10_000 * 100 // 1000


def test_where_the_newest_checkpoint_lies_is_said_and_one_that_was_lost_is_not_it():
    tiers, bill = Tiers(), Books()
    assert (tiers.describe(), tiers.newest_step) == ("", None)
    saved(tiers, bill, "anchor", 100)
    saved(tiers, bill, "disk", 200)
    assert (
        tiers.describe()
        == "its newest checkpoint, of step 200, lies on its node's own disk (disk), and is lost with it"
    )
    assert [view["newest"] for view in tier_views([tiers])] == [1, 0]
    tiers.resumed("job", 100, "checkpoint", bill, steps_made=1000)  # all nodes were gone, and their disks
    assert (tiers.newest, tiers.newest_step) == ("anchor", 100)
    assert "of step 100, lies where the controller is" in tiers.describe()
    saved(tiers, bill, "bucket", 100)
    assert "in a bucket" in tiers.describe()
    tiers.resumed("job", 0, "fresh", bill, steps_made=1000)
    assert tiers.newest_step is None


def test_what_a_script_saved_has_a_tier_and_no_step():
    tiers, bill = Tiers(), Books()
    saved(tiers, bill, "anchor", -1)
    assert (tiers.newest, tiers.newest_step) == ("anchor", None)
    assert tiers.describe().startswith("its newest checkpoint lies where the controller is")


def test_a_job_that_begins_at_step_0_was_kept_by_no_tier():
    tiers, bill = Tiers(), Books()
    saved(tiers, bill, "anchor", 100)
    tiers.resumed("job", 0, "fresh", bill, steps_made=100)
    assert tiers.of("anchor").resumes == 0


def test_what_tiers_cost_outlives_the_controller():
    tiers, bill = Tiers(), Books()
    saved(tiers, bill, "disk", 7)
    saved(tiers, bill, "bucket", 7)
    again = Tiers.from_facts(tiers.facts())
    assert again.facts() == tiers.facts()
    assert again.newest == "bucket"


def test_the_bill_of_all_jobs_adds_up_their_tiers():
    one, other, bill = Tiers(), Tiers(), Books()
    saved(one, bill, "anchor", 5)
    saved(other, bill, "anchor", 9)
    saved(other, bill, "bucket", 9)
    anchor, bucket = tier_views([one, other])
    assert (anchor["tier"], anchor["commits"], bucket["commits"]) == ("anchor", 2, 1)


def test_a_tier_that_a_newer_worker_names_is_taken_for_what_counts_as_saved():
    tiers = Tiers()
    saved(tiers, Books(), "moon", 3)
    assert tiers.newest == "anchor"


@pytest.mark.parametrize(
    ("elsewhere", "own", "told", "tier"),
    [
        (True, "", ANCHOR, DISK),
        (True, "", "bucket", DISK),  # of which its job says nothing: nobody could go on from there
        (True, "/mnt/all", ANCHOR, ANCHOR),
        (False, "", ANCHOR, ANCHOR),
    ],
)
def test_a_worker_does_not_say_of_what_is_carried_that_it_outlives_its_node(tmp_path, elsewhere, own, told, tier):
    """Whoever believed it would end the node that has the only copy. Where all see the directory, it is true."""
    facts = {"files": FILES, "rng": RNG, "engine": None, "logs": JobLogs(tmp_path)}
    carrier = FileSync(tmp_path, **facts, elsewhere=elsewhere)
    carrier.pulling = Pulling(tmp_path, FILES, None, None, PulledJobs(terms=lambda _: None, saved=print, alarm=print))
    spec = JobSpec(name="j", argv=("x",), cwd="/", checkpoint_dir=own)
    said = Saved(worker_id="j-1.1.0", step=7, done=7.0, seconds=1.0, blocked_s=0.0, size_bytes=5, tier=told)
    heard = carrier.judge({"j-1": SimpleNamespace(spec=spec)}, said)
    assert heard == replace(said, tier=tier)
    assert heard.safe is (tier == ANCHOR)
