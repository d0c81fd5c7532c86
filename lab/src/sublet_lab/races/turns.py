"""Programs that take turns: each runs in a thread until its next request, and a seed says whose is answered, and how.

All but the one whose request was just answered wait, so the course is the seed's alone. A request may be lost, done
without an answer, done twice as a library that asks again does it, or done long after its sender has given up. It may
be refused as a store refuses one of two at once (409). Its sender may die of it, before or after.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from sublet.machine.objects import Objects, Overtaken, StoreFailed

FATES = ("lost", "unanswered", "twice", "late", "refused", "dies before", "dies after")
ARRIVES = 0.05  # of all turns are of something that was late
ENDLESS = 20_000  # turns; no course has as many
REST_S = 30.0  # without a request: the threads are stuck


class Died(BaseException):
    """The process that gave the order is no more."""


@dataclass(eq=False)
class Program:
    """One process. `pace` is its share of the turns: a slow one sleeps while others live whole lives."""

    name: str
    pace: float
    dead: bool = False  # asks for nothing any more
    ended: bool = False  # its thread is over
    waits: threading.Event = field(default_factory=threading.Event)
    order: Callable[[], Any] | None = None  # that it waits for
    condition: bool = False  # whether the order has one, and may so be refused
    answer: Any = None
    error: BaseException | None = None


class Turns:
    """All programs of one course. `after` is called when an order was done, for laws."""

    def __init__(self, random: Random, chances: Mapping[str, float], after: Callable[[], None]) -> None:
        self._random, self._chances, self._after = random, chances, after
        self._lock = threading.Condition()
        self._busy = 0  # programs that compute: the next turn is theirs
        self._programs: list[Program] = []
        self._late: list[Callable[[], Any]] = []
        self._threads: list[threading.Thread] = []
        self.fates: Counter[str] = Counter()
        self.turns = 0

    def start(self, program: Program, live: Callable[[], None]) -> None:
        """From now on it takes part; from the thread of a turn or before the first."""

        def whole_life() -> None:
            try:
                live()
            except Died:
                pass
            except BaseException as error:  # noqa: BLE001 - told by run()
                program.error = error
            with self._lock:
                program.dead = program.ended = True
                self._busy -= 1
                self._lock.notify_all()

        with self._lock:
            self._programs.append(program)
            self._busy += 1
        thread = threading.Thread(target=whole_life, name=program.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def objects_of(self, program: Program, inner: Objects) -> Objects:
        """The store as this program has it: each request is a turn."""
        return cast(Objects, _Asking(self, program, inner))

    def ask(self, program: Program, order: Callable[[], Any], *, condition: bool) -> Any:
        """By a thread of the program, which waits for it."""
        with self._lock:
            if program.dead:
                raise Died
            program.order, program.condition = order, condition
            program.waits.clear()
            self._busy -= 1
            self._lock.notify_all()
        program.waits.wait()
        if program.error is not None:
            error, program.error = program.error, None
            raise error
        return program.answer

    def sleep(self, program: Program, turns: int) -> None:
        """A sleep without requests or faults."""
        for _ in range(turns):
            self.ask(program, _nothing, condition=False)

    def run(self) -> None:
        """Until all have ended and nothing is on its way."""
        try:
            while self._take_turn():
                self.turns += 1
                if self.turns > ENDLESS:
                    raise AssertionError(f"after {ENDLESS} turns some are still at it")
        finally:
            self._end_all()

    def _take_turn(self) -> bool:
        with self._lock:
            if not self._lock.wait_for(lambda: self._busy == 0, REST_S):
                raise AssertionError("a program neither asks nor ends")
        for each in self._programs:
            if each.dead and each.error is not None:
                raise each.error
        asking = [each for each in self._programs if each.order is not None]
        if self._late and (not asking or self._random.random() < ARRIVES):
            with contextlib.suppress(Overtaken, FileNotFoundError):  # its sender is gone
                self._do(self._late.pop(self._random.randrange(len(self._late))))
            return True
        if not asking:
            return False
        program = self._random.choices(asking, [each.pace for each in asking])[0]
        order, program.order = program.order, None
        assert order is not None
        program.answer, program.error = None, None
        self._answer(program, order)
        with self._lock:
            self._busy += 1
        program.waits.set()
        return True

    def _answer(self, program: Program, order: Callable[[], Any]) -> None:
        fate = "" if order is _nothing else self._draw(program)
        try:
            if fate not in {"lost", "late", "refused", "dies before"}:
                program.answer = self._do(order)
            if fate == "twice":
                program.answer = self._do(order)
        except (Overtaken, FileNotFoundError) as error:
            program.error = error
        if fate == "late":
            self._late.append(order)
        if fate in {"lost", "late", "unanswered"}:
            program.error = StoreFailed("s3://races/job", f"no answer ({fate})", hint="try again")
        elif fate == "refused":
            program.error = Overtaken("s3://races/job", "HEAD")
        elif fate.startswith("dies"):
            program.dead, program.error = True, Died()

    def _draw(self, program: Program) -> str:
        drawn = self._random.random()
        for fate, chance in self._chances.items():
            drawn -= chance
            if drawn < 0.0:
                if fate == "refused" and not program.condition:
                    return ""
                self.fates[fate] += 1
                return fate
        return ""

    def _do(self, order: Callable[[], Any]) -> Any:
        try:
            return order()
        finally:
            self._after()

    def _end_all(self) -> None:
        """A program that still waits for an answer dies of it, also the one whose turn it was."""
        with self._lock:
            for each in self._programs:
                if not each.ended:
                    each.order, each.error, each.dead = None, Died(), True
                    each.waits.set()
        for thread in self._threads:
            thread.join(REST_S)


def _nothing() -> None:
    """The request of a program that sleeps."""


class _Asking:
    """Each request is a turn of its program."""

    def __init__(self, turns: Turns, program: Program, inner: Objects) -> None:
        self._turns, self._program, self._inner = turns, program, inner
        self.uri = inner.uri

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def asked(*args: Any, **facts: Any) -> Any:
            kept = tuple(bytes(each) if isinstance(each, memoryview) else each for each in args)
            if name == "delete":
                kept = (list(args[0]),)
            condition = bool(facts.get("new")) or facts.get("over") is not None
            order = getattr(self._inner, name)
            return self._turns.ask(self._program, lambda: order(*kept, **facts), condition=condition)

        return asked
