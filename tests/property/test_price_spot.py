"""Reclaims in the price of time: nothing changes where there are none, and spot is taken while it is worth it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sublet.domain.demand import Demand
from sublet.domain.offer import Market
from sublet.domain.plan import JobState
from sublet.domain.shape import packed
from sublet.kernel.kernel import Kernel
from sublet.perf.preemption import NO_RECLAIMS, Reclaims, spot_speed
from sublet.perf.speedup import Amdahl, Linear
from sublet.planning import menu as menus
from sublet.planning import terms as market_terms
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.sim.simulator import simulate
from sublet.testing.strategies import clouds, jobs
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

MONEY_ALONE = 1e-9  # USD per hour of time


@dataclass
class Recorded:
    """`price`, and every plan that it made; `blind` to what the offers say of reclaims."""

    blind: bool = False
    plans: list = field(default_factory=list)

    def decide(self, snapshot):
        if self.blind:
            seen = {
                offer_id: replace(state, offer=replace(state.offer, notice_s=0.0, reclaim_share=0.0))
                for offer_id, state in snapshot.offers.items()
            }
            snapshot = replace(snapshot, offers=seen)
        plan = Price().decide(snapshot)
        self.plans.append(plan)
        return plan


def planned(workload, cloud, told, *, blind):
    policy = Recorded(blind)
    expected = Demand.from_jobs(workload, 0.05) if told else None
    run = simulate(workload, policy, cloud, expected=expected, checked=True)
    return policy.plans, run.metrics.usd, run.metrics.mean_s


@settings(max_examples=examples(40), deadline=None)
@given(jobs(), clouds(), st.booleans())
def test_where_no_reclaims_are_said_to_happen_every_plan_is_as_if_there_were_no_such_thing(workload, cloud, told):
    """Nodes are lost in these markets, with and without notice; the twin has no word of reclaims in its menus.

    Both live with the same notice: where nodes come and go, the kernel reckons with it, whoever plans.
    """
    assert not any(offer.hazard_per_h for offer in cloud.offers)
    cloud = replace(cloud, offers=[replace(offer, notice_s=120.0, reclaim_share=0.3) for offer in cloud.offers])
    with_facts = planned(workload, cloud, told, blind=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_terms, "believe_reclaims", lambda states: NO_RECLAIMS)
        patch.delattr(menus, "shapes_kept")  # would fail if it were called
        without = planned(workload, cloud, told, blind=True)
    assert repr(with_facts) == repr(without)


@given(jobs(), st.sampled_from([1, 2, 4, 8]))
def test_without_hazard_menus_have_the_speeds_of_the_model_bit_by_bit(workload, size):
    sites = Terms.from_snapshot(Kernel([an_offer(gpus=size, notice_s=60.0, reclaim_share=0.2)]).snapshot()).sites
    for job in workload:
        found = menu_of(job, sites)
        plain = [job.speed.rate("T4", packed(shape.gpus, size), 0.0) * 3600.0 for shape in found.shapes]
        assert found.rate_EC[0].tolist() == plain


# ---------------------------------------------------------------------- spot or on demand


@settings(max_examples=examples(60))
@given(
    st.floats(0.05, 8.0),
    st.floats(0.2, 0.95),
    st.sampled_from([0.0, 120.0]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([30.0, 300.0]),
)
def test_spot_is_taken_exactly_while_its_dollars_per_unit_of_work_are_fewer(hazard, part, notice_s, share, restart_s):
    job = a_job(work=1e7, speed=Linear(), gpus=4, min_gpus=4, restart_s=restart_s, checkpoint_every_s=900.0)
    seen = Reclaims(per_h=hazard, notice_s=notice_s, share=share)
    worth = float(spot_speed(seen, job, [4])[0])  # of a spot dollar, in dollars on demand at the same rent
    assume(abs(worth / part - 1.0) > 0.01)
    offers = [
        an_offer("od", gpus=1, usd_per_h="10", market=Market.ON_DEMAND),
        an_offer(
            "s", gpus=1, usd_per_h=f"{10 * part:.6f}", hazard_per_h=hazard, notice_s=notice_s, reclaim_share=share
        ),
    ]
    snapshot = Kernel(offers).snapshot()
    state = JobState(job=job, seq=0)
    terms = Terms.from_snapshot(snapshot)
    menu = menu_of(job, terms.sites)
    options = options_of(menu, state, 0.0, MONEY_ALONE, terms.rent_R)
    assert ("spot" in menu.shapes[options.best].pool) == (worth > part)


@settings(max_examples=examples(40))
@given(st.lists(st.floats(0.0, 10.0), min_size=2, max_size=2), st.sampled_from([0.0, 120.0]), st.integers(1, 12))
def test_more_reclaims_never_make_a_spot_shape_faster_nor_its_best_width_wider(hazards, notice_s, width):
    job = a_job(speed=Amdahl(parallel=0.95), gpus=1, max_gpus=width, restart_s=120.0, checkpoint_every_s=600.0)
    calm, rough = (
        menu_of(
            job,
            Terms.from_snapshot(Kernel([an_offer(gpus=1, hazard_per_h=hazard, notice_s=notice_s)]).snapshot()).sites,
        )
        for hazard in sorted(hazards)
    )
    assert (rough.rate_EC <= calm.rate_EC).all()
    assert rough.gpus_C[rough.rate_EC[0].argmax()] <= calm.gpus_C[calm.rate_EC[0].argmax()]
