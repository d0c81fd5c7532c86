"""A simulated cloud that tells nobody what it has: it is asked by renting, and may say no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sublet.domain import events as news
from sublet.domain.actions import RentNode, StartJob
from sublet.sim import simulator
from sublet.sim.world import Tie, World

FAR_S = 1e7  # something is still to happen until then: a run in which nothing but timers is left would end
Refuses = Callable[[float, str], bool]  # (when, which offer)


class Seen:
    """What was asked for, refused and had, by offer; and where the job started."""

    def __init__(self):
        self.offer_of: dict[str, str] = {}
        self.asked: list[tuple[float, str]] = []
        self.starts: list[tuple[float, str]] = []
        self.refused: Counter[str] = Counter()

    def __call__(self, event, orders):
        for order in orders:
            if isinstance(order, RentNode):
                self.offer_of[order.node_id] = order.offer_id
                self.asked.append((event.at_s, order.offer_id))
            elif isinstance(order, StartJob):
                self.starts.append((event.at_s, order.shape.pool))
        if isinstance(event, news.RentRefused):
            self.refused[self.offer_of[event.node_id]] += 1

    def had(self, offer_id=None):
        """Launches, each with a minimum bill."""
        asked = Counter(each for _, each in self.asked)
        granted = asked - self.refused
        return granted[offer_id] if offer_id else sum(granted.values())


def simulate_silent(monkeypatch, workload, policy, cloud, *, refuses: Refuses, answer_s=0.0):
    """A run in which every refusal takes `answer_s`, and supply changes without a word."""

    class Silent(World):
        def __init__(self, *facts):
            super().__init__(*facts)
            self.agenda.put(FAR_S, Tie.MARKET, news.AvailabilityChanged(FAR_S, cloud.offers[0].id, None))

        def occur(self, at_s, what):
            return [event for event in super().occur(at_s, what) if not isinstance(event, news.AvailabilityChanged)]

        def _rent(self, now_s, action):
            if not refuses(now_s, action.offer_id):
                return super()._rent(now_s, action)
            told = news.RentRefused(now_s + answer_s, action.node_id)
            if not answer_s:
                return [told]
            self.agenda.put(told.at_s, Tie.NODE, told)
            return []

    seen = Seen()
    with monkeypatch.context() as patched:
        patched.setattr(simulator, "World", Silent)
        found = simulator.simulate(workload, policy, cloud, checked=True, watch=_bounded(seen))
    return found, seen


def _bounded(seen, most=500):
    def watch(event, orders):
        seen(event, orders)
        assert len(seen.asked) < most, seen.asked[-20:]

    return watch
