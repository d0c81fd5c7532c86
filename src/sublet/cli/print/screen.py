"""The controller at work, on one screen of 80 columns: jobs with bars, nodes with their market, the last events.

On a terminal the picture is drawn again a few times a second; elsewhere there is a line per job now and then, and one
per event.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.figures import labels, loss, money, percent, span
from sublet.cli.status import ControllerStatus

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Read = Callable[[], ControllerStatus]
Until = Callable[[ControllerStatus], bool]
DRAW_EVERY_S = 0.25
LINES_EVERY_S = 5.0
LAST_EVENTS = 6
FIRST_EVENTS = 20  # of a history that is long already
MOST_JOBS = 12
MOST_NODES = 16
NAME_WIDTH, BAR_WIDTH, NODE_WIDTH = 12, 10, 38
COLOURS = {
    "running": "green",
    "finished": "bold green",
    "failed": "bold red",
    "recovering": "red",
    "out-of-budget": "yellow",
    "ready": "green",
    "noticed": "bold red",
}


def watch_controller(
    read: Read,
    *,
    until: Until = lambda _: False,
    most_s: float | None = None,
    err: bool = False,
) -> ControllerStatus:
    """Show what happens until `until` says so, the user has seen enough (Ctrl-C), or `most_s` seconds are over.

    With `err` on standard error, where standard output is for a document.
    """
    watch = _watch_terminal if (sys.stderr if err else sys.stdout).isatty() else _watch_lines
    give_up = None if most_s is None else time.monotonic() + most_s
    return watch(read, lambda now: until(now) or (give_up is not None and time.monotonic() > give_up), err=err)


def _watch_terminal(read: Read, until: Until, *, err: bool) -> ControllerStatus:
    from rich.console import Console
    from rich.live import Live

    now = read()
    with Live(frame(now), console=Console(stderr=err), refresh_per_second=4, vertical_overflow="crop") as live:
        while not until(now):
            try:
                time.sleep(DRAW_EVERY_S)
                now = read()
            except KeyboardInterrupt:
                break
            live.update(frame(now))
    return now


def _watch_lines(read: Read, until: Until, *, err: bool) -> ControllerStatus:
    now, next_lines_s = read(), 0.0
    told = now.events[-FIRST_EVENTS]["seq"] - 1 if len(now.events) > FIRST_EVENTS else 0
    while True:
        for event in now.events:
            if event["seq"] > told:
                told = event["seq"]
                typer.echo(_event_line(event), err=err)
        ended = until(now)
        if ended or time.monotonic() >= next_lines_s:
            next_lines_s = time.monotonic() + LINES_EVERY_S
            for line in plain_lines(now):
                typer.echo(line, err=err)
        if ended:
            return now
        time.sleep(DRAW_EVERY_S)
        now = read()


# ---------------------------------------------------------------------- as lines


def plain_lines(status: ControllerStatus) -> list[str]:
    """One line about the money, one per job."""
    from sublet.domain.quantity import counted

    lines = [f"{span(status.health['now_s'])}: {_money(status)}, {counted(len(_held(status)), 'node')}"]
    called, jobs = labels(status.jobs), _shown(status.jobs)
    for job in jobs:
        facts = [
            job["phase"],
            counted(job["workers"], "worker"),
            percent(job["progress"]),
            f"loss {loss(job['loss'])}",
            money(job["usd_total"]),
            f"{_left(job)} left",
        ]
        lines.append(f"  {called[job['id']]}: {', '.join(facts)}")
    if len(jobs) < len(status.jobs):
        lines.append(f"  {_rest(status.jobs, jobs)}")
    return lines


def _shown(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many as there is room for, in the order of submission: those that go on, then the last that have ended."""
    from sublet.runtime.controller_api.views import ENDED

    going = [job for job in jobs if job["phase"] not in ENDED][:MOST_JOBS]
    over = [job for job in jobs if job["phase"] in ENDED]
    chosen = {job["id"] for job in (*going, *over[len(over) - max(0, MOST_JOBS - len(going)) :])}
    return [job for job in jobs if job["id"] in chosen]


def _rest(jobs: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]]) -> str:
    """`and 14 more, 12 of them over`."""
    from sublet.runtime.controller_api.views import ENDED

    hidden = len(jobs) - len(shown)
    over = sum(job["phase"] in ENDED for job in jobs) - sum(job["phase"] in ENDED for job in shown)
    return f"and {hidden} more" + (", all of them over" if over == hidden else f", {over} of them over" if over else "")


def _event_line(event: Mapping[str, Any]) -> str:
    who = event["job_id"] or event["node_id"]
    return f"{span(event['at_s']):>7}  {who + ': ' if who else ''}{event['text']}"


def _held(status: ControllerStatus) -> list[Mapping[str, Any]]:
    return [node for node in status.nodes if node["phase"] != "gone"]


def _left(job: Mapping[str, Any]) -> str:
    return span(job["eta_s"]["p50"]) if job["eta_s"] else span(None)


def _money(status: ControllerStatus) -> str:
    budget = status.budget
    purse = f" of {budget['purse_usd']:.2f}" if budget["purse_usd"] is not None else ""
    limit = f" of {budget['burn_limit_usd_per_h']:.2f}" if budget["burn_limit_usd_per_h"] is not None else ""
    return f"{money(budget['spent_usd'])}{purse} spent, {budget['burn_usd_per_h']:.2f}{limit} per hour"


# ---------------------------------------------------------------------- as a picture


def frame(status: ControllerStatus) -> RenderableType:
    """The whole picture."""
    from rich.console import Group
    from rich.text import Text

    speed = status.health["speedup"]
    clock = f"{span(status.health['now_s'])}" + (f" at {speed:g}x" if speed != 1 else "")
    head = Text(f"Sublet  {clock}  {status.health['policy']}  {_money(status)}", style="bold", no_wrap=True)
    head.truncate(200, overflow="ellipsis")
    events = [Text(_event_line(event), no_wrap=True, overflow="ellipsis") for event in status.events[-LAST_EVENTS:]]
    return Group(head, Text(""), _jobs(status), Text(""), _nodes(status), Text(""), *events)


def _jobs(status: ControllerStatus) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for title, right in (("job", False), ("phase", False), ("progress", False), ("", True), ("workers", True)):
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for title in ("batch", "loss", "USD", "left"):
        table.add_column(title, justify="right", no_wrap=True)
    called, jobs = labels(status.jobs), _shown(status.jobs)
    for job in jobs:
        wanted = f"{job['workers']}" + (f"→{job['workers_wanted']}" if job["workers_wanted"] != job["workers"] else "")
        table.add_row(
            _cut_middle(called[job["id"]], NAME_WIDTH),
            Text(_cut(job["phase"], 10), style=COLOURS.get(job["phase"], "")),
            _bar(job["progress"]),
            percent(job["progress"]),
            wanted,
            f"{job['global_batch'] or '-'}",
            loss(job["loss"], digits=3),
            f"{job['usd_total']:.2f}",
            _left(job),
        )
    if len(jobs) < len(status.jobs):
        table.add_row(_rest(status.jobs, jobs))
    return table


def _bar(progress: float | None) -> RenderableType:
    from rich.progress_bar import ProgressBar

    return ProgressBar(
        total=1.0, completed=progress or 0.0, width=BAR_WIDTH, complete_style="green", finished_style="bold green"
    )


def _nodes(status: ControllerStatus) -> RenderableType:
    """Nodes side by side, each with its market, its price, and its jobs."""
    from rich.table import Table
    from rich.text import Text

    names = labels(status.jobs)
    shown = _held(status)
    if not shown:
        return Text("no nodes", style="dim")
    grid = Table.grid(padding=(0, 2, 0, 0))
    cells = [_node(node, names, status.health["now_s"]) for node in shown[:MOST_NODES]]
    for start in range(0, len(cells), 2):
        grid.add_row(*cells[start : start + 2])
    if len(shown) > MOST_NODES:
        grid.add_row(f"and {len(shown) - MOST_NODES} more")
    return grid


def _node(node: Mapping[str, Any], names: Mapping[str, str], now_s: float) -> RenderableType:
    from rich.text import Text

    state = node["phase"]
    if state == "noticed" and node["until_s"] is not None:
        state = f"lost in {span(max(0.0, node['until_s'] - now_s))}"
    who = ",".join(names.get(job_id, job_id) for job_id in node["job_ids"]) or state
    detail = who if state in ("ready", who) else f"{state} {who}"
    market = "od" if node["market"] == "on-demand" else node["market"]
    text = f"● {node['id']} {market} {node['usd_per_h']:.2f} {detail}"
    return Text(_cut(text, NODE_WIDTH), style=COLOURS.get(node["phase"], "dim"), no_wrap=True)


def _cut_middle(text: str, width: int) -> str:
    """The end of an id is what tells it from others."""
    end = width // 3
    return text if len(text) <= width else f"{text[: width - end - 1]}…{text[-end:]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
