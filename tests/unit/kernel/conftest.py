"""A town of two nodes with four GPUs each, owned, so that nothing but jobs comes and goes."""

from __future__ import annotations

import pytest

from sublet.domain.actions import MakePlan, RentNode
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import BudgetChanged
from sublet.domain.plan import Plan
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer


@pytest.fixture
def town():
    driver = Driver([an_offer("o", gpus=4, pool="p")], limits={"o": Limit(min_nodes=2, max_nodes=2)})
    assert driver.tell(BudgetChanged(0.0, UNLIMITED)) == [RentNode("n1", "o"), RentNode("n2", "o"), MakePlan()]
    for order in list(driver.open)[:2]:
        assert driver.answer(order) == []
    assert driver.plan(Plan()) == []
    return driver
