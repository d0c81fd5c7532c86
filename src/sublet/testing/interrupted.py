"""A disk or object store that pauses before and after each order: to end the process there, or to let another in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sublet.machine.objects import Objects
from sublet.train.checkpoint.disk import Disk


class Stopped(BaseException):
    """The process that gave the order is no more; what it would clean up stays."""


class Orders:
    """Those of one process. At the moment number `at` it ends, or `then` is called, once.

    >>> orders = Orders(2, lambda: print("now"))
    >>> orders.pass_by(), orders.pass_by(), orders.pass_by()
    now
    (None, None, None)
    """

    def __init__(self, at: int | None = None, then: Callable[[], None] | None = None) -> None:
        self.passed, self._at, self._then = 0, at, then
        self.over = False
        self.locked = False  # it has what others would wait for
        self.opened: list[Any] = []  # what the end of a process closes

    def pass_by(self) -> None:
        """A moment between two orders."""
        if self.over:
            raise Stopped
        self.passed += 1
        if self._at is None or self.passed < self._at or (self._then is not None and self.locked):
            return  # a process that would wait for a lock comes after it
        self._at = None
        if self._then is not None:
            self._then()
            return
        self.over = True
        for each in self.opened:
            each.close()
        raise Stopped


class _Interrupted:
    """All requests go to the other one, between two moments."""

    def __init__(self, inner: Any, orders: Orders, *, blocks: bool = False) -> None:
        self._inner, self._orders, self._blocks = inner, orders, blocks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._ordering(name, found) if callable(found) else found

    def close(self) -> None:
        """The end of the process may have been quicker."""
        if not self._orders.over:
            self._orders.opened.remove(self._inner)
            self._inner.close()
            self._orders.locked &= not self._blocks

    def _ordering(self, name: str, order: Callable[..., Any]) -> Callable[..., Any]:
        def ordered(*args: Any, **facts: Any) -> Any:
            self._orders.pass_by()
            done = order(*args, **facts)
            if name in {"create", "hold"}:
                self._orders.opened.append(done)
                done = _Interrupted(done, self._orders, blocks=name == "hold" and not facts.get("folder"))
            if self._blocks:
                self._orders.locked = name == "take" and bool(done)
            if name != "open":  # what is read is seen before the next order: nothing is between
                self._orders.pass_by()
            return done

        return ordered


def interrupted_disk(disk: Disk, orders: Orders) -> Disk:
    """As one process has it."""
    return cast(Disk, _Interrupted(disk, orders))


def interrupted_objects(objects: Objects, orders: Orders) -> Objects:
    """As one process has it."""
    return cast(Objects, _Interrupted(objects, orders))
