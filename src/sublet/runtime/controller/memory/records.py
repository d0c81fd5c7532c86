"""The record of a job, beyond the kernel: its specification, its workers, its past in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sublet.domain.job import Job, Speed
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import counted
from sublet.errors import InvalidValue
from sublet.perf.learned import Learned, Measured
from sublet.perf.sizes import UNKNOWN_H
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.memory.grid_learning import GridLearning
from sublet.runtime.controller.memory.tiers import Tiers
from sublet.runtime.group.failures import widest_below
from sublet.runtime.group.protocol import Group
from sublet.runtime.group.workers import Census, Round
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.profiles.learned import Profiling
from sublet.runtime.secret_files import hidden
from sublet.wire.messages import Stepped


class Start(NamedTuple):
    """Times are of the cloud; its work is taken to be even over them."""

    began_s: float
    wrote_s: float | None  # when it was last seen to write
    ended_s: float
    grains: int

    def grains_by(self, at_s: float) -> int:
        """Its cost by then."""
        if at_s >= self.ended_s:
            return self.grains
        return round(self.grains * max(0.0, at_s - self.began_s) / max(self.ended_s - self.began_s, 1e-9))


@dataclass(slots=True)
class Suspicion:
    """Evidence of `blame` on one job."""

    rounds: set[Round] = field(default_factory=set)  # starts in a row whose nodes died at once
    inside: set[Round] = field(default_factory=set)  # starts whose nodes the cloud did not take
    rests_until_s: float = 0.0  # wall: a new controller waits no longer
    counted_s: float = -math.inf  # wall, when the last of `rounds` lost its node

    def facts(self) -> dict[str, list[int]]:
        """Facts that a restart must find again."""
        return {
            "rounds": sorted(round_.number for round_ in self.rounds),
            "inside": sorted(round_.number for round_ in self.inside),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, list[int]]) -> Suspicion:
        """From what `facts` gave."""
        rounds, inside = (map(Round.from_number, facts.get(name, [])) for name in ("rounds", "inside"))
        return cls(set(rounds), set(inside))


AS_SLOW = 0.8  # of what it was before: a replacement that brought no more than that brought nothing


@dataclass(slots=True)
class Replacements:
    """Of one job."""

    times: dict[int, float] = field(default_factory=dict)  # rank -> the least, against its peers, it was replaced for
    nodes: set[str] = field(default_factory=set)  # that were replaced
    beside: set[str] = field(default_factory=set)  # all that the job was on at the last one; others came later
    last: float = 0.0  # times as long as its peers, of the last one
    in_vain: bool = False  # it is the script's own work: no node is replaced for it any more

    def brought_nothing(self, rank: int, node_id: str, times: float) -> bool:
        """Whether this straggler is what a replacement was to end: its rank again, or a node that came since."""
        if node_id in self.nodes:  # it is still there: the other one has not come yet
            return False
        again = rank in self.times and times >= AS_SLOW * self.times[rank]
        return again or (bool(self.beside) and node_id not in self.beside and times >= AS_SLOW * self.last)

    def add(self, rank: int, node_id: str, times: float, group: Iterable[str]) -> None:
        """This one is replaced; `group`: the nodes that the job is on."""
        self.times[rank] = min(times, self.times.get(rank, times))  # the least: so there is an end, whatever it says
        self.nodes.add(node_id)
        self.beside, self.last = set(group), times

    def facts(self) -> dict[str, Any]:
        """Facts that a restart must find again."""
        return {
            "times": sorted(self.times.items()),
            "nodes": sorted(self.nodes),
            "beside": sorted(self.beside),
            "last": self.last,
            "in_vain": self.in_vain,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Replacements:
        """From what `facts` gave."""
        nodes, beside = set(facts.get("nodes", ())), set(facts.get("beside", ()))
        return cls(dict(facts.get("times", ())), nodes, beside, facts.get("last", 0.0), facts.get("in_vain", False))


MOST_POINTS = 512  # points; half of them go when there are more


@dataclass(slots=True)
class Curve:
    """Of one job, for as long as its controller lives. Steps that are made again stand as they were made last."""

    points: list[tuple[int, float]] = field(default_factory=list)  # (step, loss), steps rising
    apart: int = 1  # steps, at least, between two points

    def add(self, step: int, loss: float | None) -> None:
        """A report."""
        if loss is None or not math.isfinite(loss):
            return
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        if self.points and step - self.points[-1][0] < self.apart:
            return
        self.points.append((step, loss))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self.apart = max(2 * self.apart, (self.points[-1][0] - self.points[0][0]) // MOST_POINTS)


TOO_WIDE = "too-wide"  # the warning of a job that cannot train at a width that its owner allows
ASKS = "all its checkpoints are damaged, and it does not begin at step 0 unasked;"
FORGETS = 0.3  # weight of the newest measurement of a width
WARM_REPORTS = 5  # of a width, before what it does counts as measured: the first steps of a group are slower
WORTH_TELLING = 0.25  # relative change of a rate, or part of a job's own purse, that is worth a new plan
SLOWEST_PER_S, FASTEST_PER_S = 1e-9, 1e12  # samples: a report beyond them is not learned from
LEAST_RATE, MOST_RATE = 1e-12, 1e3  # whole jobs a second: one job's words must not break the plan of all
LONGEST_PAUSE_S = 86_400.0  # wall, to regroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A worker count that a job had before it lost a node, and waits to have again until then."""

    workers: int
    until_s: float

    def describe(self, now_s: float) -> str:
        """In words."""
        left_s = max(0.0, self.until_s - now_s)
        return f"waits to have {counted(self.workers, 'worker')} again, for {left_s:.0f} s more at most"


@dataclass(slots=True)
class JobRecord:
    """One job. Times are cloud time."""

    id: str
    spec: JobSpec
    group: Group
    submitted_s: float
    pools: tuple[str, ...] = ()  # where its owner lets it run; () = anywhere
    started_s: float | None = None
    ended_s: float | None = None
    outcome: Ending = Ending.NONE
    paused: Hold = Hold.NONE  # why it is held back
    refused: str = ""  # why its specification, as the store has it, cannot be run; `spec` is a stand-in then
    error: str = ""
    exit_code: int | None = None
    noticed: int = 0
    unnoticed: int = 0
    forgiven: int = 0  # preemptions before its owner let it go on
    resizes: int = 0
    steps_lost: int = 0
    failed_s: float = 0.0  # when it last failed and was started again
    in_vain: int = 0  # starts in a row that failed before it trained
    in_vain_why: str = ""  # the last of them
    steps_made: int = 0  # the redone ones too
    checkpoint_step: int | None = None
    write_s: float = 0.0  # wall, of the last checkpoint
    carry_s: float = 0.0  # wall, ... to carry it from the node's disk to the controller; 0 = it is written there
    every_s: float = 30.0  # wall, between two checkpoints; a first guess until its workers start
    tiers: Tiers = field(default_factory=Tiers)  # of its checkpoints: what each cost and saved
    starts_over: int = 0  # of a script without a session, in a row, without having saved
    start_useful: int | None = None  # grains, when its present start began; None = it has shown whether it loads
    loads: bool = True  # as far as seen; False: it has started over beside what it had saved
    resumes: bool | None = None  # of a script without a session: its present start found files to go on from
    began_s: float | None = None  # cloud, the first start of a script without a session
    wrote: bool | None = None  # of such a script: its present start has, below its own directory; None = not known
    unsure: list[Start] = field(default_factory=list)  # earlier starts whose work is neither known to be kept nor lost
    apart: str = ""  # it has finished, and its workers never met: the warning
    blamed: str = ""  # why it has failed though no worker of it said so: it brings its nodes down
    suspicion: Suspicion = field(default_factory=Suspicion)  # that it does
    replacements: Replacements = field(default_factory=Replacements)  # of nodes that were slow
    closed: bool = False  # it has failed, and its owner has ended it for good
    start_over: bool = False  # its owner lets it begin at step 0 though there are checkpoints
    damaged: set[str] = field(default_factory=set)  # checkpoints that were passed over and told of
    pinned: tuple[str, int] | None = None  # (pool, workers) that no plan changes by choice: it would start over
    awaited: Awaited | None = None  # it has lost a node, and waits for another
    warnings: dict[str, str] = field(default_factory=dict)  # by kind: what its owner should do something about
    grains: dict[str, int] = field(default_factory=dict)  # its bill by purpose as the last controller had it
    rates: dict[tuple[str, int], float] = field(default_factory=dict)  # (GPU kind, workers) -> samples/s, wall
    kernel_rates: dict[tuple[str, int], float] = field(default_factory=dict)  # the rates that the kernel knows
    left_usd: float | None = None  # of its own purse, as the kernel knows it; None = nothing was told
    too_wide: int | None = None  # workers with which it could not train, lately
    back_to: int | None = None  # the width that it trains at instead; it may be below what its owner wants
    too_wide_why: str = ""
    wide_again_s: float = 0.0  # when that width may be tried again
    reports: Counter[tuple[str, int]] = field(default_factory=Counter)  # (GPU kind, workers) -> how many it said
    pauses_s: list[float] = field(default_factory=list)  # wall, of the last moves
    lost_wall_s: float | None = None  # when it lost a node or began to restart, until it trains again
    profile: Profiling = field(default_factory=Profiling)  # what it measures of itself
    grids: GridLearning = field(default_factory=GridLearning)  # ... if it is cut
    size_group: str = ""  # of jobs that are as large as this one may be; "" = it says how large it is
    size_h: float = UNKNOWN_H  # what it is thought to need in all, where it does not say: hours of one worker
    had_h: float = 0.0  # what it has had of that, when that was looked at last
    saved: str = ""  # its facts as the store has them
    curve: Curve = field(default_factory=Curve)  # of its loss, since this controller began
    foreseen: tuple[object, object] | None = None  # the last forecast that was asked for, after what it follows from
    _before: Stepped | None = None

    def measure(self, report: Stepped, gpu: str, workers: int, nodes: int = 1) -> bool:
        """Learn from a report; True if the kernel should hear of it."""
        before, self._before = self._before, report
        if before is None or before.generation != report.generation or report.step <= before.step:
            return False
        self.steps_made += report.step - before.step
        if report.step_s <= 0 or report.global_batch <= 0 or workers < 1:
            return False
        key, rate = (gpu, workers), report.global_batch / report.step_s
        if not SLOWEST_PER_S <= rate <= FASTEST_PER_S:
            return False  # a worker may say anything; an impossible speed is not learned from
        if self.spec.cut:
            return self.grids.learn_step(report, gpu, self.group.places.formed, rate)
        self.profile.learn(report, gpu, workers, nodes)
        self.reports[key] += 1
        old = self.rates.get(key, rate)
        self.rates[key] = old + max(FORGETS, 1.0 / self.reports[key]) * (rate - old)
        if self.reports[key] < WARM_REPORTS:
            return False
        if self.profile.is_adaptive:
            beyond = self.group.done > self.profile.told_until
            return report.profile is not None and (beyond or self.profile.is_news())
        told = self.kernel_rates.get(key)
        return told is None or abs(self.rates[key] / told - 1.0) > WORTH_TELLING

    def note_told(self) -> None:
        """The kernel hears what is known of its speed now."""
        self.kernel_rates, self.profile.told = dict(self.rates), self.profile.speed()
        work = self.group.work or self.spec.work or 0.0
        phases = self.profile.phases(work, self.group.done)
        self.profile.told_until = phases[0][0] * work if phases else math.inf

    def narrow(self, width: int, back_to: int, why: str, until_s: float) -> None:
        """It could not train at this worker count, and is not tried there until then."""
        self.too_wide, self.back_to, self.too_wide_why, self.wide_again_s = width, back_to, why, until_s
        self.warnings[TOO_WIDE] = f"cannot train on {width} workers, trains on {back_to} instead: {why}"

    def allow_any_width(self) -> None:
        """A worker count that it could not train at may be tried again."""
        self.too_wide = self.back_to = None
        self.warnings.pop(TOO_WIDE, None)

    @property
    def too_narrow(self) -> str:
        """Why it trains on fewer workers than its owner wants at least; "" if it does not."""
        if self.too_wide is None or self.back_to is None or self.too_wide > self.spec.min_workers:
            return ""
        return self.warnings.get(TOO_WIDE, "")

    @property
    def preempted_too_often(self) -> str:
        """Why it is given up, if the cloud took its nodes more often than its owner lets it."""
        limit, count = self.spec.retries.preemption, self.noticed + self.unnoticed - self.forgiven
        if limit is None or count <= limit:
            return ""
        return f"the cloud took a node {counted(count, 'time')}, and retry.preemption is {limit}"

    def learn_spend(self, usd: float) -> bool:
        """Learn what it has cost so far; True if the kernel should hear how much of its own budget is left."""
        if self.spec.purse_usd is None:
            return False
        left_usd, told_usd = max(0.0, self.spec.purse_usd - usd), self.left_usd
        told_usd = self.spec.purse_usd if told_usd is None else told_usd
        if (1.0 - WORTH_TELLING) * told_usd <= left_usd <= told_usd:
            return False
        self.left_usd = left_usd
        return True

    @property
    def may_be_kept(self) -> bool:
        """Its present start, or its last, has done work that may be saved where we do not look."""
        return not self.spec.sdk and self.start_useful is not None and self.wrote is not False

    @property
    def share(self) -> float:
        """Done, as a share of the whole: the kernel's unit. Never quite 1 before the end."""
        work = self.group.work or self.spec.work
        if not work and self.size_group:
            return min(self.had_h / self.size_h, 1.0 - 1e-9)
        return min(self.group.done / work, 1.0 - 1e-9) if work else 0.0

    def hide(self, text: str) -> str:
        """Without the values of its secrets, nor any line of them."""
        return hidden(text, list(self.spec.secrets.values()))

    def to_store(self) -> dict[str, Any]:
        """Facts that a restart must find again."""
        return {
            "sdk": self.spec.sdk,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "submitted_s": self.submitted_s,
            "outcome": self.outcome,
            "paused": self.paused,
            "error": self.error,
            "exit_code": self.exit_code,
            "noticed": self.noticed,
            "unnoticed": self.unnoticed,
            "forgiven": self.forgiven,
            "resizes": self.resizes,
            "steps_lost": self.steps_lost,
            "steps_made": self.steps_made,
            "starts_over": self.starts_over,
            "start_useful": self.start_useful,
            "loads": self.loads,
            "began_s": self.began_s,
            "wrote": self.wrote,
            "unsure": self.unsure,
            "apart": self.apart,
            "blamed": self.blamed,
            "closed": self.closed,
            "start_over": self.start_over,
            "pinned": self.pinned,
            "awaited": None if self.awaited is None else [self.awaited.workers, self.awaited.until_s],
            "too_wide": self.too_wide,
            "back_to": self.back_to,
            "too_wide_why": self.too_wide_why,
            "wide_again_s": self.wide_again_s,
            "checkpoint_step": self.checkpoint_step,
            "write_s": self.write_s,
            "carry_s": self.carry_s,
            "tiers": self.tiers.facts(),
            "pauses_s": self.pauses_s[-3:],
            "failures": dict(self.group.failures),
            "failed_s": self.failed_s,
            "infra_in_a_row": self.group.patience.in_a_row,
            "suspicion": self.suspicion.facts(),
            "replacements": self.replacements.facts(),
            "census": self.group.census.facts(),
            "round": self.group.round.number,
            "widths": self.group.widths.facts(),
            "finished": self.group.finished,
            "grains": self.grains,
            "work": self.group.work,
            "step": self.group.step,
            "done": self.group.done,
            "profile": self.profile.facts(),
            "grids": self.grids.facts(),
            "size_group": self.size_group,
            "size_h": self.size_h,
            "rates": [[gpu, workers, rate] for (gpu, workers), rate in self.rates.items()],
        }

    def restore(self, facts: dict[str, Any]) -> None:
        """From what `facts` gave."""
        plain = dict(facts)
        plain.pop("sdk", None)  # its specification says so, where it can be read
        self.group.work, self.group.step = plain.pop("work", None), plain.pop("step", 0)
        self.group.done = plain.pop("done", 0.0)
        self.group.round = Round.from_number(plain.pop("round", 0))
        self.group.failures = Counter(plain.pop("failures", {}))
        self.group.patience.in_a_row = plain.pop("infra_in_a_row", 0)
        self.group.before = Census.from_facts(plain.pop("census", {}))
        self.suspicion = Suspicion.from_facts(plain.pop("suspicion", {}))
        self.replacements = Replacements.from_facts(plain.pop("replacements", {}))
        self.group.widths.restore(plain.pop("widths", {}))
        self.group.finished = plain.pop("finished", False)
        self.tiers = Tiers.from_facts(plain.pop("tiers", {}))
        pinned = plain.pop("pinned", None)
        self.pinned = None if pinned is None else (pinned[0], pinned[1])
        awaited = plain.pop("awaited", None)
        self.awaited = None if awaited is None else Awaited(workers=awaited[0], until_s=awaited[1])
        before = {purpose: plain.pop(f"grains_{purpose}", 0) for purpose in ("redone", "checkpoint")}  # until 0.1
        self.grains = plain.pop("grains", before)
        self.rates = {(gpu, workers): rate for gpu, workers, rate in plain.pop("rates", [])}
        self.profile = Profiling.from_facts(plain.pop("profile", {}))
        self.grids = GridLearning.from_facts(plain.pop("grids", {}))
        self.group.places.blocks, self.group.places.memory = self.grids.blocks, self.grids.memory
        self.reports = Counter(dict.fromkeys(self.rates, WARM_REPORTS))
        self.outcome, self.paused = Ending(plain.pop("outcome", "")), Hold(plain.pop("paused", ""))
        self.unsure = [Start(*start) for start in plain.pop("unsure", [])]
        for name, value in plain.items():
            setattr(self, name, value)
        if self.too_wide is not None and self.back_to is not None:
            self.narrow(self.too_wide, self.back_to, self.too_wide_why, self.wide_again_s)


def pools_for(spec: JobSpec, offers: Iterable[Offer]) -> tuple[str, ...]:
    """The pools of the markets and GPU kinds that will do; () where all do. InvalidValue where none does."""
    offers = list(offers)
    asked = {kind.casefold() for kind in spec.accelerators}
    kinds = [offer for offer in offers if not asked or offer.gpu.casefold() in asked]
    if not kinds:
        known = ", ".join(sorted({offer.gpu for offer in offers}))
        raise InvalidValue("resources.accelerators", ", ".join(spec.accelerators), f"one of {known}")
    fits = [offer for offer in kinds if spec.market in ("auto", offer.market)]
    if not fits:
        known = ", ".join(sorted({offer.market.value for offer in kinds}))
        raise InvalidValue("resources.spot", str(spec.market), f"a market that there is: {known}")
    if spec.market != "auto":  # in a pool of both it might be placed on either
        both = {offer.pool for offer in offers if str(offer.market) != str(spec.market)}
        fits = [offer for offer in fits if offer.pool not in both]
        if not fits:
            allowed = "auto, with min_on_demand for a core that stays: every pool here has nodes of both markets"
            raise InvalidValue("resources.spot", str(spec.market), allowed)
    if spec.min_on_demand:
        sure = {offer.pool for offer in fits if offer.market is Market.ON_DEMAND}
        fits = [offer for offer in fits if offer.pool in sure]
        if not fits:
            allowed = "left out, or let nodes be rented on demand: nothing that it may use here is"
            raise InvalidValue("resources.min_on_demand", spec.min_on_demand, allowed)
    if spec.per_node:
        fits = [offer for offer in fits if offer.gpus_per_node % spec.per_node == 0]
        if not fits:
            allowed = "on a node of its own, or a part of one that can be had: " + ", ".join(
                sorted({f"{offer.gpu}:{offer.gpus_per_node}" for offer in kinds})
            )
            raise InvalidValue("resources.accelerators", f"{spec.per_node} GPUs for a command", allowed)
    return () if len(fits) == len(offers) else tuple(dict.fromkeys(offer.pool for offer in fits))


def kernel_job(record: JobRecord, speedup: float) -> Job:
    """The job as the kernel and the policies know it.

    Its unit of work is the whole job, because how many samples that is is known only once its session has opened. Its
    name is no model: in a sweep every job has its own, and what the kernel keeps of each kind of job would never end.
    """
    spec, work = record.spec, record.group.work or record.spec.work
    guess = _believable(1.0 / (record.size_h * 3600.0))
    sized = work if spec.sdk else spec.work  # a loop of the script's own counts steps, not samples
    if sized is not None and spec.samples_per_s is not None:
        guess = _believable(spec.samples_per_s / sized / speedup)
    measured = tuple(
        Measured(gpu=gpu, workers=workers, rate=_believable(rate / work / speedup))
        for (gpu, workers), rate in sorted(record.rates.items())
        if work and math.isfinite(rate) and record.reports[gpu, workers] >= WARM_REPORTS
    )
    live = record.profile.speed(work * speedup, work, record.group.done) if work else None
    pause_s = min(max(record.pauses_s[-3:], default=spec.restart_s), LONGEST_PAUSE_S)
    high, pools = widest_below(spec, record.too_wide, record.back_to), record.pools
    low, sizes = spec.min_workers, spec.sizes
    if spec.cut:
        low = max(spec.least_workers, 1 if spec.stages else record.grids.least_parts)
    low = min(low, high)
    if sizes and high not in sizes:
        sizes = (high, *sizes)
    if record.pinned is not None and low <= record.pinned[1] <= high:
        pools, low = record.pinned[:1], record.pinned[1]
        high = low
    if record.awaited is not None and low <= record.awaited.workers <= high:
        low = high = record.awaited.workers
    cut = None
    if spec.cut:
        unit = 1.0 / work / speedup if work else 0.0
        cut = record.grids.speed(
            stages=spec.stages, most_gpus=high, sizes=sizes, guess=guess, unit=unit, speedup=speedup
        )
    speed: Speed = Learned(measured=measured, guess=guess, sizes=sizes) if live is None else replace(live, sizes=sizes)
    return Job(
        id=record.id,
        submit_s=record.submitted_s,
        work=1.0,
        speed=speed if cut is None else cut[0],
        pauses=None if cut is None else cut[1],
        gpus=high,
        min_gpus=low,
        max_gpus=high,
        block=max(1, spec.per_node),
        min_on_demand=min(spec.min_on_demand, low),
        restart_s=pause_s * speedup,
        checkpoint_every_s=record.every_s * speedup,  # written beside the training: a pause of no length
        weight=spec.weight,
        hurry=spec.hurry,
        purse_left_usd=spec.purse_usd if record.left_usd is None else record.left_usd,
        deadline_s=None if spec.deadline_s is None else record.submitted_s + spec.deadline_s,
        pools=pools,
        user=spec.user,
        team=spec.team,
        paused=bool(record.paused),
    )


def _believable(rate: float) -> float:
    return min(max(rate, LEAST_RATE), MOST_RATE)
