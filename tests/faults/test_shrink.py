"""A failing story becomes small, is printed as code that is the same story, and can be read line by line."""

from __future__ import annotations

from dataclasses import replace

from sublet.runtime.controller.host import Paces
from sublet_lab.world.laws import Broken
from sublet_lab.world.life import Outcome
from sublet_lab.world.look import look
from sublet_lab.world.shrink import as_code, shrink
from sublet_lab.world.story import Fault, JobPlan, Story, draw_story

JOB = JobPlan(name="job0", at_s=2.0, max_workers=1, steps=20, step_s=0.5, boot_s=1.0, write_s=0.2)


def _outcome(story: Story, law: str) -> Outcome:
    broken = Broken(law, "as the test has it") if law else None
    return Outcome(
        story=story, broken=broken, seconds=0.0, events=0, commits=0, lives=1, hits={}, effects={}, ends={}, digest=""
    )


def _breaks_with_two(story: Story) -> Outcome:
    """A law that breaks where two kinds come together; another one where one of them is alone."""
    kinds = {fault.kind for fault in story.faults}
    return _outcome(story, "P" if {"hole", "clock"} <= kinds else "L" if kinds == {"hole"} else "")


def test_what_does_not_matter_is_taken_out_and_what_does_stays() -> None:
    kinds = ["notice", "hole", "policy", "take_told", "clock", "reprice", "flags", "kill_worker"]
    faults = tuple(Fault(at_s=20.0 + at, kind=kind, rng=at) for at, kind in enumerate(kinds))
    found = shrink(replace(draw_story(3), faults=faults), "P", run=_breaks_with_two)
    assert [fault.kind for fault in found.story.faults] == ["hole", "clock"]
    assert len(found.story.jobs) == 1
    assert found.story.paces == Paces()
    assert found.outcome.broken is not None
    assert found.outcome.broken.law == "P"


def test_a_story_is_printed_as_code_that_is_the_same_story() -> None:
    for seed in range(8):
        story, lived = draw_story(seed), []
        names = {"Story": Story, "JobPlan": JobPlan, "Fault": Fault, "Paces": Paces, "live": lived.append}
        exec(as_code(story, "P"), names)  # noqa: S102 - our own code
        assert lived == [story]


def test_a_life_can_be_read_line_by_line() -> None:
    fault = Fault(at_s=30.0, kind="kill_controller", rng=1)
    outcome, rows = look(Story(seed=1, jobs=(replace(JOB, steps=120),), faults=(fault,)))
    text = "\n".join(map(str, rows))
    assert outcome.broken is None
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    for piece in (
        "FAULT          kill_controller",
        "c1 -> n1",
        "StartWorker job0-1.",
        "[JobFinished job0-1]",
        "starts",
    ):
        assert piece in text
