"""The budget-optimal policy without the shortcomings of any implementation: what theory allows, open loop."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import ValueOfTime, constant_price
from sublet.policies.price.decision import Decision
from sublet.policies.price.policy import priced_plan


@dataclass(frozen=True, slots=True)
class BoaIdeal:
    """Budget-optimal rental as in theory: one constant price of time, exact, from the forecast alone."""

    review_s: float = 60.0

    def decide(self, snapshot: Snapshot) -> Plan:
        """The price for which the forecast spends the budget; what is really spent is never looked at."""
        terms = Terms.from_snapshot(snapshot)
        return priced_plan(Decision.read(terms, ValueOfTime(constant_price(terms)).over, review_s=self.review_s))
