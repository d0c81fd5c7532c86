"""Conformance of a policy with real jobs: bring three of them to their end, while worker counts and batches change.

Controller, agents and workers are processes of this machine; what computing takes is slept (`sublet.testing.paced`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from sublet.domain.shape import Shape
from sublet.testing.conformance import Suite
from sublet.testing.paced.run import Outcome, PacedJob, run_paced
from sublet.testing.paced.script import DECAY, Step

INITIAL, LARGEST, RATE, SAMPLES = 16, 512, 0.01, 5_000
# The noise is 256 samples and more, and known after some seconds, in which steps of the initial batch are measured. The
# best batch is some three times that one.
FLAGS = {
    "samples": SAMPLES,
    "features": 255,
    "batch": INITIAL,
    "largest": LARGEST,
    "rate": RATE,
    "floor-ms": 25,
    "sample-ms": 10,
}


class LivePolicySuite(Suite):
    """Inherit it as `TestMineLive` and say `registered_as = "mine"`. Half a minute, most of it asleep."""

    group = "sublet.policies"
    settings: ClassVar[dict[str, Any]] = {}  # of the controller, beside the policy: a budget, `hurry`

    def test_real_jobs_come_to_their_end_while_their_widths_and_batches_change(self) -> None:
        """One run for all that is asked of it: three jobs, with more and more noise, by another rule, moved."""
        jobs = run_paced(
            [
                PacedJob(name="noisy", least=2, most=3, flags={**FLAGS, "blur": 0.5}),
                PacedJob(name="rooted", least=2, most=3, flags={**FLAGS, "rule": "sqrt"}),
                PacedJob(name="moved", least=1, most=3, flags={**FLAGS, "sample-ms": 5}, moved=True),
            ],
            policy=self.registered_as,
            **{"speedup": 200.0, "most_nodes": 3, "lease_s": 30.0, **self.settings},
        )
        assert {name: job.view["phase"] for name, job in jobs.items()} == dict.fromkeys(jobs, "finished")
        for job in jobs.values():
            _each_sample_is_seen_once(job.steps)
            _its_session_obeys(job)
        _widths_change(jobs)
        _the_plan_chose_a_batch_and_says_why(jobs)
        for name, job in jobs.items():
            _rates_follow_the_batch_and_schedules_the_samples(job.steps, rooted=name == "rooted")


def _each_sample_is_seen_once(steps: Sequence[Step]) -> None:
    seen = Counter(sample for step in steps for sample in step.samples)
    assert len(seen) == SAMPLES
    assert set(seen.values()) == {1}


def _widths_change(jobs: dict[str, Outcome]) -> None:
    orders = {name: [str(shape) for shape in job.orders] for name, job in jobs.items()}
    assert any(before.gpus != after.gpus for job in jobs.values() for before, after in pairwise(job.orders)), orders
    assert len({step.workers for step in jobs["moved"].steps}) > 1, orders


def _its_session_obeys(job: Outcome) -> None:
    """It has its own batch until the plan names one, then those and no others, in their order; the last may be late."""
    planned, trained = _changes(iter([INITIAL, *_planned(job.orders)])), _trained(job.steps)
    assert trained in (planned, planned[:-1]), (planned, trained)


def _the_plan_chose_a_batch_and_says_why(jobs: dict[str, Outcome]) -> None:
    assert any(shape.batch is not None for job in jobs.values() for shape in job.orders)
    notes = [note for job in jobs.values() for note in job.notes]
    assert any(f"(of {INITIAL} to {LARGEST}) is the plan's: at a measured gradient noise of" in note for note in notes)


def _rates_follow_the_batch_and_schedules_the_samples(steps: Sequence[Step], *, rooted: bool) -> None:
    for step, size in _sizes(steps):
        assert step.scheduled == step.done // INITIAL
        factor = step.rate / (RATE * DECAY**step.scheduled)
        at = max(size, min(step.batch, INITIAL))
        if rooted:
            assert factor == pytest.approx(math.sqrt(at / INITIAL), rel=1e-6)
        else:
            assert 1.0 - 1e-9 <= factor <= at / INITIAL * (1.0 + 1e-9)


def _planned(orders: Sequence[Shape]) -> list[int]:
    """The batches that a plan has named, without repeats."""
    return _changes(shape.batch for shape in orders if shape.batch is not None)


def _trained(steps: Sequence[Step]) -> list[int]:
    return _changes(step.batch for step in sorted(steps, key=lambda step: step.step))


def _changes(values: Iterator[int]) -> list[int]:
    found: list[int] = []
    for value in values:
        if not found or found[-1] != value:
            found.append(value)
    return found


def _sizes(steps: Sequence[Step]) -> Iterator[tuple[Step, int]]:
    """Each step, as one of its workers wrote it, and how many samples it had in all."""
    by_number = defaultdict[int, list[Step]](list)
    for step in steps:
        by_number[step.step].append(step)
    for same in by_number.values():
        yield same[0], sum(len(step.samples) for step in same)
