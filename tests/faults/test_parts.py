"""The world itself: what would make seeds look green, or red, for no reason."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from sublet.machine.wall import WALL
from sublet_lab.world.disk import Disk
from sublet_lab.world.heap import Crash, Process, World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import trip_wired
from sublet_lab.world.network import Network
from sublet_lab.world.sockets import WorldSocket


class _Idle(Process):
    def step(self) -> float | None:
        return None


class _Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.data, self.lost = b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def _connected(world: World) -> tuple[Network, WorldSocket, _Heard]:
    network = Network(world)
    server, client = LoopProcess(world, "server", "a", network.listen), _Idle(world, "client", "b")
    heard = _Heard()
    server.spawn(server.loop.create_server(lambda: heard, "127.0.0.1", 7000))
    world.run(world.now_s + 1.0)
    socket = WorldSocket(client, network)
    socket.connect_ex(("127.0.0.1", 7000))
    world.run(world.now_s + 1.0)
    assert socket.writable
    return network, socket, heard


def test_what_is_sent_during_a_partition_arrives_in_order_when_it_is_over() -> None:
    world = World(1)
    network, socket, heard = _connected(world)
    network.block(("b", "a"))
    for number in range(50):
        socket.send(b"%d," % number)
    world.run(world.now_s + 60.0)
    assert heard.data == b""
    network.unblock(("b", "a"))
    world.run(world.now_s + 1.0)
    assert heard.data == b"".join(b"%d," % number for number in range(50))


def test_a_black_hole_tells_nobody_for_a_quarter_of_an_hour() -> None:
    world = World(1)
    network, socket, heard = _connected(world)
    network.connections[0].swallow()
    socket.send(b"lost")
    world.run(world.now_s + 900.0)
    assert not socket.readable
    assert heard.data == b""
    world.run(world.now_s + 60.0)
    with pytest.raises(ConnectionResetError):
        socket.recv(10)


def test_a_process_that_is_stopped_does_later_what_was_due_and_one_that_is_killed_never_does() -> None:
    world, done = World(1), []
    network = Network(world)
    stopped, killed = (LoopProcess(world, name, name, network.listen) for name in ("stopped", "killed"))

    async def work(name: str) -> None:
        await asyncio.sleep(5.0)
        done.append((name, round(world.age_s)))

    for process in (stopped, killed):
        process.spawn(work(process.name))
    world.run(world.now_s + 1.0)
    stopped.stop_for(19.0)
    killed.kill()
    world.run(world.now_s + 100.0)
    assert done == [("stopped", 20)]


def _write(db: sqlite3.Connection, names: list[str]) -> None:
    for name in names:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO facts VALUES (?)", (name,))
        db.execute("COMMIT")


@pytest.mark.parametrize(("before", "kept"), [(True, 1), (False, 2)])
def test_a_crash_at_a_commit_keeps_what_was_committed_and_nothing_else(*, before: bool, kept: int) -> None:
    process, disk = _Idle(World(1), "writer", "a"), Disk()
    db = disk.connect(process)
    db.execute("CREATE TABLE facts (name TEXT)")
    disk.crash_in(1, before=before)
    with pytest.raises(Crash):
        _write(db, ["first", "second", "third"])
    assert process.dead
    assert len(disk.rows("SELECT * FROM facts")) == kept
    with pytest.raises(Crash):
        db.execute("SELECT 1")


def test_a_full_disk_refuses_as_sqlite_does_until_there_is_room() -> None:
    disk = Disk()
    db = disk.connect(_Idle(World(1), "writer", "a"))
    db.execute("CREATE TABLE facts (name TEXT)")
    disk.fill()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        _write(db, ["x" * 1000] * 100)
    disk.calm()
    db.execute("INSERT INTO facts VALUES (?)", ("x" * 1000,))


def test_whoever_asks_the_real_clock_in_a_world_is_told_so() -> None:
    with trip_wired(), pytest.raises(AssertionError, match="monotonic"):
        WALL.monotonic()
    assert WALL.monotonic() > 0
    with contextlib.suppress(ValueError), trip_wired():
        raise ValueError
    assert WALL.unix() > 0
