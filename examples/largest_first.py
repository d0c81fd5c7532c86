"""A policy of your own, beside a built-in one: the widest jobs first. Run with `python examples/largest_first.py`."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge

from sublet.domain.money import Price
from sublet.domain.plan import JobState, Phase, Plan, Snapshot
from sublet.market.catalogue import load_catalogue
from sublet.planning.draft import Draft
from sublet.policies.fifo import Fifo
from sublet.sim.scenario import rented
from sublet.sim.simulator import simulate
from sublet.sim.workloads import load_workload


def narrowness(state: JobState) -> float:
    """Smaller comes first: the width that the job asked for, negated."""
    return -float(state.job.gpus)


@dataclass(frozen=True, slots=True)
class LargestFirst:
    """The widest waiting job that fits starts first; running jobs are left alone unless supply falls."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Walk the queue from wide to narrow and start what fits."""
        draft = Draft(snapshot)
        empty_handed = []  # they have nothing to leave, so nothing will be heard of them: they queue at once
        for state in list(snapshot.active.values()):
            if state.shape is not None and draft.room[state.shape.pool] < 0:
                draft.take(state, "supply fell")
                if state.phase is Phase.WAITING:
                    empty_handed.append(state)
        for state in merge(sorted(empty_handed, key=narrowness), snapshot.waiting.by(narrowness), key=narrowness):
            gpus = draft.width(state.job)
            pool = draft.pool_with_room(state.job, gpus) if gpus else None
            if pool is not None:
                draft.give(state, pool, gpus, "the widest that fits")
        return draft.plan()


def main() -> None:
    """Compare it with first come, first served on forty jobs and at most 16 USD per hour."""
    jobs = load_workload("pollux-1").jobs[:40]
    offer = load_catalogue().find("aws:g4dn.12xlarge:us-east-1")
    cloud = rented([offer], Price.from_usd_per_h(16)).cloud
    for policy in (Fifo(), LargestFirst()):
        metrics = simulate(jobs, policy, cloud).metrics
        print(f"{type(policy).__name__:<14} mean {metrics.mean_s / 60:6.1f} min   USD {metrics.usd:7.2f}")


if __name__ == "__main__":
    main()
