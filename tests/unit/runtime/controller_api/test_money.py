"""What is shown of a budget: also what it does not promise."""

from __future__ import annotations

import pytest

from sublet.cli.verbs import budget as verb
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import TimerFired
from sublet.domain.money import Money, Price
from sublet.domain.timers import CheckPurse
from sublet.policies.fifo import Fifo
from sublet.runtime.controller_api.money import budget_view
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

LEASE_S, WIND_DOWN_S, MINIMUM_S = 900.0, 60.0, 60.0


def a_controllers_kernel(purse):
    """One node for a dollar per 1000 s, that costs twice as much at the most, for 5000 s."""
    facts = {"wind_down_s": WIND_DOWN_S, "minimum_billing_s": MINIMUM_S, "cap": Price.from_usd_per_h("7.2")}
    limits = {"o": Limit(max_nodes=1)}
    driver = Driver([an_offer("o", usd_per_h="3.6", **facts)], limits=limits, budget=Budget(purse=purse))
    driver.submit(a_job("a", work=1e9, gpus=4))
    driver.settle(Fifo())
    driver.tell(TimerFired(5000.0, CheckPurse()))
    return driver.kernel


def unattended(purse):
    return budget_view(a_controllers_kernel(purse), 5000.0, LEASE_S)["unattended_usd"]


@pytest.mark.parametrize(("purse", "beyond"), [("6", 1.04), ("7.04", 0.0), ("100", 0.0)])
def test_a_budget_says_what_a_controller_that_is_lost_now_may_cost_beyond_its_purse(purse, beyond):
    """A lease, what ending takes, and the least that is charged: 1020 s at the dearest price are USD 2.04."""
    assert unattended(Money.from_usd(purse)) == pytest.approx(beyond, abs=1e-9)


def test_nothing_is_beyond_no_purse_or_costs_without_nodes():
    assert unattended(None) == 0.0
    assert budget_view(Driver([an_offer()], budget=Budget(purse=Money())).kernel, 0.0, LEASE_S)["unattended_usd"] == 0.0


@pytest.mark.parametrize(("purse", "told"), [("6", True), ("100", False)])
def test_the_command_says_so_where_it_is_anything(capsys, purse, told):
    verb._print(budget_view(a_controllers_kernel(Money.from_usd(purse)), 5000.0, LEASE_S))
    assert ("may cost up to USD 1.04 beyond the budget" in capsys.readouterr().out) is told
