"""Grids in threads, of any model and any loss: what they trained, through one grid or several, and what they said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from sublet.train.grid.gloo import Lines
from sublet.train.grid.member import Member
from sublet.train.grid.pipeline import Work, atoms, share
from sublet.train.grid.stages import Seat, Staged, parts_of
from sublet_lab.grid.model import MICRO, SEED, SIZE, adam, samples, score
from sublet_lab.threads_mesh import Threads, ThreadsMesh


@dataclass
class Trained:
    """By all workers together; a weight is that of whoever holds it, and the same at all who do."""

    losses: list[float]
    judged: list[float]
    weights: dict[str, torch.Tensor]
    tags: set[tuple[int, int, int]] = field(default_factory=set)  # who wrote to whom, in the last grid of threads


class Worker:
    def __init__(self, make, work, optimizer, clip_norm, micro_batch):
        torch.manual_seed(2)
        self.model, self._micro_batch, self._work = make(), micro_batch, work
        self.staged = Staged(self.model)
        self.member = Member(self.staged, optimizer(self.model), seed=SEED, clip_norm=clip_norm)
        self.losses, self.judged = {}, []

    def live(self, mesh, seat, until, held):
        self.member.meet(mesh, seat)
        while seat is not None and self.member.applied < until:
            step = self.member.applied
            facts = {"offset": step * SIZE, "size": SIZE, "micro_batch": self._micro_batch}
            found = self.member.step(mesh, seat, self._work, **facts)
            self.losses[step] = found.loss
        for work, size in held if seat is not None else ():
            self.model.eval()
            ours = share(atoms(0, size, MICRO), seat.copy, seat.copies)
            judged = torch.tensor([self.member.judge(mesh, seat, work, ours, size)], dtype=torch.float64)
            mesh.sum(judged, seat.everyone())
            self.judged.append(float(judged))
            self.model.train()


def seat_of(rank, grid, blocks):
    """That of a number, blocks as even as they go."""
    copy, part = divmod(rank, grid.parts)
    return Seat(copy=copy, part=part, copies=grid.copies, parts=parts_of(blocks, grid.parts))


def trained(
    make,
    work,
    *grids,
    steps=2,
    held=(),
    optimizer=adam,
    clip_norm=None,
    micro_batch=MICRO,
    real=False,
):
    """So many steps in each grid, then an evaluation of each of `held`: (work, samples). `real`: over sockets."""
    facts = (make, work, optimizer, clip_norm, micro_batch)
    workers = [Worker(*facts) for _ in range(max(grid.gpus for grid in grids))]
    were, tags = [], set()
    for number, grid in enumerate(grids):
        here = workers[: grid.gpus]
        there = [*here, *(each for each in were if each not in here)]
        jobs = {}
        for rank, worker in enumerate(there):
            seat = seat_of(rank, grid, len(worker.staged.blocks)) if worker in here else None
            last = number == len(grids) - 1
            jobs[rank] = (worker.live, seat, steps * (number + 1), held if last else ())
        tags = _in_sockets(jobs) if real else _in_threads(jobs)
        were = here
    losses, weights = {}, {}
    for worker in were:
        losses |= worker.losses
        named = dict(worker.model.named_parameters())
        for unit in worker.member.holdings.arenas:
            for name in worker.staged.units[unit].names:
                assert torch.equal(weights.setdefault(name, named[name].detach()), named[name]), name
    return Trained([losses[step] for step in sorted(losses)], were[0].judged, weights, tags)


def assert_same(one, other):
    """To the bit."""
    assert one.losses == other.losses
    assert one.judged == other.judged
    assert one.weights.keys() == other.weights.keys()
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name


def next_word(length_of):
    """The loss of a model of words; how many a sample has, `length_of` says of each atom."""
    return Work(lambda atom: samples(atom, length_of(atom)), score)


def _in_threads(jobs):
    threads = Threads()
    meshes = ThreadsMesh.all_of(threads, len(jobs))

    def job(rank):
        live, *facts = jobs[rank]
        try:
            live(meshes[rank], *facts)
        except BaseException:
            meshes[rank].hang_up()
            raise

    outcomes = threads.run({rank: (lambda rank=rank: job(rank)) for rank in jobs})
    for error in sorted((each for each in outcomes.values() if each is not None), key=lambda e: "ended" in str(e)):
        raise error
    return set(meshes[0]._said.letters)


def _in_sockets(jobs):
    """Rng are of all threads: for models that throw none."""
    lines = [Lines() for _ in jobs]
    host, port = lines[0].open_store()
    for each in lines[1:]:
        each.find_store(host, port, lambda: None)

    def job(rank):
        live, *facts = jobs[rank]
        try:
            live(lines[rank].mesh("all", rank, len(jobs)), *facts)
        except BaseException:
            lines[rank].hang_up()
            raise

    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            for each in [pool.submit(job, rank) for rank in jobs]:
                each.result(120)
    finally:
        for each in lines:
            each.close()
    return set()
