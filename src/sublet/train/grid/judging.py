"""The mean loss over a dataset, by all workers of a grid: forward alone.

Each evaluation since a step has a number. What one has come to is known to all who were there, and at a meeting all
hear of it. If somebody is lost before anybody has it, it is made again: those who are left wait in it for whoever
joins, which comes to it when it has gone over the last step (`course`). On its way there a newcomer's lines see what
the others have come to, or not a number.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.eval_mode import in_eval_mode
from sublet.train.following import Broken
from sublet.train.grid.atoms import loaded
from sublet.train.grid.awaited import awaited
from sublet.train.grid.calling import Calling, LossOf
from sublet.train.grid.dice import EVALUATED
from sublet.train.grid.seated import Seated
from sublet.train.grid.whereabouts import evaluation
from sublet.train.link import ControllerLink
from sublet.train.samples import Samples
from sublet.train.verdict import Verdict

__all__ = ["Judges"]

WAITS = (
    "s.evaluate waits for the other workers; every one calls it, since each has a part of the model, not rank 0 alone"
)


class Judges(Seated):
    """The part of a session that evaluates."""

    _model: torch.nn.Module
    _device: torch.device | None
    _micro_batch: int
    _link: ControllerLink
    _call: Calling
    _verdict: Verdict
    _evaluations: int  # that the script has asked for since the last step

    def evaluate(self, loss_of: LossOf, dataset: Any, limit: int | None = None) -> float:
        """The mean loss over a dataset, or the first `limit` micro-batches of it, in the model's eval mode.

        Every worker calls it, at the same step: all have their part in it, and all get the result. A worker that has
        just joined comes by the lines after the last step more than once: until it is where the others are, what they
        have not come to yet is not a number there.
        """
        self._verdict.check()
        if (member := self._member) is None:
            raise InvalidValue("evaluate", "a call before the first step", "called after a step")
        if self._course.goes_over:
            return self._course.judged_before()
        self._link.script_waits()
        samples = Samples(dataset, 0, self.options.collate, self._device, shuffled=False)
        size = samples.count if limit is None else min(samples.count, limit * self._micro_batch)
        number, self._evaluations = self._evaluations, self._evaluations + 1
        self._course.come_to(evaluation(number))
        while len(member.judged) <= number and self._alike:
            broke = ""
            try:
                with awaited(WAITS), in_eval_mode(self._model):
                    member.judge(
                        self._mesh,
                        self._seat,
                        lambda atom: self._call(loss_of, loaded(samples, 0, atom), atom),
                        size=size,
                        micro_batch=self._micro_batch,
                    )
            except Broken as error:
                broke = str(error) or "broken"
            if broke:  # others may take our state over: it is that of the script, which knows nothing of the mode
                self._recover(broke)
        self._course.at = evaluation(number)  # if all have gone back meanwhile, the loop is here nevertheless
        self._throw(EVALUATED + number)
        self._link.script_goes_on()
        return self._course.noted(member.judged[number] if number < len(member.judged) else math.nan)

    def _recover(self, why: str) -> None:
        """Into the next grid, whoever is lost."""
        raise NotImplementedError
