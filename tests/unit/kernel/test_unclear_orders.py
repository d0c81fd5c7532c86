"""An order without a clear answer, at a cloud that keeps no records: what may have been there is paid for."""

from __future__ import annotations

import pytest

from sublet.domain.events import RentRefused
from sublet.domain.plan import Plan
from sublet.domain.timers import RetryOffer
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer


@pytest.mark.parametrize(("paid", "usd"), [(False, 0.0), (True, 1.5)])
def test_what_may_have_been_there_is_charged_from_its_order_until_now_and_its_offer_rests(paid, usd):
    driver = Driver([an_offer("o", gpus=1, usd_per_h="36")])
    driver.plan(Plan(hold={"o": 1}))
    orders = driver.tell(RentRefused(150.0, "n1", "no clear answer", paid=paid))
    assert driver.kernel.ledger.spent(200.0).usd == usd
    assert [order.timer for order in orders if hasattr(order, "timer")] == [RetryOffer("o")]
    assert not driver.kernel.cluster.nodes
