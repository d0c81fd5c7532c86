"""Checkpoints for a script with a loop of its own, which is stopped and started where a session would be resized.

    ck = train.checkpointed(model=model, optimizer=optimizer, steps=steps)
    for step in range(ck.resume(), steps):
        ...
        ck.tick(step + 1)

It saves in time (`saving`), and once more when its node is to be taken or its width to change: SIGTERM is then answered
at the next tick, with a checkpoint and the exit code that says so. All ranks of a torch group leave at the same tick,
and rank 0 writes. It also tells the controller, in the words of a session: where it began and from what, how far it
is, and what it has saved.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sublet.domain.quantity import whole
from sublet.errors import BadInput, InvalidValue
from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.store import checkpoint_place
from sublet.train.link.link import ControllerLink, is_agents_line
from sublet.train.numerics.seeds import own_dice, random_state, reseed, restore_dice, restore_random
from sublet.train.sessions.fitness import check_methods
from sublet.train.sessions.rehearsal import Rehearsed
from sublet.train.sessions.report import EVERY_S, printed
from sublet.train.state.kept import Keeps, Own
from sublet.train.state.state import Progress
from sublet.wire.exits import EXIT_LEFT
from sublet.wire.messages import Joined, Stepped

__all__ = ["Restarted"]

MANY = 10**15  # ticks: more than anybody makes
ANOTHER = "give the names of the checkpoint, or a new checkpoint directory"


class Restarted(Keeps):
    """See `sublet.train.checkpointed`, which makes one."""

    def __init__(self, parts: Mapping[str, Any], directory: Path | str | None, steps: int | None) -> None:
        if not parts:
            raise InvalidValue(
                "checkpoint", "nothing", "what is to be saved, by name: model=model, optimizer=optimizer"
            )
        for name, part in parts.items():
            check_methods(name, part, "state_dict", "load_state_dict")
        if steps is not None:
            whole("steps", steps, 1)
        self._parts, self._steps = dict(parts), steps
        self._own = Own(None, [part for part in parts.values() if isinstance(part, torch.nn.Module)])
        worker_id = os.environ.get("SUBLET_WORKER_ID", "")
        self._link = ControllerLink(worker_id)
        self._saver = Saver(checkpoint_place(directory, os.environ), worker_id or "alone", self._link.say)
        self._rehearsed = Rehearsed(self._named_parameters, self._link, self._saver)
        self._progress = Progress(samples=MANY, batch=1)
        self._told_s, self._told_step = 0.0, 0  # monotonic, when the controller heard of us last, and where we were
        self._noticed = threading.Event()
        self._resumed = False

    def resume(self) -> int:
        """Load what was saved last, if anything was; the number of ticks that are behind us."""
        if self._resumed:
            raise InvalidValue("resume()", "a second call", "called once, before the loop")
        self._resumed = True
        self._own.begin()
        if _rank() == 0 and is_agents_line(os.environ.get("SUBLET_CONTROL_FD", "")):
            self._link.listen()
        loaded = None
        if self._saver.directory is not None:
            self._saver.opened(_generation() if _rank() == 0 else 0)
            loaded = self._saver.newest()
        if loaded is not None:
            self._restore(loaded.state)
        self._agree()
        self._tell_start("fresh" if loaded is None else "checkpoint")
        self._rehearsed.come_to(self._progress.steps, _rank(), _world(), lambda: math.nan)
        if self._saver.directory is None:
            return 0
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self._noticed.set())
        atexit.register(self._saver.close)
        return self._progress.steps

    def tick(self, step: int) -> None:
        """So many steps are behind us: save if it is time; where this process is to go, save and leave (83)."""
        whole("step", step, 0)
        if not self._resumed:
            raise InvalidValue("tick()", "a call before resume()", "`for step in range(ck.resume(), steps):` around it")
        self._progress.steps = self._progress.offset = step
        self._rehearsed.come_to(step, _rank(), _world(), lambda: math.nan)
        if self._rehearsed.is_over(step):
            raise SystemExit(0)
        now_s = WALL.monotonic()
        if self._saver.directory is None:
            self._tell_step(now_s)
            return
        asked = _rank() == 0 and (self._link.take_save_request() or self._rehearsed.saves(step))
        due = _rank() == 0 and self._saver.is_due(now_s, asked=asked)
        leaves, saves = _of_any_rank(self._noticed.is_set(), due)
        self._tell_step(now_s, at_once=leaves)
        dice = _of_all_ranks(own_dice()) if leaves or saves else None
        if _rank() == 0 and leaves:
            self._saver.save_last(self._tree(dice), self._progress, _world())
        elif _rank() == 0 and saves:
            self._saver.begin(self._tree(dice), self._progress, _world())
        if leaves:
            self._saver.close()
            raise SystemExit(EXIT_LEFT)

    def _tell_start(self, source: str) -> None:
        """Where this start begins: what it does again had been done before, and was for nothing."""
        step, self._told_s, self._told_step = self._progress.steps, WALL.monotonic(), self._progress.steps
        self._link.say(
            Joined(
                worker_id=self._link.worker_id,
                generation=_generation() or 0,
                step=step,
                done=float(step),
                work=float(self._steps or 0),
                global_batch=1,
                source=source,
                printed=printed(),
            )
        )

    def _tell_step(self, now_s: float, *, at_once: bool = False) -> None:
        """How far it is; work is counted in steps."""
        step, passed_s = self._progress.steps, now_s - self._told_s
        if self._link.line is None or step <= self._told_step or (passed_s < EVERY_S and not at_once):
            return
        self._link.say(
            Stepped(
                worker_id=self._link.worker_id,
                generation=_generation() or 0,
                step=step,
                done=float(step if self._steps is None else min(step, self._steps)),
                epoch=0,
                loss=math.nan,
                step_s=(passed_s - self._saver.blocked_s) / (step - self._told_step),
                saved_s=self._saver.blocked_s,
                global_batch=1,
                local_batch=1,
            )
        )
        self._told_s, self._told_step, self._saver.blocked_s = now_s, step, 0.0

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                yield from part.named_parameters(prefix=name)

    def _tree(self, dice: torch.Tensor | None) -> dict[str, Any]:
        return {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "kept": self._own.state_of_kept(),
            "step": self._progress.steps,
            "random": random_state(),
            "dice": dice,
        }

    def _restore(self, tree: Mapping[str, Any]) -> None:
        saved = tree.get("parts", {})
        if saved.keys() != self._parts.keys():
            raise BadInput("checkpoint", f"of {sorted(saved)}, this has {sorted(self._parts)}", hint=ANOTHER)
        for name, part in self._parts.items():
            part.load_state_dict(saved[name])
        self._own.load_kept(tree.get("kept", {}))  # one of an earlier version has none
        self._progress.steps = self._progress.offset = tree["step"]
        dice, rank = tree.get("dice"), _rank()  # one of an earlier version has none
        if rank == 0:
            restore_random(tree["random"])
        else:
            reseed(0, tree["step"], rank)
        if dice is not None and rank < len(dice):
            restore_dice(dice[rank])

    def _agree(self) -> None:
        """All ranks go on from the same step, or from none."""
        if _world() > 1:
            steps: list[Any] = [None] * _world()
            dist.all_gather_object(steps, self._progress.steps)
            if len(set(steps)) > 1:
                hint = "give checkpoint.uri a place that all nodes see, s3://bucket/prefix for one"
                raise BadInput(
                    "checkpoint", f"not the same in all ranks, which found those of steps {steps}", hint=hint
                )


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _generation() -> int | None:
    """Of this start, which fences off the writers of the one before."""
    told = os.environ.get("SUBLET_GENERATION", "")
    return int(told) if told.isdecimal() else None


def _of_any_rank(*facts: bool) -> list[bool]:
    """Which of them holds anywhere: nobody leaves, or saves, while others wait for it in a collective."""
    return [bool(count) for count in _summed(torch.tensor(facts, dtype=torch.int64)).tolist()]


def _of_all_ranks(mine: torch.Tensor) -> torch.Tensor:
    """What each has, by rank."""
    table = torch.zeros(_world(), *mine.shape, dtype=mine.dtype)
    table[_rank() if len(table) > 1 else 0] = mine
    return _summed(table)


def _summed(numbers: torch.Tensor) -> torch.Tensor:
    if _world() == 1:
        return numbers
    there = numbers.to("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(there)
    return there.cpu()
