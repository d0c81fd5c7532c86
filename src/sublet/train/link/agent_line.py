"""The worker's end of the line to its agent: a thread listens, and the training loop looks when it has time.

`listen` is a thread that reads a socket and calls `hear` and `turn`; `News` is how the loop waits. A simulated world
has its own of both.

Only the newest order counts. If it says that the group is broken, the training loop may be stuck in a collective that
never ends. Then the thread closes the group's connections, repeatedly, until the loop has noticed. While a group forms
any newer order does that, because other workers may follow it already.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from sublet.errors import BadInput, InvalidValue
from sublet.machine.wall import WALL, Wall
from sublet.wire.files import Brought, Wants
from sublet.wire.lines import LineBuffer, Message, to_line
from sublet.wire.messages import EXIT_LOST, SESSION, Busy, Keep, Leave, Meet, Ready, Regroup, SaveNow, Spent

Order = Regroup | Leave
CUT_AGAIN_S = 0.01  # a group that is forming opens new sockets after a cut
BEAT_S = 2.0  # between two words that the script is busy; the controller takes a minute of silence for a hang
ORPHAN_GRACE_S = 10.0  # from the end of the line to the end of this process, wherever the training loop is stuck
CREDENTIALS = struct.Struct("3i")  # of the peer: process, user, group
_claimed = 0  # the process in which a session was opened under a controller; a fork is another


class Superseded(Exception):
    """A newer order is there: what is under way for the older one is given up."""


class LineLost(Exception):
    """The agent is gone, or no order comes."""


class Connection(Protocol):
    """The sending side of a connection."""

    def sendall(self, data: bytes, /) -> None:
        """All of it; OSError if it is closed."""


class News:
    """How the loop waits for messages, which another thread hears. While it is entered, that thread waits."""

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

        It blocks, so an `await` of it never suspends.
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
            order, self._order = await self._newest(lambda _: True, wait_s), None
            self._followed, self.pending, self.keeps = order.generation, False, ()
            self._cutting = False  # the group that it was for is no more; the next one must not be hung up on
            return order

    async def foreseen(self, at_least: int, wait_s: float) -> Order:
        """The newest order, not followed yet: one to leave, or one of this generation or a newer one."""
        with self._news:
            return await self._newest(lambda order: isinstance(order, Leave) or order.generation >= at_least, wait_s)

    async def meeting(self, generation: int, wait_s: float) -> Meet:
        """The address of the store of `generation`."""
        with self._news:
            await self._news.wait(lambda: self._met(generation) or self._order is not None or self.gone, wait_s)
            self._check()
            if self._meet is None or not self._met(generation):
                raise LineLost(f"no word of the store of generation {generation} within {wait_s:g} s")
            return self._meet

    async def bring(self, generation: int, wait_s: float) -> None:
        """Have the newest checkpoint put into our directory; LineLost if it is unknown whether there is one."""
        with self._news:
            self._answered, self._why_not = False, ""
        self.say(Wants(worker_id=self.worker_id, generation=generation))
        with self._news:
            await self._news.wait(lambda: self._answered or self._order is not None or self.gone, wait_s)
            self._check()
            if not self._answered or self._why_not:
                raise LineLost(self._why_not or f"no word of the newest checkpoint within {wait_s:g} s")

    def check(self) -> None:
        """Raise if a newer order has come, or the line is gone."""
        with self._news:
            self._check()

    @contextmanager
    def holds(self, hang_up: Callable[[], None]) -> Iterator[None]:
        """A group forms, and `hang_up` can end it from any thread; later only a broken group is ended.

        Superseded or LineLost where that holds before, or at the end of a normal exit.
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
            raise LineLost("the agent has closed the line")

    async def _newest(self, fits: Callable[[Order], bool], wait_s: float) -> Order:
        if not await self._news.wait(lambda: self.gone or (self._order is not None and fits(self._order)), wait_s):
            raise LineLost(f"no order came within {wait_s:g} s")
        if self._order is None:
            raise LineLost("the agent has closed the line")
        return self._order

    def _met(self, generation: int) -> bool:
        return self._meet is not None and self._meet.generation == generation

    # ------------------------------------------------------------------------------------------- for the listener

    def hear(self, data: bytes) -> bool:
        """Bytes from the connection; False if they were the last."""
        try:
            for message in self._lines.feed(data):
                self._hear(message)
        except BadInput:
            return False
        return bool(data)

    def turn(self) -> float:
        """Do what is due beside hearing; seconds until the next call."""
        self._cut()
        if not self.gone:
            self._beat()
        return CUT_AGAIN_S if self._cutting else BEAT_S

    def end(self) -> None:
        """The connection has ended. The loop is told, and its group is ended at every `turn` until it has noticed."""
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
        """Say that the process runs the script: a long step must not look like a hang."""
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


class ControllerLink:
    """The line of a session to its controller; `line` is None where there is none."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.line: AgentLine | None = None

    def open(self, told: Callable[[], Mapping[str, Any]]) -> None:
        """Take the line that the agent left to this process, if it did, and say that we are there.

        `told`: the needs of the model and its state, as fields of `Ready`.
        """
        self.listen()
        if self.line is not None:
            self.line.say(Ready(worker_id=self.worker_id, version=SESSION, **told()))

    def listen(self) -> None:
        """Take the line, and wait for no group: what has a loop of its own is in one already, or needs none."""
        descriptor = os.environ.get("SUBLET_CONTROL_FD")
        if descriptor is not None:
            _claim_process()
            connection = socket.socket(fileno=os.dup(int(descriptor)))
            self.line = AgentLine(connection, self.worker_id)
            listen(self.line, connection)

    def say(self, message: Message) -> None:
        """To the controller, if there is one."""
        if self.line is not None:
            self.line.say(message)

    def script_goes_on(self) -> None:
        """From here on the script's own code runs: that it takes long is no sign of a hang."""
        if self.line is not None:
            self.line.script_s = self.line.wall.monotonic()

    def script_waits(self) -> None:
        """From here on the session's code runs, and may wait for other workers."""
        if self.line is not None:
            self.line.script_s = None

    def has_order(self) -> bool:
        """Whether an order waits for the end of the step."""
        return self.line is not None and self.line.pending and not self.line.gone

    def take_keeps(self) -> tuple[int, ...]:
        """Parts that the controller wants us to keep too; it is told once."""
        if self.line is None or not self.line.keeps:
            return ()
        keeps, self.line.keeps = self.line.keeps, ()
        return keeps

    def take_save_request(self) -> bool:
        """Whether the controller wants a checkpoint now; it is told once."""
        if self.line is None or not self.line.save_now:
            return False
        self.line.save_now = False
        return True


def is_agents_line(descriptor: str) -> bool:
    """Whether this descriptor is the agent's: a launcher passes on the variable, and seldom the descriptor.

    Then the number is unused, or belongs to something that this process has opened itself.
    """
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as line:
            if line.family != socket.AF_UNIX:
                return False
            found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            made_by: int = CREDENTIALS.unpack(found)[0]
            return made_by != os.getpid()
    except (ValueError, OSError):
        return False


def _claim_process() -> None:
    """A job is one training: what a second session trains would be neither planned nor saved nor told."""
    global _claimed  # noqa: PLW0603 - a fact about the process
    if _claimed == os.getpid():
        raise InvalidValue(
            "session", "a second one in this process", "one for each job; submit the next training as another job"
        )
    _claimed = os.getpid()
