"""The jobs that wait, in any order a policy asks for, without sorting them again at every decision.

The keys that order a waiting job (its arrival, the rest of it, its history) do not change while it waits. So each order
is a sorted list that is kept from its first use on: O(log n) a job, nothing a decision.

Jobs that were promised GPUs stand in one queue per pool, first in first out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sortedcontainers import SortedKeyList

from sublet.domain.plan import JobState
from sublet.domain.shape import Shape

Key = Callable[[JobState], float]


class Waiting:
    """The waiting jobs of the kernel; policies see it as `WaitingJobs`."""

    def __init__(self) -> None:
        self._states: dict[str, JobState] = {}
        self._orders: dict[Key, SortedKeyList[JobState, tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._states

    def add(self, state: JobState) -> None:
        """A job begins to wait."""
        self._states[state.job.id] = state
        for order in self._orders.values():
            order.add(state)

    def remove(self, job_id: str) -> None:
        """It waits no longer."""
        state = self._states.pop(job_id)
        for order in self._orders.values():
            order.remove(state)

    def by(self, key: Key) -> Iterator[JobState]:
        """Smallest `key` first, ties by arrival."""
        return iter(self._order(key))

    def _order(self, key: Key) -> SortedKeyList[JobState, tuple[float, int]]:
        order = self._orders.get(key)
        if order is None:
            order = SortedKeyList(self._states.values(), key=lambda state: (key(state), state.seq))
            self._orders[key] = order
        return order

    def orders(self, *keys: Key) -> tuple[Sequence[JobState], ...]:
        """All of them in the order of each key, as `by` has it."""
        return tuple([self._order(key) for key in keys]) if self._states else ((),) * len(keys)

    def frozen(self) -> Waiting:
        """A copy that later events do not touch."""
        copy = Waiting()
        copy._states = dict(self._states)
        return copy

    def only(self, shown: Callable[[JobState], JobState | None]) -> Waiting:
        """A copy of those that are shown, as they are."""
        copy = Waiting()
        copy._states = {job_id: seen for job_id, state in self._states.items() if (seen := shown(state)) is not None}
        return copy


class Lines:
    """All by pool; the mappings stay the same objects when other pools are on offer."""

    def __init__(self, pools: Iterable[str]) -> None:
        self.promised: dict[str, int] = dict.fromkeys(pools, 0)  # GPUs
        self.steady: dict[str, int] = dict.fromkeys(self.promised, 0)  # of these, on demand
        self.of: dict[str, dict[str, None]] = {pool: {} for pool in self.promised}  # jobs that need GPUs

    def promise(self, shape: Shape) -> None:
        """A job shall have it."""
        self.promised[shape.pool] += shape.gpus
        self.steady[shape.pool] += shape.steady

    def take_back(self, state: JobState) -> None:
        """Take its promise back."""
        if (shape := state.shape) is not None:
            self.promised[shape.pool] -= shape.gpus
            self.steady[shape.pool] -= shape.steady
            self.of[shape.pool].pop(state.job.id, None)

    def stand(self, state: JobState) -> None:
        """It needs GPUs to keep its promise."""
        if state.shape is not None:
            self.of[state.shape.pool][state.job.id] = None

    def keep_to(self, pools: Iterable[str]) -> None:
        """Other pools are on offer; there are no promises in those that are not."""
        names = list(pools)
        for counts in (self.promised, self.steady):
            kept = {pool: counts.get(pool, 0) for pool in names}
            counts.clear()
            counts.update(kept)
        lines = {pool: self.of.get(pool, {}) for pool in names}
        self.of.clear()
        self.of.update(lines)

    def restore(self, lines: Mapping[str, Iterable[str]]) -> None:
        """Go on from there."""
        self.of |= {pool: dict.fromkeys(line) for pool, line in lines.items()}
