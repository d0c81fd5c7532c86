"""Members of grids in threads, with or without checkpoints; and what they trained, beside one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.grid.meeting import PartLost
from sublet.train.grid.member import Member
from sublet.train.grid.saving import Course, Vault, Whole
from sublet.train.grid.stages import NO_PLACE, Staged
from sublet.train.link.agent_line import ControllerLink
from sublet.train.link.following import Broken
from sublet.train.numerics.schedules import Schedules
from sublet.train.state.state import Progress, State
from sublet_lab.grid.model import BLOCKS, CLIP, MICRO, SEED, SIZE, WORK, a_net, adam, plainly
from sublet_lab.threads_mesh import ThreadsMesh
from tests.rigs.grids_of import seat_of

SAMPLES = 1000 * SIZE


class Worker:
    """A member in a thread; `faults` are points at which it dies, or misses the answer."""

    def __init__(
        self,
        threads,
        name,
        faults=(),
        make=adam,
        *,
        net=a_net,
        work=WORK,
        before=lambda model, step: None,
        clip=CLIP,
        tied=False,
        frozen=(),
        directory=None,
        store=None,
    ):
        self.name, self._threads, self._faults, self.mesh, self._work = name, threads, list(faults), None, work
        self._before = before  # a step: what the loop of a script says of the model
        self.model = a_net(tied=True) if tied else net()
        for each in frozen:
            self.model.get_submodule(each).requires_grad_(False)
        self.staged = Staged(self.model)
        optimizer = make(self.model)
        self.progress, self.said, self.link = Progress(samples=SAMPLES, batch=SIZE), [], Link(name)
        saver = Saver(directory, name, self.link.said.append)
        beside = None
        if directory is not None:
            saver._kept = store or saver._kept
            state = State(self.model, optimizer, [], None, SEED)
            beside = Course(state, self.progress, Schedules([]), saver)
        self.member = Member(self.staged, optimizer, seed=SEED, clip_norm=clip, beside=beside, point=self._at)
        if directory is not None:
            whole = Whole(state, self.progress, self.staged, self.member.holdings, lambda: self.member.loss)
            self.member.vault = Vault(saver, whole, self.member.holdings, self.progress, self.link, self._at)
        self.told, self.dead, self.met = {}, False, None
        self.waits = True  # before a step, for what of its own is being written

    def _at(self, point):
        for fault in self._faults:
            where, step, what = fault
            if where == point and step == self.member.applied:
                self._faults.remove(fault)
                self.dead = what == "dies"
                raise Died if self.dead else Broken("pretended: the answer was lost")

    def live(self, mesh, seat, until, *, generation=None, saves=()):
        """One generation: meets, and trains until a step; whoever leaves it broken hangs up.

        A checkpoint is asked for where `saves` many steps are made, and written when the next is; None: waited for at
        the end.
        """
        self.mesh = mesh
        self._before(self.model, max(0, self.member.applied))  # a newcomer's loop is at step 0
        try:
            self.met = self.member.meet(mesh, seat, generation=generation)
            while seat is not None and self.member.applied < until:
                step = self.member.applied
                self._before(self.model, step)
                self.link.wanted |= step in saves
                if self.waits and self.member.vault is not None and self.member.vault._files is not None:
                    self.member.vault._files.exception()  # disks are quick here, so that few steps do
                facts = {"offset": step * SIZE, "size": SIZE, "micro_batch": MICRO}
                found = self.member.step(mesh, seat, self._work, **facts)
                self.told[step] = found.loss
            if None in saves:
                self.member.vault.save(mesh, range(mesh.world))
        except (Died, Broken, PartLost) as error:
            mesh.hang_up()
            return type(error).__name__
        return "done"

    def weights(self):
        """That it holds."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for unit in self.member.holdings.arenas for name in self.staged.units[unit].names}


class Link(ControllerLink):
    """What a controller would hear and ask."""

    def __init__(self, name):
        super().__init__(name)
        self.said, self.wanted = [], False

    def say(self, message):
        self.said.append(message)

    def take_save_request(self):
        wanted, self.wanted = self.wanted, False
        return wanted


class Died(BaseException):
    pass


def generation(threads, workers, grid, until, givers=(), *, keeps=(), **more):
    """All of these as a grid, by their order, those behind its places only keep; what became of each."""
    meshes = ThreadsMesh.all_of(threads, len(workers) + len(givers))
    works = {}
    for rank, worker in enumerate([*workers, *givers]):
        seat = None
        if rank < len(workers):
            seat = seat_of(rank % grid.gpus, grid, BLOCKS)
            seat = replace(seat, keeps=keeps[rank] if keeps else (), world=len(workers))
        if grid.gpus <= rank < len(workers):
            seat = replace(seat, copy=NO_PLACE, part=NO_PLACE)
        works[worker.name] = lambda worker=worker, rank=rank, seat=seat: worker.live(meshes[rank], seat, until, **more)
    return threads.run(works)


def assert_as_plain(workers, grid, copies_at, steps, make=adam):
    """Weights to the bit."""
    losses, weights = plainly(copies_at, steps, make)
    told = {}
    for worker in workers:
        told |= worker.told
    assert [told[step] for step in sorted(told)][-1] == pytest.approx(losses[-1], abs=1e-6)
    for rank, worker in enumerate(workers[: grid.gpus]):
        assert worker.member.applied == steps
        for name, weight in worker.weights().items():
            assert torch.equal(weight, weights[name]), f"{name} of seat {rank}"
