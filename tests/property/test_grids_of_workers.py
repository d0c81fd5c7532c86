"""Grids under losses, notices and orders that come as they like: nobody is left out who holds what the others need."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.shape import Grid
from sublet.runtime.group.build import build_group
from sublet.runtime.group.places import Form
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import Training, Worker, meet

NODES = tuple("abcdefgh")


class World:
    """A group, and workers that do as they are told; one GPU to a node."""

    def __init__(self):
        retries = Retries(preemption=None, infra=None, user=None)
        spec = JobSpec(name="j", argv=("x",), cwd="/", max_workers=8, stages=0, retries=retries)
        self.group = build_group("j-1", spec, log_of=str, env=dict)
        self.training = Training(steps=10**6, blocks=(10,) * 12)
        self.workers, self.tables = {}, {}
        self.nodes, self.now_s, self.generation, self.lost_parts = [], 0.0, 0, 0

    def hear(self, message):
        self.now_s += 0.01
        self.group.hear(message, self.now_s)
        self.settle()

    def settle(self):
        while self.group.outbox:
            _, message = self.group.outbox.pop(0)
            worker = self.workers.get(getattr(message, "worker_id", ""))
            match message:
                case wire.StartWorker():
                    node = self.group.workers[message.worker_id].node_id
                    self.workers[message.worker_id] = Worker(message.worker_id, "j-1", node)
                case wire.EndWorker() if worker is not None:
                    self.down(worker, -9)
                case wire.Leave() if worker is not None:
                    self.down(worker, 83)
                case wire.Regroup() if worker is not None:
                    self.meet(worker, message)

    def down(self, worker, code):
        self.leave(worker)
        self.hear(wire.WorkerDown(worker_id=worker.id, code=code))

    def leave(self, worker):
        del self.workers[worker.id]
        for table in self.tables.values():
            table.pop(worker.id, None)

    def meet(self, worker, order):
        for table in self.tables.values():
            table.pop(worker.id, None)
        worker.order = order
        table = self.tables.setdefault(order.generation, {})
        table[worker.id] = worker
        if len(table) < order.meets or {member.order.generation for member in table.values()} != {order.generation}:
            return
        top = max(member.step for member in self.workers.values())
        all_held = {
            (member.holds[0], part)
            for member in self.workers.values()
            if member.step == top
            for part in member.holds[1]
        }
        here_held = {
            (member.holds[0], part) for member in table.values() if member.step == top for part in member.holds[1]
        }
        assert all_held == here_held or top < 0, "somebody who holds a part was not called"
        said = list(meet(table, self.training))
        for member, message in said:
            if member.id in self.workers and order.generation == self.group.round.number:
                self.hear(message)

    def train(self):
        """Some steps, if all who are to have met."""
        for table in self.tables.values():
            for member in table.values():
                member.step += self.group.training

    def ready(self):
        """Whoever was started opens its session."""
        for worker in list(self.workers.values()):
            known = self.group.workers.get(worker.id)
            if known is not None and known.phase == "launched":
                self.hear(wire.Ready(worker_id=worker.id, version=2, blocks=self.training.blocks))

    def order(self, nodes, grid):
        self.generation += 1
        self.nodes = list(nodes)
        self.group.move(self.generation, tuple((node, 1) for node in nodes), 0, self.now_s, Form(grid))
        self.settle()


@st.composite
def orders(draw):
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=8, unique=True))
    parts = draw(st.integers(1, min(4, len(nodes))))
    return nodes, Grid(draw(st.integers(1, len(nodes) // parts)), parts)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["kill", "lose", "notice", "ready", "train", "order"]), st.integers(0, 7), orders()),
    max_size=10,
)


@settings(max_examples=40)
@given(orders(), EVENTS, orders())
def test_whatever_happens_all_holders_are_called_and_the_last_order_is_followed(first, events, last):
    world = World()
    world.order(*first)
    world.ready()
    for what, which, order in events:
        here = sorted(world.workers)
        if what == "kill" and here:
            world.down(world.workers[here[which % len(here)]], -9)
        elif what in ("lose", "notice") and world.nodes:
            node = world.nodes[which % len(world.nodes)]
            if what == "notice":
                world.group.evacuate(node, world.now_s)
                world.settle()
            for worker in [each for each in world.workers.values() if each.node_id == node]:
                world.leave(worker)
            world.group.node_lost(node, world.now_s)
            world.settle()
            left = [each for each in world.nodes if each != node] or [NODES[which]]
            formed = world.group.places.formed or order[1]
            fits = (
                Grid(min(formed.copies, len(left) // formed.parts), formed.parts) if len(left) >= formed.parts else None
            )
            world.order(left, fits or Grid(len(left)))
        elif what == "ready":
            world.ready()
        elif what == "train":
            world.train()
        elif what == "order":
            world.order(*order)
    world.order(*last)
    for _ in range(4):
        world.ready()
    group, grid = world.group, last[1]
    assert group.training
    assert group.places.formed == grid
    seated = [
        worker.place for worker in group.workers.values() if worker.phase == "member" and worker.place is not None
    ]
    assert sorted(seated) == [(copy, part) for copy in range(grid.copies) for part in range(grid.parts)]
    assert {worker.node_id for worker in group.workers.values() if worker.phase != "leaving"} <= set(last[0])
