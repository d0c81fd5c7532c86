"""What one job pays for its part of a node, grain by grain, and what is kept back for its leaving."""

from __future__ import annotations

from dataclasses import replace

from sublet.domain.budget import Holder, Level
from sublet.domain.money import Price
from sublet.domain.plan import JobState, Phase
from sublet.kernel.cluster import Cluster
from sublet.kernel.ledger import Ledger
from sublet.kernel.shares import Share, Shares, ending_grains, payers
from sublet.testing.values import a_job, an_offer

# One of three GPUs of a node that may cost 10 an hour at the most and is left within 7 us, held since 100 us.
SHARE = Share(payers=(), offer_id="o", gpus=1, size=3, cap=10, wind_down_us=7, paid=0, paid_us=100)


def test_those_who_pay_are_named_from_the_widest_to_the_job_itself():
    team, user, own = Holder(Level.TEAM, "vision"), Holder(Level.USER, "ann"), Holder(Level.JOB, "a")
    assert payers(a_job("a", team="vision", user="ann")) == (team, user, own)
    assert payers(a_job("a", user="ann")) == (user, own)
    assert payers(a_job("a")) == (own,)


def test_a_part_is_paid_rounded_down_and_kept_back_rounded_up():
    assert SHARE.cost(5, 101) == 1  # a third of 5
    assert SHARE.cost(5, 104) == 6  # of 20
    assert SHARE.ending(104) == 24  # a third of 70
    assert SHARE.burn(5, 104) == 2
    two = replace(SHARE, gpus=2)
    assert (two.cost(5, 104), two.ending(104), two.burn(5, 104)) == (13, 47, 4)


def test_no_price_is_paid_beyond_the_dearest_that_was_kept_back_for():
    assert SHARE.cost(99, 103) == SHARE.cost(10, 103) == 10
    assert SHARE.burn(99, 103) == SHARE.burn(10, 103) == 4


def test_prices_count_for_as_long_as_they_are_in_force():
    share = replace(SHARE)
    share.settle(3, 110)
    assert (share.paid, share.paid_us) == (30, 110)
    assert share.cost(6, 112) == (30 + 12) // 3
    share.settle(6, 112)
    assert share.cost(1, 112) == 14


def test_who_leaves_is_paid_for_until_its_latest_end():
    leaves = replace(SHARE, until_us=108)
    assert leaves.ending(104) == 14  # of 4 us at 10
    assert leaves.ending(108) == leaves.ending(500) == 0
    assert [leaves.burn(5, now_us) for now_us in (107, 108, 109)] == [2, 0, 0]
    assert [leaves.cost(3, now_us) for now_us in (106, 108, 120)] == [6, 8, 8]


def test_who_was_told_to_leave_before_its_last_price_pays_nothing_for_the_time_between():
    """It was settled after its latest end, at another price: nothing is taken back."""
    late = replace(SHARE, paid=50, paid_us=115, until_us=108)
    assert late.cost(9, 120) == 50 // 3


def test_another_width_starts_anew_on_the_same_terms_and_leaves_no_more():
    leaves = replace(SHARE, paid=33, until_us=108)
    wider = leaves.resized(2, 105)
    assert wider == replace(SHARE, gpus=2, paid=0, paid_us=105, until_us=None)


def test_what_leaving_costs_at_the_dearest_is_by_the_cap():
    """At 8 a microsecond for a node of four GPUs, three of them for 5 us: 30 grains; at 9 33.75."""
    facts = {"gpus": 4, "usd_per_h": "0.000005", "wind_down_s": 5e-6}
    offers = [an_offer("o", **facts, cap=Price(each)) for each in (8, 9)]
    assert [ending_grains(offer, 3) for offer in offers] == [30, 34]


def test_whoever_holds_other_gpus_or_pays_another_price_is_looked_at_again():
    """Four GPUs at 5 a microsecond, of which a job has one, then two: 1.25 a microsecond, and 2.5."""
    offer = an_offer("o", gpus=4, usd_per_h="0.000005", wind_down_s=5e-6, cap=Price(8))
    cluster, ledger = Cluster(), Ledger([offer])
    cluster.add("n1", offer)
    shares, job = Shares(cluster, ledger), a_job("a", user="ann")
    own, user = Holder(Level.JOB, "a"), Holder(Level.USER, "ann")
    assert shares.changed
    for step in (
        lambda: shares.look(job, {"n1": 1}, 0.0),
        lambda: shares.settle(4e-6),
        lambda: shares.look(job, {"n1": 2}, 8e-6),
        lambda: shares.look(job, {}, 12e-6),
    ):
        shares.changed = False
        step()
        assert shares.changed
    assert shares.open == {}
    assert shares.spent(own, 99) == shares.spent(user, 99) == 10 + 10
    shares.forget(own)
    assert (shares.spent(own, 99), shares.spent(user, 99)) == (0, 20)


def test_who_is_told_to_leave_is_paid_for_until_its_latest_end_and_who_goes_on_after_all_to_now():
    offer = an_offer("o", gpus=4, usd_per_h="0.000004", wind_down_s=5e-6, cap=Price(8))
    cluster, ledger = Cluster(), Ledger([offer])
    cluster.add("n1", offer)
    shares, job = Shares(cluster, ledger), a_job("a")
    own = Holder(Level.JOB, "a")
    shares.look(job, {"n1": 4}, 0.0)
    stops, runs = (JobState(job=job, seq=0, phase=phase) for phase in (Phase.STOPPING, Phase.RUNNING))
    shares.tell_to_leave({"a": runs}, 1e-6)
    assert not shares.any_leaves()
    shares.tell_to_leave({"a": stops}, 2e-6)
    assert shares.any_leaves()
    assert [shares.spent(own, now_us) for now_us in (2, 6, 7, 50)] == [8, 24, 28, 28]
    assert [shares.ending(own, now_us) for now_us in (2, 6, 7)] == [40, 8, 0]
    assert [shares.burn(own, now_us) for now_us in (6, 7)] == [4, 0]
    shares.tell_to_leave({"a": stops}, 4e-6)  # once is enough
    assert shares.spent(own, 50) == 28
    shares.tell_to_leave({"a": runs}, 10e-6)
    assert not shares.any_leaves()
    assert shares.spent(own, 12) == 28 + 8  # from then on again
    assert shares.jobs(own) == ["a"]
