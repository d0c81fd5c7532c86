"""`sublet demo --grid`: a small GPT in copies of 3 parts, on a market that takes its nodes away.

In fewer than 3 parts it does not fit, and how many it has is the plan's to choose (`stages: auto`). With 9 nodes 3 x 3
is the fastest grid, with 6 to 8 it is 2 x 3, with 5 it is 1 x 5, and with 4 or 3 it is 1 x 3. So a day on which nodes
come and go has changes of each kind.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from string import ascii_uppercase

from sublet.demo.grid.day import at_rates, restarting, same_day, starting
from sublet.demo.grid.diaries import Accounts, Span, accounts, spans, steps_per_s
from sublet.demo.grid.moves import KINDS, Move
from sublet.demo.grid.run import GridJob, Lived, Tell, live, marks
from sublet.domain.job import Job
from sublet.domain.units import SECONDS_PER_H
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet.runtime.settings import Settings
from sublet.sim.report.html import document, listing, table
from sublet.sim.simulator import Run

SPEEDUP = 36.0
MARKET, START_S, SHARE = "bamboo-p3", 1_800.0, 0.30  # our share goes 9, 8, 9, 7, 6, 5, 4, and up to 9 again
STRIKES = ("620:kill:1", "700:restore:1", "1110:kill:1", "1250:restore:1", "2700:kill:1", "2900:restore:1")
JOB = GridJob(samples=2_400, stages=0, fits_in=3, blocks=9, unit_ms=15.0, most=9)
PICTURE, PAGE = "places.svg", "report.html"


def demo_settings(state_dir: Path) -> Settings:
    """Nine nodes at most: a grid of 3 x 3, or of 2 x 3 and spares."""
    return Settings(
        state_dir=str(state_dir),
        policy="liveput",
        speedup=SPEEDUP,
        market=(MARKET,),
        market_start_s=START_S,
        market_share=SHARE,
        notice_s=120.0,
        strikes=STRIKES,
        most_nodes=9,
        lease_s=15.0,
    )


@dataclass(frozen=True, slots=True)
class GridDemo:
    """Results, in figures and for people."""

    ok: bool
    facts: dict[str, object]
    lines: Sequence[str] = ()  # the picture, for a terminal
    notes: Sequence[str] = ()  # what the figures are of
    files: Mapping[str, bytes] = field(default_factory=dict)  # a page, and the picture

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """Name and figure."""
        return [[name.replace("_", " "), str(value)] for name, value in self.facts.items()]


def run(tell: Tell) -> GridDemo:
    """About two minutes. Nothing is left of it, however it ends."""
    tell(f"a GPT in {JOB.fits_in} parts or more, as the plan finds best; an hour takes {SECONDS_PER_H / SPEEDUP:.0f} s")
    folder = Path(tempfile.mkdtemp(prefix="sublet-demo-"))
    try:
        settings = demo_settings(folder)
        lived = live(settings, JOB, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell("the same day in the simulator: live changes, and a restart at each")
    job = as_it_was(lived)
    alike = same_day(settings, starting(job, lived.start_s), Liveput(), boot_s=lived.boot_s)
    again = same_day(settings, restarting(job, lived.start_s), Fastest(), boot_s=lived.boot_s)
    return told(lived, alike, again)


def as_it_was(lived: Lived) -> Job:
    """The job of a run, as fast in each grid as it was over all of it; its unit of work is the whole job."""
    shares = {grid: each / JOB.steps / lived.speedup for grid, each in steps_per_s(lived.rows).items()}
    return at_rates(lived.job, shares)


def told(lived: Lived, alike: Run, again: Run) -> GridDemo:
    """All that is printed was measured in this run, or simulated from what was measured in it."""
    view = lived.view
    found = accounts(lived.rows, steps=view["step"], batch=JOB.batch, samples=JOB.samples)
    undone = view["steps_lost"] or found.again
    ok = view["phase"] == "finished" and view["step"] == JOB.steps and found.clean and not undone
    facts: dict[str, object] = {
        "job": view["phase"].value,
        "steps": view["step"],
        "samples_lost": found.missing,
        "samples_taken_twice": found.twice,
        "steps_of_which_workers_disagree": found.disputed,
        "steps_lost": view["steps_lost"],
        "steps_made_again": found.again,
        "nodes_taken_with_notice": view["preemptions_noticed"],
        "nodes_killed_without_notice": view["preemptions_unnoticed"],
        **_changes(lived.moves),
        "hours": _hours((view["ended_s"] or 0.0) - view["submitted_s"]),
        "hours_in_the_simulator": _hours(alike.metrics.makespan_s),
        "hours_with_checkpoint_and_restart_in_the_simulator": _hours(again.metrics.makespan_s),
        "usd": round(lived.cost["usd_total"], 3),
        "usd_in_the_simulator": round(alike.metrics.usd, 3),
        "usd_with_checkpoint_and_restart_in_the_simulator": round(again.metrics.usd, 3),
    }
    seen, ends_s = _since_zero(lived), (view["ended_s"] or 0.0) / lived.speedup
    signs = marks(lived.events, lived.speedup)
    lines = places_text(seen, signs, ends_s=ends_s)
    svg = places_svg(seen, signs, ends_s=ends_s, title="Parts and copies by worker")
    made = GridDemo(ok, facts, lines, _notes(lived))
    page = document("sublet demo --grid", _body(made, svg, lived, found))
    return replace(made, files={PICTURE: svg.encode(), PAGE: page.encode()})


def _changes(moves: Sequence[Move]) -> dict[str, object]:
    """How many of each kind, and the middle and most of what they took."""
    found: dict[str, object] = {}
    for kind in KINDS:
        of_kind = [move for move in moves if move.kind == kind]
        took = sorted(move.paused_s for move in of_kind)
        text = (
            f"{len(took)}; without a step for {took[len(took) // 2]:.2f} s, at most {took[-1]:.2f} s" if took else "0"
        )
        found[f"changes_{kind}_parts" if kind != "depth" else "changes_of_depth"] = text
    return found


def _since_zero(lived: Lived) -> list[Span]:
    return [
        Span(each.place, each.worker, each.since_s - lived.zero_s, each.until_s - lived.zero_s)
        for each in spans(lived.rows)
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / SECONDS_PER_H:.2f}"


def _notes(lived: Lived) -> list[str]:
    """Basis of the figures."""
    return [
        "samples are counted by what each worker wrote down of each step; hours and USD are cloud time and its prices",
        "the simulator has the same kernel, market and losses, and the speeds and pauses measured in this run",
        f"the start there takes {lived.start_s:.0f} s, and so does each restart, as the start of this job took",
        "saving takes no time there, and killed nodes give notice: both are to the good of checkpoint and restart",
        f"the job file says `stages: auto`; in fewer parts than {JOB.fits_in} it runs out of memory, and learns it",
    ]


def _body(made: GridDemo, svg: str, lived: Lived, found: Accounts) -> str:
    rows = [
        [
            f"{move.at_s:.1f}",
            move.kind,
            "{} x {}".format(*move.was),
            "{} x {}".format(*move.now),
            f"{move.decided_s:.2f}",
            f"{move.paused_s:.2f}",
        ]
        for move in lived.moves
    ]
    titles = ["at, s", "kind", "was", "is", "decision to step, s", "without a step, s"]
    lead = f"{found.steps} steps on nodes that were taken away; {found.missing} samples lost."
    return (
        f'<p class="lead">{lead}</p>\n{svg}\n{table(["what", "figure"], made.rows, texts=2)}\n'
        f"<h2>Changes</h2>\n{table(titles, rows, texts=0)}\n{listing(made.notes)}\n"
    )


Mark = tuple[float, str]  # seconds, and `notice` or `kill`
COLOURS = ("#2f6f9f", "#d1495b", "#5b8c5a", "#c98a1b", "#7a5195", "#3b9c9c", "#8c564b", "#5c6b73", "#b0578d", "#6a8f1d")
MARK_COLOURS = {"notice": "#c98a1b", "kill": "#d1495b"}
WIDE, HIGH, LEFT, TOP, FOOT = 900, 26, 110, 34, 30


def places_svg(spans: Sequence[Span], marks: Sequence[Mark], *, ends_s: float, title: str) -> str:
    """Rows are places, colours are workers; times begin at 0."""
    places, names = _places(spans), _names(spans)

    def x(at_s: float) -> float:
        return LEFT + (WIDE - LEFT - 10) * min(max(at_s / ends_s, 0.0), 1.0)

    high = TOP + HIGH * len(places) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{high}"',
        ' font-family="sans-serif" font-size="12">',
        f'<title>{escape(title)}</title><text x="4" y="16">{escape(title)}</text>',
    ]
    for at, (copy, part) in enumerate(places):
        y = TOP + HIGH * at
        parts.append(f'<text x="4" y="{y + 16}">copy {copy + 1}, part {part + 1}</text>')
        for span in (span for span in spans if span.place == (copy, part)):
            left, wide = x(span.since_s), max(1.0, x(span.until_s) - x(span.since_s))
            name = names[span.worker]
            colour = COLOURS[list(names).index(span.worker) % len(COLOURS)]
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{HIGH - 4}" fill="{colour}">'
                f"<title>{name} ({escape(span.worker)}), {span.since_s:.1f} to {span.until_s:.1f} s</title></rect>"
                f'<text x="{left + 3:.1f}" y="{y + 15}" fill="white">{name if wide > HIGH / 2 else ""}</text>'
            )
    foot = TOP + HIGH * len(places)
    for at_s, kind in marks:
        place = f'x1="{x(at_s):.1f}" x2="{x(at_s):.1f}" y1="{TOP - 6}" y2="{foot}"'
        dashes = ' stroke-dasharray="4 3"' if kind == "notice" else ""
        parts.append(f'<line {place} stroke="{MARK_COLOURS[kind]}" stroke-width="1.5"{dashes}/>')
    said = f"0 to {ends_s:.0f} s; dashed: notice to a node; red: a node killed without; white: no worker trained"
    return "".join([*parts, f'<text x="{LEFT}" y="{foot + 18}">{said}</text></svg>\n'])


def places_text(spans: Sequence[Span], marks: Sequence[Mark], *, ends_s: float, columns: int = 60) -> list[str]:
    """The same for a terminal: a letter is a worker, a dot an empty place; below, `n` for notices, `k` for kills."""
    places, names = _places(spans), _names(spans)
    lines = []
    for copy, part in places:
        cells = []
        for column in range(columns):
            mid_s = (column + 0.5) * ends_s / columns
            here = [s for s in spans if s.place == (copy, part) and s.since_s <= mid_s < s.until_s]
            cells.append(names[here[-1].worker] if here else ".")
        lines.append(f"copy {copy + 1} part {part + 1}  {''.join(cells)}")
    under = ["."] * columns
    for at_s, kind in sorted(marks, key=lambda mark: mark[1], reverse=True):  # a kill over a notice
        under[min(columns - 1, int(at_s / ends_s * columns))] = kind[0]
    return [*lines, f"{'':15}{''.join(under).replace('.', ' ')}".rstrip()]


def _places(spans: Sequence[Span]) -> list[tuple[int, int]]:
    return sorted({span.place for span in spans})


def _names(spans: Sequence[Span]) -> dict[str, str]:
    """A letter for each worker, in the order in which they first sat down; the same again after the last."""
    order = dict.fromkeys(span.worker for span in sorted(spans, key=lambda span: (span.since_s, span.place)))
    return {worker: ascii_uppercase[at % len(ascii_uppercase)] for at, worker in enumerate(order)}
