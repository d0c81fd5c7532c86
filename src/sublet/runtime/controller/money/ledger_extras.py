"""Money that is paid besides nodes, for the machine of a controller: while it is there, not from one to the next.

The price is a part of the budget, and the kernel counts it until the budget says otherwise. A controller that ends says
so itself. For one that was killed the next one does. Where it runs on the same machine, which was on all the time, that
was paid for all the time. Elsewhere it was paid for until the last sign of life, and as long as there may have been
none.
"""

from __future__ import annotations

from dataclasses import replace

from sublet.domain.budget import Budget
from sublet.domain.events import BudgetChanged, Event, PlanMade
from sublet.domain.money import Price
from sublet.domain.plan import Plan
from sublet.kernel.kernel import Kernel
from sublet.runtime.clock import Clock
from sublet.runtime.controller.money.timekeeping import MARK_EVERY_S

__all__ = ["is_paid", "left_behind", "nothing_wanted", "said_at_the_end"]


def is_paid(kernel: Kernel) -> bool:
    """Whether anything is, now."""
    return kernel.supply.budget.besides != Price(0)


def said_at_the_end(kernel: Kernel, now_s: float) -> list[Event]:
    """By a controller whose last words these are: the money that is free then buys nothing."""
    return [nothing_wanted(kernel, now_s), BudgetChanged(now_s, _without(kernel))] if is_paid(kernel) else []


def left_behind(kernel: Kernel, clock: Clock, last_s: float) -> list[Event]:
    """By the next controller, of one that was last heard at `last_s` and said nothing at its end."""
    if clock.certain or not is_paid(kernel):
        return []
    return [BudgetChanged(min(clock.now_s(), last_s + MARK_EVERY_S * clock.speedup), _without(kernel))]


def nothing_wanted(kernel: Kernel, at_s: float) -> Event:
    """No node is to be rented in place of one that ended, or for money that became free."""
    return PlanMade(at_s, Plan(hold=dict.fromkeys(kernel.supply.offers, 0)), seen=0)


def _without(kernel: Kernel) -> Budget:
    return replace(kernel.supply.budget, besides=Price(0))
