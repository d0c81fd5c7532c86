"""A machine of the world: the shipped agent with its link and its crew, and processes that are none."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sublet.runtime.agent.agent import Agent, AgentFacts
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.agent.disk import FileFacts
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.worker import Worker
from sublet.testing.world.heap import Process, World
from sublet.testing.world.machine import HostClock, MemoryFiles, WorldDice, WorldWall
from sublet.testing.world.network import Network
from sublet.testing.world.sockets import WorldSelector, WorldSocket, socket_pair
from sublet.testing.world.worker import Meetings, SdkWorker
from sublet.wire.lines import to_line
from sublet.wire.messages import StartWorker, ToController

__all__ = ["Site", "WorldNode"]

FREE_PORT = 20_000
AGAIN_S = 1e-4  # an agent that has more to do at once comes again a breath later


@dataclass
class Site:
    """What all nodes of one world share."""

    world: World
    network: Network
    meetings: Meetings
    log: Callable[[str, str], None] = lambda *_: None  # what agents write into their logs


class WorldNode(Process):
    """`gone` is told when its agent has ended by itself."""

    def __init__(self, site: Site, facts: AgentFacts, gone: Callable[[], None]) -> None:
        super().__init__(site.world, f"agent of {facts.node_id}", facts.node_id)
        self._site, self._facts, self._gone = site, facts, gone
        self._selector, self._processes = WorldSelector(), _Processes(self, site.meetings)
        self._link: WorldSocket | None = None
        self.ended_for_lease = False
        self._agent = Agent(facts, self._machine())
        self.wake(site.world.now_s + facts.boot_s)

    def _machine(self) -> Machine:
        clock = HostClock(on_s=self.world.now_s)
        return Machine(
            selector=self._selector,
            pid=self.pid,
            dial=self._dial,
            processes=self._processes,
            place=_Place(self.host),
            disk=_NoDisk(),
            files=MemoryFiles(),
            wall=WorldWall(self, clock),
            dice=WorldDice(self.world, "agents"),
            log=self._note,
        )

    def _dial(self, address: str) -> Any:
        self._link = WorldSocket(self, self._site.network)
        self._link.connect_ex(address_from(address)[1])
        return self._link

    def _note(self, text: str) -> None:
        if text.startswith("no word from the controller"):
            self.ended_for_lease = True
        self._site.log(self.host, text)

    def step(self) -> float | None:
        """One turn of the agent."""
        wait_s = self._agent.turn(self._selector.select())
        if wait_s is None:
            self._gone()
            return None
        return self.world.now_s + (AGAIN_S if self._selector.select() else max(wait_s, AGAIN_S))

    # ------------------------------------------------------------------ for clouds, faults and laws

    @property
    def workers(self) -> list[SdkWorker]:
        """Those that run."""
        return list(self._processes.running.values())

    @property
    def connected(self) -> bool:
        """As far as it knows."""
        return self._link is not None and not self._link.closed and self._link.writable

    def say(self, message: ToController) -> None:
        """On its line, as its agent would."""
        if self._link is not None and self.connected:
            with contextlib.suppress(OSError):
                self._link.send(to_line(message))

    def switch_off(self) -> None:
        """Gone, with everything on it."""
        self.kill()
        for worker in self.workers:
            worker.vanish()
        self._processes.running.clear()
        self._site.network.switch_off(self.host)


@dataclass(eq=False)
class _Processes:
    """What an agent starts."""

    node: WorldNode
    meetings: Meetings
    running: dict[int, SdkWorker] = field(default_factory=dict)
    zombies: deque[tuple[int, int]] = field(default_factory=deque)

    def start(self, order: StartWorker, own_env: Mapping[str, str]) -> Worker:
        """A program that trains on a counter."""
        del own_env
        pid = self.node.world.new_pid()
        ours, theirs = socket_pair(self.node, self.node)
        self.running[pid] = SdkWorker(
            self.meetings,
            host=self.node.host,
            order=order,
            line=theirs,
            exited=lambda code: self._exited(pid, code),
        )
        return Worker(order, pid, ours, 0)  # type: ignore[arg-type]  # as much of a socket as is used

    def _exited(self, pid: int, code: int) -> None:
        self.running.pop(pid, None)
        self.zombies.append((pid, code))
        self.node.wake(self.node.world.now_s)

    def end(self, pid: int, number: int) -> None:
        """A signal."""
        if (worker := self.running.get(pid)) is not None:
            worker.signal(number)

    def ended(self) -> Iterator[tuple[int, int]]:
        """Those that have."""
        while self.zombies:
            yield self.zombies.popleft()

    def ticks(self) -> Mapping[int, list[tuple[int, int]]]:
        """Nobody looks."""
        return {}

    def met_at(self, port: int) -> bool:
        """Nobody looks."""
        return bool(port)


class _Place:
    """A machine whose address is its name."""

    def __init__(self, host: str) -> None:
        self._host = host

    def address(self, line: str) -> str:
        del line
        return self._host

    def machine_id(self) -> str:
        return self._host

    def network_env(self, host: str) -> dict[str, str]:
        return {"SUBLET_HOST": host}

    def free_port(self, taken: Container[int]) -> int:
        return next(port for port in range(FREE_PORT, 2 * FREE_PORT) if port not in taken)


class _NoDisk:
    """Nothing is on it."""

    def below(self, folder: str) -> Iterator[str]:
        del folder
        return iter(())

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        del follow
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        del path, since_bytes, most_bytes
        return b""

    def touch(self, path: str) -> None:
        del path

    def set_back(self, file: str | int) -> None:
        del file

    def hold(self, path: str) -> int:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def held(self, number: int) -> FileFacts:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(number))

    def peek(self, number: int) -> None:
        del number

    def let_go(self, number: int) -> None:
        del number
