"""How the workers of a job whose model is cut sat over time: one stay for each grid, and what was spare beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublet.sim.report.plots import HELD, IDLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Stay", "draw_stays", "stays_of"]

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
