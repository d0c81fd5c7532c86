"""One job on a spot market, on paper: instances and grids over time for every policy, with its changes marked."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet import __version__
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.sim.report.figures import duration
from sublet.sim.report.folder import write_all
from sublet.sim.report.html import document, figure, listing, table
from sublet.sim.report.plots import GROUP_COLOURS, HELD, IDLE, INK, POLICY_COLOURS, canvas, set_style
from sublet.solve.arrays import Floats, Ints
from sublet_lab.rides.ride import RideResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE, PICTURE, FRONTIER, FACTS = "report.html", "timeline.png", "frontier.png", "spot.json"
LEAST_LABELLED = 0.045  # of the time across: a shorter stay has no room for its grid
PANEL_IN = 1.9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpotRuns:
    """A job, the instances of every tick, and what each policy made of them."""

    job: SpotJob
    trace: str
    capacity: Sequence[int]
    runs: Mapping[str, RideResult]
    usd_per_sample: float | None  # what a sample is worth; None = it was not said
    frontier: Mapping[str, RideResult] = field(default_factory=dict)  # liveput from the cheapest to the fastest

    @property
    def span_s(self) -> float:
        """How long the run was."""
        return len(self.capacity) * self.job.step_s

    def configs(self, run: RideResult) -> tuple[int, ...]:
        """Its configuration at every tick."""
        return run.config_T(len(self.capacity), self.job.step_s)

    def net_usd(self, run: RideResult) -> float | None:
        """The rest of the worth of the samples after rent."""
        return None if self.usd_per_sample is None else self.usd_per_sample * run.samples - run.usd


def rows_from_runs(found: SpotRuns) -> tuple[list[str], list[list[str]]]:
    """Titles and one row per policy."""
    titles = ["policy", "samples", "samples/s", "USD", "samples/USD", "migrations", "suspended"]
    rows = [
        [
            name,
            f"{run.samples:,.0f}",
            f"{run.samples / found.span_s:,.1f}",
            f"{run.usd:,.2f}",
            f"{run.samples_per_usd:,.0f}",
            f"{run.changes:,}",
            duration(run.suspended_s) if run.suspended_s else "0",
        ]
        for name, run in {**found.runs, **found.frontier}.items()
    ]
    if found.usd_per_sample is not None:
        titles.append("net USD")
        for row, run in zip(rows, [*found.runs.values(), *found.frontier.values()], strict=True):
            row.append(f"{found.net_usd(run):,.2f}")
    return titles, rows


def write_spot_report(
    found: SpotRuns, folder: Path, *, facts: Mapping[str, Any], notes: Sequence[str], command: str
) -> Path:
    """The page, the picture and the numbers; the path of the page."""
    png = timeline(found)
    titles, rows = rows_from_runs(found)
    title = f"{found.job.name} on {found.trace}"
    lead = (
        f"{duration(found.span_s)} of a spot market, {np.mean(found.capacity):,.1f} instances on average, "
        f"between {min(found.capacity)} and {max(found.capacity)}."
    )
    body = f"""<p class="lead">{escape(lead)}</p>
{table(titles, rows, texts=1)}
{figure("Instances, grids (pipelines x stages) and changes of grid", png)}
<h2>What was assumed</h2>
{listing(notes)}
<h2>Do it again</h2>
<pre>{escape(command)}</pre>
<footer>Sublet {escape(__version__)}.</footer>"""
    pictures = {PICTURE: png}
    if found.frontier:
        pictures[FRONTIER] = frontier_plot({found.job.name: _frontier_lines(found)})
        body = body.replace("<h2>What was", figure("Between cheapest and fastest", pictures[FRONTIER]) + "<h2>What was")
    text = json.dumps(facts, indent=2, allow_nan=False)
    write_all(folder, {**pictures, FACTS: f"{text}\n".encode(), PAGE: document(title, body).encode()})
    return folder / PAGE


# ---------------------------------------------------------------------- the picture


def timeline(found: SpotRuns) -> bytes:
    """A PNG: one panel per policy, all over the same instances; colours are the depth of the pipelines."""
    from matplotlib import rc_context, rcdefaults
    from matplotlib.patches import Patch

    buffer = io.BytesIO()
    used = {found.job.grids[config][1] for run in found.runs.values() for config in found.configs(run)} - {0}
    colours = {deep: GROUP_COLOURS[place % len(GROUP_COLOURS)] for place, deep in enumerate(sorted(used))}
    unit_s, unit = (3600.0, "hours") if found.span_s >= 7200.0 else (60.0, "minutes")
    edges = np.arange(len(found.capacity) + 1, dtype=np.float64) * (found.job.step_s / unit_s)
    with rc_context():
        rcdefaults()
        set_style()
        picture, axes = canvas(rows=len(found.runs), height_in=1.1 + PANEL_IN * len(found.runs), share_x=True)
        for ax, (name, run) in zip(axes, found.runs.items(), strict=True):
            ax.stairs(*_merge_level_steps(found.capacity, edges), fill=True, color=IDLE)
            ax.stairs(*_merge_level_steps(found.capacity, edges), color=HELD, linewidth=0.8, baseline=None)
            _draw_grids(ax, found, run, edges, colours)
            ax.set_title(f"{name}   {run.samples:,.0f} samples", loc="left", fontsize=11, fontweight="bold", color=INK)
            ax.set_ylabel("instances")
            ax.set_ylim(0, 1.16 * max(1, *found.capacity))
        axes[-1].set_xlim(0, edges[-1])
        axes[-1].set_xlabel(f"{unit} since the start")
        patches = [Patch(color=colour, label=f"{deep} stages") for deep, colour in colours.items()]
        patches.append(Patch(color=IDLE, label="unused"))
        picture.legend(handles=patches, loc="outside lower center", ncols=min(6, len(patches)))
        picture.savefig(buffer, format="png", metadata={"Software": None})  # equal runs, equal files
    return buffer.getvalue()


def _frontier_lines(found: SpotRuns) -> dict[str, list[tuple[float, float]]]:
    def points(runs: Mapping[str, RideResult]) -> list[tuple[float, float]]:
        return sorted((run.samples, 1e6 * run.usd / run.samples) for run in runs.values() if run.samples)

    ours = {name: run for name, run in found.runs.items() if name == "liveput"}
    others = {name: points({name: run}) for name, run in found.runs.items() if name != "liveput"}
    return {"liveput": points({**found.frontier, **ours}), **{name: line for name, line in others.items() if line}}


def frontier_plot(lines: Mapping[str, Mapping[str, list[tuple[float, float]]]]) -> bytes:
    """Samples across, dollars per million of them upwards; one panel per model."""
    from matplotlib import rc_context, rcdefaults

    buffer = io.BytesIO()
    with rc_context():
        rcdefaults()
        set_style()
        picture, axes = canvas(rows=len(lines), height_in=3.2 * len(lines))
        for ax, (model, by_name) in zip(axes, lines.items(), strict=True):
            for (name, points), colour in zip(by_name.items(), POLICY_COLOURS, strict=False):
                samples, usd = zip(*points, strict=True)
                style = "-o" if name == "liveput" else "o"
                ax.plot([each / 1e6 for each in samples], usd, style, color=colour, label=name, markersize=5)
            ax.set_title(model, loc="left", fontsize=11, fontweight="bold", color=INK)
            ax.set_xlabel("million samples")
            ax.set_ylabel("USD per million")
            ax.legend(loc="upper left")
        picture.savefig(buffer, format="png", metadata={"Software": None})  # equal runs, equal files
    return buffer.getvalue()


def _draw_grids(ax: Axes, found: SpotRuns, run: RideResult, edges: Floats, colours: Mapping[int, str]) -> None:
    """Instances in the grid, the grid itself where there is room, and a mark above every change of it."""
    config_T = np.array(found.configs(run))
    use_T, deep_T = found.job.use_C[config_T], np.array([grid[1] for grid in found.job.grids])[config_T]
    for deep, colour in colours.items():
        ax.stairs(*_merge_level_steps(np.where(deep_T == deep, use_T, 0), edges), fill=True, color=colour, alpha=0.8)
    starts = np.flatnonzero(np.diff(config_T, prepend=SUSPENDED))
    top = 1.1 * max(1, *found.capacity)
    ax.plot(edges[starts], np.full(len(starts), top), "v", color=INK, markersize=3.5, clip_on=False)
    stays = np.union1d([0], starts)
    for start, end in zip(stays, [*stays[1:], len(config_T)], strict=True):
        if config_T[start] != SUSPENDED and edges[end] - edges[start] >= LEAST_LABELLED * edges[-1]:
            wide, deep = found.job.grids[config_T[start]]
            middle = (edges[start] + edges[end]) / 2
            ax.text(middle, use_T[start] / 2, f"{wide}x{deep}", ha="center", va="center", fontsize=8, color="white")


def _merge_level_steps(values: Sequence[int] | Ints, edges: Floats) -> tuple[Ints, Floats]:
    """The same stairs with one step where several are level: a record of weeks has thousands."""
    level_T = np.asarray(values)
    starts = np.flatnonzero(np.diff(level_T, prepend=level_T[0] - 1))
    return level_T[starts], np.append(edges[starts], edges[-1])
