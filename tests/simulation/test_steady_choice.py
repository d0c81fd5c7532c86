"""`price` chooses steadily under a total, an average and both markets, however slowly nodes are given back.

Between two changes of jobs or supply it rents no more than three times the nodes that are in use, and those it lost.
A job alone is not moved to and fro as long as there is spot; where the kernel stops it, because the money that is left
pays for no more of what it holds, it may go on with less. That is not promised where others are beside it, for they
share what there is, nor where spot is short: then what it really costs is not what the value of time goes by.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sublet.domain.actions import RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import (
    AvailabilityChanged,
    JobFinished,
    JobSubmitted,
    NodeLost,
    NodeReleased,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from tests.rigs.sizes import examples

H = 3_600.0
CHANGES = (JobSubmitted, JobFinished, AvailabilityChanged, NodeLost, RentRefused)
ON_DEMAND_USD = 0.526


@dataclass
class Calm:
    """What was ordered between two changes."""

    most: int = 0  # nodes at once
    rents: int = 0
    lost: int = 0
    shapes: dict[str, list[tuple[float, object]]] = field(default_factory=dict)  # job -> when, and what it got

    def returns(self):
        """Jobs that were moved away and back within an hour."""
        for job_id, moves in self.shapes.items():
            steps = [moves[at : at + 3] for at in range(len(moves) - 2)]
            if any(a == c != b and late - early <= H for (early, a), (_, b), (late, c) in steps):
                yield job_id


def calms(jobs, cloud):
    """Of a run, one after another."""
    held, found = set(), [Calm()]

    def watch(event, orders):
        if isinstance(event, CHANGES) or (
            isinstance(event, TimerFired) and any(isinstance(o, StopJob) for o in orders)
        ):
            found.append(Calm(most=len(held), lost=isinstance(event, NodeLost)))
        calm = found[-1]
        if isinstance(event, NodeLost | NodeReleased | RentRefused):
            held.discard(event.node_id)
        for order in orders:
            if isinstance(order, RentNode):
                held.add(order.node_id)
                calm.rents += 1
            elif isinstance(order, StartJob | ResizeJob):
                moves = calm.shapes.setdefault(order.job_id, [])
                if not moves or moves[-1][1] != order.shape:
                    moves.append((event.at_s, order.shape))
        calm.most = max(calm.most, len(held))

    simulate(jobs, Price(), cloud, watch=watch, checked=True)
    return found


def a_cloud(*, release_s=1_800.0, average="1.5", purse="7", spot=0.19, hazard=0.1, burn=None, boot_s=60.0, changes=()):
    """Both markets of one kind of node in one pool, whose prices nobody raises."""
    usd = {"s": f"{spot * ON_DEMAND_USD:.4f}", "d": f"{ON_DEMAND_USD}"}
    prices = {name: {"usd_per_h": each, "cap": Usd.from_usd_per_h(each)} for name, each in usd.items()}
    facts = {"gpus": 1, "pool": "p", "boot_s": boot_s, "wind_down_s": release_s}
    return Cloud(
        offers=[
            an_offer("s", hazard_per_h=hazard, **prices["s"], **facts),
            an_offer("d", market=Market.ON_DEMAND, **prices["d"], **facts),
        ],
        limits={name: Limit(max_nodes=6) for name in usd},
        budget=Budget(
            average=None if average is None else Usd.from_usd_per_h(average),
            purse=Money.from_usd(purse),
            burn=None if burn is None else Usd.from_usd_per_h(burn),
        ),
        physics=Physics(provision_s=boot_s, release_s=release_s, notice_s=0.0),
        market=Changes(changes),
    )


def a_workload(rows):
    """Of (when, GPU-hours, parallel part, widest)."""
    facts = {"restart_s": 30.0, "checkpoint_every_s": 300.0, "checkpoint_write_s": 2.0, "survives": True}
    return [
        a_job(f"j{n}", submit_s=at_s, work=hours * H, speed=Amdahl(parallel=part), gpus=most, max_gpus=most, **facts)
        for n, (at_s, hours, part, most) in enumerate(rows)
    ]


rows = st.tuples(
    st.sampled_from([0.0, 100.0, H, 2 * H]),
    st.sampled_from([1.0, 4.0, 10.0, 20.0]),
    st.sampled_from([0.8, 0.95, 0.99]),
    st.sampled_from([2, 4, 6]),
)
supplies = st.lists(st.tuples(st.sampled_from([600.0, H, 2 * H]), st.integers(0, 8)), max_size=12).map(
    lambda steps: [
        AvailabilityChanged(sum(stay for stay, _ in steps[:at]), "s", nodes) for at, (_, nodes) in enumerate(steps)
    ]
)
facts_of_clouds = {
    "release_s": st.sampled_from([0.0, 90.0, 600.0, 1_800.0]),
    "average": st.sampled_from([None, "0.5", "1.5", "3"]),
    "purse": st.sampled_from(["1", "2", "4", "6", "7", "10"]),
    "spot": st.sampled_from([0.19, 0.3, 0.5, 0.7]),
    "hazard": st.sampled_from([0.0, 0.1, 0.5]),
    "burn": st.sampled_from([None, "3", "6"]),
    "boot_s": st.sampled_from([0.0, 60.0, 120.0]),
}
clouds, scarce_clouds = (st.builds(a_cloud, **facts_of_clouds, **more) for more in ({}, {"changes": supplies}))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), scarce_clouds)
def test_between_two_changes_few_nodes_are_rented(workload, cloud):
    assert all(calm.rents <= 3 * calm.most + calm.lost for calm in calms(a_workload(workload), cloud))


@settings(max_examples=examples(60), deadline=None)
@given(rows, clouds)
@example((0.0, 4.0, 0.99, 2), a_cloud(average=None, purse="1", spot=0.5, hazard=0.5))
@example((H, 10.0, 0.99, 4), a_cloud(purse="6", spot=0.5, hazard=0.0, burn="6"))
@example((2 * H, 1.0, 0.8, 4), a_cloud(release_s=600.0, average="0.5", purse="1", spot=0.5, burn="6", boot_s=120.0))
@example((0.0, 10.0, 0.99, 4), a_cloud(release_s=0.0, average="0.5", purse="6", spot=0.5, boot_s=120.0))
def test_a_job_alone_is_not_moved_to_and_fro(row, cloud):
    assert not [job_id for calm in calms(a_workload([row]), cloud) for job_id in calm.returns()]
