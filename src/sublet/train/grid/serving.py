"""What members of a grid come to together beside steps: evaluations, and what a newcomer hears until its first step.

A newcomer begins with the next step. Until then those who were there may still be in the lines after the one before,
or behind a loop that ends: one of them says what they come to, and with which state. If a worker is lost in an
evaluation, it is made again; newcomers serve it, and are handed each micro-batch by the one that speaks. So nothing
waits for a script that has yet to come to it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue, RanksDiffer
from sublet.train.data.held_out import HeldOut, in_eval_mode
from sublet.train.data.samples import Samples, moved
from sublet.train.grid.atoms import Atom, atoms, loaded, share
from sublet.train.grid.course import Course
from sublet.train.grid.gloo import GlooMesh
from sublet.train.grid.member import Member
from sublet.train.grid.mesh import spread
from sublet.train.grid.pipeline import Work
from sublet.train.grid.stages import Seat
from sublet.train.link.following import Broken
from sublet.train.numerics.seeds import dice_kept, reseed_host
from sublet.train.sessions.position import Position
from sublet.train.sessions.probe import Probe, is_due
from sublet.train.sessions.strategy import Around
from sublet.wire.profile import is_profiled

__all__ = ["END", "SAME", "STEP", "Serves", "awaited"]

STEP, EVALUATE, END = "step", "evaluate", "end"  # what a script comes to next
SAME = "let what a loop does follow from s.steps, s.epoch, s.loss and evaluations: they are the same at all workers"
AFTER_S = 30.0  # that others are waited for without a word
WAITS = (
    "s.evaluate waits for the other workers; every one calls it, since each has a part of the model, not rank 0 alone"
)


class Serves:
    """The part of a strategy that is not a step."""

    position: Position
    member: Member | None
    mesh: GlooMesh
    seat: Seat
    course: Course
    _around: Around
    _model: torch.nn.Module
    _device: torch.device | None
    _micro_batch: int
    _samples: Samples
    judged = math.nan  # what the last evaluation came to

    def evaluate(self, loss_of: Any, dataset: Any, limit: int | None) -> float:
        """As of any strategy. Before a worker's first step with the others it is what their last one came to."""
        if loss_of is not None:
            allowed = "s.evaluate(dataset), the mean of loss=, where the model is trained in stages"
            raise InvalidValue("evaluate", "with a function of its own", allowed)
        if (member := self.member) is None:
            raise InvalidValue("evaluate", "a call before the first batch", "called in the loop, or after it")
        most = None if limit is None else limit * self._micro_batch
        samples = HeldOut(dataset, self._around.options.collate, self._device, most)
        size = samples.count
        self._around.link.script_waits()
        while not member.new:
            try:
                with awaited(WAITS):
                    self.together(EVALUATE, size=size)
                    self._judge(member, samples, size)
                break
            except Broken as error:
                why = str(error)
            self.recover(why)
        self._around.link.script_goes_on()
        return self.judged

    def together(self, does: str, **facts: Any) -> str:
        """What all come to next: where somebody is new, one of those who were there says it, and with which state.

        Who is new takes its part in evaluations until it is a step, or the end. Broken.
        """
        member = self.member
        while member is not None and member.speaker is not None:
            speaks = self.mesh.rank == member.speaker
            told = {**facts, "does": does, "beside": self.course.tree()} if speaks else None
            word = spread(self.mesh, member.speaker, told, self.seat.everyone())
            if not member.new and word["does"] != does:
                what = f"what the loop comes to ({does} here, {word['does']} elsewhere)"
                raise RanksDiffer(what, ranks=[], step=self.position.progress.steps, hint=SAME)
            if word["does"] == EVALUATE and not member.new:
                break
            if word["does"] == EVALUATE:
                self._judge(member, None, word["size"])
                continue
            does, member.speaker = word["does"], None
            if member.new:
                self.course.take(word["beside"])
                self.position.is_left = does == END
        return does

    def _judge(self, member: Member, samples: HeldOut | None, size: int) -> None:
        """With all of the grid; where newcomers serve, the samples are those of the one that speaks. Broken."""
        mesh, seat, speaker = self.mesh, self.seat, member.speaker
        work, loss = atoms(0, size, self._micro_batch), torch.zeros(1, dtype=torch.float64)

        def load(atom: Atom) -> Any:
            assert samples is not None  # noqa: S101 - our script has called for it
            with dice_kept():
                reseed_host(self._around.options.seed, atom.start)
                return samples.load(atom.start, atom.count)

        def is_there(_: Atom) -> Any:
            return batch

        with in_eval_mode(self._model):
            if speaker is None:
                mine = share(work, seat.copy, seat.copies)
                loss[0] = member.judge(mesh, seat, self.work(load), mine, size)
            for number, atom in enumerate(work if speaker is not None else ()):
                told = {"batch": load(atom)} if mesh.rank == speaker else None
                batch = spread(mesh, speaker or 0, told, seat.everyone())["batch"]
                if self._device is not None:
                    batch = moved(batch, self._device)
                mine = (atom,) if number % seat.copies == seat.copy else ()
                loss[0] += member.judge(mesh, seat, self.work(is_there), mine, size)
            mesh.sum(loss, seat.everyone())
        self.judged = float(loss)

    def look(self, member: Member) -> None:
        """At the first step: what the loss of its first micro-batch is (`probe`), by the first copy. Broken."""
        progress, options = self.position.progress, self._around.options
        if progress.steps or not is_due(options) or is_profiled():
            return
        whole = Atom(progress.offset, min(self._micro_batch, progress.size))
        probe = Probe(self._model, options, whole.count)

        def load(part: Atom) -> Any:
            batch = loaded(self._samples, options.seed, progress.epoch, whole)
            return probe.part(batch, part.start, part.start + part.count)

        def told(output: Any, batch: Any) -> torch.Tensor:
            assert options.loss is not None  # noqa: S101 - as in `work`
            probe.look()
            found: torch.Tensor = options.loss(output, batch)
            probe.take(found, None)
            return found

        with probe.looking():
            for low, high in probe.ends if self.seat.copy == 0 else ():
                member.judge(self.mesh, self.seat, Work(load, told), (Atom(low, high - low),), high - low)
        probe.conclude(speaks=True)  # the last part alone has been told

    def work(self, load: Callable[[Atom], Any]) -> Work:
        """What is computed of each micro-batch."""
        assert self._around.options.loss is not None  # noqa: S101 - that is why it is trained in stages
        return Work(load, self._around.options.loss)

    def recover(self, why: str) -> None:
        """Into the next grid, whoever is lost."""
        raise NotImplementedError


@contextmanager
def awaited(why: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Says so on stderr, once, if what is done here is not over by then; it goes on all the same."""
    text = f"sublet: {why}\n"
    timer = threading.Timer(after_s, lambda: sys.stderr.write(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
