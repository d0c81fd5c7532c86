"""Whatever a market announces: a grid trains on nodes that will be taken until it must leave, and is gone by then."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import ResizeJob, StartJob, StopJob
from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed
from sublet.kernel.departures import MARGIN_S
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, EvenPauses, a_job, an_offer
from tests.rigs.sizes import examples

LEAST, MOST, END_S = 2, 8, 700.0
COSTS = LinearCosts(layers=Layers((1e8,) * 9), join_s=4.0, process_s=1.0, member_s=0.1, layer_s=0.5, bytes_per_s=1e9)
RATES = {(wide, deep): wide * deep**0.8 for wide in range(1, 5) for deep in (2, 4) if wide * deep <= MOST}
PROFILE = spot_job("small", RATES, COSTS)

levels = st.lists(st.tuples(st.integers(1, 30), st.integers(LEAST, MOST)), min_size=2, max_size=10)
PAUSES = {"live": LivePauses(PROFILE), "even": EvenPauses(6.0), "slow to leave": EvenPauses(6.0, lead_s=9.0)}
pauses = st.sampled_from(sorted(PAUSES))


class Watch:
    """Where the job is, and what has been announced."""

    def __init__(self, lead_s):
        self.lead_s, self.taken_s, self.due_s, self.on, self.used, self.broken = lead_s, {}, {}, set(), 0, False
        self.caught, self.early = [], []

    def hear(self, event, orders):
        if isinstance(event, NodeNoticed):
            self.taken_s[event.node_id] = event.lost_s
            self.due_s[event.node_id] = max(event.at_s, event.lost_s - self.lead_s - MARGIN_S)
        if isinstance(event, NodeLost) and event.node_id in self.on:
            self.on.discard(event.node_id)
            self.broken = True
            if event.at_s >= self.taken_s.get(event.node_id, math.inf):  # some are taken before the time that was told
                self.caught.append(event)
        for order in orders:
            if isinstance(order, StartJob | ResizeJob):
                nodes = {node_id for node_id, _ in order.placement}
                left = (self.on - nodes) & self.due_s.keys()
                for_less = order.shape.used <= self.used and not self.broken
                if left and for_less and min(self.due_s[n] for n in left) > event.at_s:
                    self.early.append((event, order))
                self.on, self.used, self.broken = nodes, order.shape.used, False
            elif isinstance(order, StopJob):
                self.on, self.used, self.broken = set(), 0, False


def ride(script, notice_s, pauses, policy, *, boot_s=0.0):
    at_s, changes = 0.0, []
    for ticks, nodes in script:
        changes.append(AvailabilityChanged(at_s, "o", nodes))
        at_s += 10.0 * ticks
    job = a_job(
        work=math.inf,
        speed=Gridded(PROFILE),
        gpus=LEAST,
        min_gpus=LEAST,
        max_gpus=MOST,
        pauses=PAUSES[pauses],
        survives=True,
    )
    offer = an_offer("o", gpus=1, boot_s=boot_s, notice_s=notice_s)
    physics = Physics(provision_s=boot_s, notice_s=notice_s)
    watch = Watch(job.lead_s)
    cloud = Cloud(offers=(offer,), physics=physics, market=Changes(changes))
    simulate([job], policy, cloud, until_s=END_S, checked=True, watch=watch.hear)
    return watch


@settings(max_examples=examples(40), deadline=None)
@given(levels, st.sampled_from([1.0, 15.0, 40.0, 120.0]), pauses, st.sampled_from([Fastest(), Liveput()]))
def test_nobody_is_caught_by_a_loss_that_was_announced_and_nobody_leaves_for_less_before_it_must(
    script, notice_s, pauses, policy
):
    watch = ride(script, notice_s, pauses, policy)
    assert not watch.caught
    assert not watch.early


@settings(max_examples=examples(20), deadline=None)
@given(levels, st.sampled_from([15.0, 120.0]), pauses, st.sampled_from([Fastest(), Liveput()]))
def test_nobody_leaves_for_less_before_it_must_though_others_are_slow_to_come(script, notice_s, pauses, policy):
    assert not ride(script, notice_s, pauses, policy, boot_s=25.0).early
