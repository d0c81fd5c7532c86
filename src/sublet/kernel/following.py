"""A life that another version of the kernel lived: followed by its recorded orders, never decided again.

The events are recorded, and the orders that followed stand beside them. Another version might have ordered otherwise,
but the nodes were rented, the jobs moved and the money spent as recorded. So the parts of the kernel that decide are
silent here, those that keep books do their work, and the recorded orders are taken for granted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sublet.domain import actions as order
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase, Plan
from sublet.domain.shape import Placement, Shape
from sublet.errors import SubletError
from sublet.kernel.kernel import Kernel
from sublet.kernel.refusals import Promise, refuse_wrong_names, shapes_to_promise
from sublet.kernel.supply import Supply
from sublet.kernel.tenancy import Tenancy


class _Renting(Supply):
    """Rents and gives back what it is told to."""

    def adjust(self, now_s: float) -> list[Action]:
        """Nothing of its own accord."""
        self.offering.exposure.hold(self.cluster.held, now_s)
        self.changed, self.to_clear = False, []
        return []

    def rent(self, node_id: str, offer_id: str, now_s: float) -> None:
        """This node was asked for."""
        number = int(node_id.lstrip("n")) if node_id.lstrip("n").isdigit() else self.numbered + 1
        self.numbered = max(self.numbered, number)
        self.cluster.add(node_id, self.offers[offer_id])
        self.ledger.open(node_id, offer_id, now_s)

    def release(self, node_id: str, now_s: float) -> None:
        """This node was given back."""
        if (node := self.cluster.nodes.get(node_id)) is not None:
            self._release(node, now_s)


class _Running(Tenancy):
    """Starts, moves and stops jobs as recorded."""

    def settle(self, state: JobState, *, closed: Collection[Market] = ()) -> bool:
        """Nothing of its own accord."""
        del state, closed
        return True

    def run_queues(self) -> None:
        """Nor this."""

    def _carry_on(self, state: JobState) -> None:
        del state

    def _order_stop(self, state: JobState) -> None:
        del state

    def _order_move(self, state: JobState, shape: Shape, placement: Placement) -> None:
        del state, shape, placement

    def stop(self, action: order.StopJob) -> None:
        """This job was told to leave."""
        state = self.jobs.get(action.job_id)
        if state is not None and action.job_id in self.placement:
            super()._order_stop(replace(state, generation=action.generation - 1))

    def move(self, action: order.StartJob | order.ResizeJob) -> None:
        """This job was told to go there."""
        state = self.jobs.get(action.job_id)
        if state is None:
            return
        first = isinstance(action, order.StartJob)
        if first != (state.phase is Phase.WAITING):  # as it was then: an answer that this version reads otherwise
            state = replace(state, phase=Phase.WAITING if first else Phase.BROKEN)
        if action.job_id in self.waiting:
            self.waiting.remove(action.job_id)
        if state.shape is None:  # promised by what this version does not count as a promise
            state = self.promise(state, action.shape)
        super()._order_move(replace(state, generation=action.generation - 1), action.shape, action.placement)

    def line_up(self) -> None:
        """Jobs without all that was promised queue for the rest."""
        for state in self.active.values():
            if state.shape is not None and not (state.phase is Phase.RUNNING and state.runs_in == state.shape):
                self.enqueue(state)


class Follower(Kernel):
    """`follow` every recorded event with its orders, then `arrive`: its facts are a snapshot like any other."""

    supply_kind, tenancy_kind = _Renting, _Running
    supply: _Renting
    tenancy: _Running

    _recorded: Sequence[Action] = ()  # what followed then from the event at hand

    def follow(self, event: Event, recorded: Sequence[Action]) -> Sequence[Action]:
        """This happened, and this was ordered."""
        self._recorded = recorded
        try:
            self.handle(event)
        except SubletError:  # news that could not be: before version 3 it counted, and had no effect but its orders
            self.now_s = self.tenancy.now_s = event.at_s
            self.seen += 1
        for action in recorded:
            match action:
                case order.RentNode(node_id=node_id, offer_id=offer_id):
                    self.supply.rent(node_id, offer_id, self.now_s)
                case order.ReleaseNode(node_id=node_id):
                    self.supply.release(node_id, self.now_s)
                case order.StopJob():
                    self.tenancy.stop(action)
                case order.StartJob() | order.ResizeJob():
                    self.tenancy.move(action)
                case order.PrepareJob(job_id=job_id, shape=shape):
                    self.tenancy.departures.tell(job_id, shape)
                case order.MakePlan() | order.RefusePlan() | order.SetTimer() | order.TellUser():
                    pass
        self.budgets.shares.tell_to_leave(self.jobs, self.now_s)
        return recorded

    def arrive(self) -> None:
        """The record ends here: a live kernel looks at everything anew, and asks for a plan."""
        self.tenancy.line_up()
        self.supply.changed, self.supply.purse.most_nodes = True, None
        self._plans.is_open, self._plans.since, self.spending.spent_s = True, self.seen, None
        self.budgets.shares.changed = True

    def _watch_total(self) -> None:
        pass

    def _wanted(self, plan: Plan, *, stale: bool) -> list[Promise]:
        """As it was carried out; before version 4 the worker counts of jobs were not checked."""
        del stale
        return shapes_to_promise(plan, self.jobs, self.supply, stale=False)

    def _refusal(self, plan: Plan, promises: Sequence[Promise], *, stale: bool) -> order.RefusePlan | None:
        """As recorded; before version 3 a plan above the limits was promised in part, so only names are looked at."""
        del promises, stale
        recorded = next((action for action in self._recorded if isinstance(action, order.RefusePlan)), None)
        return recorded or refuse_wrong_names(plan, self.jobs, self.supply, stale=False)
