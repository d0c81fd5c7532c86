"""Changes of users to their jobs while everything else goes on: pause, cancel, scale, pay. The effect is a yes."""

from __future__ import annotations

import random

from sublet_lab.world.stage import Kind, Stage


def _name(stage: Stage, rng: random.Random) -> str:
    stage.victim = rng.choice([plan.name for plan in stage.story.jobs])
    return stage.victim


def _user_pause(stage: Stage, rng: random.Random) -> None:
    stage.users.pause(_name(stage, rng), rng.uniform(5.0, 100.0), stage.later("user_pause"))


def _user_cancel(stage: Stage, rng: random.Random) -> bool | None:
    if rng.random() < 0.7:  # most seeds are to see their jobs through
        return False
    stage.users.cancel(_name(stage, rng), stage.later("user_cancel"))
    return None


def _user_scale(stage: Stage, rng: random.Random) -> None:
    stage.users.scale(_name(stage, rng), rng.randint(1, 3), stage.later("user_scale"))


def _user_top_up(stage: Stage, rng: random.Random) -> None:
    stage.users.top_up(round(rng.uniform(0.02, 0.2), 4), stage.later("user_top_up"))


def _user_top_up_job(stage: Stage, rng: random.Random) -> None:
    stage.users.top_up_job(_name(stage, rng), round(rng.uniform(0.005, 0.05), 4), stage.later("user_top_up_job"))


USER_KINDS: dict[str, Kind] = {
    "user_pause": _user_pause,
    "user_cancel": _user_cancel,
    "user_scale": _user_scale,
    "user_top_up": _user_top_up,
    "user_top_up_job": _user_top_up_job,
}
