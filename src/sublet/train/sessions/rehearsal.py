"""A session in a rehearsal (`sublet rehearse`): it writes down its state after each step, and is killed where told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook

from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.link.agent_line import ControllerLink
from sublet.train.sessions.options import Options
from sublet.wire.rehearsal import COARSE, SAMPLED, Cue, cue_here

Weights = Callable[[], Iterable[tuple[str, torch.Tensor]]]
JITTER, COARSE_JITTER = 4e-7, 1e-3  # a few roundings, or one of half precision: what training makes of it is noise
HALVES = (torch.bfloat16, torch.float16)
LOOKS = 3  # steps in which outputs of layers are looked at for these
ALL_HERE_S = 60.0  # wait for the others, which are started at the same time


class Rehearsed:
    """One session in one process; where it is no rehearsal, nothing happens."""

    def __init__(self, weights: Weights, link: ControllerLink, saver: Saver) -> None:
        self._cue, self._weights, self._link, self._saver = cue_here(), weights, link, saver
        self._dies = self._cue is not None and not self._cue.has_restarted
        self._last = -1
        self._coarse = False
        self._looking = None if self._cue is None else register_module_forward_hook(self._look)
        self._waits_until_s = WALL.monotonic() + ALL_HERE_S

    def begin(self, steps: int, rank: int) -> None:
        """Before the first step: seed torch anew where this run is to draw other numbers."""
        if self._cue is None or not self._cue.seed or steps:
            return
        torch.manual_seed(self._cue.seed + rank)
        with torch.no_grad():
            for _, weights in self._weights():
                weights.mul_(1.0 + (COARSE_JITTER if self._cue.coarse else JITTER) * torch.randn_like(weights))

    def _look(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        self._coarse = self._coarse or (isinstance(output, torch.Tensor) and output.dtype in HALVES)

    def saves(self, steps: int) -> bool:
        """Whether it is this checkpoint that all will go on from."""
        return self._dies and self._cue is not None and 0 < self._cue.restart_at == steps + 2

    def is_over(self, steps: int) -> bool:
        """Whether a script with a loop of its own has made enough of them."""
        return self._cue is not None and steps >= self._cue.steps

    def come_to(self, steps: int, rank: int, world: int, loss: Callable[[], float]) -> None:
        """At the boundary after so many steps."""
        cue = self._cue
        if cue is None:
            return
        if rank == 0 and steps > self._last and (self._last >= 0 or not steps):  # made in this process
            _write(cue, steps, loss(), self._weights)
        self._last = steps
        if self._looking is not None and steps >= LOOKS:
            self._looking.remove()
        if self._coarse:
            cue.claim(COARSE)
        if rank == 0 and 0 < cue.kill_at <= steps and cue.claim("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._dies and 0 < cue.restart_at <= steps:
            cue.begin_restart()
            self._saver.settle()
            os.kill(os.getpid(), signal.SIGKILL)
        pause = threading.Event()
        while world < cue.workers and not self._link.has_order() and WALL.monotonic() < self._waits_until_s:
            pause.wait(0.02)


def rehearsed_options(options: Options, model: torch.nn.Module) -> Options:
    """Without the probe: the runs show more, and each batch has to come as often in all of them.

    With batch statistics a step depends on which samples come together: a run with another seed then has another order.
    """
    cue = cue_here()
    if cue is None:
        return options
    batched = any(hasattr(each, "running_mean") for each in model.modules())
    return replace(options, probe=False, seed=options.seed + (cue.seed if batched else 0))


def _write(cue: Cue, steps: int, loss: float, weights: Weights) -> None:
    with torch.no_grad():
        written: dict[str, Any] = {f"p:{name}": _digest(each) for name, each in weights()}
    made = cue.step_file(steps).with_suffix(".part")
    with made.open("wb") as file:
        np.savez(file, loss=np.array(loss), **written)
    made.rename(cue.step_file(steps))


def _digest(weights: torch.Tensor) -> np.ndarray:
    flat = weights.detach().reshape(-1)
    some = flat[:: max(1, -(-flat.numel() // SAMPLED))].double()
    whole = torch.stack([flat.sum(dtype=torch.float64), torch.linalg.vector_norm(flat, dtype=torch.float64)])
    found: np.ndarray = torch.cat([whole, some]).cpu().numpy()
    return found
