"""A state changes hands, step by step, so that after a crash at any step exactly one side may run its controller.

The register (`record.home`, on the laptop) says whose turn it is; the controller host cannot see it, and has a fence of
its own.

    to the controller host   stop here -> copy, fenced there -> register: controller host -> free there -> start there
    back            fence there -> stop there -> copy -> register: here -> end of the controller host

Before the register changes, all can be taken back; after it, all can only go on. A repeated order after a crash goes on
from the present state (`next_step`); every step may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sublet.runtime.controller_host.record import Home

__all__ = ["HandoverStep", "Situation", "next_step"]


class HandoverStep(StrEnum):
    """The next step."""

    STOP_HERE = "stop here"
    COPY_THERE = "copy there"
    TURN_TO_ANCHOR = "register: anchor"
    FREE = "free"
    START_THERE = "start there"
    FENCE = "fence"
    STOP_THERE = "stop there"
    COPY_HERE = "copy here"
    TURN_TO_HERE = "register: here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The visible state of both sides. A copy is `fresh` if it is the state as the last controller left it."""

    home: Home
    runs_here: bool = False
    runs_there: bool = False
    fenced: bool = True  # the controller host; a machine that has just come is
    fresh_here: bool = True
    fresh_there: bool = False


def next_step(now: Situation, to: Home) -> HandoverStep | None:
    """None when all is done."""
    if to is Home.ANCHOR:
        if now.home is Home.HERE:
            if now.runs_here:
                return HandoverStep.STOP_HERE
            return HandoverStep.TURN_TO_ANCHOR if now.fresh_there and now.fenced else HandoverStep.COPY_THERE
        if now.fenced:
            return HandoverStep.FREE
        return None if now.runs_there else HandoverStep.START_THERE
    if now.home is Home.HERE:
        return None
    if not now.fenced:
        return HandoverStep.FENCE
    if now.runs_there:
        return HandoverStep.STOP_THERE
    return HandoverStep.TURN_TO_HERE if now.fresh_here else HandoverStep.COPY_HERE
