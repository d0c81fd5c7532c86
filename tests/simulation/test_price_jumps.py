"""The price of what is held jumps five times: the bill follows at once, and no purse is overspent."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import PriceChanged
from sublet.domain.money import Money, Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup

H = 3600.0
OFFER = an_offer(gpus=1, usd_per_h="1", wind_down_s=60.0, minimum_billing_s=60.0)


def run(prices, *, purse=None):
    market = Changes(PriceChanged(at_s, "spot", Price.from_usd_per_h(usd_per_h)) for at_s, usd_per_h in prices)
    cloud = Cloud(
        offers=[OFFER],
        limits={"spot": Limit(max_nodes=2)},
        budget=Budget(purse=None if purse is None else Money.from_usd(purse)),
        physics=Physics(release_s=60.0, notice_s=120.0),
        market=market,
    )
    return simulate([a_job(work=4 * H, gpus=2, restart_s=10.0)], MaxSpeedup(), cloud, checked=True).metrics


def test_what_is_held_costs_the_new_price_from_the_instant_it_is_told():
    whole_h = 2.0 + 10.0 / H + 60.0 / H  # two nodes for half of the work each, a start, and until they are gone
    found = run([(H, 5)])
    assert found.finished == 1
    assert found.usd == pytest.approx(2 * (1.0 + 5 * (whole_h - 1.0)), rel=1e-9)


@pytest.mark.parametrize("purse", ["0.5", "1.7", "2.1", "3", "6", "9"])
@pytest.mark.parametrize("at_s", [0.0, 60.0, 1700.0, H, 1.5 * H])
@pytest.mark.parametrize("usd_per_h", ["5", "5.01", "50"])
def test_a_purse_holds_at_the_cap_and_above_it(purse, at_s, usd_per_h):
    """Five times its list price is the most that a node may cost; above that the cloud takes it."""
    assert run([(at_s, usd_per_h)], purse=purse).usd <= float(purse)
