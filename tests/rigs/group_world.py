"""A world for one group: the real kernel gives the orders, and agents and workers behave as ours do. All by rng."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.plan import Packing, Phase, Plan
from sublet.domain.shape import Shape
from sublet.kernel.cluster import NodePhase
from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet.wire import messages as wire

JOB = "j"
GPUS = 2  # on a node
ANY_WIDTH = 9
NOTICE_S = 120.0
SPOT = an_offer("spot", GPUS, boot_s=60.0)  # so slow to come that survivors go on without


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
    must_save: bool = False
    stuck: bool = False  # hangs: says and hears nothing


@dataclass
class Agent:
    """One node that has come."""

    down: deque = field(default_factory=deque)  # from the controller
    up: deque = field(default_factory=deque)
    online: bool = True
    ends: list = field(default_factory=list)  # last words and ends of its workers, told again whenever it comes back


class World:
    """One job under the real kernel; whoever plays says how wide it is to be."""

    def __init__(self, *, sdk=True, user=1, infra=10):
        retries = Retries(user=user, infra=infra)
        self.spec = JobSpec(
            name=JOB, argv=("x",), cwd="/", sdk=sdk, max_workers=ANY_WIDTH, retries=retries, grace_s=1.0
        )
        self.now_s, self.era, self.holding = 0.0, 0, False
        self.driver = Driver([SPOT])
        self.kernel = self.driver.kernel
        self.group = self._new_group()
        self.plan = Plan()  # what the policy says until it is told otherwise
        self.plan_due = False
        self.agents: dict[str, Agent] = {}
        self.booting: list[str] = []
        self.releasing: list[str] = []
        self.processes: dict[str, Process] = {}
        self.started: set[str] = set()
        self.outcomes: list = []
        self.saved = 0  # the newest step in a checkpoint
        self._unheard: deque = deque()  # events that the kernel is to hear
        job = a_job(JOB, work=1e12, gpus=ANY_WIDTH, max_gpus=ANY_WIDTH, restart_s=1.0)
        self.tell(news.JobSubmitted(0.0, job))

    def _new_group(self):
        return build_group(JOB, self.spec, log_of=str, env=dict, era=self.era)

    # ------------------------------------------------------------------ what the kernel believes

    @property
    def state(self):
        """Of the job; None once it has ended."""
        return self.kernel.jobs.get(JOB)

    @property
    def phase(self):
        return self.state.phase if self.state is not None else None

    @property
    def placement(self):
        return self.kernel.tenancy.placement.get(JOB, ())

    @property
    def wanted(self):
        """Workers of the last plan."""
        shape = self.plan.shapes.get(JOB)
        return 0 if shape is None else shape.gpus

    # ------------------------------------------------------------------ the controller's side

    def tell(self, event):
        """The kernel hears, its orders are carried out, and all that follows from them."""
        self._unheard.append(event)
        self.flush()

    def flush(self):
        """Pass on what the group says, to agents and to the kernel, until nobody has anything to say."""
        while self._unheard or self.plan_due or self.group.outbox or self.group.news:
            for node, message in self.group.outbox:
                if node in self.agents and self.agents[node].online:
                    self.agents[node].down.append(message)
            self.group.outbox.clear()
            said = list(self.group.news)
            self.group.news.clear()
            for item in said:
                self._pass_on(item)
            if self._unheard:
                self._handle(self._unheard.popleft())
            elif self.plan_due:
                self.plan_due = False
                self._handle(news.PlanMade(self.now_s, self.plan, self.kernel.seen))

    def _handle(self, event):
        for action in self.driver.tell(event):
            self._carry_out(action)

    def _carry_out(self, action):
        match action:
            case order.RentNode():
                self.booting.append(action.node_id)
            case order.ReleaseNode():
                self.releasing.append(action.node_id)
            case order.StartJob() | order.ResizeJob() if not self.holding:
                self.group.move(action.generation, action.placement, 0, self.now_s)
            case order.StopJob() if not self.holding:
                self.group.stop(action.generation, resumable=action.resumable, wall_s=self.now_s)
            case order.MakePlan():
                self.plan_due = True
            case _:
                pass

    def _pass_on(self, item):
        """As the controller does."""
        self.outcomes.append(item)
        if self.state is None:
            return
        done = float(self.group.step)
        match item.outcome:
            case Outcome.MOVED:
                answer = news.JobStarted if self.phase is Phase.STARTING else news.JobResized
                self._unheard.append(answer(self.now_s, JOB, item.generation, done, self.now_s))
            case Outcome.STOPPED:
                self._unheard.append(news.JobStopped(self.now_s, JOB, item.generation, done))
            case Outcome.FINISHED:
                self._unheard.append(news.JobFinished(self.now_s, JOB))
            case Outcome.FAILED:
                self._unheard.append(news.JobFailed(self.now_s, JOB, item.why))
            case Outcome.NARROWED:
                self._plan_below(item.width)
            case Outcome.RESTARTED:
                pass

    def _plan_below(self, width):
        """No wider than it can train."""
        if self.wanted >= width:
            self.plan = replace(self.plan, shapes={JOB: Shape(SPOT.pool, width - 1)})
        job = replace(self.state.job, gpus=width - 1, max_gpus=width - 1)
        self._unheard.append(news.JobChanged(self.now_s, job))

    def resize(self, workers, nodes):
        """The policy wants it so wide, over so many nodes; 0 = it is to wait."""
        if self.state is None:
            return
        shape = Shape(SPOT.pool, workers) if workers else None
        hold = {SPOT.id: max(nodes, -(-workers // GPUS)) if workers else 0}
        self.plan = Plan(shapes={JOB: shape}, hold=hold, packing=Packing.EMPTIEST)
        job = replace(self.state.job, gpus=ANY_WIDTH, max_gpus=ANY_WIDTH)  # whatever failed may be tried again
        self.tell(news.JobChanged(self.now_s, job))

    def cancel(self):
        if self.state is not None:
            self.plan = Plan(hold={SPOT.id: 0})
            self.tell(news.JobCancelled(self.now_s, JOB))

    def tick(self, seconds):
        self.now_s += seconds
        self.group.tick(self.now_s)
        self._heal()
        self.flush()

    def _heal(self):
        """What the kernel ordered and the group follows are the same, or the order is given again."""
        if self.state is None or not self.group.idle:
            return
        if self.phase in (Phase.STARTING, Phase.RESIZING, Phase.RUNNING):
            self.group.move(self.state.generation, self.placement, 0, self.now_s)
        elif self.phase is Phase.STOPPING:
            self.group.stop(self.state.generation, resumable=True, wall_s=self.now_s)

    def restart_controller(self):
        """kill -9 and a new one: all it has is what the kernel's log says."""
        if self.state is None and not self.processes:
            return
        self.era += 1
        old, self.group = self.group, self._new_group()
        self.group.step, self.group.done, self.group.work = old.step, old.done, old.work
        self.group.failures, self.group.round, self.group.finished = old.failures, old.round, old.finished
        self.group.before, self.group.patience.in_a_row = old.census, old.patience.in_a_row
        self.group.widths.restore(old.widths.facts())
        if self.placement:
            trains = self.phase is Phase.RUNNING
            self.group.adopt(self.state.generation, self.placement, 0, trains=trains, wall_s=self.now_s)
        self.holding = True
        for node in list(self.agents):
            self.hang_up(node)
            self.reconnect(node)
        self.holding = False
        self.group.all_agents_came(self.now_s)
        if self.state is not None:
            self._heal()
        elif self.group.workers:
            self.group.stop(self.group.generation + 1, resumable=False, wall_s=self.now_s)
        self.flush()

    # ------------------------------------------------------------------ the cloud's side

    def boot(self, node):
        """A rented node comes."""
        self.booting.remove(node)
        if node not in self.releasing:
            self.agents[node] = Agent()
            self.tell(news.NodeReady(self.now_s, node))

    def release(self, node):
        """One that the kernel gave back is gone, with whatever is left on it."""
        self.releasing.remove(node)
        self._drop(node)
        self.group.node_released(node, self.now_s)
        self.tell(news.NodeReleased(self.now_s, node))

    def notice(self, node):
        """The cloud will take a node."""
        if self.kernel.cluster.nodes[node].phase is NodePhase.READY:
            if any(worker.node_id == node for worker in self.group.workers.values()):
                self.group.save_now()
            self.tell(news.NodeNoticed(self.now_s, node, self.now_s + NOTICE_S))

    def evacuate(self, node, others=()):
        """Its end is near."""
        if self.kernel.cluster.nodes[node].phase is NodePhase.NOTICED:
            self.group.evacuate(node, self.now_s, others)
            self.flush()

    def evacuate_all(self, node):
        """Its end is near, and that of all that are noticed."""
        nodes = self.kernel.cluster.nodes.values()
        self.evacuate(node, [other.id for other in nodes if other.phase is NodePhase.NOTICED])

    def lose(self, node):
        """The cloud takes a node and everything on it."""
        self._drop(node)
        if node in self.releasing:
            self.releasing.remove(node)
        self.group.node_lost(node, self.now_s)
        self.tell(news.NodeLost(self.now_s, node))

    def _drop(self, node):
        self.agents.pop(node, None)
        if node in self.booting:
            self.booting.remove(node)
        self.processes = {name: process for name, process in self.processes.items() if process.node != node}

    def hang_up(self, node):
        """The line to an agent is cut; what was under way to it is lost, what it says waits."""
        self.agents[node].online = False
        self.agents[node].down.clear()

    def reconnect(self, node):
        agent = self.agents[node]
        if agent.online:
            return
        agent.online = True
        self.group.agent_came(node, [p.id for p in self.processes.values() if p.node == node], self.now_s)
        for message in agent.ends:
            self.group.hear(message, self.now_s)
        self.flush()

    # ------------------------------------------------------------------ the agents' side

    def deliver_down(self, node):
        agent = self.agents[node]
        if not agent.down:
            return
        message = agent.down.popleft()
        process = self.processes.get(message.worker_id)
        match message:
            case wire.StartWorker():
                if message.worker_id not in self.started:  # an agent starts nothing twice
                    self.started.add(message.worker_id)
                    self.processes[message.worker_id] = Process(message.worker_id, node)
                    meeting = {"host": node, "port": 1} if message.offers else {}
                    agent.up.append(wire.WorkerUp(worker_id=message.worker_id, pid=1, **meeting))
            case wire.EndWorker() if process is not None:
                self.exit(process, -9)
            case wire.Regroup() | wire.Leave() if process is not None:
                newest = process.pending.generation if process.pending else process.newest
                leave_again = isinstance(message, wire.Leave) and message.generation == newest
                if message.generation > newest or leave_again:
                    process.pending = message
            case wire.Meet() if process is not None:
                process.met = max(process.met, message.generation)
            case wire.SaveNow() if process is not None:
                process.must_save = True

    def deliver_up(self, node):
        agent = self.agents[node]
        if agent.up and agent.online:
            message = agent.up.popleft()
            self.group.hear(message, self.now_s)
            self.flush()

    def exit(self, process, code, error=""):
        del self.processes[process.id]
        message = wire.WorkerDown(worker_id=process.id, code=code, error=error)
        self.say(process, message)
        self.agents[process.node].ends.append(message)

    def say(self, process, message):
        self.agents[process.node].up.append(message)

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
        elif isinstance(process.pending, wire.Leave):
            self._leave(process, process.pending)
        elif isinstance(process.pending, wire.Regroup):
            self._follow(process, process.pending)
        elif process.follows >= 0:
            peers = self.peers(process)
            whole = len(peers) == process.world
            if process.joined != process.follows:
                if whole and (process.world == 1 or all(p.met == p.follows for p in peers if p.rank != 0)):
                    self._join(peers)
            elif whole and all(p.joined == p.follows for p in peers):
                self._make_step(peers)
            else:  # somebody is gone, or follows a newer order
                facts = {"worker_id": process.id, "generation": process.follows, "step": process.step}
                self.say(process, wire.Broke(**facts, why="a peer is gone"))
                process.follows = process.joined = -1

    def _leave(self, process, leave):
        if leave.save:
            self._save(process)
        done = float(process.step)
        self.say(process, wire.Left(worker_id=process.id, generation=leave.generation, step=process.step, done=done))
        self.exit(process, 83)

    def _follow(self, process, regroup):
        process.pending, process.rank = None, regroup.rank
        process.follows = process.newest = regroup.generation
        process.world, process.joined = regroup.world, -1
        if regroup.rank == 0 and regroup.world > 1:
            leading = wire.Leading(worker_id=process.id, generation=regroup.generation, host="h", port=1)
            self.say(process, leading)

    def _join(self, peers):
        """The state goes from the one with the most steps to all; without any it comes from the checkpoint."""
        top = max(p.step for p in peers) or self.saved
        for peer in peers:
            peer.joined, peer.step = peer.follows, top
            facts = {"worker_id": peer.id, "generation": peer.follows, "step": top}
            self.say(peer, wire.Joined(**facts, done=float(top), work=1e9))

    def _make_step(self, peers):
        for peer in peers:
            peer.step += 1
        leader = next(p for p in peers if p.rank == 0)
        facts = {"worker_id": leader.id, "generation": leader.follows, "step": leader.step}
        self.say(leader, wire.Stepped(**facts, done=float(leader.step), epoch=0, loss=1.0, step_s=0.1))
        if leader.must_save:
            leader.must_save = False
            self._save(leader)

    def _save(self, process):
        self.saved = max(self.saved, process.step)
        facts = {"seconds": 0.0, "blocked_s": 0.0, "size_bytes": 1}
        self.say(process, wire.Saved(worker_id=process.id, step=process.step, done=float(process.step), **facts))

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
            finished = wire.Finished(worker_id=leader.id, step=leader.step, done=1.0)
            self.say(leader, finished)
            self.agents[leader.node].ends.append(finished)
            for process in members:
                self.exit(process, 0)

    # ------------------------------------------------------------------ the end of all trouble

    def calm(self, rounds=400):
        """Nothing goes wrong any more: every message arrives, everybody does what is to be done, time passes."""
        for process in self.processes.values():
            process.stuck = False
        for node in [n.id for n in self.kernel.cluster.nodes.values() if n.phase is NodePhase.NOTICED]:
            self.lose(node)
        for node in list(self.agents):
            self.reconnect(node)
        for turn in range(rounds):
            self._settle_nodes()
            for node in list(self.agents):
                while node in self.agents and self.agents[node].down:
                    self.deliver_down(node)
                while node in self.agents and self.agents[node].up:
                    self.deliver_up(node)
            for process in list(self.processes.values()):
                if process.id in self.processes:
                    self.act(process)
            self.tick(0.5 if turn < rounds // 2 else 5.0)

    def _settle_nodes(self):
        for node in list(self.booting):
            self.boot(node)
        for node in list(self.releasing):
            self.release(node)
