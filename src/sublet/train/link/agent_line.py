"""The worker's end of the line to its agent: a thread listens, the training loop looks when it has time.

Who listens, and how the loop waits for it, is not the line's business: `listen` is a thread that reads a socket and
calls `hear` and `turn`, `News` is how the loop waits. A simulated world has its own of both.

Only the newest order counts. One that says that the group is broken cannot wait for the training loop, which may be
stuck in a collective that nobody will ever answer: the thread itself then hangs up on the group, again and again until
the loop has noticed. While a group is forming any newer order does that, because others may follow it already.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from sublet.errors import BadInput
from sublet.machine.wall import WALL, Wall
from sublet.wire.exits import EXIT_LOST
from sublet.wire.lines import LineBuffer, Message, to_line
from sublet.wire.messages import Busy, Keep, Leave, Meet, Regroup, SaveNow, Spent
from sublet.wire.saves import Brought, Wants

__all__ = ["AgentLine", "Connection", "Lost", "News", "Order", "Superseded", "listen"]

Order = Regroup | Leave
CUT_AGAIN_S = 0.01  # a group that is forming opens new sockets after a cut
BEAT_S = 2.0  # between two words that the script is busy; the controller takes a minute of silence for a hang
ORPHAN_GRACE_S = 10.0  # from the end of the line to the end of this process, wherever the training loop is stuck


class Superseded(Exception):
    """A newer order is there: what is under way for the older one is given up."""


class Lost(Exception):
    """The agent is gone, or no order comes."""


class Connection(Protocol):
    """Where words go."""

    def sendall(self, data: bytes, /) -> None:
        """All of it; OSError if it is closed."""


class News:
    """How the loop waits for what the line hears, here in another thread. While it is entered, nobody else hears."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> object:
        return self._condition.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._condition.__exit__(kind, error, trace)

    async def wait(self, predicate: Callable[[], bool], wait_s: float) -> bool:
        """Until `predicate` holds, which is looked at after each `notify`; False if it does not within `wait_s`.

        It blocks, so that whoever awaits it goes on at once.
        """
        return self._condition.wait_for(predicate, wait_s)

    def notify(self) -> None:
        """Something was heard."""
        self._condition.notify_all()


class AgentLine:
    """The line to the agent over a connection."""

    def __init__(self, connection: Connection, worker_id: str, *, wall: Wall = WALL, news: Any = None) -> None:
        self.worker_id, self.wall = worker_id, wall
        self.pending = False  # an order waits; read in the hot path, without the lock
        self.save_now = False
        self.spent: Spent | None = None  # what the job has come to, as it was told last
        self.keeps: tuple[int, ...] = ()  # parts that we were told to keep too; taken in the hot path
        self.script_s: float | None = None  # monotonic, since when the loop is in the script's own code
        self.gone = False
        self._connection, self._lines = connection, LineBuffer()
        self._news: News = News() if news is None else news  # a simulated world has its own
        self._sending = threading.Lock()
        self._followed = -1  # generation of the order that the loop follows
        self._order: Order | None = None
        self._meet: Meet | None = None
        self._answered, self._why_not = False, ""  # what we asked our agent to bring
        self._hang_up: Callable[[], None] | None = None
        self._forming = False
        self._cutting = False
        self._said_s = 0.0  # monotonic, of the last Busy

    def say(self, message: Message) -> None:
        """Send; a line that is gone takes no words, which the loop will learn at the next step."""
        try:
            with self._sending:
                self._connection.sendall(to_line(message))
        except OSError:
            self.end()

    async def order(self, wait_s: float) -> Order:
        """The newest order, as soon as there is one; from now on it is the one that is followed."""
        with self._news:
            if not await self._news.wait(lambda: self._order is not None or self.gone, wait_s):
                raise Lost(f"no order came within {wait_s:g} s")
            if self._order is None:
                raise Lost("the agent has closed the line")
            order, self._order = self._order, None
            self._followed, self.pending, self.keeps = order.generation, False, ()
            self._cutting = False  # the group that it was for is no more; the next one must not be hung up on
            return order

    async def foreseen(self, at_least: int, wait_s: float) -> Order:
        """The newest order, which is not followed yet: one to leave, or of this generation or a newer one."""

        def is_there() -> bool:
            order = self._order
            return order is not None and (isinstance(order, Leave) or order.generation >= at_least)

        with self._news:
            if not await self._news.wait(lambda: is_there() or self.gone, wait_s):
                raise Lost(f"no order came within {wait_s:g} s")
            if self._order is None:
                raise Lost("the agent has closed the line")
            return self._order

    async def meeting(self, generation: int, wait_s: float) -> Meet:
        """Where the store of `generation` is."""
        with self._news:
            await self._news.wait(lambda: self._met(generation) or self._order is not None or self.gone, wait_s)
            self._check()
            if self._meet is None or not self._met(generation):
                raise Lost(f"no word of the store of generation {generation} within {wait_s:g} s")
            return self._meet

    async def bring(self, generation: int, wait_s: float) -> None:
        """Have the newest checkpoint put into our directory; Lost if nobody can say whether there is one."""
        with self._news:
            self._answered, self._why_not = False, ""
        self.say(Wants(worker_id=self.worker_id, generation=generation))
        with self._news:
            await self._news.wait(lambda: self._answered or self._order is not None or self.gone, wait_s)
            self._check()
            if not self._answered or self._why_not:
                raise Lost(self._why_not or f"no word of the newest checkpoint within {wait_s:g} s")

    def check(self) -> None:
        """Raise if a newer order has come, or the line is gone."""
        with self._news:
            self._check()

    @contextmanager
    def holds(self, hang_up: Callable[[], None]) -> Iterator[None]:
        """A group forms under our eyes, which `hang_up` can end from any thread; then only a broken one is hung up on.

        Superseded or Lost where that is how it is before, or at the end of what went well.
        """
        with self._news:
            self._check()
            self._hang_up, self._forming = hang_up, True
        try:
            yield
        finally:
            with self._news:
                self._forming = False
        self.check()

    def release(self) -> None:
        """The group is no more: nothing is left to hang up on."""
        with self._news:
            self._hang_up, self._forming, self._cutting = None, False, False

    def _check(self) -> None:
        if self._order is not None:
            raise Superseded
        if self.gone:
            raise Lost("the agent has closed the line")

    def _met(self, generation: int) -> bool:
        return self._meet is not None and self._meet.generation == generation

    # ------------------------------------------------------------------------------------------- for who listens

    def hear(self, data: bytes) -> bool:
        """What has come over the connection; False if that was the last of it."""
        try:
            for message in self._lines.feed(data):
                self._hear(message)
        except BadInput:
            return False
        return bool(data)

    def turn(self) -> float:
        """Do what is due beside hearing; seconds until it is to be called again."""
        self._cut()
        if not self.gone:
            self._beat()
        return CUT_AGAIN_S if self._cutting else BEAT_S

    def end(self) -> None:
        """Nothing more will come. The loop is told, and hung up on at every `turn` until it has noticed."""
        with self._news:
            self.gone = self.pending = self._cutting = True
            self._news.notify()

    def _hear(self, message: Message) -> None:
        with self._news:
            match message:
                case Regroup() | Leave():
                    newest = self._order.generation if self._order else self._followed
                    if message.generation > newest or (isinstance(message, Leave) and message.generation == newest):
                        self._order, self.pending = message, True
                        self._cutting |= message.broken or self._forming
                case Meet():
                    if self._meet is None or message.generation > self._meet.generation:
                        self._meet = message
                case SaveNow():
                    self.save_now = True
                case Keep():
                    if message.generation == self._followed:  # of a grid that is no more, there is no such part
                        self.keeps = (*self.keeps, *message.parts)
                case Spent():
                    self.spent = message
                case Brought():
                    self._answered, self._why_not = True, message.why
                case _:
                    pass  # a newer agent may say more
            self._news.notify()

    def _beat(self) -> None:
        """A step that takes long is not to be told from a hang, but that its process runs the script is."""
        now_s, since_s = self.wall.monotonic(), self.script_s
        if since_s is not None and now_s - max(since_s, self._said_s) >= BEAT_S:
            self._said_s = now_s
            self.say(Busy(worker_id=self.worker_id))

    def _cut(self) -> None:
        with self._news:
            if self._cutting and self._hang_up:
                self._hang_up()
            self._cutting = self._cutting and self._hang_up is not None


def listen(line: AgentLine, connection: socket.socket) -> None:
    """Hear the line in a thread of its own, for as long as this process lives, which is not long without an agent."""
    threading.Thread(target=_listen, args=(line, connection), name="sublet-line", daemon=True).start()


def _listen(line: AgentLine, connection: socket.socket) -> None:
    poll, wait_s = select.poll(), BEAT_S
    poll.register(connection, select.POLLIN)
    while True:
        if poll.poll(wait_s * 1e3):
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not line.hear(data):
                break
        wait_s = line.turn()
    line.end()
    poll.unregister(connection)
    ends_s = line.wall.monotonic() + ORPHAN_GRACE_S
    while line.wall.monotonic() < ends_s:
        line.turn()
        poll.poll(CUT_AGAIN_S * 1e3)
    os._exit(EXIT_LOST)
