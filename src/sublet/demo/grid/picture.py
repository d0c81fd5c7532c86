"""A picture of places over time: which worker had which part of which copy, and when nodes were taken."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import ascii_uppercase

from sublet.demo.grid.diaries import Span

__all__ = ["Mark", "places_svg", "places_text"]

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
