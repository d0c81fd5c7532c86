"""One HTML page about what a controller did: the bill, workers and nodes over time, dollars over time, the events."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet import __version__
from sublet.cli.print.bill import bill_rows, bill_sentence
from sublet.cli.print.figures import labels, loss, percent, span
from sublet.cli.status import ControllerStatus
from sublet.domain.quantity import counted
from sublet.sim.report.folder import write_all
from sublet.sim.report.html import document, figure, table
from sublet.sim.report.plots import GROUP_COLOURS, HELD, IDLE, INK, OTHER_COLOUR, canvas, set_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sublet.api.client import Client

PAGE, PICTURE, FACTS = "report.html", "timeline.png", "history.json"
MOST_EVENTS = 500  # in the page; all of them are in history.json
MOST_CUT, PANEL_IN = 4, 1.8  # jobs whose grids are shown, and the height of each
MARKS = (("NodeNoticed", "#c98a1b", "notice"), ("NodeLost", "#d1495b", "node taken"))

Event = Mapping[str, Any]


def write_live_report(client: Client, status: ControllerStatus, *, folder: Path, command: str) -> Path:
    """The page, its picture and the history that 'sublet replay' reads; the path of the page."""
    from sublet.client import Fleet

    cost, events = client.get("/v1/cost"), Fleet(client).events()
    png = timeline(events, labels(status.jobs))
    facts = {
        "schema_version": 1,
        "command": command,
        "cost": cost,
        "jobs": list(status.jobs),
        "budget": dict(status.budget),
        "events": events,
    }
    page = live_page(status, cost, events, png, command=command)
    text = json.dumps(facts, indent=2, allow_nan=False)
    write_all(folder, {PICTURE: png, FACTS: f"{text}\n".encode(), PAGE: page.encode()})
    return folder / PAGE


def live_page(
    status: ControllerStatus, cost: Mapping[str, Any], events: Sequence[Event], png: bytes, *, command: str
) -> str:
    """The whole page."""
    bill = dict(cost)
    titles, rows = bill_rows(bill)
    shown = events[-MOST_EVENTS:]
    which = (
        f"The last {MOST_EVENTS} of {len(events):,}; all" if len(events) > MOST_EVENTS else f"All {len(events):,}, also"
    )
    body = f"""<p class="lead">{escape(bill_sentence(bill))}.</p>
<h2>The bill</h2>
{table(titles, rows, texts=1)}
{figure("Workers of every job, nodes that were ready, preemptions, grids of cut models, and dollars over time", png)}
<h2>Jobs</h2>
{table(*_job_rows(status.jobs), texts=3)}
<h2>What happened</h2>
<p>{which} in <a href="{FACTS}">{FACTS}</a>.</p>
{table(["at", "who", "what", "USD/h", "USD"], [_event_row(event) for event in shown], texts=3)}
<h2>Do it again</h2>
<pre>{escape(command)}</pre>
<footer>Sublet {escape(__version__)}. Times are of the cloud's clock, {status.health["speedup"]:g} of its seconds to a
second here.</footer>"""
    return document("What the controller did", body)


def _job_rows(jobs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    titles = ["job", "name", "phase", "progress", "steps", "loss", "resizes", "steps lost", "took"]
    rows = [
        [
            job["id"],
            job["name"],
            job["phase"],
            percent(job["progress"]),
            f"{job['step']:,}",
            loss(job["loss"]),
            f"{job['resizes']}",
            f"{job['steps_lost']}",
            span(None if job["ended_s"] is None else job["ended_s"] - job["submitted_s"]),
        ]
        for job in jobs
    ]
    return titles, rows


def _event_row(event: Event) -> list[str]:
    who, text = event["job_id"] or event["node_id"], str(event["text"])
    return [span(event["at_s"]), who, text, f"{event['usd_per_h']:.2f}", f"{event['usd_total']:.4f}"]


# ---------------------------------------------------------------------- the picture


def timeline(events: Sequence[Event], names: Mapping[str, str]) -> bytes:
    """A PNG: workers stacked by job over the nodes that were held, with preemptions marked; dollars below.

    Between them a panel for each job whose model is cut (the first few), with its grids over time.
    """
    from matplotlib import rc_context, rcdefaults
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    buffer = io.BytesIO()
    end_s = max((event["at_s"] for event in events), default=0.0) or 1.0
    unit_s, unit = (3600.0, "hours") if end_s >= 7200.0 else (60.0, "minutes")  # noqa: PLR2004 - two hours
    colours = job_colours(events, names)
    cut = {job_id: stays for job_id in names if (stays := stays_of(events, job_id, end_s))}
    cut = dict(list(cut.items())[:MOST_CUT])
    with rc_context():
        rcdefaults()
        set_style()
        picture, axes = canvas(rows=2 + len(cut), height_in=5.2 + PANEL_IN * len(cut), share_x=True)
        _draw_workers(axes[0], events, colours, unit_s=unit_s)
        for ax, (job_id, stays) in zip(axes[1:], cut.items(), strict=False):
            draw_stays(ax, stays, colours[job_id], unit_s=unit_s, end_s=end_s)
            ax.set_title(f"{names[job_id]}: copies x parts", loc="left", fontsize=10, color=INK)
        times = [event["at_s"] / unit_s for event in events]
        axes[-1].plot(
            times, [event["usd_total"] for event in events], color=INK, linewidth=1.8
        )  # rent is even in between
        axes[-1].set_ylabel("USD spent")
        axes[-1].set_ylim(bottom=0)
        axes[-1].set_xlim(0, end_s / unit_s)
        axes[-1].set_xlabel(f"{unit} since the controller started, on the cloud's clock")
        named = [job_id for job_id in names if colours[job_id] != OTHER_COLOUR]
        patches = [Patch(color=colours[job_id], label=names[job_id]) for job_id in named]
        if len(named) < len(names):
            patches.append(Patch(color=OTHER_COLOUR, label=counted(len(names) - len(named), "smaller job")))
        patches.append(Patch(color=IDLE, label="ready, unused"))
        marks = [Line2D([], [], color=colour, linewidth=1.4, label=text) for _, colour, text in MARKS]
        picture.legend(handles=[*patches, *marks], loc="outside upper center", ncols=6)
        picture.savefig(buffer, format="png", metadata={"Software": None})  # equal histories, equal files
    return buffer.getvalue()


def job_colours(events: Sequence[Event], names: Mapping[str, str]) -> dict[str, str]:
    """A colour of its own for each of the jobs that used most, and grey for the rest: more cannot be told apart."""
    used_s, width, last_s = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), 0.0
    for event in events:
        for job_id, wide in width.items():
            used_s[job_id] += wide * (event["at_s"] - last_s)
        last_s = event["at_s"]
        if event["job_id"] in width and event["workers"] is not None:
            width[event["job_id"]] = event["workers"]
    most = len(GROUP_COLOURS) if len(names) <= len(GROUP_COLOURS) else len(GROUP_COLOURS) - 1
    largest = set(sorted(names, key=lambda job_id: -used_s[job_id])[:most])
    own = iter(GROUP_COLOURS)
    return {job_id: next(own) if job_id in largest else OTHER_COLOUR for job_id in names}


def _draw_workers(ax: Axes, events: Sequence[Event], colours: Mapping[str, str], *, unit_s: float) -> None:
    """Each level holds from its event to the next."""
    from matplotlib.ticker import MaxNLocator

    times = [event["at_s"] / unit_s for event in events]
    held = [event["nodes_held"] for event in events]
    width: dict[str, int] = dict.fromkeys(colours, 0)
    levels: dict[str, list[int]] = {job_id: [] for job_id in colours}
    for event in events:
        if event["job_id"] in width and event["workers"] is not None:
            width[event["job_id"]] = event["workers"]
        for job_id, wide in width.items():
            levels[job_id].append(wide)
    if times:
        ax.fill_between(times, held, step="post", color=IDLE, linewidth=0)
        ax.step(times, held, where="post", color=HELD, linewidth=0.9)
        bottom = [0] * len(times)
        for job_id, workers in levels.items():
            top = [low + each for low, each in zip(bottom, workers, strict=True)]
            ax.fill_between(times, bottom, top, step="post", color=colours[job_id], linewidth=0, alpha=0.85)
            bottom = top
    for kind, colour, _ in MARKS:
        for event in events:
            if event["kind"] == kind:
                ax.axvline(event["at_s"] / unit_s, color=colour, linewidth=1.4)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("workers")
    ax.set_ylim(bottom=0)


LEAST_LABELLED = 0.045  # of the time across: a shorter stay has no room for its grid


@dataclass(frozen=True, slots=True)
class Stay:
    """So many copies of so many parts, and workers in all; those without a place are spare. 0 x 0: no worker sat."""

    since_s: float
    until_s: float
    copies: int
    parts: int
    workers: int

    @property
    def seated(self) -> int:
        """Workers with a place."""
        return self.copies * self.parts


def stays_of(events: Sequence[Mapping[str, Any]], job_id: str, end_s: float) -> list[Stay]:
    """One after the other, from its first grid on; [] for a job whose model is not cut."""
    found: list[Stay] = []
    for event in events:
        if event["job_id"] != job_id or event["workers"] is None:
            continue
        grid = event.get("grid", "") if event["workers"] else ""
        copies, parts = map(int, grid.split(" x ")) if grid else (0, 0)
        if not found and not grid:
            continue
        if found and (found[-1].copies, found[-1].parts, found[-1].workers) == (copies, parts, event["workers"]):
            continue
        if found:
            last = found.pop()
            if event["at_s"] > last.since_s:
                found.append(Stay(last.since_s, event["at_s"], last.copies, last.parts, last.workers))
        found.append(Stay(event["at_s"], end_s, copies, parts, event["workers"]))
    return found


def draw_stays(ax: Axes, stays: Sequence[Stay], colour: str, *, unit_s: float, end_s: float) -> None:
    """Seated workers over all of them, copies set apart by lines, and a mark above each change of the grid."""
    from matplotlib.ticker import MaxNLocator

    top = max(max(stay.workers, stay.seated) for stay in stays)
    before: Stay | None = None
    for stay in stays:
        x = [stay.since_s / unit_s, stay.until_s / unit_s]
        ax.fill_between(x, max(stay.workers, stay.seated), color=IDLE, linewidth=0)
        ax.fill_between(x, stay.seated, color=colour, linewidth=0, alpha=0.85)
        for copy in range(1, stay.copies):
            ax.plot(x, [copy * stay.parts] * 2, color="white", linewidth=0.8)
        if before is not None and (before.copies, before.parts) != (stay.copies, stay.parts):
            ax.plot([x[0]], [1.12 * top], "v", color=INK, markersize=3.5, clip_on=False)
        if stay.seated and stay.until_s - stay.since_s >= LEAST_LABELLED * end_s:
            text = f"{stay.copies} x {stay.parts}"
            ax.text(sum(x) / 2, stay.seated / 2, text, ha="center", va="center", fontsize=8, color="white")
        before = stay
    ax.axhline(0, color=HELD, linewidth=0.9)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("workers")
    ax.set_ylim(0, 1.2 * top)
