"""Our simulator against someone else's answers: every job's completion time in the published runs of Pollux.

The artifact of Pollux (petuum/adaptdl, branch osdi21-artifact) ships the completion times of its simulator, to the
second, for two policies that involve neither chance nor a fit: Tiresias and Optimus, on 16 nodes of four T4s. The same
jobs run here in the same simulator as everything else, set up as that one is. Decisions come every 60 s, with 30 s at
every start and change, the measured tables at full precision, and jobs that change placed anew on the emptiest nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sublet.data import locate
from sublet.data.csvfile import Bounds, read_columns
from sublet.domain.budget import Limit
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.perf.restart import published_restart_s
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.tiresias import Tiresias
from sublet_lab.rivals.vacate_first import VacateFirst
from sublet_lab.studies.epoch_speeds import iterations_left_s, pollux_speed
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, at_most, equals

NODES = 16
ROUND_S = 60.0
QUICK_LOAD = "1.0"
CPU_JOBS = 160  # of one run at load 1.0, which is what the times of the artifact are for
ARTIFACT_CPU_S = {"tiresias": 25.0, "optimus": 98.0}  # of one such run, on one core
CLOSE_S = 60.0
TIMES_FASTER = 100.0
FIRST_S = 0.001  # the artifact first decides at the end of a round, never at 0
POLICIES: Mapping[str, Policy] = {
    "tiresias": VacateFirst(Tiresias(round_s=ROUND_S)),
    "optimus": VacateFirst(Optimus(left_s=iterations_left_s, round_s=ROUND_S)),
}
NODE = Offer(
    id="g4dn.12xlarge",
    gpu="T4",
    gpus_per_node=4,
    market=Market.ON_DEMAND,
    price=Price.from_usd_per_h("3.912"),  # the list price in us-east-1; it plays no part here
)
CLOUD = Cloud(
    offers=(NODE,), limits={NODE.id: Limit(min_nodes=NODES, max_nodes=NODES)}, physics=Physics(round_s=ROUND_S)
)

Key = tuple[str, str, str]  # policy, load, workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One run beside the published one; completion times in whole seconds, by job."""

    key: Key
    ours_s: Mapping[str, int]
    published_s: Mapping[str, int]
    submit_s: Mapping[str, float]
    cpu_s: float

    @property
    def off_s(self) -> dict[str, int]:
        """How much longer ours took, by job; only jobs that differ."""
        return {job: ours - self.published_s[job] for job, ours in self.ours_s.items() if ours != self.published_s[job]}

    @property
    def mean_error(self) -> float:
        """The error of the mean completion time, relative to the published one."""
        published = fmean(self.published_s.values())
        return abs(fmean(self.ours_s.values()) - published) / published


def published_times() -> dict[Key, dict[str, int]]:
    """Completion times as published, by run and job."""
    columns = ("policy", "load", "workload", "job", "completion_s")
    table = read_columns(locate("oracles/pollux_artifact_job_times.csv.gz"), columns)
    times: dict[Key, dict[str, int]] = {}
    seconds = table.ints("completion_s", Bounds(least=0)).tolist()
    for *key, job, completion_s in zip(*(table.columns[name] for name in columns[:4]), seconds, strict=True):
        times.setdefault((key[0], key[1], key[2]), {})[job] = completion_s
    return times


def jobs_of(load: str, workload: str) -> list[Job]:
    """The jobs of one workload, each a full training run at the batch size of the trace."""
    folder = "pollux_workloads" if load == "1.0" else f"pollux_workloads-{load}"
    table = read_columns(
        locate(f"jobs/{folder}/workload-{workload}.csv"), ("job_id", "submit_s", "gpus", "model", "batch_size")
    )
    one = Bounds(least=1)
    jobs = []
    for job_id, submit_s, gpus, model, batch in zip(
        table.columns["job_id"],
        table.floats("submit_s", Bounds(least=0)).tolist(),
        table.ints("gpus", one).tolist(),
        table.columns["model"],
        table.ints("batch_size", one).tolist(),
        strict=True,
    ):
        speed = pollux_speed(model, batch)
        jobs.append(
            Job(
                id=job_id,
                submit_s=max(submit_s, FIRST_S),
                work=speed.ends[-1],
                speed=speed,
                gpus=gpus,
                max_gpus=max(gpus, speed.max_gpus),
                restart_s=published_restart_s(model, "pollux"),
                model=model,
            )
        )
    return jobs


def compare(key: Key, published_s: Mapping[str, int]) -> Comparison:
    """Run one workload under one policy, beside its published times."""
    policy, load, workload = key
    jobs = jobs_of(load, workload)
    started_s = time.process_time()
    run = simulate(jobs, POLICIES[policy], CLOUD, keep_segments=False)
    cpu_s = time.process_time() - started_s
    # The artifact rounds the last epoch to a whole second like all others; here the job ends when it ends.
    ours_s = {row.job_id: round(row.completion_s) for row in run.record.jobs.values() if row.finish_s is not None}
    submit_s = {job.id: job.submit_s for job in jobs}
    return Comparison(key=key, ours_s=ours_s, published_s=published_s, submit_s=submit_s, cpu_s=cpu_s)


# ---------------------------------------------------------------------- the study


def _run(quick: bool, tell: Tell) -> Findings:
    published = published_times()
    keys = [key for key in published if key[1] == QUICK_LOAD or not quick]
    started_s = time.process_time()
    _warm_up(keys)
    tables_s = time.process_time() - started_s
    done = []
    for key in keys:
        tell(f"{key[0]}, load {key[1]}, workload {key[2]}")
        done.append(compare(key, published[key]))
    return Findings(
        checks=_checks(done),
        tables=(_by_run(done), _differing(done)),
        notes=(
            "completion times are compared in whole seconds, as they were published",
            *(() if any(run.off_s for run in done) else ("no job differs",)),
            f"reading the tables took {tables_s:.2f} s of CPU time once; it is not part of the time per run",
            "CPU time of the artifact: one run of 160 jobs on one core, 25 s with Tiresias and 98 s with Optimus",
        ),
    )


def _warm_up(keys: Sequence[Key]) -> None:
    """Read what all runs share, so that the first is not charged for it."""
    from scipy import interpolate, spatial  # noqa: F401 - slow to import, and first needed in the middle of a run

    for load, workload in dict.fromkeys(key[1:] for key in keys):
        jobs_of(load, workload)


def _checks(done: Sequence[Comparison]) -> list[Check]:
    jobs = sum(len(run.published_s) for run in done)
    ended = sum(len(run.ours_s) for run in done)
    off = [abs(seconds) for run in done for seconds in run.off_s.values()]
    equal, close = ended - len(off), ended - sum(seconds > CLOSE_S for seconds in off)
    checks = [
        equals("jobs compared", ended, jobs, published=jobs, unit="jobs"),
        at_least("completion times that are equal", 100 * equal / jobs, 100, unit="%"),
        at_least("completion times within 60 s", 100 * close / jobs, 99, unit="%"),
        at_most("worst error of a workload's mean", 100 * max(run.mean_error for run in done), 0.5, unit="%"),
    ]
    for policy, artifact_s in ARTIFACT_CPU_S.items():
        cpu_s = [run.cpu_s for run in done if run.key[0] == policy and len(run.ours_s) == CPU_JOBS]
        if cpu_s:
            ours_s = median(cpu_s)
            limit_s = artifact_s / TIMES_FASTER
            checks.append(at_most(f"{policy}: CPU time of 160 jobs", ours_s, limit_s, published=artifact_s, unit="s"))
    return checks


def _by_run(done: Sequence[Comparison]) -> StudyTable:
    rows = []
    for run in done:
        off = list(map(abs, run.off_s.values()))
        rows.append(
            [
                *run.key,
                str(len(run.ours_s)),
                str(len(run.ours_s) - len(off)),
                str(len(run.ours_s) - sum(seconds > CLOSE_S for seconds in off)),
                f"{fmean(run.ours_s.values()):.2f}",
                f"{fmean(run.published_s.values()):.2f}",
                str(max(off, default=0)),
                f"{run.cpu_s:.3f}",
            ]
        )
    columns = ["policy", "load", "workload", "jobs", "equal", "within 60 s", "our mean, s", "published mean, s"]
    return StudyTable(title="By run", columns=[*columns, "worst, s", "CPU, s"], rows=rows, texts=3)


def _differing(done: Sequence[Comparison]) -> StudyTable:
    rows = []
    for run in done:
        off, ours_s, published_s = run.off_s, run.ours_s, run.published_s
        ends = sorted((run.submit_s[job] + min(ours_s[job], published_s[job]), job) for job in off)
        for _, job in ends:
            why = _why(job, off[job], first=ends[0][1])
            rows.append([*run.key, job, why, str(ours_s[job]), str(published_s[job]), str(off[job])])
    columns = ["policy", "load", "workload", "job", "why", "ours, s", "published, s", "difference, s"]
    return StudyTable(title="Jobs that differ", columns=columns, rows=rows, texts=5)


def _why(job: str, off_s: int, first: str) -> str:
    """The first job of a run to end at another time shows the cause; whatever ends later may follow from it."""
    if abs(off_s) == 1:
        return "an epoch ended half-way between two seconds, and floating point decides which"
    if job == first:
        return "the first to differ in its run: it was given GPUs at another time or in another place"
    return f"it ends after {first}, whose GPUs were free at another time"


STUDY = Study(
    name="pollux-oracle",
    title="the completion time of every job in the published runs of Tiresias and Optimus, reproduced",
    run=_run,
)
