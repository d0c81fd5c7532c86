"""How long one decision of `price` takes, beside `sia` and `pollux` on the same jobs.

CPU milliseconds of this process, the median of the decisions after all jobs have come. The jobs are those of Sia's
first Philly workload, all of them at once, on its mixed cluster and on one eight times as large; and on one kind the
jobs of Pollux's first. Then how a decision grows with the jobs that are there, as one more comes every minute; and
whole runs of production traces on 256 GPUs. `python -m benchmarks.decide`
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from statistics import median

import numpy as np

from sublet.domain.budget import Limit
from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.errors import MissingData
from sublet.perf.speedup import Amdahl
from sublet.planning.value_of_time import HURRY
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.workloads import load_workload
from sublet_lab.rivals.pollux import Pollux
from sublet_lab.rivals.sia.policy import Sia
from sublet_lab.studies.peers import Setting, Timed, homogeneous_cluster, mixed_cluster

DECISIONS = 12
GOAL = 0.1  # of sia's
GROWTH_GOALS = {1_000: 10}  # ms, by jobs
JOBS_PER_S_GOAL = 600
HEAD = 1_600  # jobs of each trace
TRACES = tuple(f"itp-cluster{number}" for number in ("01", "02", "04", "05", "06", "08", "09", "10"))  # all of them


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

    growth()
    production()


def growth() -> None:
    """As many GPUs as jobs: so nobody waits for long, and all are asked at every event."""
    print(
        "one decision of price by the jobs that are there, one kind (CPU ms, median; the first with all of them anew)"
    )
    print(f"  {'jobs':>8}{'median':>9}{'first':>9}   us / job   goal")
    for count in (100, 1_000, 10_000):
        took_s = _took(_fleet(count), Price(hour_usd=HURRY))
        usual = 1000 * median(took_s[1:])
        goal = GROWTH_GOALS.get(count, "")
        print(f"  {count:8,}{usual:9.2f}{1000 * took_s[0]:9.2f}{1000 * usual / count:11.2f}   {goal}")


def production() -> None:
    """Jobs that state how many GPUs they want and when they should be done; most are narrow, and many come too late."""
    print(f"production traces, price, 256 GPUs (goal {JOBS_PER_S_GOAL} jobs / s)")
    print(f"  {'trace':16}{'jobs':>7}{'CPU s':>8}{'jobs / s':>10}{'plans':>8}{'ms / plan':>11}")
    for name in TRACES:
        jobs = load_workload(name).jobs[:HEAD]
        timed, started_s = Timed(Price()), time.process_time()
        simulate(jobs, timed, _owned(256, gpus_per_node=4), keep_segments=False)
        run_s = time.process_time() - started_s
        plans, ms = len(timed.took_s), 1000 * sum(timed.took_s) / len(timed.took_s)
        print(f"  {name:16}{len(jobs):7,}{run_s:8.2f}{len(jobs) / run_s:10,.0f}{plans:8,}{ms:11.3f}")


def _fleet(count: int) -> Setting:
    """So many jobs that last, of a hundred kinds, and a few more that come one by one."""
    kinds = [Amdahl(parallel=parallel) for parallel in np.linspace(0.5, 0.99, 100).tolist()]
    jobs = [
        Job(id=f"j{at}", submit_s=0.001 if at < count else 60.0 * (at - count + 1), work=3600.0 * (10 + at % 97),
            speed=kinds[at % len(kinds)], max_gpus=1 + at % 8, restart_s=30.0)
        for at in range(count + DECISIONS)
    ]  # fmt: skip
    return Setting(name="fleet", jobs=jobs, cloud=_owned(8 * math.ceil(count / 8), gpus_per_node=8), batch={})


def _owned(gpus: int, *, gpus_per_node: int) -> Cloud:
    price = Usd.from_usd_per_h(gpus_per_node)
    offer = Offer(id="bench", gpu="T4", gpus_per_node=gpus_per_node, market=Market.ON_DEMAND, price=price)
    nodes = gpus // gpus_per_node
    return Cloud(offers=(offer,), limits={"bench": Limit(min_nodes=nodes, max_nodes=nodes)})


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
    return 1000 * median(_took(setting, policy)[1:])  # the first one reads tables


def _took(setting: Setting, policy: Policy) -> list[float]:
    timed = Stopping(policy)
    with suppress(EnoughError):
        simulate(setting.jobs, timed, setting.cloud, keep_segments=False)
    return timed.took_s


if __name__ == "__main__":
    main()
