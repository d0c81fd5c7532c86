"""TCP as it is: in order within a connection or not at all. A partition stalls, a black hole swallows for ever."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Any

from sublet_lab.world.heap import Struck, World, nobody
from sublet_lab.world.loop import WorldLoop
from sublet_lab.world.sockets import WorldSocket

LEAST_DELAY_S, MEAN_MORE_S = 0.0005, 0.004  # of a packet, within one region of a cloud
SYN_AGAIN_S = 1.0
GIVES_UP_S = 924.6  # tcp_retries2 of Linux, for data without confirmation
CONTROLLER = "controller"  # the host of an address without a listener
MOST_IN_FLIGHT = 1 << 18  # bytes that a sender's kernel takes before it says no

Address = tuple[str, int]
Chunk = bytes | None  # None = the other side has closed


class Network:
    """Between hosts, by name. A host's view of a connection depends on whether packets pass."""

    def __init__(self, world: World) -> None:
        self.world, self._rng = world, world.stream("network")
        self.listeners: dict[Address, Listener] = {}
        self.connections: list[Connection] = []
        self.slowness = 1.0
        self.slowed: Struck = nobody  # told of every packet that is on its way for longer
        self._blocked: dict[tuple[str, str], list[Struck]] = {}  # (from, to) -> the listeners of each partition
        self.off: set[str] = set()  # hosts that do not answer at all

    def delay_s(self) -> float:
        """The delay of one packet."""
        if self.slowness > 1.0:
            self.slowed()
        return self.slowness * (LEAST_DELAY_S + self._rng.expovariate(1 / MEAN_MORE_S))

    def passes(self, source: str, target: str) -> bool:
        """Whether packets arrive."""
        for struck in (partitions := self._blocked.get((source, target), ())):
            struck()
        return not partitions and target not in self.off and source not in self.off

    def block(self, *ways: tuple[str, str], struck: Struck = nobody) -> None:
        """Drop all packets on these ways, until they are opened as often as they were blocked; `struck` by each."""
        for way in ways:
            self._blocked.setdefault(way, []).append(struck)

    def unblock(self, *ways: tuple[str, str]) -> None:
        """Packets sent meanwhile arrive now: TCP sends them again."""
        for way in ways:
            if partitions := self._blocked.get(way):
                del partitions[0]
            if not partitions:
                self._blocked.pop(way, None)
        self.pump()

    def calm(self) -> None:
        """Everything passes, as quickly as it should."""
        self._blocked.clear()
        self.slowness = 1.0
        self.pump()

    def pump(self) -> None:
        """Deliver what can be."""
        for connection in list(self.connections):
            connection.up.pump()
            connection.down.pump()

    def switch_on(self, host: str) -> None:
        """It answers again, and knows of no earlier connection: a sender on one is told so (RST)."""
        if host in self.off:
            self.off.discard(host)
            for connection in list(self.connections):
                for way in (connection.up, connection.down):
                    way.unknown = way.unknown or (way.hole and way.target == host)

    def switch_off(self, host: str) -> None:
        """A machine is gone without a word: its peers wait."""
        self.off.add(host)
        for connection in list(self.connections):
            if host in (connection.up.source, connection.up.target):
                connection.swallow()

    def process_gone(self, loop: WorldLoop, *, silent: bool) -> None:
        """A server's process has ended: the kernel of its machine closes what it had open, unless that is gone, too."""
        for address, listener in list(self.listeners.items()):
            if listener.loop is loop:
                del self.listeners[address]
        for connection in list(self.connections):
            if connection.transport.loop is loop:
                if silent:
                    connection.swallow()
                else:
                    connection.down.put(None)
                    connection.up.hole = True

    def listen(self, address: Address, loop: WorldLoop, factory: Callable[[], asyncio.Protocol]) -> Listener:
        """A server of a process, alone at its address."""
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self.listeners[address] = listener = Listener(self, address, loop, factory)
        return listener

    def connect(self, socket: WorldSocket, address: Address) -> None:
        """A SYN, and again until there is an answer."""
        self.world.after(2 * self.delay_s(), self._arrive, socket, address)

    def _arrive(self, socket: WorldSocket, address: Address) -> None:
        if socket.closed or socket.process.dead:
            return
        listener = self.listeners.get(address)
        target = listener.loop.process.host if listener is not None else CONTROLLER
        if not (self.passes(socket.host, target) and self.passes(target, socket.host)):
            self.world.after(SYN_AGAIN_S, self._arrive, socket, address)
        elif listener is None:
            socket.refused()
        else:
            connection = Connection(self, socket, listener)
            self.connections.append(connection)
            socket.connected(connection)
            connection.transport.begin()


class Listener:
    """A server, as asyncio calls it."""

    def __init__(
        self, network: Network, address: Address, loop: WorldLoop, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self._network, self._address, self.loop, self.factory = network, address, loop, factory

    def close(self) -> None:
        """No connection comes in any more."""
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]

    async def wait_closed(self) -> None:
        """As asyncio has it: at once."""
        await asyncio.sleep(0)


class Way:
    """One direction of a connection."""

    def __init__(self, network: Network, source: str, target: str, deliver: Callable[[Chunk], None]) -> None:
        self._network, self.source, self.target, self._deliver = network, source, target, deliver
        self._queue: deque[tuple[float, Chunk]] = deque()
        self._last_s = 0.0
        self.hole = False  # packets arrive nowhere, without word
        self.lost: Struck = nobody  # told of that
        self.unknown = False  # the other side has forgotten it, and says so when it hears of it
        self.in_flight = 0  # bytes
        self.drained: Callable[[], None] = lambda: None  # there is room again
        self.give_up: Callable[[], None] = lambda: None  # the sender's kernel, after a quarter of an hour
        self._gives_up = False  # it will

    def put(self, chunk: Chunk) -> None:
        """Send, after all that was sent before."""
        if self.hole:
            self.lost()
            self.in_flight += len(chunk or b"")
            if self.unknown:
                self._network.world.after(2 * self._network.delay_s(), self.give_up)
            elif not self._gives_up:
                self._gives_up = True
                self._network.world.after(GIVES_UP_S, self.give_up)
            return
        self.in_flight += len(chunk or b"")
        self._last_s = max(self._last_s, self._network.world.now_s + self._network.delay_s())
        self._queue.append((self._last_s, chunk))
        self._network.world.at(self._last_s, self.pump)

    def pump(self) -> None:
        """Deliver what has had its time, if packets pass."""
        if self.hole:
            self._queue.clear()
        elif self._queue and self._network.passes(self.source, self.target):
            while self._queue and self._queue[0][0] <= self._network.world.now_s and not self.hole:
                _, chunk = self._queue.popleft()
                was_full = self.in_flight > MOST_IN_FLIGHT
                self.in_flight -= len(chunk or b"")
                if was_full and self.in_flight <= MOST_IN_FLIGHT:
                    self.drained()
                self._deliver(chunk)


class Connection:
    """From the socket of an agent (`up`) to the transport of a server, and back (`down`)."""

    def __init__(self, network: Network, socket: WorldSocket, listener: Listener) -> None:
        self._network, self.socket = network, socket
        self.transport = Transport(self, listener)
        server = listener.loop.process.host
        self.up = Way(network, socket.host, server, self.transport.came)
        self.down = Way(network, server, socket.host, socket.came)
        self.up.give_up, self.down.give_up = self.reset, self.reset
        self.down.drained = self.transport.drained
        self.up.drained = lambda: socket.on_ready()  # noqa: PLW0108 - the later listener

    @property
    def unconfirmed(self) -> int:
        """Bytes on their way up."""
        return self.up.in_flight

    def send_up(self, chunk: Chunk) -> None:
        """From the socket to the server."""
        self.up.put(chunk)

    def swallow(self, lost: Struck = nobody) -> None:
        """A box in the middle has forgotten it: whatever is sent is lost, and neither side is told."""
        self.up.hole = self.down.hole = True
        self.up.lost = self.down.lost = lost

    def reset(self) -> None:
        """Both sides are told at once that it is gone."""
        self.socket.reset()
        self.transport.came(None)

    def forget(self) -> None:
        """It is over."""
        if self in self._network.connections:
            self._network.connections.remove(self)


class Transport(asyncio.Transport):
    """The server's end, as asyncio's protocols know it."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        super().__init__()
        self._connection, self.loop = connection, listener.loop
        self._protocol = listener.factory()
        self._over = self._full = False

    def begin(self) -> None:
        """The server accepts."""
        self._call(self._protocol.connection_made, self)

    def came(self, chunk: Chunk) -> None:
        """Packets are there; the process reads them when it runs."""
        if self._over:
            return
        if chunk is None:
            self._end()
            self._connection.forget()
        else:
            self._call(self._give, chunk)

    def _call(self, call: Callable[..., object], *args: Any) -> None:
        if not self.loop.process.dead:
            self.loop.call_soon(call, *args)

    def _give(self, data: bytes) -> None:
        if not self._over:
            self._protocol.data_received(data)

    def _end(self) -> None:
        self._over = True
        self._call(self._protocol.connection_lost, None)

    def write(self, data: Any) -> None:
        """Never waits; what is not taken yet is counted."""
        if not self._over:
            self._connection.down.put(bytes(data))
            if self.get_write_buffer_size() and not self._full:
                self._full = True
                self._protocol.pause_writing()

    def drained(self) -> None:
        """The kernel has taken all of it."""
        if self._full:
            self._full = False
            self._call(self._protocol.resume_writing)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are those that our own code asks for."""

    def is_closing(self) -> bool:
        return self._over

    def get_write_buffer_size(self) -> int:
        return max(0, self._connection.down.in_flight - MOST_IN_FLIGHT)

    def close(self) -> None:
        """After what was written."""
        if not self._over:
            self._connection.down.put(None)
            self._end()

    def abort(self) -> None:
        """At once; what was written may be lost."""
        self.close()
