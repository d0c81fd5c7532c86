"""A world for one group: agents, workers that behave as the SDK's do, and a kernel that gives orders. All by dice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.widths import narrowed
from sublet.runtime.group.workers import WorkerPhase
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.wire import messages as wire

NODES = ("a", "b", "c", "d")


@dataclass
class Process:
    id: str
    node: str
    ready: bool = False
    pending: object = None  # the newest order
    follows: int = -1  # generation of its group
    newest: int = -1  # generation of the last order that it took
    rank: int = -1
    world: int = 0
    met: int = -1
    joined: int = -1
    step: int = 0
    stuck: bool = False  # hangs: says and hears nothing


@dataclass
class Phase:
    """What the kernel believes."""

    name: str = "waiting"
    generation: int = 0
    placement: tuple = ()
    leaving: set = field(default_factory=set)


class World:
    def __init__(self, *, sdk=True, user=1, infra=10):
        spec = JobSpec(
            name="j", argv=("x",), cwd="/", sdk=sdk, max_workers=9, retries=Retries(user=user, infra=infra), grace_s=1.0
        )
        self.spec, self.now_s, self.life = spec, 0.0, 0
        self.group = self._new_group()
        self.kernel = Phase()
        self.processes: dict[str, Process] = {}
        self.down = {node: deque() for node in NODES}  # controller -> agent
        self.up = {node: deque() for node in NODES}
        self.online = dict.fromkeys(NODES, True)
        self.ends: dict[str, list] = {node: [] for node in NODES}
        self.started: set[str] = set()
        self.outcomes: list = []
        self.too_wide = 99  # workers with which the group could not train

    def _new_group(self):
        return build_group("j", self.spec, log_of=str, env=dict, life=self.life)

    # ------------------------------------------------------------------ the controller's side

    def flush(self):
        """Pass on what the group says, and let the kernel hear its news."""
        while self.group.outbox or self.group.news:
            outbox = list(self.group.outbox)
            self.group.outbox.clear()
            for node, message in outbox:
                if self.online[node]:
                    self.down[node].append(message)
            said = list(self.group.news)
            self.group.news.clear()
            for item in said:
                self._kernel_hears(item)

    def _kernel_hears(self, item):
        kernel = self.kernel
        self.outcomes.append(item)
        if item.outcome is Outcome.NARROWED:
            self.too_wide = item.width
        if kernel.name == "ended":
            return
        if item.outcome in (Outcome.FINISHED, Outcome.FAILED):
            self._kernel_forgets()
        elif item.generation != kernel.generation:
            return
        elif item.outcome is Outcome.MOVED and kernel.name in ("starting", "resizing"):
            kernel.name, kernel.leaving = "running", set()
        elif item.outcome is Outcome.STOPPED and kernel.name == "stopping":
            kernel.name, kernel.placement, kernel.leaving = "waiting", (), set()

    def _kernel_forgets(self):
        self.kernel.name, self.kernel.placement, self.kernel.leaving = "ended", (), set()

    def move(self, placement):
        kernel = self.kernel
        if kernel.name not in ("waiting", "running", "broken") or not placement:
            return
        kernel.leaving |= {node for node, _ in kernel.placement} - {node for node, _ in placement}
        kernel.generation += 1
        kernel.name = "starting" if kernel.name == "waiting" else "resizing"
        kernel.placement = placement
        self.group.move(kernel.generation, placement, 0, self.now_s)
        self.flush()

    def stop(self):
        if self.kernel.name in ("running", "broken"):
            self.kernel.generation += 1
            self.kernel.name = "stopping"
            self.group.stop(self.kernel.generation, resumable=True, wall_s=self.now_s)
            self.flush()

    def cancel(self):
        if self.kernel.name != "ended":
            holds = self.kernel.name != "waiting"
            self._kernel_forgets()
            if holds:
                self.group.stop(self.kernel.generation + 1, resumable=False, wall_s=self.now_s)
            self.flush()

    def lose(self, node):
        """The cloud takes a node and everything on it; an empty one of the same name can be rented at once."""
        for process in [p for p in self.processes.values() if p.node == node]:
            del self.processes[process.id]
        self.down[node].clear()
        self.up[node].clear()
        self.ends[node].clear()
        self.online[node] = True
        kernel = self.kernel
        held = {n for n, _ in kernel.placement} | kernel.leaving
        self.group.node_lost(node, self.now_s)
        if node in held:
            survivors = dict(kernel.placement) | {n: 1 for n in kernel.leaving if n not in dict(kernel.placement)}
            survivors.pop(node, None)
            kernel.placement, kernel.leaving = tuple(survivors.items()), set()
            if kernel.name != "stopping":
                kernel.name = "broken"
        self.flush()

    def tick(self, seconds):
        self.now_s += seconds
        self.group.tick(self.now_s)
        self.heal()
        self.flush()
        self._narrow()

    def _narrow(self):
        """The kernel plans no wider than the group can train, as soon as its last order is answered."""
        placement = self.kernel.placement
        if self.kernel.name == "running" and sum(gpus for _, gpus in placement) >= self.too_wide:
            members = [w for w in self.group.workers.values() if w.phase is WorkerPhase.MEMBER]
            self.move(narrowed(placement, self.too_wide - 1, members))
        self.too_wide = 99 if self.kernel.name == "waiting" else self.too_wide

    def heal(self):
        """As the controller does."""
        if self.group.idle and self.kernel.name in ("starting", "resizing", "running"):
            self.group.move(self.kernel.generation, self.kernel.placement, 0, self.now_s)
        elif self.group.idle and self.kernel.name == "stopping":
            self.group.stop(self.kernel.generation, resumable=True, wall_s=self.now_s)

    def hang_up(self, node):
        """The line to an agent is cut; what was under way to it is lost, what it says waits."""
        self.online[node] = False
        self.down[node].clear()

    def reconnect(self, node):
        if self.online[node]:
            return
        self.online[node] = True
        mine = [p.id for p in self.processes.values() if p.node == node]
        self.group.agent_came(node, mine, self.now_s)
        for message in self.ends[node]:
            self.group.hear(message, self.now_s)
        self.ends[node].clear()
        self.flush()

    def restart_controller(self):
        """kill -9 and a new one: all it has is what the kernel's log says."""
        if self.kernel.name == "ended" and not self.processes:
            return
        self.life += 1
        old, self.group = self.group, self._new_group()
        self.group.step, self.group.done, self.group.work = old.step, old.done, old.work
        self.group.failures = old.failures
        kernel, group = self.kernel, self.group
        if kernel.placement:
            group.adopt(kernel.generation, kernel.placement, trains=kernel.name == "running", wall_s=self.now_s)
        for node in NODES:
            self.down[node].clear()
            self.online[node] = False
        for node in NODES:
            self.reconnect(node)
        group.all_agents_came(self.now_s)
        if kernel.name != "ended":
            self.heal()
        elif group.workers:
            group.stop(group.generation + 1, resumable=False, wall_s=self.now_s)
        self.flush()

    # ------------------------------------------------------------------ the agents' side

    def deliver_down(self, node):
        if not self.down[node]:
            return
        message = self.down[node].popleft()
        process = self.processes.get(message.worker_id)
        match message:
            case wire.StartWorker():
                if message.worker_id not in self.started:  # an agent starts nothing twice
                    self.started.add(message.worker_id)
                    self.processes[message.worker_id] = Process(message.worker_id, node)
                    meeting = {"host": node, "port": 1} if message.offers else {}
                    self.up[node].append(wire.WorkerUp(worker_id=message.worker_id, pid=1, **meeting))
            case wire.EndWorker():
                if process is not None:
                    self.exit(process, -9)
            case wire.Regroup() | wire.Leave():
                if process is not None:
                    newest = process.pending.generation if process.pending else process.newest
                    leave_again = isinstance(message, wire.Leave) and message.generation == newest
                    if message.generation > newest or leave_again:
                        process.pending = message
            case wire.Meet():
                if process is not None:
                    process.met = max(process.met, message.generation)

    def deliver_up(self, node):
        if self.up[node] and self.online[node]:
            message = self.up[node].popleft()
            self.group.hear(message, self.now_s)
            if isinstance(message, wire.WorkerDown):
                self.ends[node] = [end for end in self.ends[node] if end.worker_id != message.worker_id]
            self.flush()

    def exit(self, process, code, error=""):
        del self.processes[process.id]
        message = wire.WorkerDown(worker_id=process.id, code=code, error=error)
        self.up[process.node].append(message)
        self.ends[process.node].append(message)

    def say(self, process, message):
        self.up[process.node].append(message)

    # ------------------------------------------------------------------ the workers' side

    def peers(self, process):
        return [p for p in self.processes.values() if p.follows == process.follows and p.follows >= 0]

    def act(self, process):
        """One thing that the SDK would do now."""
        if process.stuck or not self.spec.sdk:
            return
        if not process.ready:
            process.ready = True
            self.say(process, wire.Ready(worker_id=process.id))
            return
        order = process.pending
        if isinstance(order, wire.Leave):
            self.say(process, wire.Left(worker_id=process.id, generation=order.generation, step=process.step, done=1.0))
            self.exit(process, 83)
            return
        if isinstance(order, wire.Regroup):
            process.pending, process.rank = None, order.rank
            process.follows = process.newest = order.generation
            process.world, process.joined = order.world, -1
            if order.rank == 0 and order.world > 1:
                leading = wire.Leading(worker_id=process.id, generation=order.generation, host="h", port=1)
                self.say(process, leading)
            return
        if process.follows < 0:
            return
        peers = self.peers(process)
        if process.joined != process.follows:
            met = all(p.met == p.follows for p in peers if p.rank != 0) or process.world == 1
            if len(peers) == process.world and met:
                top = max(p.step for p in peers)
                for peer in peers:
                    peer.joined, peer.step = peer.follows, top
                    facts = {"worker_id": peer.id, "generation": peer.follows, "step": top}
                    self.say(peer, wire.Joined(**facts, done=float(top), work=1e9))
            return
        if len(peers) == process.world and all(p.joined == p.follows for p in peers):
            for peer in peers:
                peer.step += 1
            leader = next(p for p in peers if p.rank == 0)
            facts = {"worker_id": leader.id, "generation": leader.follows, "step": leader.step}
            self.say(leader, wire.Stepped(**facts, done=float(leader.step), epoch=0, loss=1.0, step_s=0.1))
        else:  # somebody is gone, or follows a newer order
            facts = {"worker_id": process.id, "generation": process.follows, "step": process.step}
            self.say(process, wire.Broke(**facts, why="a peer is gone"))
            process.follows = process.joined = -1

    def training(self):
        """Generations of whole groups that can make a step now."""
        found = set()
        for process in self.processes.values():
            peers = self.peers(process)
            whole = len(peers) == process.world and all(p.joined == p.follows and not p.stuck for p in peers)
            if process.follows >= 0 and whole and not any(isinstance(p.pending, wire.Leave) for p in peers):
                found.add(process.follows)
        return found

    def finish(self):
        """The script has made its last step."""
        for generation in self.training():
            members = [p for p in self.processes.values() if p.follows == generation]
            leader = next(p for p in members if p.rank == 0)
            self.say(leader, wire.Finished(worker_id=leader.id, step=leader.step, done=1.0))
            for process in members:
                self.exit(process, 0)

    # ------------------------------------------------------------------ the end of all trouble

    def calm(self, rounds=400):
        """Nothing goes wrong any more: every message arrives, everybody does what is to be done, time passes."""
        for process in self.processes.values():
            process.stuck = False
        for node in NODES:
            self.reconnect(node)
        for turn in range(rounds):
            for node in NODES:
                while self.down[node]:
                    self.deliver_down(node)
                while self.up[node]:
                    self.deliver_up(node)
            for process in list(self.processes.values()):
                if process.id in self.processes:
                    self.act(process)
            self.tick(0.5 if turn < rounds // 2 else 5.0)
