"""Whatever comes and goes: everybody ends, nobody who holds nothing waits, and growing keeps its windows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.offer import Market
from sublet.kernel import growing
from sublet.kernel.growing import FLAPS, OVERHEAD
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup
from tests.rigs.sizes import examples

NEVER = 10**9
STEADY = an_offer("d", gpus=2, usd_per_h="3", market=Market.ON_DEMAND)

visits = st.lists(st.tuples(st.sampled_from([20.0, 60.0, 300.0, 2_000.0]), st.integers(0, 3)), min_size=8, max_size=30)
policies = st.sampled_from([Price(), MaxSpeedup(), Fifo(), Equal()])
frictions = st.fixed_dictionaries({"restart_s": st.sampled_from([0.0, 2.0, 30.0]), "min_gpus": st.sampled_from([1, 3])})


def market_of(script):
    at_s, changes = 0.0, []
    for stay_s, nodes in script:
        changes.append(AvailabilityChanged(at_s, "spot", nodes))
        at_s += stay_s
    return Changes([*changes, AvailabilityChanged(at_s, "spot", 3)])


def live(script, policy, friction, *, notice_s=0.0, on_demand=False, jobs=2):
    offers = [an_offer(gpus=2, hazard_per_h=0.2, notice_s=notice_s), *([STEADY] if on_demand else [])]
    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(max_nodes=3) for offer in offers},
        physics=Physics(notice_s=notice_s),
        market=market_of(script),
    )
    facts = {"gpus": 3, "max_gpus": 6, "checkpoint_every_s": 50.0, "checkpoint_write_s": 1.0, **friction}
    work = [a_job(f"j{i}", submit_s=100.0 * i, work=4_000.0, **facts) for i in range(jobs)]
    log = []
    found = simulate(work, policy, cloud, checked=True, watch=lambda event, orders: log.append((event, list(orders))))
    return found, log


@settings(max_examples=examples(40), deadline=None)
@given(visits, policies, frictions, st.sampled_from([0.0, 10.0]), st.booleans())
def test_everybody_ends_however_capacity_flaps(script, policy, friction, notice_s, on_demand):
    found, _ = live(script, policy, friction, notice_s=notice_s, on_demand=on_demand)
    assert found.unfinished == ()


@settings(max_examples=examples(40), deadline=None)
@given(visits, policies, frictions)
def test_in_a_row_a_job_grows_once_in_a_window(script, policy, friction):
    """Of more growings than are needed to notice, none but the first few lie within a window of one another."""
    _, log = live(script, policy, friction, jobs=1)
    window_s = 2.0 * friction["restart_s"] / OVERHEAD  # at the least: what is redone comes on top
    moves = [(e.at_s, o) for e, orders in log for o in orders if isinstance(o, StartJob | ResizeJob)]
    grown, before = [], 0
    for at_s, order in moves:
        if isinstance(order, ResizeJob) and order.shape.gpus > before >= friction["min_gpus"]:
            grown.append(at_s)
        before = order.shape.gpus
    crowded = [b - a < 0.9 * window_s for a, b in pairwise(grown)]
    # Each time of calm may be followed by as many as it takes to notice; a long row never happens.
    longest = max((len(run) for run in "".join("x" if c else " " for c in crowded).split()), default=0)
    assert longest <= 2 * FLAPS


@settings(max_examples=25, deadline=None)
@given(visits, policies, st.sampled_from([0.0, 10.0]))
def test_who_loses_nothing_by_a_resize_never_waits(script, policy, notice_s):
    free = {"restart_s": 0.0, "min_gpus": 1, "checkpoint_every_s": 1e-6}
    _, log = live(script, policy, free, notice_s=notice_s)
    with_it = [(repr(event), [repr(o) for o in orders]) for event, orders in log]
    flaps, growing.FLAPS = growing.FLAPS, NEVER
    try:
        _, log = live(script, policy, free, notice_s=notice_s)
    finally:
        growing.FLAPS = flaps
    assert with_it == [(repr(event), [repr(o) for o in orders]) for event, orders in log]


class Seeing:
    """A policy that looks at what it is shown of a pool with an offer that never goes."""

    def __init__(self, policy):
        self._policy, self.seen = policy, []

    def decide(self, snapshot):
        for state in snapshot.active.values():
            steady = snapshot.offers["d"]
            free = (steady.most - steady.held + steady.coming) * 2  # and what is ready and free comes on top
            if state.gpus >= state.job.min_gpus:
                self.seen.append((state.job.max_gpus, min(6, state.gpus + free)))
        return self._policy.decide(snapshot)

    def __getattr__(self, name):
        return getattr(self._policy, name)


@settings(max_examples=examples(40), deadline=None)
@given(visits, policies, st.sampled_from([2.0, 30.0]), st.sampled_from([0.0, 10.0]), st.booleans())
def test_nobody_waits_for_growth_on_capacity_that_never_went_away(script, policy, restart_s, notice_s, dear):
    """Spot and on demand in one pool: while spot flaps, a job may be as wide as what stays beside it makes it."""
    seeing = Seeing(policy)
    usd = "3" if dear else "1"
    offers = [
        an_offer(gpus=2, pool="p", hazard_per_h=0.2, notice_s=notice_s),
        an_offer("d", gpus=2, pool="p", usd_per_h=usd, market=Market.ON_DEMAND),
    ]
    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(max_nodes=3) for offer in offers},
        physics=Physics(notice_s=notice_s),
        market=market_of(script),
    )
    facts = {"gpus": 3, "max_gpus": 6, "checkpoint_every_s": 50.0, "checkpoint_write_s": 1.0, "min_gpus": 1}
    found = simulate([a_job(work=4_000.0, restart_s=restart_s, **facts)], seeing, cloud, checked=True)
    assert found.unfinished == ()
    assert all(shown >= least for shown, least in seeing.seen)
