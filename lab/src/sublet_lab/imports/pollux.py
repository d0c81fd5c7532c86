"""The artifact of Pollux: completion times, workloads, tables at full precision, and Microsoft's trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sublet.errors import BadInput
from sublet_lab.imports.artifact import Artifact, Made, json_of
from sublet_lab.imports.jobs import philly_csv, workload_csv
from sublet_lab.imports.tables import MODELS, efficiency_rows, exact, step_rows

COMMIT = "c793c7089bd307462686339d29707925c461f9a9"
FOLDERS = ("workloads", "workloads-0.5", "workloads-1.5", "workloads-2.0", "workloads-realistic")
WORKLOADS = range(1, 7)
LOADS, TIMED = ("0.5", "1.0", "1.5", "2.0"), range(1, 5)


def _pollux(clone: Path) -> Iterator[Made]:
    home = clone / "simulator"
    lines = ["policy,load,workload,job,completion_s"]
    for policy in ("tiresias", "optimus"):
        for load in LOADS:
            path = home / "results-jobload" / f"{policy}-{load}" / "summary.json"
            times = json_of(path, ("jcts",))["jcts"]
            for number in TIMED:
                jobs = _in_order(home, load, number)
                try:
                    lines += [f"{policy},{load},{number},{job},{times[f'workload-{number}'][job]}" for job in jobs]
                except (LookupError, TypeError) as missing:
                    raise BadInput(path, f"jcts of workload-{number}: no time of {missing}") from None
    yield "oracles/pollux_artifact_job_times.csv.gz", "\n".join(lines) + "\n"
    for folder in FOLDERS:
        for number in WORKLOADS:
            yield (
                f"jobs/pollux_{folder}/workload-{number}.csv",
                workload_csv(home / folder / f"workload-{number}.csv"),
            )
    steps = ["model,table,placement,nodes,gpus,local_bsz,step_time_s,sync_time_s"]
    noise = ["model,batch_size,epoch,progress,iteration,metric,grad_sqr,grad_var"]
    for model in MODELS:
        for table, placement, nodes, gpus, local, step_s, sync_s in step_rows(home / "traces" / model):
            steps.append(f"{model},{table},{placement},{nodes},{gpus},{local},{exact(step_s)},{exact(sync_s)}")
        noise += [",".join(row) for row in efficiency_rows(home / "traces" / model, model, exact)]
    yield "profiles/pollux_t4_step_time.csv.gz", "\n".join(steps) + "\n"
    yield "profiles/pollux_stat_efficiency.csv.gz", "\n".join(noise) + "\n"


def _in_order(home: Path, load: str, number: int) -> list[str]:
    """The jobs of a workload as they come."""
    folder = "workloads" if load == "1.0" else f"workloads-{load}"
    made = workload_csv(home / folder / f"workload-{number}.csv")
    return [line.partition(",")[0] for line in made.splitlines()[1:]]


def _philly(clone: Path) -> Iterator[Made]:
    yield "jobs/philly.csv.gz", philly_csv(clone / "simulator" / "traces" / "philly.csv")


POLLUX = Artifact(
    name="pollux",
    repository="petuum/adaptdl",
    branch="osdi21-artifact",
    commit=COMMIT,
    licence="Apache-2.0 (the project; the branch has no licence file)",
    gives="study pollux-oracle: 6,400 completion times; its workloads and tables ship, and are compared",
    convert=_pollux,
)
PHILLY = Artifact(
    name="philly",
    repository="petuum/adaptdl",
    branch="osdi21-artifact",
    commit=COMMIT,
    licence="CC BY 4.0 (Microsoft, msr-fiddle/philly-traces)",
    gives="workload philly: it ships, and is compared",
    convert=_philly,
)
