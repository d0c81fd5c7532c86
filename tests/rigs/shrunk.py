"""Stories of the world as they were shrunk, in few words, and which law a life breaks."""

from __future__ import annotations

from sublet.runtime.controller.host import Paces
from sublet_lab.world.life import live
from sublet_lab.world.story import Fault, JobPlan, Story


def a_story(seed, jobs, faults, **facts):
    """As it was drawn, less what it did not need."""
    drawn = [Fault(at_s=at_s, kind=kind, rng=rng) for at_s, kind, rng in faults]
    kept = {"cloud": "plain", "keeps_records": True, "policy": "max-speedup", "lease_s": 30.0, "paces": Paces()}
    return Story(seed=seed, jobs=tuple(jobs), faults=tuple(drawn), **(kept | facts))


def a_job(name, at_s, steps, step_s, boot_s, write_s, **facts):
    """Of one worker, unless it is said."""
    return JobPlan(
        name=name, at_s=at_s, steps=steps, step_s=step_s, boot_s=boot_s, write_s=write_s, **({"max_workers": 1} | facts)
    )


def a_paced_job(name, at_s, max_workers, pace, **more):
    """`pace` is its steps, and the seconds of a step, of its boot and of a checkpoint."""
    steps, step_s, boot_s, write_s = pace
    return JobPlan(
        name=name,
        at_s=at_s,
        max_workers=max_workers,
        steps=steps,
        step_s=step_s,
        boot_s=boot_s,
        write_s=write_s,
        **more,
    )


def breaks(story):
    """The law."""
    broken = live(story).broken
    return "" if broken is None else broken.law
