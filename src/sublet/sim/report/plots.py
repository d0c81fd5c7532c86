"""Three pictures of a comparison: the ends of jobs, the use of GPUs, and the cost over time. All are PNG."""

from __future__ import annotations

import functools
import io
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.sim.record import JobRow, Recorder, Segment
from sublet.sim.report.comparison import Comparison
from sublet.sim.report.figures import duration
from sublet.solve.arrays import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SEGMENTS = 2_000  # above this, jobs of one model are drawn as one area: single ones would be thinner than a line
MOST_POINTS = 2_000  # of a curve: about one for every pixel across
LEAST_LABELLED = 0.045  # of the time across: a shorter stay has no room for its grid
MOST_GROUPS = 10  # colours that can be told apart; the rest is "other"
DPI = 140
WIDTH_IN = 10.0
PANEL_IN = (3.6, 2.3)  # height of an only panel, and of one of several
INK, GRID, IDLE, HELD = "#30343b", "#e3e6ea", "#e4e7eb", "#8b929c"
POLICY_COLOURS = ("#d1495b", "#2e6fbb", "#3a9d6e", "#8457a8", "#c98a1b", "#30343b", "#3fa7a3", "#a05a2c")
LINE_STYLES = ("-", "--", ":", "-.")
GROUP_COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1"),
    *("#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#5c4b8a"),
)
OTHER_COLOUR = "#a9b0ba"


def _drawing(draw: Callable[[Comparison], Figure]) -> Callable[[Comparison], bytes]:
    """Draw in our own style, whatever the user's matplotlibrc says, and give the file's content."""

    @functools.wraps(draw)
    def drawn(comparison: Comparison) -> bytes:
        from matplotlib import rc_context, rcdefaults

        buffer = io.BytesIO()
        with rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's name may have letters that the font has not
            rcdefaults()
            set_style()
            figure = draw(comparison)
            figure.savefig(buffer, format="png", metadata={"Software": None})  # equal runs, equal files
        return buffer.getvalue()

    return drawn


@_drawing
def completion_times(comparison: Comparison) -> Figure:
    """The share of all jobs that were done within a given time, one curve per policy."""
    figure, axes = canvas(rows=1, height_in=4.2)
    ax = axes[0]
    for (policy, run), (colour, dashes) in zip(comparison.runs.items(), _line_looks(), strict=False):
        rows = run.record.jobs.values()
        times_s = np.sort([row.completion_s for row in rows if row.finish_s is not None])
        if not len(times_s):
            continue
        share = np.arange(1, len(times_s) + 1) / len(rows)
        kept = _points_to_draw(len(times_s))
        label = f"{policy}   (mean {duration(float(times_s.mean()))})"
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 2.0, "label": label}
        ax.step(np.maximum(times_s[kept], 1e-3), share[kept], where="post", **look)
    ax.set_xscale("log")
    _label_times(ax)
    ax.set_ylim(0.0, 1.02)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel("completion time, from submission to end")
    ax.set_ylabel("jobs done")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left")
    return figure


@_drawing
def gpus_held(comparison: Comparison) -> Figure:
    """GPUs over time, one panel per policy: jobs in the colour of their model, paid but unused ones in grey.

    If a job trains in a grid and there is room, its copies x parts stand on it.
    """
    records = {policy: run.record for policy, run in comparison.runs.items()}
    figure, axes = canvas(rows=len(records), height_in=0.8 + PANEL_IN[len(records) > 1] * len(records), share_x=True)
    zero_s = comparison.workload.jobs[0].submit_s
    unit_s, unit = _time_unit(max(record.held[-1][0] for record in records.values()) - zero_s)
    colours = _group_colours([row for record in records.values() for row in record.jobs.values()])
    for ax, (policy, record) in zip(axes, records.items(), strict=True):
        _draw_held(ax, record, zero_s, unit_s)
        if len(record.segments) <= MOST_SEGMENTS:
            _draw_jobs(ax, record, colours, zero_s, unit_s)
        else:
            _draw_groups(ax, record, colours, zero_s, unit_s)
        ax.set_title(policy, loc="left", fontsize=11, fontweight="bold", color=INK)
        ax.set_ylabel("GPUs")
        ax.set_ylim(bottom=0)
    axes[-1].margins(x=0.01)
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel(f"{unit} since the first submission")
    _legend_of_groups(figure, colours)
    return figure


@_drawing
def dollars(comparison: Comparison) -> Figure:
    """Dollars spent by each moment, one curve per policy."""
    figure, axes = canvas(rows=1, height_in=3.6)
    ax = axes[0]
    zero_s = comparison.workload.jobs[0].submit_s
    unit_s, unit = _time_unit(max(run.record.spend[-1][0] for run in comparison.runs.values()) - zero_s)
    for (policy, run), (colour, dashes) in zip(comparison.runs.items(), _line_looks(), strict=False):
        points = [(0.0, 0.0), *(((at_s - zero_s) / unit_s, spent.usd) for at_s, spent in run.record.spend)]
        time, usd = np.array(points)[_points_to_draw(len(points))].T
        label = f"{policy}   (USD {run.metrics.usd:,.0f})"
        ax.plot(time, usd, color=colour, linestyle=dashes, linewidth=2.0, label=label)
        ax.plot(time[-1], usd[-1], marker="o", markersize=5, color=colour)
    ax.margins(x=0.01)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set_xlabel(f"{unit} since the first submission")
    ax.set_ylabel("USD spent")
    ax.legend(loc="lower right")
    return figure


def _line_looks() -> Iterator[tuple[str, str]]:
    """(colour, line style) of one curve after the other: where colours begin anew, lines are drawn differently."""
    for style in cycle(LINE_STYLES):
        for colour in POLICY_COLOURS:
            yield colour, style


# ---------------------------------------------------------------------- GPUs over time


def _group(row: JobRow) -> str:
    """The key of a job's colour: its model, or its size where the trace names no model."""
    return row.model or ("1 GPU" if row.gpus_asked == 1 else f"{row.gpus_asked} GPUs")


def _group_colours(rows: Iterable[JobRow]) -> dict[str, str]:
    """The groups with most GPU time get a colour each; insertion order is drawing order, the largest at the bottom."""
    gpu_s: dict[str, float] = defaultdict(float)
    for row in rows:
        gpu_s[_group(row)] += row.gpu_s
    ranked = sorted(gpu_s, key=lambda group: (-gpu_s[group], group))
    named = dict(zip(ranked, GROUP_COLOURS if len(ranked) <= MOST_GROUPS else GROUP_COLOURS[:-1], strict=False))
    return named | dict.fromkeys(ranked[len(named) :], OTHER_COLOUR)


def _draw_held(ax: Axes, record: Recorder, zero_s: float, unit_s: float) -> None:
    time, gpus = np.array([(at_s, held) for at_s, held in record.held], dtype=np.float64).T
    if len(time) > MOST_POINTS:
        time, gpus = _bin_means(time, np.append(np.diff(gpus, prepend=0.0), 0.0)[: len(time)])
    x = (time - zero_s) / unit_s
    ax.fill_between(x, gpus, step="post", color=IDLE, linewidth=0)
    ax.step(x, gpus, where="post", color=HELD, linewidth=0.9)


def _draw_jobs(ax: Axes, record: Recorder, colours: dict[str, str], zero_s: float, unit_s: float) -> None:
    """Every job as an area of its own, stacked group by group, with a fine edge around it."""
    from matplotlib.collections import PolyCollection

    rank = {group: place for place, group in enumerate(colours)}
    jobs = sorted(record.jobs.values(), key=lambda row: (rank[_group(row)], row.submit_s, row.job_id))
    outlines, faces = [], []
    for job_id, outline in _stack_stays(record, [row.job_id for row in jobs]):
        outlines.append([((at_s - zero_s) / unit_s, gpus) for at_s, gpus in outline])
        faces.append(colours[_group(record.jobs[job_id])])
    ax.add_collection(PolyCollection(outlines, facecolors=faces, edgecolors="white", linewidths=0.2))
    for at_s, gpus, text in grid_labels(record.segments, [row.job_id for row in jobs]):
        x = (at_s - zero_s) / unit_s
        ax.text(x, gpus, text, ha="center", va="center", fontsize=7, color="white", clip_on=True)


def grid_labels(segments: Sequence[Segment], order: Sequence[str]) -> list[tuple[float, float, str]]:
    """(time, GPUs, copies x parts) for the middle of every stay in a grid that has room for it."""
    place = {job_id: index for index, job_id in enumerate(order)}
    across_s = max((each.end_s for each in segments), default=0.0) - min((each.start_s for each in segments), default=0)
    found = []
    for segment in segments:
        if segment.grid is None or segment.end_s - segment.start_s < LEAST_LABELLED * across_s:
            continue
        at_s = (segment.start_s + segment.end_s) / 2
        under = [
            each.gpus
            for each in segments
            if each.start_s <= at_s < each.end_s and place[each.job_id] < place[segment.job_id]
        ]
        found.append((at_s, sum(under) + segment.gpus / 2, str(segment.grid)))
    return found


def _stack_stays(record: Recorder, order: Sequence[str]) -> Iterable[tuple[str, list[tuple[float, float]]]]:
    """The outline of every unbroken stay, (job, corners), with the jobs of `order` upon one another at each moment."""
    place = {job_id: index for index, job_id in enumerate(order)}
    starting, ending = defaultdict(list), defaultdict(list)
    for segment in record.segments:
        starting[segment.start_s].append(segment)
        ending[segment.end_s].append(segment)
    present: dict[int, int] = {}  # place -> GPUs
    open_stays: dict[int, list[tuple[float, float, float, float]]] = {}  # place -> (from, to, bottom, top)
    done: list[tuple[int, list[tuple[float, float, float, float]]]] = []
    for start_s, end_s in pairwise(sorted({*starting, *ending})):
        for segment in ending[start_s]:
            present.pop(place[segment.job_id], None)
        for segment in starting[start_s]:
            present[place[segment.job_id]] = segment.gpus
        gone = [index for index in open_stays if index not in present]
        done.extend((index, open_stays.pop(index)) for index in gone)
        bottom = 0.0
        for index in sorted(present):
            top = bottom + present[index]
            open_stays.setdefault(index, []).append((start_s, end_s, bottom, top))
            bottom = top
    done.extend(open_stays.items())
    for index, stay in done:
        over = [corner for a, b, _, top in stay for corner in ((a, top), (b, top))]
        under = [corner for a, b, low, _ in reversed(stay) for corner in ((b, low), (a, low))]
        yield order[index], over + under


def _draw_groups(ax: Axes, record: Recorder, colours: dict[str, str], zero_s: float, unit_s: float) -> None:
    """All jobs of a group as one area, averaged over each pixel."""
    by_colour: dict[str, list[tuple[float, float]]] = {colour: [] for colour in colours.values()}
    for segment in record.segments:
        changes = by_colour[colours[_group(record.jobs[segment.job_id])]]
        changes += [(segment.start_s, segment.gpus), (segment.end_s, -segment.gpus)]
    edges = np.linspace(zero_s, max(segment.end_s for segment in record.segments), MOST_POINTS + 1)
    bottom: Floats = np.zeros(MOST_POINTS)
    x = (edges[:-1] - zero_s) / unit_s
    for colour, changes in by_colour.items():
        top = bottom + _means(np.array(changes or [(zero_s, 0.0)]), edges)
        ax.fill_between(x, bottom, top, step="post", color=colour, linewidth=0)
        bottom = top


def _bin_means(time: Floats, change: Floats) -> tuple[Floats, Floats]:
    edges = np.linspace(time[0], time[-1], MOST_POINTS + 1)
    return edges[:-1], _means(np.column_stack([time, change]), edges)


def _means(changes: Floats, edges: Floats) -> Floats:
    """Mean level in each bin of a step function that is given by its (time, change)."""
    time, change = changes[np.argsort(changes[:, 0], kind="stable")].T
    level = np.cumsum(change)
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(time))))
    last = np.searchsorted(time, edges, side="right") - 1
    at_edge = np.where(last >= 0, area[last] + level[last] * (edges - time[last]), 0.0)
    return np.diff(at_edge) / np.diff(edges)


def _legend_of_groups(figure: Figure, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    named = {group: colour for group, colour in colours.items() if colour != OTHER_COLOUR}
    if len(named) < len(colours):
        named["other"] = OTHER_COLOUR
    named["paid for, unused"] = IDLE
    handles = [Patch(facecolor=colour, label=group) for group, colour in named.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 7))


# ---------------------------------------------------------------------- canvas and axes


def set_style() -> None:
    """One look for every picture."""
    from matplotlib import rc

    rc("axes", edgecolor=HELD, labelcolor=INK, grid=True, axisbelow=True)
    rc("axes.spines", top=False, right=False)
    rc("grid", color=GRID, linewidth=0.8)
    rc("text", color=INK, parse_math=False)  # a model's name may have dollars in it
    rc("xtick", color=INK)
    rc("ytick", color=INK)
    rc("legend", frameon=False)


def canvas(*, rows: int, height_in: float, share_x: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure that belongs to no window system, so that it works anywhere and is forgotten after use."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, 1, sharex=share_x, squeeze=False)
    return figure, list(grid[:, 0])


def _label_times(ax: Axes) -> None:
    """Ticks at times that people say."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    said = {
        0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 300: "5 min", 1200: "20 min",
        3600: "1 h", 14_400: "4 h", 43_200: "12 h", 86_400: "1 d", 259_200: "3 d", 864_000: "10 d", 2_592_000: "30 d",
        8_640_000: "100 d", 31_536_000: "1 y",
    }  # fmt: skip
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(FixedLocator([at_s for at_s in said if low <= at_s <= high]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(lambda value, _: said.get(value, ""))
    ax.set_xlim(low, high)


def _time_unit(span_s: float) -> tuple[float, str]:
    for unit_s, unit, least in ((86_400.0, "days", 4.0), (3600.0, "hours", 2.0), (60.0, "minutes", 2.0)):
        if span_s >= least * unit_s:
            return unit_s, unit
    return 1.0, "seconds"


def _points_to_draw(points: int) -> Ints:
    """Which of so many points to draw: all, or evenly spread ones with the first and the last."""
    return np.unique(np.linspace(0, points - 1, min(points, MOST_POINTS)).round().astype(np.int64))
