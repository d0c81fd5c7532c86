"""Jobs of a pool on both markets that should change places with one another."""

from __future__ import annotations

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import Changes, a_job, an_offer


def test_a_job_gets_its_nodes_on_demand_though_another_has_one_of_them_without_need():
    """A property found it: j0 is to have six of its seven GPUs on demand, and j2 trains on the sixth, promised spot.

    Nothing else is under way then, and four nodes on demand are free: j0 takes these, and j2 one of the four it left.
    """
    widths = [(7, 7), (1, 1), (1, 1), (1, 4), (1, 2)]
    jobs = [
        a_job(f"j{n}", 0.0, 2.0 if n == 0 else 1.0, gpus=low, min_gpus=low, max_gpus=high, restart_s=0.0)
        for n, (low, high) in enumerate(widths)
    ]
    offers = [
        an_offer(name, gpus=1, usd_per_h="0.50", gpu="A100", pool="p1", market=market)
        for name, market in (("o0", Market.ON_DEMAND), ("o1", Market.SPOT))
    ]
    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(min_nodes=0, max_nodes=8) for offer in offers},
        budget=Budget(purse=Money.from_usd("0.10")),
        market=Changes(()),
    )
    assert simulate(jobs, Price(), cloud, checked=True).unfinished == ()
