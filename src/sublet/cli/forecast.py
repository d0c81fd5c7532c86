"""`sublet forecast`: how well the future of a spot market can be told from its past."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.show import command_line, print_json, print_notes, print_table

if TYPE_CHECKING:
    from sublet.market.forecast import ForecastError, Skill
    from sublet.market.spot import SpotTrace

__all__ = ["Meaning", "Means", "TraceName", "forecast"]

MOST_MINUTES = 120
MOST_COLUMNS = 12  # of the table; JSON has every minute
WHO = (
    "persistence: what is there stays; drift: half the slope of the last 12 minutes goes on; parcae: as published; "
    "arima and ar1: an autoregression of the changes, or of the levels, of the last hour; "
    "markov: what came after moments with about as many instances and losses of late"
)


class Meaning(StrEnum):
    """What the numbers of a trace file say."""

    AVAILABILITY = "availability"
    PREEMPTED = "preempted"


def _complete_trace(incomplete: str) -> list[str]:
    from sublet.market.traces import TRACES

    return [name for name in TRACES if name.startswith(incomplete)]


TraceName = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A name from 'sublet traces', or a CSV file with the columns t_s,zone,available.",
        autocompletion=_complete_trace,
    ),
]
Means = Annotated[
    Meaning,
    typer.Option("--polarity", help="What a 1 in a file means: an instance can be held, or it cannot."),
]


def forecast(
    context: typer.Context,
    trace: TraceName,
    minutes: Annotated[int, typer.Option(metavar="M", help="Forecast every minute up to this one.")] = 12,
    polarity: Means = Meaning.AVAILABILITY,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """How far every forecaster is off on a trace, minute by minute, and which one to trust.

    The first half of the trace chooses, the second shows how the choice fares on what it has not seen.
    """
    from sublet.errors import InvalidValue
    from sublet.market.forecast import forecast_skill, forecasters_for
    from sublet.market.traces import load_trace

    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidValue("--minutes", minutes, f"a whole number from 1 to {MOST_MINUTES}")
    market = load_trace(trace, polarity=polarity.value)
    skill = forecast_skill(market, forecasters_for(market), horizon=minutes)
    notes = _notes(skill)
    if opt.wants_json(output, json):
        print_json(_json(context, market, skill, minutes, notes))
        return
    _print(market, skill, minutes)
    typer.echo()
    print_notes(notes)


def _print(market: SpotTrace, skill: Skill, minutes: int) -> None:
    hours = f"{market.span_s / 3600:,.1f} h"
    typer.echo(f"{market.name}, {hours}: mean absolute error in instances, all zones together\n")
    shown = sorted({round(1 + each * (minutes - 1) / (MOST_COLUMNS - 1)) for each in range(MOST_COLUMNS)})
    titles = ["forecaster", "first half", "second half", *(f"{minute} min" for minute in shown)]
    rows = []
    for name, error in sorted(skill.second.items(), key=lambda item: item[1].mean):
        steps = [f"{error.per_step[minute - 1]:.2f}" for minute in shown]
        mark = "> " if name == skill.default else ""
        rows.append([f"{mark}{name}", f"{skill.first[name].mean:.2f}", f"{error.mean:.2f}", *steps])
    print_table(titles, rows, words=(0,))


def _notes(skill: Skill) -> list[str]:
    from sublet.market.forecast import CLEARLY, PERSISTENCE

    chosen = f"the first half chose {skill.chosen}"
    if skill.chosen == PERSISTENCE:
        chosen += f": nothing else erred at least {100 - 100 * CLEARLY:.0f} % less there"
    elif skill.default != skill.chosen:
        chosen += f", which erred more than {PERSISTENCE} in the second: {PERSISTENCE} it is"
    counts = [next(iter(half.values())).forecasts for half in (skill.first, skill.second)]
    return [
        f"> is the one to trust; {chosen}",
        "single minutes are of the second half",
        f"{counts[0]:,} moments of the first half and {counts[1]:,} of the second, the same for everyone",
        WHO,
    ]


def _json(context: typer.Context, market: SpotTrace, skill: Skill, minutes: int, notes: list[str]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "command": command_line(context),
        "trace": market.name,
        "minutes": minutes,
        "chosen": skill.chosen,
        "default": skill.default,
        "forecasters": [
            {"name": name, "first_half": _json_from_error(skill.first[name]), "second_half": _json_from_error(error)}
            for name, error in skill.second.items()
        ],
        "notes": notes,
    }


def _json_from_error(error: ForecastError) -> dict[str, Any]:
    return {"mean": error.mean, "per_minute": error.per_step.tolist(), "forecasts": error.forecasts}
