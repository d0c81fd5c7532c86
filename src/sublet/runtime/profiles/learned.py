"""Measurements of a job while it trained, and the speed that follows: elsewhere, and at another batch.

Of each form (GPUs, nodes, samples at a time) the medians of the last reports count: a step that waited for a checkpoint
or for an evaluation between epochs is not what steps take. What was not measured yet is known from an earlier run of
the same job, or reckoned from what GPUs can do, or hoped for.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from sublet.advise.transfer import Transfer
from sublet.market.catalogue import load_gpus
from sublet.perf.live.rows import Source, StepRow
from sublet.perf.live.speed import LiveSpeed, batch_steps
from sublet.perf.live.stored import CPU
from sublet.perf.live.trend import noise_phases
from sublet.wire.messages import Profile, Stepped

REPORTS = 9  # of a form, of which the median counts
MOST_FORMS = 64  # the oldest give way: a job that grows its batch by itself has a new one all the time
LEAST_ERROR = 0.02  # of the median of a few reports: the machine has neighbours
WORTH_TELLING = 0.25  # relative change of the noise, or of a step, that is worth a new plan
DIGITS = 3  # that are told: equal speeds are worked out once
LONGEST_S, LEAST_S = 1e6, 1e-6  # of a step: a report beyond them is not learned from
MOST_NOISE = 1e12  # samples
LONGEST_NAME = 80  # letters of a version

Form = tuple[str, int, int, int, int]  # GPU kind, GPUs, nodes, samples at a time, how many times
Reported = tuple[float, float, float]  # step, micro-batch, wait, in seconds


@dataclass(slots=True)
class Profiling:
    """Of one job. Times are wall time, as its workers measure them."""

    forms: dict[Form, deque[Reported]] = field(default_factory=dict)
    earlier: tuple[StepRow, ...] = ()  # what a run before this one measured
    initial: int = 0  # batch that the learning rate is for; 0 = the batch is fixed, or not known yet
    low: int = 0
    high: int = 0
    batch: int = 0  # that it trains with
    noise: float | None = None  # gradient noise scale
    growth: float = 0.0  # of the logarithm of the noise, per sample
    most_samples: int = 0  # at a time; 0 = all of its share
    memory: dict[tuple[str, int], int] = field(default_factory=dict)  # (GPU kind, samples at a time) -> most bytes
    most: dict[str, int] = field(default_factory=dict)  # GPU kind -> `most_samples` there, as it was told last
    before_on: dict[str, str] = field(default_factory=dict)  # GPU kind -> device of the earlier run; "" = not told
    torch: str = ""  # its version, in the workers
    device: str = ""  # what they compute on
    told: LiveSpeed | None = None  # as the kernel knows it, in samples
    told_until: float = math.inf  # samples trained, at which the first phase ends that the kernel knows of
    _generation: int = -1
    _rows: dict[Form, StepRow] = field(default_factory=dict)  # of each form, as it was last told
    _heard: set[Form] = field(default_factory=set)  # of which there are reports since

    def learn(self, report: Stepped, gpu: str, workers: int, nodes: int) -> None:
        """Learn from a report; one that cannot be right is passed over."""
        profile, batch = report.profile, report.global_batch
        if profile is None or workers < 1 or not 1 <= nodes <= workers or batch < 1:
            return
        if report.generation != self._generation:  # the first of a group is of its first steps, which are slower
            self._generation = report.generation
            return
        if not _believable(profile):
            return
        self.initial, self.low, self.high = 0, 0, 0
        if 0 < profile.batch_low <= profile.batch_initial <= profile.batch_high:
            self.initial, self.low, self.high = profile.batch_initial, profile.batch_low, profile.batch_high
        elif self.earlier:  # a fixed batch that was measured on purpose: how it scales is known, and not forgotten
            self.initial = self.low = self.high = batch
        self.batch, self.most_samples = batch, profile.most_samples
        self.torch, self.device = profile.torch[:LONGEST_NAME], profile.device[:LONGEST_NAME]
        if report.noise is not None and 0.0 < report.noise <= MOST_NOISE:
            self.noise = report.noise
            if profile.noise_growth and math.isfinite(profile.noise_growth):
                self.growth = profile.noise_growth  # until it can be told, that of an earlier run
        self._forget_other_devices(gpu)
        piece_s = profile.data_s + profile.compute_s
        wait_s = profile.wait_s if workers > 1 else 0.0
        step_s = max(profile.step_s, profile.pieces * piece_s + wait_s)
        form = (gpu, workers, nodes, profile.samples, profile.pieces)
        self.forms.setdefault(form, deque(maxlen=REPORTS)).append((step_s, piece_s, wait_s))
        self._heard.add(form)
        self.most[gpu] = profile.most_samples
        if profile.memory_bytes > 0:
            at = (gpu, profile.samples)
            self.memory[at] = max(profile.memory_bytes, self.memory.pop(at, 0))
        while len(self.memory) > MOST_FORMS:
            del self.memory[next(iter(self.memory))]
        while len(self.forms) > MOST_FORMS:
            oldest = next(iter(self.forms))
            del self.forms[oldest]
            self._rows.pop(oldest, None)

    def _forget_other_devices(self, gpu: str) -> None:
        """Drop rows of an earlier run on CPUs that were called so where there are GPUs now, or the other way round."""
        before = self.before_on.pop(gpu, "")
        if before and (before == CPU) != (self.device == CPU):
            self.earlier = tuple(row for row in self.earlier if row.gpu != gpu)
            self.memory = {at: most for at, most in self.memory.items() if at[0] != gpu}

    def fits(self, gpu: str) -> int:
        """Samples at a time on a GPU of this kind, where its memory was measured; 0 = all of its share, or not known.

        Where it was not, the number is the script's own, and another run may have another.
        """
        return self.most.get(gpu, 0) if any(kind == gpu for kind, _ in self.memory) else 0

    def called(self, gpu: str) -> Profiling:
        """The same of workers whose kind of GPU is really called so."""
        return replace(
            self,
            forms={(gpu, *form[1:]): told for form, told in self.forms.items()},
            memory={(gpu, samples): most for (_, samples), most in self.memory.items()},
            most={gpu: self.most_samples} if self.most else {},
            _rows={},
        )

    @property
    def is_adaptive(self) -> bool:
        """Whether its batch may change, and something was measured, by this run or an earlier one."""
        return bool(self.initial and self.batch and (self.forms or self.earlier))

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """Rows of this run. A row stays while it is as good: every other one is a curve to be fitted."""
        for form, reports in self.forms.items():
            if form in self._heard or form not in self._rows:
                row, old = _row(form, list(reports)), self._rows.get(form)
                if old is None or _tells_more(row, old):
                    self._rows[form] = row
        self._heard.clear()
        return tuple(self._rows[form] for form in sorted(self.forms))

    def phases(self, work: float, done: float) -> tuple[tuple[float, float], ...]:
        """How the noise grows over a job of so many samples, of which so many are done: (share of them, noise)."""
        if self.noise is None or not 0.0 <= done < work:
            return ()
        noise, growth = _rounded(self.noise, 2), _rounded(self.growth * work, 2)
        return noise_phases(noise, growth, _rounded(done / work, DIGITS), 1.0)

    def speed(self, samples: float = 1.0, work: float = 0.0, done: float = 0.0) -> LiveSpeed | None:
        """As a speed in units of so many samples; None while nothing is measured, and for a batch that is fixed.

        With the `work` of the whole job, which is one such unit, and what is `done` of it, it has phases.
        """
        if not self.is_adaptive:
            return None
        return LiveSpeed(
            rows=self.rows + self.earlier,
            batches=batch_steps(self.initial, self.low, self.high),
            initial=self.initial,
            batch_now=self.batch,
            noise=None if self.noise is None else _rounded(self.noise, 2),
            phases=self.phases(work, done),
            most_samples=self.most_samples,
            unit=samples,
            ratio=kind_ratio,
        )

    def is_news(self) -> bool:
        """Whether the kernel should hear of it: a form that is new, another batch, noise or times that have moved."""
        speed, told = self.speed(), self.told
        if speed is None or told is None:
            return speed is not told
        if (speed.batch_now, speed.batches, speed.most_samples) != (told.batch_now, told.batches, told.most_samples):
            return True
        if (speed.noise is None) != (told.noise is None) or _moved(speed.noise or 1.0, told.noise or 1.0):
            return True
        before = {row.form: row.step_s for row in told.rows if row.source is Source.MEASURED}
        now = {row.form: row.step_s for row in speed.rows if row.source is Source.MEASURED}
        return any(form not in before or _moved(step_s, before[form]) for form, step_s in now.items())

    def facts(self) -> dict[str, Any]:
        """Facts that a restart must find again."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "earlier": [asdict(row) for row in self.earlier],
            "range": [self.initial, self.low, self.high],
            "batch": self.batch,
            "noise": self.noise,
            "growth": self.growth,
            "most_samples": self.most_samples,
            "memory": [[*at, most] for at, most in sorted(self.memory.items())],
            "most": self.most,
            "before_on": self.before_on,
            "torch": self.torch,
            "device": self.device,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Profiling:
        """From what `facts` gave."""
        if not facts:
            return cls()
        rows = _rows_from(facts["rows"])
        initial, low, high = facts["range"]
        return cls(
            forms={row.form: deque([(row.step_s, row.piece_s, row.wait_s)], maxlen=REPORTS) for row in rows},
            earlier=_rows_from(facts["earlier"]),
            initial=initial,
            low=low,
            high=high,
            batch=facts["batch"],
            noise=facts["noise"],
            growth=facts["growth"],
            most_samples=facts["most_samples"],
            memory={(at[0], at[1]): most for *at, most in facts["memory"] if len(at) == len(("kind", "samples"))},
            most=facts.get("most", {}),
            before_on=facts.get("before_on", {}),
            torch=facts.get("torch", ""),
            device=facts.get("device", ""),
        )


@cache
def kind_ratio(known: str, gpu: str) -> float:
    """How many times as long a kind of GPU computes as another one, as the adviser predicts it; 1 where it cannot.

    By models that ran on both, and by what is recorded of them: the error is that of `PREDICTED_ERROR` either way.
    """
    from sublet.advise.measured_models import shelf_name  # slow to import, and seldom needed

    ratio = _transfer().ratio(shelf_name(known), shelf_name(gpu), without="")
    return ratio if math.isfinite(ratio) else 1.0


@cache
def _transfer() -> Transfer:
    from sublet.advise.measured_models import gavel_shelf

    return Transfer(gavel_shelf(), load_gpus())


def _believable(profile: Profile) -> bool:
    times = (profile.data_s, profile.wait_s, profile.update_s)
    return (
        LEAST_S <= profile.compute_s <= LONGEST_S
        and LEAST_S <= profile.step_s <= LONGEST_S
        and all(0.0 <= each <= LONGEST_S for each in times)
        and profile.pieces >= 1
        and profile.samples >= 1
    )


def _row(form: Form, reports: list[Reported]) -> StepRow:
    gpu, gpus, nodes, samples, pieces = form
    step_s, piece_s, wait_s = (_rounded(statistics.median(each), DIGITS) for each in zip(*reports, strict=True))
    off = statistics.median(abs(each[0] / step_s - 1.0) for each in reports)
    return StepRow(
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        samples=samples,
        pieces=pieces,
        step_s=max(step_s, pieces * piece_s + wait_s),
        piece_s=piece_s,
        wait_s=wait_s,
        error=_rounded(max(LEAST_ERROR, 1.5 * off / math.sqrt(len(reports))), 1),
    )


def _tells_more(row: StepRow, old: StepRow) -> bool:
    """It is surer by much, or off by what the old one may be off by."""
    off_s = max(abs(row.step_s - old.step_s), abs(row.piece_s - old.piece_s), abs(row.wait_s - old.wait_s))
    return row.error <= 0.7 * old.error or row.error >= 2.0 * old.error or off_s > 0.5 * old.error * old.step_s


def _rows_from(facts: Iterable[dict[str, Any]]) -> tuple[StepRow, ...]:
    return tuple(StepRow(**{**each, "source": Source(each["source"])}) for each in facts)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _moved(value: float, told: float) -> bool:
    return abs(value / told - 1.0) > WORTH_TELLING
