"""Checkpoints for a script with a loop of its own, which is restarted where a session would be resized.

    ck = train.checkpointed(model=model, optimizer=optimizer, steps=steps)
    for step in range(ck.resume(), steps):
        ...
        ck.tick(step + 1)

It saves in time (`saving`), and once more before a restart: SIGTERM is answered at the next tick, with a checkpoint and
an exit code of its own. All ranks of a torch group leave at the same tick, and rank 0 writes; what is in shards
(`fully_shard`) all ranks write together (`sharded`). It reports to the controller as a session does.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sublet.domain.quantity import whole
from sublet.errors import BadInput, InvalidValue
from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.store import checkpoint_place
from sublet.train.link.agent_line import ControllerLink, is_agents_line
from sublet.train.numerics.seeds import own_rng, random_state, reseed, restore_python_and_numpy, restore_rng
from sublet.train.sessions.fitness import check_methods
from sublet.train.sessions.rehearsal import Rehearsed
from sublet.train.sessions.report import Report
from sublet.train.sharded.tensors import has_shards
from sublet.train.state.kept import Keeps, Own
from sublet.train.state.state import Progress
from sublet.wire.messages import EXIT_LEFT
from sublet.wire.rehearsal import cue_here

if TYPE_CHECKING:
    from sublet.train.sharded.writing import Together

MANY = 10**15  # ticks
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
        self._link = ControllerLink(os.environ.get("SUBLET_WORKER_ID", ""))
        self._saver = Saver(checkpoint_place(directory, os.environ), self._link.worker_id or "alone", self._link.say)
        self._rehearsed = Rehearsed(self._named_parameters, self._link, self._saver)
        self._progress = Progress(samples=MANY, batch=1)
        self._report = Report(self._link, self._saver)  # in which work is counted in steps
        self._together = _together(self._saver, self._parts)
        self._noticed = threading.Event()
        self._resumed = False

    def resume(self) -> int:
        """Load the last checkpoint, if there is any; the number of ticks done."""
        if self._resumed:
            raise InvalidValue("resume()", "a second call", "called once, before the loop")
        self._resumed = True
        self._own.begin()
        if _rank() == 0 and is_agents_line(os.environ.get("SUBLET_CONTROL_FD", "")):
            self._link.listen()
        loaded = None
        if self._saver.directory is not None:
            self._saver.opened(_generation() if _rank() == 0 else 0)
            loaded = self._saver.newest() if self._together is None else self._together.newest()
        self._agree(0 if loaded is None else loaded.step)
        if loaded is not None:
            self._restore(loaded.state)
        facts = {"work": float(self._steps or 0), "source": "fresh" if loaded is None else "checkpoint"}
        self._report.joined(self._progress, generation=_generation() or 0, **facts)
        self._rehearsed.come_to(self._progress.steps, _rank(), _world(), lambda: math.nan)
        if self._saver.directory is None:
            return 0
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self._noticed.set())
        atexit.register(self._close)
        return self._progress.steps

    def tick(self, step: int) -> None:
        """This many steps are done: save if it is time; if this process is to leave, save and exit (83)."""
        whole("step", step, 0)
        if not self._resumed:
            raise InvalidValue("tick()", "a call before resume()", "`for step in range(ck.resume(), steps):` around it")
        self._report.count(steps=max(0, step - self._progress.steps))
        self._progress.steps, self._progress.offset = step, min(step, self._steps or step)
        self._rehearsed.come_to(step, _rank(), _world(), lambda: math.nan)
        if self._rehearsed.is_over(step):
            raise SystemExit(0)
        if self._saver.directory is None:
            self._tell_step()
            return
        decides = _rank() == 0 and (self._together is None or not self._together.under_way)
        asked = decides and (self._link.take_save_request() or self._rehearsed.saves(step))
        due = decides and self._saver.is_due(WALL.monotonic(), asked=asked)
        writing = self._together is not None and self._together.is_writing
        leaves, saves, waits = _of_any_rank(self._noticed.is_set(), due, writing)
        self._tell_step(at_once=leaves)
        rng = _of_all_ranks(own_rng()) if leaves or saves else None
        if self._together is not None:
            if leaves or not waits:
                self._together.finish()
            if leaves:
                self._together.save_last(self._tree(rng), self._progress)
            elif saves:
                self._together.begin(self._tree(rng), self._progress)
        elif _rank() == 0 and leaves:
            self._saver.save_last(self._tree(rng), self._progress, _world())
        elif _rank() == 0 and saves:
            self._saver.begin(self._tree(rng), self._progress, _world())
        if leaves:
            self._close()
            raise SystemExit(EXIT_LEFT)

    def _close(self) -> None:
        if self._together is not None:
            self._together.close()
        self._saver.close()

    def _tell_step(self, *, at_once: bool = False) -> None:
        if self._report.is_due(at_once=at_once):
            self._report.stepped(self._progress, loss=math.nan, workers=1, first=True)

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                yield from part.named_parameters(prefix=name)

    def _tree(self, rng: torch.Tensor | None) -> dict[str, Any]:
        return {
            "parts": {name: self._part(name) for name in self._parts},
            "kept": self._own.state_of_kept(),
            "step": self._progress.steps,
            "random": random_state(),
            "rng": rng,
        }

    def _part(self, name: str) -> Any:
        if self._together is not None and name in self._together.parts:
            return self._together.parts.beside(name)
        return self._parts[name].state_dict()

    def _restore(self, tree: Mapping[str, Any]) -> None:
        saved = tree.get("parts", {})
        if saved.keys() != self._parts.keys():
            raise BadInput("checkpoint", f"of {sorted(saved)}, this has {sorted(self._parts)}", hint=ANOTHER)
        if self._together is not None:
            self._together.restore(saved, tree["step"])
        for name, part in self._parts.items():
            if self._together is None or name not in self._together.parts:
                part.load_state_dict(saved[name])
        self._own.load_kept(tree["kept"])
        self._progress.steps = self._progress.offset = tree["step"]
        rng, rank = tree["rng"], _rank()
        if rank == 0:
            restore_python_and_numpy(tree["random"])
        else:
            reseed(0, tree["step"], rank)
        if rank < len(rng):
            restore_rng(rng[rank])

    def _agree(self, step: int) -> None:
        """All ranks go on from the same step, or from none."""
        if _world() > 1:
            steps: list[Any] = [None] * _world()
            dist.all_gather_object(steps, step)
            if len(set(steps)) > 1:
                hint = "give checkpoint.uri a place that all nodes see, s3://bucket/prefix for one"
                raise BadInput(
                    "checkpoint", f"not the same in all ranks, which found those of steps {steps}", hint=hint
                )


def _together(saver: Saver, parts: Mapping[str, Any]) -> Together | None:
    """Where a part is in shards."""
    if not any(has_shards(part) for part in parts.values()):
        return None
    if cue_here() is not None:
        raise InvalidValue("rehearse", "a model in shards", "the plain model: shards cannot be compared at two widths")
    from sublet.train.sharded.parts import Parts
    from sublet.train.sharded.writing import Together

    return Together(saver, Parts(parts))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _generation() -> int | None:
    """Of this start, which fences off earlier writers."""
    told = os.environ.get("SUBLET_GENERATION", "")
    return int(told) if told.isdecimal() else None


def _of_any_rank(*facts: bool) -> list[bool]:
    """Which of the facts hold at any rank: all leave, or save, together."""
    return [bool(count) for count in _summed(torch.tensor(facts, dtype=torch.int64)).tolist()]


def _of_all_ranks(mine: torch.Tensor) -> torch.Tensor:
    """The tensor of each rank, by rank."""
    table = torch.zeros(_world(), *mine.shape, dtype=mine.dtype)
    table[_rank() if len(table) > 1 else 0] = mine
    return _summed(table)


def _summed(numbers: torch.Tensor) -> torch.Tensor:
    if _world() == 1:
        return numbers
    there = numbers.to("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(there)
    return there.cpu()
