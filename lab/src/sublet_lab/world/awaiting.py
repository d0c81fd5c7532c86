"""How a coroutine of the world waits: it suspends, and its driver goes on with it when something has changed."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from sublet_lab.world.heap import World


@types.coroutine
def _suspend() -> Generator[None, None, None]:
    yield


async def until(predicate: Callable[[], bool]) -> None:
    """Go on when it holds; it is asked now and at every poke."""
    while not predicate():
        await _suspend()


class Task:
    """One coroutine at a time. `poke` lets it look again whether what it waits for has come."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._work: Coroutine[Any, Any, Any] | None = None
        self._then: Callable[[Any], None] = lambda _: None
        self._runs = False

    def begin(self, work: Coroutine[Any, Any, Any], then: Callable[[Any], None]) -> None:
        """`then` gets its outcome: what it returns, or the exception that it ends with."""
        assert self._work is None
        self._work, self._then = work, then
        self.poke()

    def poke(self) -> None:
        """Something may have changed."""
        if self._work is None or self._runs:
            return
        self._runs = True
        try:
            self._work.send(None)
        except StopIteration as end:
            outcome = end.value
        except (Exception, SystemExit) as error:  # noqa: BLE001 - its caller knows what it means
            outcome = error
        else:
            return
        finally:
            self._runs = False
        self._work = None
        self._then(outcome)

    def drop(self) -> None:
        """Its process is gone: not one more statement of it is run."""
        self._work = None

    async def sleep(self, seconds: float) -> None:
        """So much of the world's time."""
        until_s = self._world.now_s + seconds
        self._world.at(until_s, self.poke)
        await until(lambda: self._world.now_s >= until_s)

    async def wait(self, predicate: Callable[[], bool], wait_s: float) -> bool:
        """Whether it holds before that time is over."""
        until_s = self._world.now_s + wait_s
        if not predicate():
            self._world.at(until_s, self.poke)
        await until(lambda: predicate() or self._world.now_s >= until_s)
        return predicate()
