"""Workers of a grid as threads of one process, of which one runs at a time: they change over only where one waits.

So they do the same each time, the RNG of torch, which all threads share, is that of the running one, and a worker can
be ended at any point. A worker that waits for one that is gone is told so, as it is when connections end.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sublet.train.link.following import Broken

STUCK_S = 60.0


class Threads:
    """All workers of one test."""

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self._found: dict[Any, Any] = {}

    def run(self, works: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """The results, or the errors raised."""
        outcomes: dict[str, Any] = {}

        def work(name: str) -> None:
            with self.turn:
                try:
                    outcomes[name] = works[name]()
                except BaseException as error:  # noqa: BLE001 - told
                    outcomes[name] = error
                self.turn.notify_all()

        threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STUCK_S)
            if thread.is_alive():
                raise AssertionError("the workers wait for one another")
        return outcomes


class ThreadsMesh:
    """The messages of the members of one generation; `ThreadsMesh.all_of` makes the meshes of all of them."""

    def __init__(self, threads: Threads, rank: int, world: int, said: _Said) -> None:
        self._threads, self.rank, self.world, self._said = threads, rank, world, said
        self._sums = defaultdict[tuple[int, ...], int](int)

    @classmethod
    def all_of(cls, threads: Threads, world: int) -> list[ThreadsMesh]:
        """By rank."""
        said = _Said()
        return [cls(threads, rank, world, said) for rank in range(world)]

    def hang_up(self) -> None:
        """Each present or later waiter is told."""
        self._said.broken = True
        self._threads.turn.notify_all()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """A copy is taken."""
        self._look()
        self._said.letters[self.rank, to, tag].append(tensor.detach().clone())
        self._threads.turn.notify_all()

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """Waits."""
        box = self._said.letters[giver, self.rank, tag]
        self._wait(lambda: bool(box))
        came = box.pop(0)
        assert came.shape == tensor.shape, "a longer message than there is room for ends the process"
        with torch.no_grad():
            tensor.copy_(came)

    stream_to, stream_from = send, receive

    def hand(self, memory: torch.Tensor, to: int, tag: int) -> None:
        """As any letter."""
        self.send(memory, to, tag)

    def take(self, memory: torch.Tensor, giver: int, tag: int) -> None:
        """As any letter."""
        self.receive(memory, giver, tag)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """A sum, of which all others are zero."""
        if self.rank != source:
            tensor.zero_()
        self.sum(tensor, range(self.world))

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """Block by block."""
        everything.zero_()
        everything.view(self.world, -1)[self.rank].copy_(mine)
        self.sum(everything, range(self.world))

    def settle(self) -> None:
        """Letters are copies."""

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """In the order of the ranks."""
        among = tuple(ranks)
        if len(among) == 1:
            return
        number, self._sums[among] = self._sums[among], self._sums[among] + 1
        terms = self._said.terms[among, number]
        self._look()
        terms[self.rank] = tensor.detach().clone()
        self._threads.turn.notify_all()
        self._wait(lambda: len(terms) == len(among))
        total = terms[among[0]].clone()
        for each in among[1:]:
            total += terms[each]
        tensor.copy_(total)

    def _wait(self, until: Callable[[], bool]) -> None:
        if not self._threads.turn.wait_for(lambda: self._said.broken or until(), STUCK_S):
            raise AssertionError(f"{self.rank} waits for ever")
        if not until():
            self._look()

    def _look(self) -> None:
        if self._said.broken:
            raise Broken("the connections have ended")


class _Said:
    """The messages of one generation."""

    def __init__(self) -> None:
        self.broken = False
        self.letters: dict[tuple[int, int, int], list[torch.Tensor]] = defaultdict(list)
        self.terms: dict[tuple[tuple[int, ...], int], dict[int, torch.Tensor]] = defaultdict(dict)
