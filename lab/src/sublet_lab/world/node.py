"""A rented machine of the world: the shipped agent on it, driven turn by turn, and the programs that it starts."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from sublet.runtime.agent.agent import Agent, AgentFacts
from sublet.runtime.agent.devices import GpuReading
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.worker import AgentWorker
from sublet.wire.lines import to_line
from sublet.wire.messages import StartWorker, ToController
from sublet_lab.world.grid_worker import GridWorker
from sublet_lab.world.heap import Process, Struck, World, nobody
from sublet_lab.world.machine import EPOCH_S, HostClock, WorldRng, WorldWall
from sublet_lab.world.metadata import SERVICE, MetadataService
from sublet_lab.world.network import CONTROLLER, Network
from sublet_lab.world.own_disk import OwnDisk, OwnFiles
from sublet_lab.world.script import Scripts
from sublet_lab.world.sockets import WorldSelector, WorldSocket, socket_pair
from sublet_lab.world.storage import Storage
from sublet_lab.world.worker import Meetings, SdkWorker
from sublet_lab.world.working import torn_files

TURN_S = 1e-4  # a turn takes some time: nothing is done twice at one instant
FIRST_PORT, PORTS = 20_000, 10_000
SIGNAL_S = 0.02  # at most, until a process has it
SHUTDOWN_S = 2.0  # at most, until a machine is gone after its agent
NO_ROUTE = 0.3  # of the attempts to dial into a partition that the machine itself can tell


class Program(Protocol):
    """A process that an agent has started."""

    id: str
    job_id: str
    dead: bool
    hung: bool

    def signal(self, number: int) -> None:
        """It has one; SIGKILL ends it in any case."""

    def exit(self, code: int) -> None:
        """By itself, or by a signal (minus its number)."""

    def vanish(self) -> None:
        """With its machine."""


@dataclass
class Site:
    """The common part of all machines of a world."""

    world: World
    network: Network
    meetings: Meetings
    log: Callable[[str, str], None] = lambda _node_id, _text: None  # what agents write into their logs
    storage: Storage = field(init=False)
    scripts: Scripts = field(init=False)
    clocks: dict[str, HostClock] = field(default_factory=dict)  # by host
    gauge: Callable[[Sequence[str]], Mapping[str, GpuReading]] | None = None  # what its GPUs tell

    def __post_init__(self) -> None:
        self.storage = Storage(lambda: EPOCH_S + self.world.now_s)
        self.scripts = Scripts(self.world, self.network, self.storage, self.meetings.truth)


class WorldNode(Process):
    """Its name is its address. `gone` is told when the machine has ended after its agent."""

    def __init__(self, site: Site, facts: AgentFacts, gone: Callable[[], None]) -> None:
        super().__init__(site.world, f"agent of {facts.node_id}", facts.node_id)
        self.site, self._facts, self._gone = site, facts, gone
        self._off = self._was_connected = False
        self.overslept_s = 0.0
        self.files = OwnFiles(site.storage, site.meetings.storage)
        self.service = MetadataService(self) if facts.metadata_url == SERVICE else None
        self.processes = NodeProcesses(self, site)
        self._selector = WorldSelector()
        self._line: WorldSocket | None = None
        self._rng = site.world.stream("nodes")
        if facts.lease_file:
            site.storage.write(facts.lease_file, b"")
        self._agent = Agent(facts, self._machine())
        self.at_end(self._close)
        self._begins_s = site.world.now_s + facts.boot_s
        self.wake(self._begins_s)

    def _machine(self) -> Machine:
        # A socket and a selector of the world have what the agent uses of them, and no descriptor.
        return Machine(
            selector=self._selector,
            pid=self.pid,
            dial=cast("Any", self._dial),
            processes=self.processes,
            gauge=self.site.gauge,
            place=_Place(self),
            disk=cast("Any", OwnDisk(self.site.storage, self.site.meetings.storage)),
            files=self.files,
            wall=WorldWall(self, self.site.clocks.setdefault(self.host, HostClock(on_s=self.world.now_s))),
            rng=WorldRng(self.world, f"agent {self.host}"),
            log=self._log,
        )

    def step(self) -> float | None:
        """The steps of `serving` without the waits."""
        due_s, was_due = self._agent.ends_at_s - self.zero_s, self.ended_for_lease
        try:
            patience_s = self._agent.turn(self._selector.select())
        except Exception as error:  # noqa: BLE001 - whatever it is: it costs the node and all that runs there
            self.site.meetings.truth.complaints.append(("E", f"the agent of {self.host} ends of {error!r}"))
            patience_s = None
        if self.ended_for_lease and not was_due:
            self.overslept_s = max(0.0, self.stopped_until_s - max(self.stopped_since_s, due_s))
        if patience_s is None:
            self._was_connected = self.connected
            self.kill()
            self.world.after(self._rng.uniform(0.1, SHUTDOWN_S), self._end_machine)
            return None
        return self.world.now_s + (TURN_S if self._selector.select() else max(TURN_S, patience_s))

    # ------------------------------------------------------------------ as clouds, faults and laws see it

    @property
    def booted(self) -> bool:
        """Its agent has begun, and has not ended."""
        return not self.dead and self.world.now_s > self._begins_s

    @property
    def workers(self) -> list[Program]:
        """Those that run."""
        return list(self.processes.running.values())

    @property
    def connected(self) -> bool:
        """Its line to a controller stands, as far as it knows; or stood, when its agent ended."""
        return self._was_connected or (self._line is not None and self._line.stands)

    @property
    def noticed(self) -> bool:
        """Its agent was told, by its machine, that it will be taken."""
        return self._agent.noticed

    @property
    def ended_for_lease(self) -> bool:
        """It went because it was not renewed."""
        return self._agent.ended_for_lease

    def say(self, message: ToController) -> None:
        """On its line, as its agent would."""
        if self._line is not None and self._line.stands:
            with contextlib.suppress(BlockingIOError):
                self._line.send(to_line(message))

    def ask_to_go(self) -> None:
        """SIGTERM to its agent."""
        self._agent.ask_to_go()
        self.wake(self.world.now_s)

    def kill_agent(self) -> None:
        """SIGKILL: its workers end with it, and the switch outside ends the machine when the lease is not renewed."""
        if not self.dead:
            self.kill()
            self.world.after(self._facts.lease_s, self._end_machine)

    def switch_off(self) -> None:
        """Gone, without a word to anybody."""
        self._off = True
        self.site.network.switch_off(self.host)
        self.kill()

    def _end_machine(self) -> None:
        if not self._off:
            self._gone()

    # ------------------------------------------------------------------ what its agent has of it

    def _dial(self, address: str) -> WorldSocket:
        if self.service is not None and address == self.service.address:
            return self.service.answer()
        network = self.site.network
        if not network.passes(self.host, CONTROLLER) and self._rng.random() < NO_ROUTE:
            raise OSError(errno.EHOSTUNREACH, "no route to host")
        self._line = WorldSocket(self, network)
        self._line.short = True
        self._line.connect_ex(address_from(address)[1])
        return self._line

    def _log(self, text: str) -> None:
        self.site.log(self.host, text)

    def _close(self) -> None:
        """The kernel of its machine, when its agent is gone."""
        self.processes.vanish()
        for socket in list(self._selector.get_map()):
            socket.close()


class NodeProcesses:
    """The programs of one machine."""

    def __init__(self, node: WorldNode, site: Site) -> None:
        self._node, self.site = node, site
        self.running: dict[int, Program] = {}
        self._lines: dict[int, WorldSocket] = {}  # their ends
        self.refuses = 0  # starts that fail: no memory, no more processes
        self.refused: Struck = nobody  # told of each
        self._zombies: deque[tuple[int, int]] = deque()

    def start(self, order: StartWorker, own_env: Mapping[str, str]) -> AgentWorker:
        """A session, or a script of its own."""
        if self.refuses > 0:
            self.refuses -= 1
            self.refused()
            raise OSError(errno.EAGAIN, "resource temporarily unavailable")
        if torn := torn_files(self._node.files, order.cwd):
            what = f"{order.worker_id} starts on {self._node.host} without all its files: {', '.join(torn)}"
            self.site.meetings.truth.complaints.append(("E", what))
        storage, world = self.site.storage, self.site.world
        log_from = storage.size_bytes(order.log)
        if order.log:
            storage.append(order.log, f"{order.note}\n" if order.note else "")
        ours, theirs = socket_pair(self._node, self._node)
        theirs.on_ready = lambda: None  # until there is a listener
        ours.short = True
        pid, host = world.new_pid(), self._node.host
        self._lines[pid] = theirs

        def exited(code: int) -> None:
            if self.running.pop(pid, None) is not None:
                self._zombies.append((pid, code))
                self._node.wake(world.now_s)

        if order.watch:
            env = {**order.defaults, **order.env, **own_env}
            self.running[pid] = self.site.scripts.begin(
                host=host, pid=pid, order=order, env=env, line=theirs, exited=exited
            )
        else:
            kind = GridWorker if self.site.meetings.truth.jobs[order.job_id].blocks else SdkWorker
            self.running[pid] = kind(self.site.meetings, host=host, order=order, line=theirs, exited=exited)
        return AgentWorker(order, pid, cast("Any", ours), log_from)

    def end(self, pid: int, number: int) -> None:
        """It has the signal in a moment."""
        if (program := self.running.get(pid)) is not None:
            self.site.world.after(self.site.world.stream("signals").uniform(0.0, SIGNAL_S), program.signal, number)

    def ended(self) -> Iterator[tuple[int, int]]:
        """In the order in which they did."""
        while self._zombies:
            yield self._zombies.popleft()

    def ticks(self) -> Mapping[int, list[tuple[int, int]]]:
        """As far as it is watched."""
        return self.site.scripts.ticks(self._node.pid, self._node.host)

    def met_at(self, port: int) -> bool:
        """By the sockets of this machine."""
        return self.site.scripts.met_at(self._node.host, port)

    def are_alone(self, pids: Iterable[int]) -> bool:
        """None: scripts of this world join their group, or wait for it."""
        del pids
        return False

    def line(self, pid: int) -> WorldSocket:
        """The worker's end of its line."""
        return self._lines[pid]

    def lines(self) -> list[WorldSocket]:
        """The workers' ends of their lines, to write there."""
        return [line for pid, line in self._lines.items() if pid in self.running and not line.closed]

    def vanish(self) -> None:
        """With their agent."""
        for program in list(self.running.values()):
            program.vanish()
        self.running.clear()


class _Place:
    """A machine whose name is its address."""

    def __init__(self, node: WorldNode) -> None:
        self._node = node

    def address(self, line: str) -> str:
        return line or self._node.host

    def machine_id(self) -> str:
        return f"machine {self._node.host}"

    def network_env(self, host: str) -> dict[str, str]:
        return {"SUBLET_HOST": host, "GLOO_SOCKET_IFNAME": "eth0"}

    def free_port(self, taken: Container[int]) -> int:
        stream = self._node.world.stream("ports")
        while (port := FIRST_PORT + stream.randrange(PORTS)) in taken:
            pass
        return port
