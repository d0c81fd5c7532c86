"""Orders to jobs: each is part of the job's story, and its state follows."""

from __future__ import annotations

from collections.abc import Collection

from sublet.domain.actions import Action, PrepareJob, ResizeJob, StartJob, StopJob
from sublet.domain.events import Event, JobChanged, JobSubmitted
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement, Shape
from sublet.kernel.allowances import BudgetTree
from sublet.kernel.changing import with_gpus
from sublet.kernel.departures import Departures
from sublet.kernel.placements import Placements
from sublet.kernel.supply import Supply


class Ordering:
    """The jobs, the GPUs under them, and what they were told. `orders` collects what the world is to do."""

    def __init__(self, supply: Supply) -> None:
        self.now_s = 0.0
        self.orders: list[Action] = []
        self.plan_due = False  # what was promised is about to be looked at again
        self.jobs: dict[str, JobState] = {}  # every job that has not ended
        self.active: dict[str, JobState] = {}  # those with a shape
        self.departures = Departures(supply.cluster)  # jobs that stay on nodes that will be taken
        self.budgets = BudgetTree(supply)  # the budgets of each job
        self._placements = Placements(supply.cluster)
        self._placements.changed = self._pay
        self.placement, self.leaving = self._placements.held, self._placements.leaving
        self._ordered: dict[str, Shape] = {}  # shape of the last start or resize
        self._stories: dict[str, list[Event | Action | str]] = {}
        self._supply, self._cluster = supply, supply.cluster

    def begin_to_count(self) -> None:
        """From now on payments are counted by budget."""
        self.budgets.shares.begin(self.jobs.values(), self._placements.all_of, self.now_s)

    def _pay(self, job_id: str) -> None:
        if self.budgets.shares.counts:
            self.budgets.shares.look(self.jobs[job_id].job, self._placements.all_of(job_id), self.now_s)

    def story(self, job_id: str) -> list[str]:
        """Events of a job so far, oldest first."""
        return [str(chapter) for chapter in self._stories.get(job_id, ())]

    def next_move_s(self) -> float | None:
        """When a job has to move although nothing happens, to be woken then."""
        return self.departures.wake(self.jobs, self.placement, self.now_s)

    def _stays(self, state: JobState, held: Placement, line: Collection[str], finds: Placement | None) -> bool:
        """It trains on where it is, on nodes that will be taken, though others stand in its line."""
        healthy = self._cluster.healthy(held)
        if healthy == held:
            return False
        others = len(line) > (state.job.id in line)
        return self.departures.stays(state, held, healthy, self.now_s, finds=finds, wanted=others)

    def _may_train_on(self, state: JobState) -> bool:
        """It is to go to another pool, whose nodes are not there yet: nothing is gained by leaving before they are.

        If none is on its way, jobs may be about to change places, and one has to leave first. It does not while another
        plan is due, which will know that a node was refused.
        """
        held, shape = self.placement.get(state.job.id, ()), state.shape
        if shape is None or state.phase is not Phase.RUNNING or self.departures.due_s(state.job, held) <= self.now_s:
            return False
        pool = self._supply.pools[shape.pool]
        room = self._cluster.rearrange(pool.name, (), shape.gpus, steady=shape.steady)
        return room is None and (self.plan_due or self._supply.coming(pool))

    def _prepare(self, state: JobState, shape: Shape) -> None:
        """It will go on in this shape when it has to leave."""
        if self.departures.tell(state.job.id, shape):
            self.orders.append(PrepareJob(state.job.id, shape))

    def _order_stop(self, state: JobState) -> None:
        placement = self.placement[state.job.id]
        state = with_gpus(state, placement, Phase.STOPPING, self.now_s, generation=state.generation + 1)
        self._store(state)
        self._order(StopJob(state.job.id, state.generation))

    def _order_move(self, state: JobState, shape: Shape, placement: Placement) -> None:
        job_id = state.job.id
        self._placements.move(job_id, placement)
        self._ordered[job_id] = shape
        self.departures.prepared.pop(job_id, None)
        first = state.phase is Phase.WAITING
        phase, gpu = Phase.STARTING if first else Phase.RESIZING, self._supply.pools[shape.pool].gpu
        state = with_gpus(state, placement, phase, self.now_s, generation=state.generation + 1, into=(shape, gpu))
        self._store(state)
        move = StartJob if first else ResizeJob
        self._order(move(job_id, state.generation, shape, placement))

    def _order(self, action: StartJob | ResizeJob | StopJob) -> None:
        self._stories[action.job_id].append(action)
        self.orders.append(action)

    def _store(self, state: JobState) -> None:
        self.jobs[state.job.id] = state
        if state.shape is not None:
            self.active[state.job.id] = state


def subject_of(event: Event) -> str:
    """The job that it is about, if it is about one."""
    if isinstance(event, JobSubmitted | JobChanged):
        return event.job.id
    return str(getattr(event, "job_id", ""))
