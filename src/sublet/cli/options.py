"""Options that several verbs share, and what a shell may complete them to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from sublet.cli.print.tables import Output, form

__all__ = [
    "DEFAULT_GPUS",
    "DEFAULT_OFFER",
    "TRACE",
    "AnchorType",
    "AsGpu",
    "Average",
    "Budget",
    "DryRun",
    "FirstJobs",
    "Forecast",
    "Gpus",
    "JobRef",
    "Json",
    "MarketTrace",
    "MaybeJobRef",
    "Meaning",
    "Means",
    "NoticeS",
    "Offers",
    "Output",
    "OutputOption",
    "PlanningS",
    "PricesSince",
    "ProvisionS",
    "Purse",
    "PurseOf",
    "Quiet",
    "ReleaseS",
    "Report",
    "RestartS",
    "RoundS",
    "Seed",
    "SendCredentials",
    "Speedup",
    "SpotPrice",
    "WorkloadName",
    "complete_policies",
    "complete_policy",
    "meaning_of",
    "wants_document",
]

DEFAULT_GPUS = 64
DEFAULT_OFFER = "aws:g4dn.12xlarge:us-east-1"  # 4 x T4: the kind that the bundled Pollux profiles were measured on


class Meaning(StrEnum):
    """Meaning of the numbers of a trace file."""

    AVAILABILITY = "availability"
    PREEMPTED = "preempted"


def meaning_of(given: Meaning | None) -> Literal["availability", "preempted"] | None:
    """As `load_trace` takes it."""
    if given is None:
        return None
    return "availability" if given is Meaning.AVAILABILITY else "preempted"


def wants_document(output: Output, json: bool) -> bool:
    """Whether a document is asked for, by either spelling, instead of a table; `print_document` then prints it so."""
    form.set(Output.JSON if json else output)
    return json or output is not Output.TABLE


# ---------------------------------------------------------------------- completion


def _starting(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    """Installed policies."""
    from sublet import plugins

    return _starting(incomplete, plugins.names("sublet.policies"))


def complete_policies(incomplete: str) -> list[str]:
    """The last of several policies, separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_policy(last)]


def _complete_workload(incomplete: str) -> list[str]:
    from sublet.sim.workloads.catalog import workload_names

    return _starting(incomplete, workload_names())


def _complete_trace(incomplete: str) -> list[str]:
    from sublet.market.traces import TRACES

    return _starting(incomplete, list(TRACES))


def _complete_measured(incomplete: str) -> list[str]:
    from sublet.cli.parse.values import measured_names

    return _starting(incomplete, measured_names())


def _complete_job(incomplete: str) -> list[str]:
    from sublet.api.client import connect
    from sublet.errors import SubletError

    try:
        jobs = connect().get("/v1/jobs")["jobs"]
    except SubletError:
        return []  # no controller, no names
    return _starting(incomplete, [text for job in jobs for text in (job["name"], job["id"])])


# ---------------------------------------------------------------------- what to run

TRACE = typer.Argument(
    metavar="TRACE",
    help="A name from 'sublet traces', or a CSV file with the columns t_s,zone,available.",
    autocompletion=_complete_trace,
)
WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A name from 'sublet workloads', the path of a CSV file, or a recipe such as poisson:rate=40,n=200.",
        autocompletion=_complete_workload,
    ),
]
FirstJobs = Annotated[int | None, typer.Option("--jobs", metavar="N", help="Take only the first N jobs.")]
Speedup = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="How jobs that state only a duration scale: linear, amdahl:0.95 or power:0.8.",
    ),
]
MeasuredProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Jobs of this model, or all if none is, scale as measured: a name or file from 'sublet profiles'.",
        autocompletion=_complete_measured,
    ),
]
RestartS = Annotated[
    float | None, typer.Option("--restart-s", metavar="S", help="Pause of every job at each start and resize.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of all that is drawn at random.")]

# ---------------------------------------------------------------------- where to run it

Gpus = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help=f"Own K GPUs from beginning to end ({DEFAULT_GPUS} if neither this, --budget nor --market is given); "
        "with --market, hold at most K.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="USD/H", help="Rent on demand, never above this many dollars per hour."),
]
Average = Annotated[
    str | None,
    typer.Option(
        metavar="USD/H",
        help="Rent on demand so that this much is spent per hour in the long run. Policies that weigh time against "
        "money (price, boa) aim at it; the others rent all that they can use within --budget.",
    ),
]
Forecast = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="What policies are told of the jobs to come: 1 = the true rate of every kind, 1.3 = 30 percent too many, "
        "0 = nothing.",
    ),
]
Purse = Annotated[
    str | None,
    typer.Option(metavar="USD", help="Spend this much in all and not a cent more; jobs that are left can be resumed."),
]
PurseOf = Annotated[
    list[str] | None,
    typer.Option(
        "--purse-of",
        metavar="WHOSE=USD",
        help="What one may spend: team:vision=500/month, user:ann=50, job:a=20; may be given again.",
    ),
]
AnchorType = Annotated[
    str | None,
    typer.Option("--anchor-type", metavar="TYPE", help="Type of the controller host. [default: as aws.toml says]"),
]
SendCredentials = Annotated[
    bool,
    typer.Option(
        "--send-credentials", help="Send your own AWS credentials to the controller host, for want of a role."
    ),
]
Hurry = Annotated[
    bool, typer.Option("--hurry", help="The quickest within the limits; without it money is saved where it can be.")
]
OnNodeLoss = Annotated[
    str | None,
    typer.Option("--on-node-loss", metavar="CHOICE", help="When a node is lost: continue, replace, restart or fail."),
]
Offers = Annotated[
    list[str] | None,
    typer.Option(
        "--offer",
        metavar="CLOUD:TYPE[:REGION][:spot]",
        help=f"What to rent, from 'sublet offers'; may be repeated. [default: {DEFAULT_OFFER}]",
        show_default=False,
    ),
]
MarketTrace = Annotated[
    str | None,
    typer.Option(
        "--market",
        metavar="TRACE",
        help="Rent spot nodes that come and go as in this trace: a name from 'sublet traces', or a CSV file.",
        autocompletion=_complete_trace,
    ),
]
Means = Annotated[
    Meaning | None,
    typer.Option(
        "--polarity",
        help="What a 1 in a file of the market means: an instance can be held, or it cannot.",
        show_default=False,
    ),
]
SpotPrice = Annotated[
    str | None, typer.Option(metavar="USD/H", help="Price of a node of the --market; else from the catalogue.")
]
PricesSince = Annotated[
    str | None,
    typer.Option(
        metavar="DATE",
        help="Replay the recorded prices of the AWS offers from this day on, such as 2025-06-01, instead of one price.",
    ),
]
AsGpu = Annotated[
    str | None, typer.Option(metavar="GPU", help="Treat every node as if it had GPUs of this kind, at its own price.")
]

# ---------------------------------------------------------------------- how the world behaves

ProvisionS = Annotated[
    float | None,
    typer.Option(
        metavar="S", help="From renting a node to using it. [default: 120; 0 with --gpus]", show_default=False
    ),
]
ReleaseS = Annotated[float, typer.Option(metavar="S", help="From giving a node back to the end of its bill.")]
NoticeS = Annotated[float, typer.Option(metavar="S", help="Warning before a spot node is taken; 0 = none.")]
PlanningS = Annotated[float, typer.Option(metavar="S", help="How long the policy thinks.")]
RoundS = Annotated[float, typer.Option(metavar="S", help="Plan only at multiples of this; 0 = at every event.")]

# ---------------------------------------------------------------------- which job of the controller

JobRef = Annotated[
    str, typer.Argument(metavar="JOB", help="Its name, its id, or the beginning of it.", autocompletion=_complete_job)
]
MaybeJobRef = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="Its name, its id, or the beginning of it.", autocompletion=_complete_job),
]

# ---------------------------------------------------------------------- how to answer

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show plan, price, expected finish and cost; submit nothing.")]
Report = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write plots, tables and one HTML page that holds it all to DIR.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
