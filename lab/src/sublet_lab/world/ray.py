"""A Ray cluster without Ray: the shipped provider with stewards, claims, supply, life lines, over actors of a world."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.errors import NoAnswer, StewardGone, SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.providers.ray.config import MARKET_LABEL, NodeKind, RayNode, offer_from
from sublet.runtime.providers.ray.provider import RayProvider, RayTerms
from sublet.runtime.providers.ray.steward import GONE
from sublet.runtime.store import Store
from sublet_lab.world.cloud import Boot, Instance, Struck, nobody
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import EPOCH_S, MemoryFiles
from sublet_lab.world.plain import PlainCloud

MACHINES = 4  # of each kind
BACK_S = 60.0  # until a machine that left the cluster has come back, as another node
MOST_BOOT_S = 10.0
WRONG = ("error", "done, but an error", "refused", "slow")  # what an answer can be
LINE = 7  # the port of every steward's life lines


@dataclass(eq=False)
class Machine:
    """A node of the cluster, as Ray knows it, and our steward there."""

    id: str
    kind: NodeKind
    steward: bool = False
    drained_unix: float | None = None
    held: dict[str, tuple[dict[str, Any], Instance]] = field(default_factory=dict)  # by our name


class RayCloud(PlainCloud):
    """The cluster. A lost node comes back under another name a minute later."""

    def __init__(self, world: World, offers: Sequence[Offer], boot: Boot) -> None:
        self.kinds = [
            NodeKind(
                name=str(offer.market),
                slots=offer.gpus_per_node,
                gpus=offer.gpus_per_node,
                labels={MARKET_LABEL: str(offer.market)},
                usd_per_h=offer.price.usd_per_h,
                market=offer.market,
            )
            for offer in offers
        ]
        super().__init__(world, [offer_from(kind, 20.0) for kind in self.kinds], boot, keeps_records=False)
        self.files = MemoryFiles()
        self.machines: dict[str, Machine] = {}
        self.lines: dict[str, list[asyncio.Future[bytes]]] = {}  # node -> the listeners for its end
        self._named = 0
        for kind in self.kinds:
            for _ in range(MACHINES):
                self._join(kind)

    def provider(self, process: LoopProcess, clock: Clock, store: Store) -> RayProvider:  # type: ignore[override]  # the shipped one
        """The shipped provider."""
        del store  # it keeps its own files
        cluster = WorldCluster(self, process)
        return RayProvider(
            state_dir=Path("/state"),
            clock=clock,
            cluster=cluster,  # type: ignore[arg-type]  # as much of a cluster as is asked
            kinds=self.kinds,
            terms=RayTerms(address="tcp:127.0.0.1:7000", namespace="sublet-world", wind_down_s=20.0),
            files=self.files,
            dial=cluster.dial,
        )

    # ------------------------------------------------------------------ what it is made to do

    def reprice(self, offer_id: str, price: Price, struck: Struck = nobody) -> None:
        """Prices are those of its owner's list of nodes: they are not set."""

    def notice(self, instance: Instance, in_s: float) -> None:
        """Its machine is drained; where it is not taken after all, there is no word, and it stays."""
        if (machine := self._machine_of(instance)) is not None:
            machine.drained_unix = EPOCH_S + self.world.now_s + in_s
            self.world.after(in_s + 1.0, setattr, machine, "drained_unix", None)

    def take(self, instance: Instance, *, told: bool) -> None:
        """Its machine leaves the cluster, or its agent ends."""
        machine = self._machine_of(instance)
        if told and machine is not None:
            self._leave(machine)
        else:
            self.end(instance)

    def end(self, instance: Instance) -> None:
        """Its life line says so."""
        if instance.ended_s is None:
            super().end(instance)
            if (machine := self._machine_of(instance)) is not None:
                del machine.held[instance.node_id]
            for line in self.lines.pop(instance.node_id, ()):
                if not line.done() and not line.get_loop().is_closed():
                    line.set_result(GONE)

    def _leave(self, machine: Machine) -> None:
        self.machines.pop(machine.id, None)
        for _, instance in list(machine.held.values()):
            self.end(instance)
        self.world.after(BACK_S, self._join, machine.kind)

    def _join(self, kind: NodeKind) -> None:
        self._named += 1
        self.machines[f"ray{self._named:03}"] = Machine(f"ray{self._named:03}", kind)

    def _machine_of(self, instance: Instance) -> Machine | None:
        held = (m for m in self.machines.values() if any(i is instance for _, i in m.held.values()))
        return next(held, None)

    # ------------------------------------------------------------------ what its stewards do

    def begin(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        """An agent there, or the one that there is."""
        if (known := machine.held.get(record["node_id"])) is not None:
            return known[0] if known[0]["token"] == record["token"] else {"refused": "the name is in use"}
        if machine.held:
            return {"refused": "others of the cluster use it"}
        now_s = self.world.now_s
        instance = Instance(record["node_id"], record["offer_id"], record["token"], now_s, now_s)
        born = {**record, "pid": self.world.new_pid()}
        machine.held[instance.node_id] = (born, instance)
        self.instances[f"{instance.token}/{born['pid']}"] = instance
        boot_s = self._rng.uniform(0.1, MOST_BOOT_S)
        try:
            instance.node = self._boot(instance.node_id, instance.token, boot_s, lambda: self.end(instance))
        except OSError as error:  # its disk does not answer
            self.end(instance)
            return {"refused": f"it cannot be started: {error}"}
        return born


class WorldCluster:
    """Ray, as the driver of one controller sees it."""

    def __init__(self, cloud: RayCloud, process: LoopProcess) -> None:
        self._cloud, self._process = cloud, process
        self._rng = cloud.world.stream("calls")
        self.host = "127.0.0.1"

    def connect(self) -> None:
        """It is there."""

    def look(self) -> list[RayNode]:
        """Machines of the cluster, with what is free on them."""
        if self._cloud.lie_about("list", "error"):
            raise NoAnswer("a look at the Ray cluster", "its head is away")
        found = []
        for machine in self._cloud.machines.values():
            total = machine.kind.reserves
            free = {} if machine.held else total
            labels = dict(machine.kind.labels)
            facts = {"id": machine.id, "host": machine.id, "total": total, "free": free, "labels": labels}
            found.append(RayNode(**facts, ends_unix_s=machine.drained_unix))  # type: ignore[arg-type]  # of several types
        return found

    def stewards(self, namespace: str) -> dict[str, str]:
        """Those that live."""
        del namespace
        return {machine.id: machine.id for machine in self._cloud.machines.values() if machine.steward}

    def steward(self, ray_node: str, *_: Any) -> str:
        """Made if need be."""
        if ray_node not in self._cloud.machines:
            raise StewardGone("a steward on a Ray node", "the node is gone")
        self._cloud.machines[ray_node].steward = True
        return ray_node

    async def call(self, steward: str, verb: str, *facts: Any, wait_s: float = 30.0) -> Any:
        """There and back; what it does there is done whether or not anybody waits for the answer."""
        del wait_s
        call = {"begin": "rent", "end": "release"}.get(verb, "list")
        lie = self._cloud.lie_about(call, *WRONG)
        answer = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            result, caught = None, None
            try:
                result = self._effect(steward, verb, facts, lie)
            except SubletError as error:
                caught = error
            if self._process.dead or answer.done():
                return
            if caught is not None:
                answer.set_exception(caught)
            else:
                answer.set_result(result)

        self._cloud.world.after(self._rng.uniform(0.01, 0.2) * (50.0 if lie == "slow" else 1.0), arrive)
        return await answer

    def _effect(self, steward: str, verb: str, facts: Sequence[Any], lie: str) -> Any:
        machine = self._cloud.machines.get(steward)
        if machine is None:
            raise StewardGone(verb, "the node is gone")
        if lie == "error":
            raise NoAnswer(verb, "a time-out")
        if lie == "refused" and verb == "begin":
            return {"refused": "others of the cluster use it"}
        result: Any = None
        match verb:
            case "ready":
                result = {"host": machine.id, "port": LINE, "pid": 1}
            case "begin":
                result = self._cloud.begin(machine, facts[0])
            case "held":
                result = [record for record, _ in machine.held.values()]
            case "end":
                if (found := machine.held.get(facts[0])) is not None:
                    found[1].ours = True
                    self._cloud.end(found[1])
            case _:
                pass
        if lie == "done, but an error":
            raise NoAnswer(verb, "the answer was lost")
        return result

    async def dial(self, host: str, port: int) -> tuple[Any, Any]:
        """The life line of a node."""
        del port
        await asyncio.sleep(self._rng.uniform(0.001, 0.05))
        if host not in self._cloud.machines:
            raise ConnectionRefusedError
        line = _LifeLine(self._cloud, host)
        return line, line


class _LifeLine:
    """Both ends of it: a name goes in, one word comes out."""

    def __init__(self, cloud: RayCloud, host: str) -> None:
        self._cloud, self._host = cloud, host
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def write(self, name: bytes) -> None:
        """Which node it is about."""
        node_id, machine = name.decode().strip(), self._cloud.machines.get(self._host)
        if machine is None or node_id not in machine.held:
            self._end.set_result(GONE)
        else:
            self._cloud.lines.setdefault(node_id, []).append(self._end)

    async def read(self) -> bytes:
        """At its end."""
        return await self._end

    def close(self) -> None:
        """There is no listener any more."""
