"""How long one decision of `price` takes, beside `sia` and `pollux` on the same jobs.

CPU milliseconds of this process, the median of the decisions after all jobs have come. The jobs are those of Sia's
first Philly workload, all of them at once, on its mixed cluster and on one eight times as large; and on one kind the
jobs of Pollux's first. `python -m benchmarks.decide`
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from statistics import median

from sublet.domain.budget import Limit
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.errors import MissingData
from sublet.planning.value_of_time import HURRY
from sublet.policies.pollux import Pollux
from sublet.policies.price.policy import Price
from sublet.policies.sia.policy import Sia
from sublet.sim.simulator import simulate
from sublet.studies.peers import Setting, Timed, homogeneous_cluster, mixed_cluster

DECISIONS = 12
GOAL = 0.1  # of sia's


class EnoughError(Exception):
    """The decisions that were asked for have been made."""


class Stopping(Timed):
    """Enough is enough."""

    __slots__ = ()

    def decide(self, snapshot: Snapshot) -> Plan:
        """As timed, until there are enough."""
        plan = Timed.decide(self, snapshot)
        if len(self.took_s) > DECISIONS:
            raise EnoughError
        return plan


def main() -> None:
    """One kind and three kinds, 64 and 512 GPUs."""
    print("one decision (CPU ms, median)")
    print(f"  {'cluster':24}{'jobs':>6}{'pollux':>9}{'sia':>9}{'price':>9}   price / sia (goal {GOAL:g})")
    for times, jobs in ((1, 25), (8, 140)):
        settings = [homogeneous_cluster("1")]
        try:
            settings.append(mixed_cluster("philly"))
        except MissingData:
            print("  the mixed cluster is left out: the step times of Sia are not here")
        for setting in settings:
            crowded = _crowded(setting, times, jobs)
            took = {
                name: _ms(crowded, policy)
                for name, policy in (("pollux", Pollux()), ("sia", Sia()), ("price", Price(hour_usd=HURRY)))
            }
            name = f"{64 * times} GPUs, {len(setting.cloud.offers)} kind{'s' if len(setting.cloud.offers) > 1 else ''}"
            figures = "".join(f"{took[policy]:9.2f}" for policy in took)
            print(f"  {name:24}{jobs:6}{figures}   {took['price'] / took['sia']:.2f}")


def _crowded(setting: Setting, times: int, jobs: int) -> Setting:
    """The same cluster so many times as large, and so many jobs that are all there at once."""
    cloud = setting.cloud
    limits = {
        name: Limit(min_nodes=limit.min_nodes * times, max_nodes=limit.max_nodes and limit.max_nodes * times)
        for name, limit in cloud.limits.items()
    }
    crowd = [replace(job, submit_s=0.001) for job in list(setting.jobs)[:jobs]]
    return replace(setting, jobs=crowd, cloud=replace(cloud, limits=limits))


def _ms(setting: Setting, policy: Policy) -> float:
    timed = Stopping(policy)
    with suppress(EnoughError):
        simulate(setting.jobs, timed, setting.cloud, keep_segments=False)
    return 1000 * median(timed.took_s[1:])  # the first one reads tables


if __name__ == "__main__":
    main()
