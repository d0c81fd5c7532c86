"""A cloud in memory for the real controller: nodes, agents and workers that say what real ones say, and no process.

It outlives controllers: one that is dropped without a word has crashed, and the next finds the world as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import NodeLost, NodeNoticed, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.errors import RentFailed
from sublet.perf.live_grids import GUESSED_ATOMS, pipeline_gain
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.host import PACES, HostServices, Options, Paces
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.engines.protocol import Hear
from sublet.runtime.providers.protocol import RentedNode, TellMarket
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.wire import messages as wire
from sublet.wire.messages import Profile

MOST_A_SECOND = 5.0  # reports of a job


class MemoryCloud:
    """A provider and an engine."""

    lease_s = 30.0

    def __init__(self, offers: Sequence[Offer], clock: Clock) -> None:
        self.offers, self.clock = tuple(offers), clock
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Training] = {}
        self.rented: list[str] = []  # every node that ever was
        self.sold_out: set[str] = set()
        self.between_s = 0.0  # two reports of different jobs: others may speak between them, as on separate lines
        self.groups: dict[tuple[str, int], dict[str, Worker]] = {}  # (job, generation) -> members that have come
        self._tokens: dict[str, str] = {}
        self._gone: set[str] = set()
        self._untold: list[str] = []  # losses while no controller was there
        self._hear: Hear | None = None
        self._tell: TellMarket | None = None
        self._stepping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ the provider

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """One that comes at once."""
        await asyncio.sleep(0)
        if node_id in self.nodes:
            return
        if token in self._gone:
            raise RentFailed(offer_id, "the node of this token is gone", was_there=True)
        if offer_id in self.sold_out:
            raise RentFailed(offer_id, "sold out")
        self.rented.append(node_id)
        self.nodes[node_id] = node = Node(node_id, offer_id, token)
        asyncio.get_running_loop().call_soon(self._greet, node)

    async def release(self, node_id: str) -> None:
        """Gone."""
        await asyncio.sleep(0)
        node = self.nodes.pop(node_id, None)
        if node is not None:
            self._gone.add(node.token)
            self._forget(node)

    async def list(self) -> list[RentedNode]:
        """All nodes."""
        return [RentedNode(node_id=n.id, offer_id=n.offer_id, token=n.token, began_s=0.0) for n in self.nodes.values()]

    def take(self, node_id: str, why: str = "") -> None:
        """The cloud takes a node back; `why`, if it has ended from inside instead."""
        node = self.nodes.pop(node_id)
        self._gone.add(node.token)
        self._forget(node)
        if self._tell is not None:
            self._tell(NodeLost(self.clock.now_s(), node_id, why=why))
        else:
            self._untold.append(node_id)

    def warn(self, node_id: str, in_s: float) -> None:
        """The cloud will take a node back."""
        if self._tell is not None:
            self._tell(NodeNoticed(self.clock.now_s(), node_id, self.clock.now_s() + in_s))

    def reprice(self, offer_id: str, usd_per_h: float) -> None:
        """The market moves."""
        if self._tell is not None:
            self._tell(PriceChanged(self.clock.now_s(), offer_id, Price.from_usd_per_h(usd_per_h)))

    def price_age_s(self) -> float | None:
        """Prices are those of now."""
        return 0.0

    async def open(self, hear: Any) -> None:
        """As a provider, and as an engine: the first is told of the market, the second hears agents."""
        raise NotImplementedError

    async def close(self) -> None:
        """A controller goes; the world stays."""
        self._hear = self._tell = None
        if self._stepping is not None:
            self._stepping.cancel()
            self._stepping = None

    @property
    def provider(self) -> Any:
        """This cloud as a provider."""
        return _Side(self, self._open_market)

    @property
    def engine(self) -> Any:
        """This cloud as an engine."""
        return _Side(self, self._open_line)

    async def _open_market(self, tell: TellMarket) -> None:
        self._tell = tell
        while self._untold:
            tell(NodeLost(self.clock.now_s(), self._untold.pop()))

    async def _open_line(self, hear: Hear) -> None:
        self._hear = hear
        for node in list(self.nodes.values()):
            self._greet(node)
        self._stepping = asyncio.get_running_loop().create_task(self._step())

    # ------------------------------------------------------------------ the engine

    def expect(self, node_id: str, token: str) -> None:
        """An agent may come."""
        self._tokens[node_id] = token
        if node_id in self.nodes:
            self._greet(self.nodes[node_id])

    def send(self, node_id: str, message: wire.ToAgent) -> bool:
        """It arrives soon."""
        if node_id not in self.nodes:
            return False
        asyncio.get_running_loop().call_soon(self._arrive, node_id, message)
        return True

    def _greet(self, node: Node) -> None:
        if self._tokens.get(node.id) == node.token and node.id in self.nodes:
            workers = {worker.id: worker.job_id for worker in node.workers.values()}
            self._say(node.id, wire.Hello(node_id=node.id, token=node.token, pid=1, workers=workers))

    def _say(self, node_id: str, message: wire.ToController) -> None:
        if self._hear is not None:
            self._hear(node_id, message)

    def _word(self, node_id: str, message: wire.FromWorkerMessage) -> None:
        self._say(node_id, wire.FromWorker(message=message))

    def _arrive(self, node_id: str, message: wire.ToAgent) -> None:
        node = self.nodes.get(node_id)
        if node is None:
            return
        worker = node.workers.get(getattr(message, "worker_id", ""))
        match message:
            case wire.StartWorker():
                self._start(node, message)
            case wire.EndWorker() if worker is not None:
                self._end(node, worker, -9)
            case wire.Leave() if worker is not None:
                training = self.jobs[worker.job_id]
                if message.save and worker.step >= 0:
                    training.saved = max(training.saved, worker.step)
                    self._word(node_id, saved(worker))
                step = max(worker.step, 0)
                left = wire.Left(worker_id=worker.id, generation=message.generation, step=step, done=float(step))
                self._word(node_id, left)
                self._end(node, worker, 83)
            case wire.SaveNow() if worker is not None and worker.step >= 0:
                training = self.jobs[worker.job_id]
                training.saved = max(training.saved, worker.step)
                self._word(node_id, saved(worker))
            case wire.Regroup() if worker is not None:
                self._regroup(worker, message)
            case _:
                pass

    def _start(self, node: Node, message: wire.StartWorker) -> None:
        training = self.jobs.setdefault(message.job_id, Training())
        if message.worker_id in node.workers:
            return
        worker = node.workers[message.worker_id] = Worker(message.worker_id, message.job_id, node.id)
        up = wire.WorkerUp(worker_id=worker.id, pid=1)
        self._say(node.id, replace(up, host=node.id, port=1) if message.offers else up)
        if training.ends_with is not None:
            self._end(node, worker, training.ends_with, "boom")
        elif not message.watch:  # else it has no session
            ready = wire.Ready(worker_id=worker.id, version=wire.WIRE_VERSION, blocks=training.blocks)
            self._word(node.id, replace(ready, device_bytes=training.device_bytes))

    def _end(self, node: Node, worker: Worker, code: int, error: str = "") -> None:
        node.workers.pop(worker.id, None)
        self._leave_groups(worker)
        self._say(node.id, wire.WorkerDown(worker_id=worker.id, code=code, error=error))

    def kill_worker(self, worker_id: str) -> None:
        """SIGKILL."""
        for node in self.nodes.values():
            if worker_id in node.workers:
                self._end(node, node.workers[worker_id], -9)
                return

    def _leave_groups(self, worker: Worker) -> None:
        if worker.order is not None:  # no worker steps in a group that has lost a member
            self.groups.pop((worker.job_id, worker.order.generation), None)

    def _forget(self, node: Node) -> None:
        for worker in node.workers.values():
            self._leave_groups(worker)

    def _regroup(self, worker: Worker, order: wire.Regroup) -> None:
        self._leave_groups(worker)
        worker.order = order
        members = self.groups.setdefault((worker.job_id, order.generation), {})
        members[worker.id] = worker
        if len(members) == (order.meets or order.world):
            for member, message in meet(members, self.jobs[worker.job_id]):
                self._word(member.node_id, message)

    # ------------------------------------------------------------------ time

    async def _step(self) -> None:
        """All groups train; each reports a few times a second."""
        every_s = 1.0 / MOST_A_SECOND
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(every_s)
            passed_s, last_s = loop.time() - last_s, loop.time()
            for (job_id, generation), members in list(self.groups.items()):
                first = next(iter(members.values()))
                if first.order is None or len(members) < first.order.world:
                    continue
                self._advance(self.jobs[job_id], generation, members, passed_s)
                await asyncio.sleep(self.between_s)

    def _tells(self, training: Training) -> bool:
        """Once a second, as a session does."""
        now_s = asyncio.get_running_loop().time()
        due = now_s - training.profiled_s >= 1.0
        training.profiled_s = now_s if due else training.profiled_s
        return due

    def _advance(self, training: Training, generation: int, members: dict[str, Worker], passed_s: float) -> None:
        leader = next(m for m in members.values() if m.order is not None and m.order.rank == 0)
        step_s, batch, profile = training.step_s / gain(members) + 0.001, 1, None
        if training.batches is not None:
            batch, profile = training.profiled(leader.order, len(members))
            step_s = profile.step_s
        for member in members.values():
            member.step = min(training.steps, member.step + max(1, round(passed_s * batch / step_s)))
        step = leader.step
        stepped = wire.Stepped(
            worker_id=leader.id,
            generation=generation,
            step=step,
            done=float(step),
            epoch=0,
            loss=4.0 / (1.0 + step / 200.0) ** 0.3,
            step_s=step_s,
            global_batch=batch,
            noise=None if profile is None else training.noise,
            profile=profile if self._tells(training) else None,
        )
        self._word(leader.node_id, stepped)
        if step >= training.steps:
            training.saved = step
            self._word(leader.node_id, wire.Finished(worker_id=leader.id, step=step, done=float(step)))
            for member in list(members.values()):
                if (node := self.nodes.get(member.node_id)) is not None:
                    self._end(node, member, 0)


class _Side:
    """The cloud with another `open`."""

    def __init__(self, cloud: MemoryCloud, opened: Any) -> None:
        self._cloud, self.open = cloud, opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)


def one_gpu_offer(offer_id: str = "spot", usd_per_h: float = 0.5, **facts: Any) -> Offer:
    """One worker to a node."""
    market = Market.ON_DEMAND if offer_id == "on-demand" else Market.SPOT
    price = Price.from_usd_per_h(usd_per_h)
    return Offer(id=offer_id, gpu="T4", gpus_per_node=1, market=market, price=price, **facts)


@contextlib.contextmanager
def api_over(
    cloud: MemoryCloud,
    folder: Path,
    policy: Policy,
    *,
    budget: Budget = UNLIMITED,
    limits: dict[str, Limit] | None = None,
    clock: Clock | None = None,
    paces: Paces = PACES,
) -> Iterator[ControllerApi]:
    """A controller over this cloud; leaving without `shutdown` is a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder / "log.sqlite")
    host = HostServices(state_dir=folder, clock=clock or cloud.clock, paces=paces)
    options = Options(budget=budget, limits=limits or {})
    controller = Controller(store, cloud.provider, cloud.engine, policy, host=host, options=options)
    try:
        yield ControllerApi(controller, Settings(state_dir=str(folder)))
    finally:
        store.close()


@dataclass
class Worker:
    """A process that is none."""

    id: str
    job_id: str
    node_id: str
    order: wire.Regroup | None = None
    step: int = -1  # -1 = it has no state
    holds: tuple[int, frozenset[int]] = (0, frozenset())  # of so many parts, these


@dataclass
class Node:
    """A rented one."""

    id: str
    offer_id: str
    token: str
    workers: dict[str, Worker] = field(default_factory=dict)


@dataclass
class Training:
    """A pretended job."""

    steps: int = 10_000
    step_s: float = 0.05  # wall, of one worker
    saved: int = 0  # the step of its last checkpoint
    ends_with: int | None = None  # exit code instead of a session
    lost: int = 0  # steps made twice
    batches: tuple[int, int, int] | None = None  # initial, least and most: it measures itself, and a `step` is a sample
    noise: float = 1000.0  # of its gradient, in samples
    batch: int = 0  # that it trains with
    profiled_s: float = -1.0  # when it last told
    blocks: tuple[int, ...] = ()  # bytes of each, of a model that can be cut
    device_bytes: int = 0  # memory of a GPU, as its sessions tell; 0 = they do not
    restored: int = 0  # grids that lost a part

    def profiled(self, order: wire.Regroup | None, workers: int) -> tuple[int, Profile]:
        """Its batch as ordered, and a step of 20 ms and 1 ms a sample, 10 ms to exchange gradients, 5 ms to update."""
        initial, least, most = self.batches or (1, 1, 1)
        self.batch = min(max((order.batch if order is not None else 0) or initial, least), most)
        samples, wait_s = max(1, self.batch // workers), 0.01 if workers > 1 else 0.0
        compute_s = 0.02 + 0.001 * samples
        profile = Profile(samples=samples, compute_s=compute_s, wait_s=wait_s, step_s=compute_s + wait_s + 0.005)
        return self.batch, replace(profile, batch_initial=initial, batch_low=least, batch_high=most)


def saved(worker: Worker) -> wire.Saved:
    """The worker's message about its checkpoint."""
    return wire.Saved(
        worker_id=worker.id, step=worker.step, done=float(worker.step), seconds=0.0, blocked_s=0.0, size_bytes=1
    )


def gain(members: Mapping[str, Worker]) -> float:
    """How much faster than one they are."""
    order = next(iter(members.values())).order
    if order is None or not order.copies:
        return float(len(members))
    return pipeline_gain(order.copies, order.parts, GUESSED_ATOMS)


def meet(members: dict[str, Worker], training: Training) -> Iterator[tuple[Worker, wire.FromWorkerMessage]]:
    """All workers that were to meet are there: the message of each. A worker that only gives is no member any more."""
    everyone = list(members.values())
    top = max(member.step for member in everyone)
    orders = {member.id: member.order for member in everyone if member.order is not None}
    parts = max(order.parts for order in orders.values())
    if top >= 0 and any(order.copies for order in orders.values()) and not _is_all_there(everyone, top):
        top, training.restored = -1, training.restored + 1
        for member in everyone:
            member.holds = (0, frozenset())
    before, restored = top, top < 0
    if restored:
        top = training.saved
    moved = {member.id: _moved_bytes(member, orders[member.id], training, before) for member in everyone}
    depth = any(member.holds[0] not in (0, parts) for member in everyone)
    kind = "restored" if restored else "depth" if depth else "between" if any(moved.values()) else "within"
    for member in everyone:
        order = orders[member.id]
        if not order.stays:
            del members[member.id]
            left = wire.Left(worker_id=member.id, generation=order.generation, step=top, done=float(top))
            member.step, member.holds, member.order = -1, (0, frozenset()), None
            yield member, left
            continue
        member.step = top
        member.holds = (order.parts, frozenset({order.part, *order.keeps} - {-1}))
        joined = wire.Joined(
            worker_id=member.id,
            generation=order.generation,
            step=top,
            done=float(top),
            work=float(training.steps),
            global_batch=1,
        )
        told = replace(joined, kind=kind, moved_bytes=moved[member.id], state_s=0.01)
        yield member, told if order.copies and top else joined


def _is_all_there(everyone: list[Worker], top: int) -> bool:
    """Every part of the grid before is held by a worker that has made all steps."""
    newest = [member.holds for member in everyone if member.step == top and member.holds[0]]
    return bool(newest) and len(frozenset().union(*(held for _, held in newest))) == newest[0][0]


def _moved_bytes(member: Worker, order: wire.Regroup, training: Training, top: int) -> int:
    """That it receives: all of what its place needs, unless it has it. Its kept state comes later, while they train."""
    wanted = {order.part} - {-1} if order.stays else set[int]()
    has = member.holds[1] if member.holds[0] == order.parts and member.step == top else frozenset[int]()
    return len(wanted - has) * (sum(training.blocks) // max(1, order.parts))
