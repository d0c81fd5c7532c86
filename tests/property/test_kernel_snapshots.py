"""A kernel that goes on from a snapshot is the kernel that lived through everything before it.

The slow world of test_kernel_slow_world.py, in which offers and limits change as well. Somewhere in the middle the
kernel is written down as JSON; from there on its twin hears the same events, and must give the same orders and end
where it does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import OffersChanged
from sublet.domain.money import Price
from sublet.kernel.following import Follower
from sublet.kernel.invariants import check
from sublet.kernel.journal import kind_from_header, replay, steps_from
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.kernel.values_json import to_tagged
from sublet.testing.driver import Driver
from sublet.testing.strategies import jobs, limits_and_budgets, offers, policies
from tests.rigs.sizes import examples
from tests.rigs.slow_world import VERBS, SlowWorld

steps = st.tuples(
    st.sampled_from((*VERBS, "terms", "terms")), st.integers(0, 7), st.sampled_from([0.0, 0.0, 1.0, 50.0])
)
scripts = st.lists(steps, min_size=60, max_size=60).map(lambda script: [step for step in script if step[0] != "rest"])


class Twins(Driver):
    """Once there is a twin, it hears everything and must answer alike."""

    twin = None

    def tell(self, event):
        actions = super().tell(event)
        if self.twin is not None:
            assert [to_tagged(a) for a in self.twin.handle(event)] == [to_tagged(a) for a in actions]
        return actions


@dataclass
class ChangingWorld(SlowWorld):
    """Its offers come and go, and so do its limits."""

    all_offers: tuple = ()
    limits: dict = None
    quotas: dict = None

    def terms(self, which):
        """Another list: one offer less, another price, another limit, no quotas; or the first list again."""
        on_list, limits, quotas = list(self.all_offers), dict(self.limits), dict(self.quotas)
        if which % 2 and len(on_list) > 1:
            gone = on_list.pop(which % len(on_list))
            limits.pop(gone.id)
            quotas = {}
        if which in (2, 3):
            on_list = [replace(offer, price=Price(offer.price.micro_usd_per_h // 2), cap=None) for offer in on_list]
        if which in (4, 5):
            limits = {offer.id: Limit(max_nodes=which - 3) for offer in on_list}
            quotas = {}
        self.driver.tell(OffersChanged(self.driver.now_s, tuple(on_list), limits, quotas))


@st.composite
def changing_worlds(draw):
    drawn = draw(offers())
    limits, quotas, budget = draw(limits_and_budgets(drawn))
    driver = Twins(drawn, limits=limits, quotas=quotas, budget=budget)
    workload = draw(jobs(most=6, submits=st.just(0.0)))
    models = {job.id: job for job in workload}
    world = ChangingWorld(
        driver, draw(policies), workload, all_offers=tuple(drawn), limits=dict(limits), quotas=dict(quotas)
    )
    return world, models


def written(kernel):
    """As the store has it."""
    return json.dumps(kernel.facts())


def read(text, models):
    facts = json.loads(text)
    return kernel_from_snapshot(
        facts, speed_of=lambda job: models[job.id].speed, pauses_of=lambda job: models[job.id].pauses
    )


@settings(max_examples=examples(40))
@given(changing_worlds(), scripts, st.integers(0, 59))
def test_a_snapshot_and_the_tail_give_the_state_and_the_orders_of_the_whole_log(case, script, cut):
    world, models = case
    driver = world.driver
    for step in script[:cut]:
        world.step(*step)
    text = written(driver.kernel)
    driver.twin = read(text, models)
    assert written(driver.twin) == text
    for step in script[cut:]:
        world.step(*step)
    driver.settle(world.policy)
    assert written(driver.twin) == written(driver.kernel)
    check(driver.twin)
    replay(driver.journal)  # the events that change offers are part of a life


def books(kernel):
    """What has happened, whoever decided it."""
    return {
        "now_s": kernel.now_s,
        "spent": kernel.ledger.spent(kernel.now_s),
        "open": kernel.ledger.open_leases(),
        "closed": kernel.ledger.closed,
        "budget": kernel.supply.budget,
        "offers": kernel.supply.offers,
        "nodes": {node.id: dict(node.jobs) for node in kernel.cluster.nodes.values()},
        "placement": kernel.tenancy.placement,
        "leaving": kernel.tenancy.leaving,
        "jobs": {
            job_id: (state.phase, state.gpus, state.generation, state.done, state.as_of_s, state.shape)
            for job_id, state in kernel.jobs.items()
        },
    }


@settings(max_examples=examples(40))
@given(changing_worlds(), scripts)
def test_a_recorded_life_can_be_followed_by_its_orders_alone(case, script):
    world, models = case
    driver = world.driver
    for step in script:
        world.step(*step)
    follower = followed(driver.journal, models)
    kernel = read(written(follower), models)
    check(kernel)
    assert books(kernel) == books(driver.kernel)


def followed(journal, models):
    follower = kind_from_header(json.loads(journal[0]), Follower)
    for step in steps_from(journal[1:], speed_of=lambda job: models[job.id].speed):
        follower.follow(step.event, step.orders)
    follower.arrive()
    return follower
