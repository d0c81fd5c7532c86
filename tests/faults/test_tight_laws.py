"""Laws on money where nobody has records: each sees the bug that it is for, in a life that is right without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.money import Money, Price
from sublet.kernel.total import TotalBudget
from sublet.runtime.controller.host import Paces
from sublet.runtime.providers.protocol import Billed
from sublet_lab.world.local import LocalCloud
from sublet_lab.world.plain import PlainProvider
from tests.rigs.shrunk import a_job, a_story, breaks

TWO_NODES_AND_NO_RECORDS = a_story(
    1,
    [a_job("job0", 5.0, 400, 0.5, 1.0, 0.5), a_job("job1", 5.0, 40, 0.5, 1.0, 0.5)],
    [],
    keeps_records=False,
)
SPENT_IN_PART = a_story(
    1,
    [a_job("job0", 5.0, 60, 0.5, 1.0, 0.5), a_job("job1", 85.0, 60, 0.5, 1.0, 0.5)],
    [],
    purse_usd=0.12,
    think_s=5.0,  # who waits for money is planned for again and again
    span_s=100.0,
)


def test_a_ledger_that_drops_the_bill_of_one_node_is_seen_though_the_provider_keeps_no_records(monkeypatch):
    """A node of a minute is less than the 150 s of each that the law once allowed."""
    assert not breaks(TWO_NODES_AND_NO_RECORDS)
    release = PlainProvider.release

    async def as_if_it_had_cost_nothing(self, node_id):
        told = await release(self, node_id)
        return Billed(nothing=True) if node_id == "n2" else told

    monkeypatch.setattr(PlainProvider, "release", as_if_it_had_cost_nothing)
    assert breaks(TWO_NODES_AND_NO_RECORDS) == "I6"


def test_a_job_that_waits_beside_a_purse_that_pays_for_a_node_is_wronged(monkeypatch):
    """... by a purse that keeps more back than it must."""
    assert not breaks(SPENT_IN_PART)
    left = TotalBudget.left

    def less(self, now_s):
        found = left(self, now_s)
        kept = Money(0) if self._ledger.spent(now_s).usd < 0.001 else Money.from_usd(0.12)
        return None if found is None else found - kept

    monkeypatch.setattr(TotalBudget, "left", less)
    assert breaks(SPENT_IN_PART) == "R"


def test_an_agent_that_ends_before_it_has_said_who_it_is_was_never_rented():
    """Its disk did not answer: the provider knows of no process, and tells of no bill."""
    story = a_story(
        1303,
        [a_job("job1", 44.039, 10, 0.2, 0.959, 1.035, checkpoint_every_s=8.0, on_node_loss="replace")],
        [(47.489, "no_storage", 236310331)],
        cloud="local",
        gpus_per_node=1,
        most_nodes=3,
        span_s=300.0,
    )
    assert not breaks(story)


def test_an_order_without_a_clear_answer_is_charged_where_nobody_has_records():
    """Seed 9611: it was there, and was given back."""
    jobs = [
        a_job("job1", 74.732, 10, 0.5, 2.436, 1.929, hang_s=300.0, on_node_loss="restart"),
        a_job("job2", 34.072, 10, 0.5, 1.684, 0.757, on_node_loss="restart"),
    ]
    paces = Paces(absences=2, agent_comes_s=45.0, rent_tries=3, events_a_snapshot=20)
    lie = (65.614, "rent_lie", 2724241)
    assert not breaks(a_story(9611, jobs, [lie], keeps_records=False, paces=paces, cap=2.0, told_inside=True))


def test_a_price_of_the_cloud_in_a_box_counts_from_when_it_began_and_not_from_when_somebody_heard_of_it():
    """Seed 6122."""
    job = a_job("job0", 72.594, 42, 0.2, 2.011, 0.562, hang_s=60.0, on_node_loss="fail", checkpoint_every_s=25.0)
    full = [(62.054, "full_disk", 648021297), (133.907, "full_disk", 102616204)]
    assert not breaks(a_story(6122, [job], full, cloud="local", cap=2.0))


def test_of_an_order_that_ended_with_its_controller_nobody_knows_without_records():
    """Seed 5260: it counts for a lease, though nothing came of it."""
    job = a_job("job0", 79.79, 10, 0.5, 1.886, 0.721, on_node_loss="replace")
    assert not breaks(a_story(5260, [job], [(71.113, "crash_commit", 516803907)], cloud="ray", think_s=3.0))


def test_what_ended_by_our_order_counts_for_a_lease_where_the_controller_ended_before_it_had_written_that_down():
    """Seed 14530, without records."""
    job = a_job("job2", 57.253, 121, 0.5, 3.217, 2.998, checkpoint_every_s=25.0)
    faults = [(114.217, "stop_agent", 447600198), (147.687, "full_disk", 1050238976)]
    assert not breaks(a_story(14530, [job], faults, cloud="local", purse_usd=0.0441, cap=2.0))


def test_what_is_taken_for_its_price_is_not_charged_at_that_whichever_controller_follows_the_market():
    """Seed 12535: the one that was succeeded tells of the price before the next one tells of the end."""
    job = a_job("job0", 71.293, 486, 1.0, 3.578, 1.242, hang_s=300.0, checkpoint_every_s=25.0)
    faults = [(275.396, "second_controller", 27247294), (284.875, "second_controller", 145896684)]
    paces = Paces(sweep_s=15.0, absences=2, agents_come_back_s=6.0)
    assert not breaks(a_story(12535, [job], faults, cloud="local", paces=paces, cap=2.0))


def test_an_agent_that_is_ended_because_the_market_moved_while_it_was_forked_was_never_rented():
    """Seed 5703: its rent was refused."""
    job = a_job("job0", 30.512, 109, 0.5, 1.34, 1.691, hang_s=300.0, on_node_loss="fail", checkpoint_every_s=8.0)
    faults = [(63.319, "user_scale", 831340421), (75.815, "user_pause", 517596981)]
    paces = Paces(tick_s=1.0, save_s=5.0, rent_tries=3, events_a_snapshot=20, jobs_kept=0, jobs_shelved=1)
    knobs = {"purse_usd": 0.0738, "policy": "price", "think_s": 0.5, "cap": 2.0}
    assert not breaks(a_story(5703, [job], faults, cloud="local", paces=paces, **knobs))


def test_a_controller_that_cannot_start_is_no_sign_of_life_for_agents_that_ended_long_before():
    """Seed 255: an archive could not be read, and the nodes of before were paid for until the start that failed."""
    job = a_job("job0", 70.479, 30, 0.2, 2.139, 2.675, on_node_loss="replace", checkpoint_every_s=8.0)
    faults = [
        (23.432, "lost_log", 23678498),
        (79.478, "crash_commit", 777548310),
        (88.607, "rotten_archive", 937092867),
    ]
    kept = Paces(
        agents_come_back_s=6.0, rent_tries=3, events_a_snapshot=5, jobs_kept=1, jobs_shelved=1, events_a_file=10
    )
    paces = replace(kept, tick_s=1.0, absences=2, history_kept=10)
    knobs = {"gpus_per_node": 1, "most_nodes": 3, "span_s": 300.0, "cap": 2.0, "told_inside": True}
    assert not breaks(a_story(255, [job], faults, cloud="local", paces=paces, **knobs))


SLEEP = (209.544, "stop_agent", 516151742)


def a_node_that_ends_while_nobody_is_there(*faults):
    """Seed 2986: a newer program has written the store, so that no controller of this one begins for 100 s."""
    job = a_job("job1", 34.233, 316, 0.5, 2.875, 2.657, checkpoint_every_s=8.0)
    newer = [(139.394, "foreign_job", 208648847), (181.296, "foreign_store", 183567307)]
    knobs = {"gpus_per_node": 1, "most_nodes": 3, "span_s": 300.0, "cap": 2.0, "told_inside": True}
    return a_story(2986, [job], [*newer, *faults], cloud="local", **knobs)


def test_nobody_knows_for_how_long_an_agent_outlived_its_lease_that_stood_still_meanwhile():
    """It ended a minute later, when it went on: its cloud charges that minute, and nobody can tell."""
    assert not breaks(a_node_that_ends_while_nobody_is_there(SLEEP))


@pytest.mark.parametrize("faults", [[], [SLEEP]], ids=["awake", "asleep"])
def test_a_minute_that_is_charged_and_that_no_sleep_explains_is_seen(monkeypatch, faults):
    """The same node, a minute more of it: what is allowed for is the sleep, and nothing else."""
    spent, a_minute = LocalCloud.spent_grains, 60.0 * Price.from_usd_per_h(1.5).micro_usd_per_h * 1e6
    monkeypatch.setattr(LocalCloud, "spent_grains", lambda self: spent(self) + a_minute)
    assert breaks(a_node_that_ends_while_nobody_is_there(*faults)) == "I6"
