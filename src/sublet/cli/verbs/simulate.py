"""`sublet simulate`: one workload, one policy."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse.scenario import ScenarioOptions, policies_from_names
from sublet.cli.print.comparison import print_comparison
from sublet.cli.print.tables import command_line
from sublet.cli.work.experiment import run_policies
from sublet.cli.work.showing import show, telling

__all__ = ["simulate"]


def simulate(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    workload: opt.WorkloadName,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME", help="A name from 'sublet policies'.", autocompletion=opt.complete_policy),
    ] = "price",
    gpus: opt.Gpus = None,
    budget: opt.Budget = None,
    average: opt.Average = None,
    purse: opt.Purse = None,
    purse_of: opt.PurseOf = None,
    hurry: opt.Hurry = False,
    offer: opt.Offers = None,
    market: opt.MarketTrace = None,
    polarity: opt.Means = None,
    spot_price: opt.SpotPrice = None,
    prices_since: opt.PricesSince = None,
    as_gpu: opt.AsGpu = None,
    first_jobs: opt.FirstJobs = None,
    speedup: opt.Speedup = None,
    profile: opt.MeasuredProfile = None,
    restart_s: opt.RestartS = None,
    provision_s: opt.ProvisionS = None,
    release_s: opt.ReleaseS = 0.0,
    notice_s: opt.NoticeS = 120.0,
    planning_s: opt.PlanningS = 0.0,
    round_s: opt.RoundS = 0.0,
    forecast: opt.Forecast = 1.0,
    seed: opt.Seed = 0,
    report: opt.Report = None,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every event and order as JSON lines.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Then show its timeline in a browser, until Ctrl-C.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Replay a workload under one policy."""
    options = ScenarioOptions(
        workload=workload,
        gpus=gpus,
        budget=budget,
        average=average,
        purse=purse,
        purses=purse_of or (),
        offers=offer or (),
        market=market,
        polarity=polarity,
        spot_price=spot_price,
        prices_since=prices_since,
        as_gpu=as_gpu,
        jobs=first_jobs,
        speedup=speedup,
        profile=profile,
        restart_s=restart_s,
        provision_s=provision_s,
        release_s=release_s,
        notice_s=notice_s,
        planning_s=planning_s,
        round_s=round_s,
        forecast=forecast,
        seed=seed,
        report=report,
        quiet=quiet,
    )
    policies = policies_from_names([policy], hurry=hurry)
    from sublet.sim.report.comparison import json_from_only_run

    with telling() if serve else nullcontext() as told:
        comparison = run_policies(options, policies, command=command_line(context), log=log, notes=told)
        document = json_from_only_run(comparison) if opt.wants_document(output, json) else None
        print_comparison(comparison, report, document)
        if told is not None:
            show(told.store, what=f"simulation of {workload}", policy=policy, kernel=told.kernel)
