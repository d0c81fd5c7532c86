"""Each bug that was mended, put back: its seed, shrunk to the least that shows it, is red then, and green without.

The stories are spelled out, so that other rng of the world leave them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sublet.runtime.controller.host import Paces
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import Fault, JobPlan, Story
from tests.faults.unmended import BUGS, without_mend


@dataclass(frozen=True, slots=True)
class Case:
    """The laws of which a bug breaks one, and the least of a seed that shows it."""

    laws: tuple[str, ...]
    story: Story


def a_job(name="job0", at_s=10.0, **facts):
    return JobPlan(
        name=name, at_s=at_s, **{"max_workers": 1, "step_s": 0.5, "boot_s": 2.0, "write_s": 1.0, "steps": 60, **facts}
    )


CASES = {
    "policy": Case(
        ("I7",),
        Story(
            seed=1,
            jobs=(a_job(at_s=114.097, steps=10, boot_s=0.964, write_s=1.474, hang_s=300.0),),
            faults=(Fault(at_s=90.705, kind="policy", rng=318483916),),
        ),
    ),
    "hole": Case(
        ("L31",),
        Story(
            seed=0,
            jobs=(a_job("job1", at_s=23.966, steps=299, step_s=0.2, boot_s=2.684, write_s=2.98),),
            faults=(Fault(at_s=76.538, kind="hole", rng=195337849),),
        ),
    ),
    "forge": Case(
        ("T", "I4", "I5"),
        Story(
            seed=13,
            jobs=(
                a_job(
                    "job2",
                    at_s=52.913,
                    max_workers=3,
                    steps=61,
                    step_s=1.0,
                    boot_s=2.917,
                    write_s=1.616,
                    hang_s=60.0,
                ),
            ),
            faults=(Fault(at_s=88.212, kind="forge", rng=695770518),),
        ),
    ),
    "clock": Case(
        ("I6", "I1", "K"),
        Story(
            seed=8,
            jobs=(a_job(at_s=93.024, steps=460, step_s=1.0, boot_s=1.276, write_s=0.143),),
            faults=(
                Fault(at_s=360.383, kind="kill_controller", rng=649648717),
                Fault(at_s=361.406, kind="clock", rng=469187243),
            ),
            span_s=400.0,
        ),
    ),
    "flags": Case(
        ("I1",),
        Story(
            seed=21,
            jobs=(
                a_job(at_s=37.679, steps=745, step_s=1.0, boot_s=1.686, write_s=2.348, hang_s=300.0),
                a_job("job2", at_s=112.308, steps=774, boot_s=2.735, write_s=0.514, hang_s=60.0),
            ),
            faults=(Fault(at_s=350.828, kind="flags", rng=934890071),),
            purse_usd=0.1638,
            span_s=400.0,
        ),
    ),
    "N1": Case(
        ("P", "L"),
        Story(
            seed=0,
            jobs=(a_job(at_s=55.649, steps=70, boot_s=2.286, write_s=0.755, hang_s=300.0),),
            faults=(Fault(at_s=96.73, kind="take_untold", rng=195337849),),
        ),
    ),
    "N2": Case(
        ("P", "L"),
        Story(
            seed=7,
            jobs=(a_job("job1", at_s=118.656, max_workers=2, steps=580, step_s=1.0, boot_s=1.829, write_s=1.205),),
            faults=(Fault(at_s=294.947, kind="stop_controller", rng=394411747),),
        ),
    ),
    "N3": Case(
        ("X",),
        Story(
            seed=3,
            jobs=(a_job("job1", at_s=80.939, steps=525, boot_s=2.329, write_s=1.314, hang_s=300.0),),
            faults=(
                Fault(at_s=176.911, kind="list_lie", rng=716221349),
                Fault(at_s=241.259, kind="kill_controller", rng=588472151),
            ),
        ),
    ),
    "N4": Case(
        ("I6", "I8"),
        Story(seed=0, jobs=(a_job(step_s=1.0, boot_s=0.981, write_s=0.746),), faults=(), think_s=10.0, purse_usd=0.3),
    ),
    "N5": Case(
        ("E",),
        Story(
            seed=7,
            jobs=(a_job(),),
            faults=(Fault(at_s=9.0, kind="rent_lie", rng=18), Fault(at_s=9.0, kind="release_lie", rng=4)),
            keeps_records=False,
            paces=Paces(rent_tries=2),
        ),
    ),
    "N6": Case(
        ("C",),
        Story(
            seed=3,
            jobs=(a_job(steps=300),),
            faults=(
                Fault(at_s=60.0, kind="kill_controller", rng=1),
                Fault(at_s=60.1, kind="take_untold", rng=1),
            ),
            cloud="aws",
        ),
    ),
    "N8": Case(
        ("K", "L"),
        Story(
            seed=95,
            jobs=(a_job(at_s=28.661, steps=10, step_s=0.2, boot_s=3.298, write_s=1.356, hang_s=300.0),),
            faults=(Fault(at_s=22.841, kind="kill_controller", rng=150470490),),
            cloud="local",
            policy="max-speedup",
            think_s=5.0,
        ),
    ),
}
WITHOUT_FAULTS = Story(seed=1, jobs=(a_job(),), faults=())


@pytest.mark.parametrize("bug", CASES)
def test_a_bug_that_is_put_back_breaks_its_law_and_mended_breaks_none(bug):
    case = CASES[bug]
    with without_mend(bug):
        broken = live(case.story).broken
    assert broken is not None, "a seed that found it does so no more"
    assert broken.law in case.laws, broken
    assert live(case.story).broken is None


@pytest.mark.parametrize("commits", [4, 5, 6])
def test_a_store_whose_making_is_cut_short_is_made_by_the_next_controller(commits):
    """N7."""

    def live_through():
        return Life(WITHOUT_FAULTS, watch=lambda life: life.stage.disk.crash_in(commits, before=True)).live()

    with without_mend("N7"):
        broken = live_through().broken
    assert broken is not None
    assert broken.law == "X"
    assert live_through().broken is None


def test_every_bug_has_its_seed():
    assert set(CASES) | {"N7"} == set(BUGS)
