"""The jobs that wait, in any order a policy asks for, without sorting them again at every decision.

The keys that order a waiting job (its arrival, the rest of it, its history) do not change while it waits. So each order
is a sorted list that is kept from its first use on: O(log n) a job, nothing a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sortedcontainers import SortedKeyList

from sublet.domain.plan import JobState

__all__ = ["Waiting"]

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
