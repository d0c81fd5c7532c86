"""How the workers of a session train one model together: what a session asks of a strategy, and what it gives to it.

    Copies     every worker has the whole model (`copies`); the optimizer's state may lie in ranges (`shards`)
    InStages   every worker has some stages of it, in as many copies as there are workers for (`grid/in_stages`)

Both are called in the order of the script's loop: `open`, `meet`, then `boundary`, `batches` and `step` for each step,
`end_epoch` after each epoch, `finish` where training has ended, `close` in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.store import checkpoint_place
from sublet.train.link.agent_line import ControllerLink
from sublet.train.sessions.options import Options
from sublet.train.sessions.position import Position
from sublet.train.sessions.tracking import Log, run_name
from sublet.train.state.kept import Own
from sublet.wire.messages import is_profiled


class Where(NamedTuple):
    """This worker among the others, and its last step."""

    rank: int
    world: int
    generation: int
    grid: tuple[int, int]
    place: tuple[int, int]
    updated: bool  # by the last call of `step`
    gives_last: bool  # the batch that was given last is the last of its step


class Around:
    """Objects that every strategy needs: the agent's line, checkpoints, the log, the script's own state."""

    def __init__(self, model: torch.nn.Module, options: Options) -> None:
        self.options, self.profiles = options, is_profiled()
        self.link = ControllerLink(os.environ.get("SUBLET_WORKER_ID", ""))
        where = None if self.profiles else checkpoint_place(options.checkpoint_dir, os.environ)
        self.saver = Saver(where, self.link.worker_id or "alone", self.link.say)
        self.log = Log(() if self.profiles else options.trackers, self.link, run_name(os.environ, where))
        self.own = Own(options.extra_state, [model])


class Strategy(Protocol):
    """One way to train; nothing else changes the model and the optimizer."""

    position: Position

    def open(self) -> None:
        """Take the agent's line, and say what the state takes; from now on only we update the model."""

    def meet(self) -> None:
        """The first group, with the state that training goes on from."""

    def boundary(self) -> None:
        """Between two steps, and before and after all of them: orders, checkpoints, another group."""

    def begin_epoch(self) -> None:
        """Before the first batch that this worker has of an epoch."""

    def batches(self) -> Iterator[Any]:
        """The arguments of `step` for the next step, one after the other."""

    def step(self, given: Any, name: str | None, counted: Any) -> None:
        """The loss, or the batch where the session has `loss=`; the last one of a step makes it."""

    def end_epoch(self, epoch: int) -> None:
        """The script is through with what it does after the batches of this epoch."""

    def evaluate(self, loss_of: Any, dataset: Any, limit: int | None) -> float:
        """The mean of a loss over a dataset, alike at all workers; None for that of the session."""

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """Rank 0's, at all workers."""

    def finish(self) -> None:
        """Training has ended at all alike: the last checkpoint, and the last word."""

    def close(self, error: BaseException | None) -> None:
        """The script has left: everything is its own again. SystemExit where another process is to go on."""

    # ------------------------------------------------------------------------------------------- what a script asks

    @property
    def where(self) -> Where:
        """This worker among the others."""

    @property
    def loss(self) -> float:
        """The loss of the last step (on a GPU: of the one before)."""

    @property
    def loss_tensor(self) -> torch.Tensor:
        """The loss of the last step itself, where it was computed."""

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradient, before it was clipped."""
