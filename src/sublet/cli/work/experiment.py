"""Run one workload under policies: what `simulate` and `compare` share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.cli.parse.scenario import ScenarioOptions, forecast_from, scene_from, workload_from
from sublet.cli.print.comparison import ReportProgress, show_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sublet.domain.actions import Action
    from sublet.domain.events import Event
    from sublet.domain.plan import Policy
    from sublet.sim.report.comparison import Comparison
    from sublet.sim.simulator import Notes


def run_policies(
    options: ScenarioOptions,
    policies: Mapping[str, Policy],
    *,
    command: str,
    log: Path | None = None,
    notes: Notes | None = None,
) -> Comparison:
    """Everything is read and checked before the first run starts, the report's folder included."""
    from sublet.kernel.journal import header_line, line_from
    from sublet.sim.report.comparison import Comparison
    from sublet.sim.report.folder import prepare_folder, replacing
    from sublet.sim.simulator import simulate

    workload = workload_from(options)
    scene = scene_from(options, workload)
    expected, told = forecast_from(options, workload)
    cloud = replace(scene.cloud, notes=(*scene.cloud.notes, *told))
    if options.report is not None:
        prepare_folder(options.report)
    runs = {}
    with (
        nullcontext() if log is None else replacing(log) as journal,
        show_progress(list(policies), len(workload), quiet=options.quiet) as report_progress,
    ):
        watch = None
        if journal is not None:
            journal.write(header_line(cloud.offers, cloud.limits, cloud.budget, cloud.quotas) + "\n")
            write = journal.write

            def watch(event: Event, actions: Sequence[Action]) -> None:
                write(line_from(event, actions) + "\n")

        for name, policy in policies.items():
            report_progress(name, 0)
            runs[name] = simulate(
                workload.jobs,
                policy,
                cloud,
                seed=options.seed,
                expected=expected,
                keep_segments=options.report is not None,
                watch=watch,
                notes=notes,
                progress=partial(_report_jobs, report_progress, name),
            )
    remarks = {name: scene.notes_on(run) for name, run in runs.items()}
    return Comparison(command=command, workload=workload, cloud=cloud, seed=options.seed, runs=runs, notes=remarks)


def _report_jobs(report_progress: ReportProgress, policy: str, done: int, at_s: float) -> None:
    del at_s  # the bar counts jobs
    report_progress(policy, done)
