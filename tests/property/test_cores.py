"""Jobs with a core on demand under every policy, while both markets come and go: nobody ever trains with less."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import RentNode, ResizeJob, StartJob
from sublet.domain.budget import Budget
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.kernel.journal import header_line, line_from, replay
from sublet.sim.simulator import simulate
from sublet.testing.strategies import WIDEST_MINIMUM, jobs, mixed_clouds, policies
from tests.rigs.sizes import examples

cores = st.lists(st.integers(0, 4), min_size=4, max_size=4)


def with_cores(workload, drawn):
    return [replace(job, min_on_demand=min(job.min_gpus, core)) for job, core in zip(workload, drawn, strict=False)]


def lived(workload, policy, cloud, seed):
    heard = []
    run = simulate(
        workload, policy, cloud, seed=seed, checked=True, watch=lambda event, orders: heard.append((event, [*orders]))
    )
    return run, heard


def thrifty(cloud):
    """A cap that pays for the widest job that there may be, on whichever market."""
    dearest = max(offer.price.micro_usd_per_h for offer in cloud.offers)
    return replace(cloud, budget=Budget(burn=Price(WIDEST_MINIMUM * dearest)))


@settings(max_examples=examples(120))
@given(jobs(most=4), cores, policies, mixed_clouds(), st.booleans(), st.integers(0, 999))
def test_every_order_has_the_core_on_demand_and_every_job_finishes(workload, drawn, policy, cloud, capped, seed):
    workload, cloud = with_cores(workload, drawn), thrifty(cloud) if capped else cloud
    run, heard = lived(workload, policy, cloud, seed)
    core, market = {job.id: job.min_on_demand for job in workload}, {}
    for order in (order for _, orders in heard for order in orders):
        if isinstance(order, RentNode):
            market[order.node_id] = order.offer_id
        elif isinstance(order, StartJob | ResizeJob):
            sure = sum(gpus for node_id, gpus in order.placement if market[node_id] == Market.ON_DEMAND)
            assert sure >= core[order.job_id]
    assert run.unfinished == ()


@settings(max_examples=examples(40))
@given(jobs(most=3), cores, policies, mixed_clouds(), st.integers(0, 999))
def test_a_life_with_cores_replays_from_its_journal(workload, drawn, policy, cloud, seed):
    run, heard = lived(with_cores(workload, drawn), policy, cloud, seed)
    journal = [header_line(cloud.offers, cloud.limits, cloud.budget, cloud.quotas)]
    kernel = replay(journal + [line_from(event, orders) for event, orders in heard])
    assert kernel.seen == len(heard)
    assert kernel.ledger.spent(kernel.now_s) == run.record.spend[-1][1]
