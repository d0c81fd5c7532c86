"""The call lists of the architecture are what happens: a notice and a job in a simulated world, an event in `price`.

An indented line is called by the line above it, another one later. No file is passed that the list does not name.
"""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

import sublet
from sublet.policies.price.policy import Price
from sublet.sim.simulator import simulate
from sublet_lab.world.life import live
from sublet_lab.world.story import Fault, JobPlan, Story
from tests.figures import HERE
from tests.journey import a_rented_pool, jobs, short_pools, three_paid_kinds

ROOT = Path(sublet.__file__).parent
PATH = re.compile(r"[a-z_]+/[\w/]+\.py")
LINE = re.compile(r"^ {4}( *)(later: )?([\w/]+\.py) +([A-Za-z_][\w.]*)", re.MULTILINE)
TITLES = {
    "A notice, from the cloud to the trainer": "controller",
    "A job file, from submit to the worker": "controller",
    "An event in `price`, as calls": "plans",
}


class Line(NamedTuple):
    """One of a list."""

    depth: int
    file: str
    call: str

    def code(self):
        module = importlib.import_module("sublet." + self.file.removesuffix(".py").replace("/", "."))
        found = module
        for name in self.call.split("."):
            found = getattr(found, name)
        return getattr(found, "__wrapped__", found).__code__


def section_of(title):
    text = (HERE / "docs" / "architecture" / f"{TITLES[title]}.md").read_text(encoding="utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def lines_of(title):
    """Those of the command line, which is a process of its own, are apart."""
    found = [Line(len(pad) // 2, file, call.rstrip(".")) for pad, _, file, call in LINE.findall(section_of(title))]
    return [line for line in found if not line.file.startswith("cli/")]


@dataclass
class Followed:
    """Calls of some functions, in order, each with the code of ours around it, the nearest first."""

    wanted: set
    calls: list = field(default_factory=list)

    @contextmanager
    def following(self):
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame, event, _):
        if event == "call" and frame.f_code in self.wanted:
            around = []
            while frame is not None:
                if frame.f_code.co_filename.startswith(f"{ROOT}/"):
                    around.append(frame.f_code)
                frame = frame.f_back
            self.calls.append(around)


def file_of(code):
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def untrue(title, calls):
    """The first line that did not happen as it is drawn, and why; None = the list is true."""
    named, at, above = set(PATH.findall(section_of(title))), 0, []
    for line in lines_of(title):
        above = above[: line.depth]
        for number in range(at, len(calls)):
            own, *around = calls[number]
            if own is line.code() and (not above or above[-1] in around):
                break
        else:
            return line, "is not called there"
        between = around[: around.index(above[-1])] if above else around
        if passed := {file_of(code) for code in between} - named:
            return line, passed
        at, above = number, [*above, line.code()]
    return None


def followed(title, does):
    found = Followed({line.code() for line in lines_of(title)})
    with found.following():
        does()
    return found.calls


A_JOB = JobPlan(name="job0", at_s=1.0, max_workers=2, steps=400, step_s=0.5, boot_s=1.0, write_s=1.0)
NOTICE = Fault(at_s=100.0, kind="notice", rng=1)
A_LIFE = Story(seed=1, jobs=(A_JOB,), faults=(NOTICE,), policy="price")


@pytest.mark.parametrize("title", [title for title, page in TITLES.items() if page == "controller"])
def test_what_is_drawn_of_the_controller_happens(title):
    calls = followed(title, lambda: live(A_LIFE))
    assert untrue(title, calls) is None
    assert untrue(title, calls[::-1])  # another order is seen


def decide():
    """On rented nodes, on nodes that are paid for, and where pools are short: a job after the other."""
    for cloud in (a_rented_pool(), three_paid_kinds(), short_pools()):
        simulate(jobs(), Price(), cloud, keep_segments=False)


def test_what_is_drawn_of_price_happens():
    title = "An event in `price`, as calls"
    calls = [[code for code in call if file_of(code) != "sim/simulator.py"] for call in followed(title, decide)]
    assert untrue(title, calls) is None


def test_the_verb_submit_does_what_is_drawn():
    drawn = re.findall(r"^ {4} *(cli/\S+) +(\w+)", section_of("A job file, from submit to the worker"), re.MULTILINE)
    (first, verb), (second, sends) = drawn
    assert f"def {verb}(" in (ROOT / first).read_text(encoding="utf-8")
    assert f"    {sends}(spec" in (ROOT / first).read_text(encoding="utf-8")
    text = (ROOT / second).read_text(encoding="utf-8")
    assert "fleet.submit(spec)" in text.partition(f"def {sends}(")[2]
