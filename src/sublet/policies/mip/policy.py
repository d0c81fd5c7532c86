"""The elastic allocator that maximises the progress of all jobs at once (Hu et al., arXiv 2109.03389)."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.policies.mip.plan import Rules, mip_plan
from sublet.policies.mip.tables import Aim, Objective

__all__ = ["Mip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mip:
    """Most progress of all jobs together within a horizon, whichever came first; jobs grow, shrink and pause for it."""

    objective: Objective = "remaining"
    horizon_s: float = 1800.0  # how far `remaining` and `total` look ahead
    stickiness: float = 0.02  # keeping its width adds this share to a job's gain
    change_cost: float = 0.0  # in units of the objective, for every running job that changes
    most_changes: int | None = None  # running jobs that one decision may change
    may_pause: bool = True
    every_s: float = 600.0  # look again after this long even if nothing happens

    def __post_init__(self) -> None:
        self._aim(), self._rules()  # each refuses what cannot be

    def decide(self, snapshot: Snapshot) -> Plan:
        """The best choice for every job, at every event and every so often."""
        return mip_plan(snapshot, self._aim(), self._rules())

    def _aim(self) -> Aim:
        return Aim(objective=self.objective, horizon_s=self.horizon_s, stickiness=self.stickiness)

    def _rules(self) -> Rules:
        return Rules(
            change_cost=self.change_cost,
            most_changes=self.most_changes,
            may_pause=self.may_pause,
            every_s=self.every_s,
        )
