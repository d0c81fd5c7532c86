"""Real processes in grids against the simulator, on the same stretch of a recorded market, in three ways.

Two ways change their grids live; in the third all workers save to disk, end, and others load that. Computing is paced,
so that two cores do not decide; tensors, messages, hand-overs, checkpoints, agents and losses are real. Each way is
simulated by the same kernel with measurements of *other* runs. They are the mean speed of each grid in those of the
other ways, pauses in that of the other live way, and restarts on a market that takes nothing. If the three are compared
with each other, all have the mean speeds of all.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from sublet.demo.grid.day import at_rates, restarting, same_day
from sublet.demo.grid.diaries import accounts, steps_per_s
from sublet.demo.grid.moves import KINDS, RESTART, Move
from sublet.demo.grid.run import GridJob, Lived, live
from sublet.domain.job import Job
from sublet.domain.plan import Phase, Plan, Policy, Snapshot, arrival
from sublet.domain.shape import Grid, Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible
from sublet.perf.parcae import parcae_costs, parcae_rates
from sublet.planning.draft import Draft
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet.runtime.settings import Settings
from sublet_lab.gridded.restarting import CheckpointRestart
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, equals, within

MARKET, START_S, SHARE = "bamboo-p3", 19_800.0, 0.22  # hours 5.5 to 6.5 of the record: 7, 6, 5, 4, 5, 4, 5, 6, 7, ...
ENDS_S, SPEEDUP = 3_600.0, 12.0
QUICK_ENDS_S, QUICK_SPEEDUP = 1_560.0, 24.0
JOB = GridJob(samples=240_000, unit_ms=30.0, stages=2, least=2, most=7)
GOAL = 0.15
APART = 0.05  # ways that the simulator has nearer to one another than this are not told apart
# Changes of depth, within parts, and between them, and restarts.
WALK = ((2, 2), (1, 4), (2, 2), (1, 2), (2, 2), None, (2, 2), None, (1, 2))
WALK_EACH_S = 9.0
PUBLISHED = "gpt-1.5b"
LIVE, GREEDY, STORED = "liveput", "greedy-live", "checkpoint-restart"
WAYS: dict[str, Policy] = {LIVE: Liveput(), GREEDY: Fastest(), STORED: CheckpointRestart()}


@dataclass(slots=True)
class Walk:
    """A policy that leads the one job through grids, for a while in each, from when it first runs."""

    grids: Sequence[tuple[int, int] | None] = WALK  # None = it is stopped, and started again in the next grid
    each_s: float = WALK_EACH_S
    gpus: int = 4  # in all of them; what a grid has no place for is spare
    since_s: float | None = None
    stopped_s: float = -math.inf  # when it was told to stop last: once in each stage of a stop

    def decide(self, snapshot: Snapshot) -> Plan:
        """All GPUs, in the grid of now."""
        draft, now_s = Draft(snapshot), snapshot.now_s
        if self.since_s is None and any(state.phase is Phase.RUNNING for state in snapshot.active.values()):
            self.since_s = now_s
        been_s = 0.0 if self.since_s is None else now_s - self.since_s
        stage = min(int(been_s / self.each_s), len(self.grids) - 1)
        for state in (*snapshot.active.values(), *snapshot.waiting.by(arrival)):
            pool = draft.pool_with_room(state.job, 1) if state.shape is None else state.shape.pool
            grid = self.grids[stage]
            if grid is None and state.shape is None and state.phase is Phase.WAITING:
                grid = self.grids[stage + 1]  # at once: it is the restart that is timed
            if pool is not None and grid is not None:
                draft.put(state, Shape(pool, self.gpus, grid=Grid(*grid)), f"to be measured: {Grid(*grid)}")
            elif pool is not None and (state.shape is None or now_s - self.stopped_s > self.each_s):
                if state.shape is not None:
                    self.stopped_s = now_s
                    draft.take(state, "to be measured: a stop")
                draft.hold_spares(pool, self.gpus)
        return draft.plan(ask_again_s=now_s + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way, in both worlds."""

    name: str
    lived: Lived
    live: float  # samples an hour, from its first step on
    foretold: float
    compared: float  # the same with the speeds of all runs, its own too
    lost: int  # samples; of live ways also those taken twice, and steps of which workers disagree
    again: int  # steps that were made a second time, from a checkpoint on


@dataclass(frozen=True, slots=True)
class _Stage:
    """How much of the record, and how fast it goes by."""

    ends_s: float
    speedup: float

    def settings(self, folder: str) -> Settings:
        return Settings(
            state_dir=folder,
            speedup=self.speedup,
            market=(MARKET,),
            market_start_s=START_S,
            market_share=SHARE,
            notice_s=120.0,
            most_nodes=JOB.most,
            lease_s=15.0,
        )


def _run(quick: bool, tell: Tell) -> Findings:
    stage = _Stage(QUICK_ENDS_S, QUICK_SPEEDUP) if quick else _Stage(ENDS_S, SPEEDUP)
    tell("changes of each kind, on a market that takes nothing")
    walked = _walked(tell)
    restarts = [move.decided_s for move in walked.moves if move.kind == RESTART]
    if not restarts:  # before the hour is spent, and not after it
        raise Infeasible("no restart was seen, of which one is simulated", binding="restarts", needed=1, available=0)
    restart_s = stage.speedup * fmean(restarts)
    runs: dict[str, Lived] = {}
    for name, policy in WAYS.items():
        tell(f"{name}: {stage.ends_s / stage.speedup:.0f} s of real processes")
        runs[name] = _lived(tell, policy, stage)
    tell("the same in the simulator")
    jobs = {LIVE: runs[GREEDY].job, GREEDY: runs[LIVE].job, STORED: runs[GREEDY].job}
    ways = [_both(name, jobs[name], runs, stage, restart_s) for name in WAYS]
    moves = [move for each in (*runs.values(), walked) for move in each.moves]
    return _told(ways, moves, stage)


def _lived(tell: Tell, policy: Policy, stage: _Stage) -> Lived:
    with tempfile.TemporaryDirectory(prefix="sublet-grid-live-", ignore_cleanup_errors=True) as folder:
        return live(stage.settings(folder), JOB, tell, policy=policy, until_s=stage.ends_s)


def _walked(tell: Tell) -> Lived:
    job, most_s = replace(JOB, stages=0, least=2, most=4), WALK_EACH_S * (len(WALK) + 2)
    with tempfile.TemporaryDirectory(prefix="sublet-grid-live-", ignore_cleanup_errors=True) as folder:
        return live(Settings(state_dir=folder, most_nodes=4), job, tell, policy=Walk(), until_s=most_s)


def _both(name: str, known: Job, runs: Mapping[str, Lived], stage: _Stage, restart_s: float) -> _Way:
    """Both from the first step of the live one on: what a start of processes takes is not what is compared."""
    lived = runs[name]
    since_s = _began_s(lived)
    hours = (stage.ends_s - since_s) / SECONDS_PER_H
    steps = max(row.step for row in lived.rows) + 1
    found = accounts(lived.rows, steps=steps, batch=JOB.batch, samples=JOB.samples)

    def simulated(*measured: Lived) -> float:
        shares = steps_per_s(*(each.rows for each in measured))
        job = at_rates(known, {grid: each / JOB.steps / stage.speedup for grid, each in shares.items()})
        job = restarting(job, restart_s) if name == STORED else job
        return _simulated(job, WAYS[name], lived, stage) / hours

    return _Way(
        name=name,
        lived=lived,
        live=lived.samples_between(since_s, stage.ends_s, JOB.batch) / hours,
        foretold=simulated(*(run for other, run in runs.items() if other != name)),
        compared=simulated(*runs.values()),
        lost=found.missing + found.twice + found.disputed,
        again=lived.view["steps_lost"],
    )


def _began_s(lived: Lived) -> float:
    return lived.speedup * (min(row.since_s for row in lived.rows) - lived.zero_s)


def _simulated(job: Job, policy: Policy, lived: Lived, stage: _Stage) -> float:
    """Samples of a job that trains from the same moment on."""
    boot_s = lived.boot_s
    endless = replace(job, submit_s=max(0.0, _began_s(lived) - boot_s), work=math.inf)
    run = same_day(stage.settings("/"), endless, policy, boot_s=boot_s, until_s=stage.ends_s)
    return run.record.jobs[job.id].done * JOB.samples * JOB.epochs


def ordered_alike(ways: Sequence[tuple[float, float]]) -> bool:
    """(live, foretold) of each: whether those that are foretold to be apart are in the same order live."""
    return all(
        (one[0] > two[0]) == (one[1] > two[1])
        for at, one in enumerate(ways)
        for two in ways[at + 1 :]
        if abs(one[1] / two[1] - 1.0) > APART
    )


def in_order(names: Sequence[str], figures: Sequence[float]) -> str:
    """The most first.

    >>> in_order(["a", "b"], [1.0, 2.0])
    'b > a'
    """
    return " > ".join(name for _, name in sorted(zip(figures, names, strict=True), reverse=True))


def _told(ways: Sequence[_Way], moves: Sequence[Move], stage: _Stage) -> Findings:
    checks: list[Check] = []
    for way in ways:
        what = "samples lost" if way.name == STORED else "samples lost, taken twice or disputed"
        checks += [
            within(f"{way.name}: samples an hour, live over simulated", way.live / way.foretold, 1.0, GOAL),
            equals(f"{way.name}: {what}", way.lost, 0),
        ]
    alike = ordered_alike([(way.live, way.compared) for way in ways])
    checks.append(equals("the order of the ways is the same", alike, 1))
    kinds = (*KINDS, RESTART)
    checks += [at_least(f"changes: {kind}", sum(move.kind == kind for move in moves), 1) for kind in kinds]
    rows = [
        [
            way.name,
            f"{way.live:,.0f}",
            f"{way.foretold:,.0f}",
            f"{way.live / way.foretold - 1.0:+.1%}",
            f"{way.compared:,.0f}",
            str(way.lost),
            str(way.again),
        ]
        for way in ways
    ]
    tables = [
        StudyTable(
            title=f"Samples an hour of cloud time, over {stage.ends_s / 60:.0f} minutes of {MARKET}",
            columns=["way", "live", "simulated", "off by", "at the speeds of all", "lost", "steps made again"],
            rows=rows,
        ),
        _seconds(moves),
    ]
    names = [way.name for way in ways]
    notes = [
        f"order live: {in_order(names, [way.live for way in ways])}",
        f"order simulated, all at the same speeds: {in_order(names, [way.compared for way in ways])}",
        f"ways that are simulated within {APART:.0%} of one another are not told apart",
        f"a wall second is {stage.speedup:g} s of cloud time, so what processes take weighs {stage.speedup:g} times",
        "simulated: at the mean speeds of the other ways' runs; restarts as long as those of a fourth run",
        f"load of the machine: {os.getloadavg()[0]:.1f} at the end",
        f"Parcae: constants of its published code for {PUBLISHED} on p3.2xlarge, without transfers but for restarts",
        "ours: a small model on processes of one machine; beside one another, not compared",
    ]
    return Findings(checks=checks, tables=tables, notes=notes)


def _seconds(moves: Sequence[Move]) -> StudyTable:
    costs, grids = parcae_costs(PUBLISHED), list(parcae_rates(PUBLISHED))
    regroup = [costs.regroup_s(*grid) for grid in grids]
    restart = [costs.restart_s(*grid, grow=grow) for grid in grids for grow in (False, True)]
    stored = [costs.checkpoint_s(*grid, grow=grow, saved=True) for grid in grids for grow in (False, True)]
    rows = []
    for kind, theirs in zip((*KINDS, RESTART), (regroup, restart, restart, stored), strict=True):
        of_kind = [move for move in moves if move.kind == kind]
        cells = ["0", "", ""]
        if of_kind:
            decided, paused = ([getattr(move, name) for move in of_kind] for name in ("decided_s", "paused_s"))
            cells = [str(len(of_kind)), *(f"{median(each):.2f} ({max(each):.2f})" for each in (decided, paused))]
        rows.append([kind, *cells, f"{min(theirs):.1f}-{max(theirs):.1f}"])
    return StudyTable(
        title="Changes: seconds in the middle (at most)",
        columns=["kind", "seen", "decision to first step", "without a step", "Parcae, published"],
        rows=rows,
    )


STUDY = Study(
    name="grid-live", title="grids of real processes on a recorded spot market agree with the simulator", run=_run
)
