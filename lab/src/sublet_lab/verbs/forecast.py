"""`sublet forecast`: how well the future of a spot market can be told from its past."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.domain.units import SECONDS_PER_H

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet_lab.forecasting.score import ForecastError
    from sublet_lab.forecasting.table import ErrorRow

MOST_MINUTES = 120
MOST_COLUMNS = 12  # of the table; JSON has every minute


def forecast(
    context: typer.Context,
    trace: Annotated[str | None, opt.TRACE] = None,
    every: Annotated[bool, typer.Option("--all", help="Every trace whose file is here, in place of one.")] = False,
    minutes: Annotated[int, typer.Option(metavar="M", help="Forecast every minute up to this one.")] = 12,
    moments: Annotated[
        int | None,
        typer.Option(metavar="N", help="Forecast at N moments at most.", show_default="1000, or 300 each with --all"),
    ] = None,
    polarity: opt.Means = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """With sublet-lab: how far every forecaster is off on a trace.

    Minute by minute, and whether the default is worth its name. All forecast at the same moments, and know nothing
    of what comes after.
    """
    from sublet.errors import InvalidValue
    from sublet.market.traces import load_trace
    from sublet_lab.forecasting.table import MOMENTS, MOMENTS_OF_MANY, error_row, readable_traces

    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidValue("--minutes", minutes, f"a whole number from 1 to {MOST_MINUTES}")
    if moments is not None and moments < 1:
        raise InvalidValue("--moments", moments, "a whole number of at least 1")
    if every == (trace is not None):
        raise InvalidValue("TRACE", trace, "a name from 'sublet traces' or a file; or --all in its place, not both")
    rows, markets = [], []
    for name in readable_traces() if trace is None else [trace]:
        if every and sys.stderr.isatty():
            typer.echo(name, err=True)
        markets.append(load_trace(name, polarity=opt.meaning_of(polarity)))
        rows.append(error_row(markets[-1], horizon=minutes, moments=moments or (MOMENTS_OF_MANY if every else MOMENTS)))
    notes = _notes(rows, markets)
    if opt.wants_document(output, json):
        print_document(_json(context, rows, notes))
        return
    if trace is None:
        _print_all(rows)
    else:
        _print_one(rows[0], markets[0])
    typer.echo()
    print_notes(notes)


# ---------------------------------------------------------------------- tables


def _print_one(row: ErrorRow, market: SpotTrace) -> None:
    from sublet_lab.forecasting.score import DEFAULT

    hours = f"{market.span_s / SECONDS_PER_H:,.1f} h"
    typer.echo(f"{market.name}, {hours}: mean absolute error in instances, all zones together\n")
    shown = sorted({round(1 + each * (row.horizon - 1) / (MOST_COLUMNS - 1)) for each in range(MOST_COLUMNS)})
    titles = ["forecaster", "mean", *(f"{minute} min" for minute in shown)]
    table = []
    for name, error in sorted(row.errors.items(), key=lambda item: (item[1].mean, item[0] != DEFAULT)):
        steps = [f"{error.per_step[minute - 1]:.2f}" for minute in shown]
        table.append([f"{'> ' if name == DEFAULT else ''}{name}", f"{error.mean:.2f}", *steps])
    print_table(titles, table, words=(0,))


def _print_all(rows: Sequence[ErrorRow]) -> None:
    last = rows[0].horizon
    names = sorted({name for row in rows for name in row.errors})
    typer.echo("Mean absolute error in instances, all zones together")
    for title, step in ((f"mean over {last} min", None), ("1 min ahead", 0), (f"{last} min ahead", -1)):
        typer.echo()
        cells = [
            [
                row.trace,
                *(_cell(row.errors.get(name), step) for name in names),
                *([_verdict(row)] if step is None else []),
            ]
            for row in rows
        ]
        print_table([title, *names, *(["default"] if step is None else [])], cells, words=(0,))


def _cell(error: ForecastError | None, step: int | None) -> str:
    if error is None:
        return "-"
    return f"{error.mean if step is None else error.per_step[step]:.3f}"


def _verdict(row: ErrorRow) -> str:
    return "ok" if row.ok else "WORSE"


# ---------------------------------------------------------------------- words


def _notes(rows: Sequence[ErrorRow], markets: Sequence[SpotTrace]) -> list[str]:
    from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE

    bad = [f"{row.trace} by {row.excess:.3f}" for row in rows if not row.ok]
    verdict = f"the default, {DEFAULT}, errs more than {PERSISTENCE} on " + ", ".join(bad)
    if not bad:
        verdict = (
            f"the default, {DEFAULT}, is nowhere worse than {PERSISTENCE}: in the mean, at the first and last minute"
        )
    counts = sorted({row.moments for row in rows})
    span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    left_out = {text for row in rows for text in row.left_out.values()}
    return [
        verdict,
        f"{span} moments of a trace, the same for everyone",
        *_who(rows),
        *(f"left out: {' '.join(text.split())}" for text in sorted(left_out)),
        *(f"{market.name}: {note}" for market in markets for note in market.notes),
    ]


def _who(rows: Sequence[ErrorRow]) -> list[str]:
    """Each forecaster, in the words of its author."""
    from sublet import plugins
    from sublet_lab.forecasting.score import FORECASTERS

    names = sorted({name for row in rows for name in row.errors})
    return [
        f"{name}: {(inspect.getdoc(plugins.load(FORECASTERS, name)) or '').partition(chr(10))[0]}" for name in names
    ]


def _json(context: typer.Context, rows: Sequence[ErrorRow], notes: Sequence[str]) -> dict[str, Any]:
    from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE

    return {
        "schema_version": 2,
        "command": command_line(context),
        "minutes": rows[0].horizon,
        "default": DEFAULT,
        "traces": [
            {
                "trace": row.trace,
                "moments": row.moments,
                "forecasters": [_json_from_error(name, error) for name, error in row.errors.items()],
            }
            for row in rows
        ],
        "checks": [
            {
                "name": f"{DEFAULT} is not worse than {PERSISTENCE} on {row.trace}",
                "excess_instances": row.excess,
                "ok": row.ok,
            }
            for row in rows
        ],
        "notes": list(notes),
    }


def _json_from_error(name: str, error: ForecastError) -> dict[str, Any]:
    return {"name": name, "mean": error.mean, "per_minute": error.per_step.tolist()}
