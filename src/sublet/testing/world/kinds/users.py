"""What users do to their jobs while everything else goes on: pause, cancel, scale, pay."""

from __future__ import annotations

import random

from sublet.testing.world.stage import Kind, Stage

__all__ = ["USER_KINDS"]


def _name(stage: Stage, dice: random.Random) -> str:
    stage.victim = dice.choice([plan.name for plan in stage.story.jobs])
    return stage.victim


def _user_pause(stage: Stage, dice: random.Random) -> bool:
    name = _name(stage, dice)
    stage.users.pause(name, dice.uniform(5.0, 100.0))
    return name in stage.users.promised


def _user_cancel(stage: Stage, dice: random.Random) -> bool:
    if dice.random() < 0.7:  # most seeds are to see their jobs through
        return False
    name = _name(stage, dice)
    stage.users.cancel(name)
    return name in stage.users.promised


def _user_scale(stage: Stage, dice: random.Random) -> bool:
    name = _name(stage, dice)
    stage.users.scale(name, dice.randint(1, 3))
    return name in stage.users.promised


def _user_top_up(stage: Stage, dice: random.Random) -> bool:
    stage.users.top_up(round(dice.uniform(0.02, 0.2), 4))
    return stage.story.purse_usd is not None


def _user_top_up_job(stage: Stage, dice: random.Random) -> bool:
    return stage.users.top_up_job(_name(stage, dice), round(dice.uniform(0.005, 0.05), 4))


USER_KINDS: dict[str, Kind] = {
    "user_pause": _user_pause,
    "user_cancel": _user_cancel,
    "user_scale": _user_scale,
    "user_top_up": _user_top_up,
    "user_top_up_job": _user_top_up_job,
}
