"""The least of a story that still breaks the same law: fewer faults, then fewer and smaller jobs, then plain knobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from sublet.runtime.controller.host import PACES
from sublet_lab.world.life import Outcome, live
from sublet_lab.world.story import Story

PLAIN_KNOBS: dict[str, Any] = {
    "http": False,
    "paces": PACES,
    "think_s": 0.02,
    "policy": "max-speedup",
    "purse_usd": None,
    "average_usd_per_h": None,
    "mixed": False,
    "keeps_records": True,
    "gpus_per_node": 1,
    "most_nodes": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The rest of a story, its effect, and the number of lives that it took."""

    story: Story
    outcome: Outcome
    lives: int


def shrink(story: Story, law: str, *, most_lives: int = 200, run: Callable[[Story], Outcome] = live) -> Shrunk:
    """The shrunk form of a story that breaks this law."""
    outcome, lives = run(story), 1
    while True:
        for less in _smaller(story):
            if lives >= most_lives:
                return Shrunk(story=story, outcome=outcome, lives=lives)
            lives += 1
            found = run(less)
            if found.broken is not None and found.broken.law == law:
                story, outcome = less, found
                break
        else:
            return Shrunk(story=story, outcome=outcome, lives=lives)


def _smaller(story: Story) -> Iterator[Story]:
    """The boldest first; each is tried before the next is thought of."""
    size = len(story.faults) // 2
    while size:
        for at in range(0, len(story.faults), size):
            yield replace(story, faults=story.faults[:at] + story.faults[at + size :])
        size //= 2
    if len(story.jobs) > 1:
        for at in range(len(story.jobs)):
            yield replace(story, jobs=story.jobs[:at] + story.jobs[at + 1 :])
    for name, value in PLAIN_KNOBS.items():
        if getattr(story, name) != value:
            yield replace(story, **{name: value})
    for at, job in enumerate(story.jobs):
        simpler = [replace(job, max_workers=1), replace(job, fails=0), replace(job, purse_usd=None)]
        simpler += [replace(job, sdk=True), replace(job, steps=max(10, job.steps // 2))]
        for less in simpler:
            if less != job:
                yield replace(story, jobs=(*story.jobs[:at], less, *story.jobs[at + 1 :]))


def as_code(story: Story, law: str) -> str:
    """A test, ready to be copied.

    All of the story is spelt out: other random numbers for some knob must not change it.
    """
    given = []
    for field in fields(Story):
        value = getattr(story, field.name)
        rows = "".join(f"\n        {_brief(each)}," for each in value) + "\n    " if isinstance(value, tuple) else ""
        given.append(f"    {field.name}=({rows})," if rows else f"    {field.name}={_brief(value)},")
    return "\n".join(["story = Story(", *given, ")", f"live(story)  # broke {law}"])


def _brief(value: Any) -> str:
    """As code, without what is as always."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    told = [(f.name, getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != f.default]
    return f"{type(value).__name__}({', '.join(f'{name}={given!r}' for name, given in told)})"
