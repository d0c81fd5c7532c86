"""The mean loss over a dataset, by all workers of a grid: forward alone.

If a worker is lost in it, it is made again. Then, or where one was lost right before it, there are newcomers, whose
scripts are not there: they serve (`together`), and are handed each micro-batch by the one that speaks. So an evaluation
waits for no script that has yet to come to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from sublet.errors import InvalidValue, RanksDiffer
from sublet.train.eval_mode import in_eval_mode
from sublet.train.following import Broken
from sublet.train.grid.atoms import Atom, atoms, loaded, share
from sublet.train.grid.awaited import awaited
from sublet.train.grid.course import Course
from sublet.train.grid.member import Member
from sublet.train.grid.mesh import spread
from sublet.train.grid.pipeline import Work
from sublet.train.grid.seated import Seated
from sublet.train.link import ControllerLink
from sublet.train.samples import Samples, moved
from sublet.train.verdict import Verdict

__all__ = ["END", "SAME", "STEP", "Judges"]

STEP, EVALUATE, END = "step", "evaluate", "end"  # what a script comes to next
SAME = "let what a loop does follow from s.steps, s.epoch, s.loss and evaluations: they are the same at all workers"
WAITS = (
    "s.evaluate waits for the other workers; every one calls it, since each has a part of the model, not rank 0 alone"
)


class Judges(Seated):
    """The part of a session that evaluates."""

    _model: torch.nn.Module
    _device: torch.device | None
    _micro_batch: int
    _link: ControllerLink
    _verdict: Verdict
    _course: Course
    _is_over: bool  # training, which the others have left
    _judged = math.nan  # what the last evaluation came to

    def evaluate(self, dataset: Any, limit: int | None = None) -> float:
        """The mean of `loss=` over a dataset, or the first `limit` micro-batches of it, in the model's eval mode.

        Every worker calls it, at the same step: all have their part in it, and all get the result. At a worker that has
        yet to make its first step with the others, it is what their last one came to.
        """
        self._verdict.check()
        if (member := self._member) is None:
            raise InvalidValue("evaluate", "a call before the first batch", "called in the loop, or after it")
        samples = Samples(dataset, 0, self.options.collate, self._device, shuffled=False)
        size = samples.count if limit is None else min(samples.count, limit * self._micro_batch)
        self._link.script_waits()
        with self._verdict:
            while not member.new:
                try:
                    with awaited(WAITS):
                        self._together(EVALUATE, size=size)
                        self._judge(member, samples, size)
                    break
                except Broken as error:
                    why = str(error)
                self._recover(why)
        self._link.script_goes_on()
        return self._judged

    def _judge(self, member: Member, samples: Samples | None, size: int) -> None:
        """With all of the grid; where newcomers serve, the samples are those of the one that speaks. Broken."""
        mesh, seat, speaker = self._mesh, self._seat, member.speaker
        work, loss = atoms(0, size, self._micro_batch), torch.zeros(1, dtype=torch.float64)

        def load(atom: Atom) -> Any:
            assert samples is not None  # noqa: S101 - our script has called for it
            return loaded(samples, self.options.seed, 0, atom)

        def is_there(_: Atom) -> Any:
            return batch

        with in_eval_mode(self._model):
            if speaker is None:
                mine = share(work, seat.copy, seat.copies)
                loss[0] = member.judge(mesh, seat, self._work(load), mine, size)
            for number, atom in enumerate(work if speaker is not None else ()):
                told = {"batch": load(atom)} if mesh.rank == speaker else None
                batch = spread(mesh, speaker or 0, told, seat.everyone())["batch"]
                if self._device is not None:
                    batch = moved(batch, self._device)
                mine = (atom,) if number % seat.copies == seat.copy else ()
                loss[0] += member.judge(mesh, seat, self._work(is_there), mine, size)
            mesh.sum(loss, seat.everyone())
        self._judged = float(loss)

    def _work(self, load: Callable[[Atom], Any]) -> Work:
        """What is computed of each micro-batch."""
        raise NotImplementedError

    def _together(self, does: str, **facts: Any) -> str:
        """What all come to next: where somebody is new, one of those who were there says it, and with which state.

        Who is new takes its part in evaluations until it is a step, or the end. Broken.
        """
        member = self._member
        while member is not None and member.speaker is not None:
            speaks = self._mesh.rank == member.speaker
            told = {**facts, "does": does, "beside": self._course.tree()} if speaks else None
            word = spread(self._mesh, member.speaker, told, self._seat.everyone())
            if not member.new and word["does"] != does:
                what = f"what the loop comes to ({does} here, {word['does']} elsewhere)"
                raise RanksDiffer(what, ranks=[], step=self._progress.steps, hint=SAME)
            if word["does"] == EVALUATE and not member.new:
                break
            if word["does"] == EVALUATE:
                self._judge(member, None, word["size"])
                continue
            does, member.speaker = word["does"], None
            if member.new:
                self._course.take(word["beside"])
                self._is_over = does == END
        return does

    def _recover(self, why: str) -> None:
        """Into the next grid, whoever is lost."""
        raise NotImplementedError
