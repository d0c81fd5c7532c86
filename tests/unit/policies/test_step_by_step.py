"""Policies that hand GPUs out step by step, beside slow twins that look at everybody before every step.

Whole plans are compared, on speeds that are whole numbers with holes, dents and ties, of jobs that run, wait, are all
but done, or do not run here at all.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.domain.plan import arrival
from sublet.perf.speedup import Table
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.greedy.keep import GreedyKeep
from sublet_lab.rivals.greedy.speed import GreedySpeed
from sublet_lab.rivals.greedy.time import GreedyTime
from sublet_lab.rivals.las import Las
from sublet_lab.rivals.max_speedup import MaxSpeedup
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.srtf import Srtf
from sublet_lab.rivals.tiresias import Tiresias

GPU, WIDEST = "T4", 6


def any_job(rng, name):
    """Rates of 0 are holes; some jobs need several GPUs, some run nowhere, some take their time to restart."""
    rates = rng.integers(0, 9, WIDEST) if rng.random() < 0.5 else np.cumsum(rng.integers(0, 4, WIDEST))
    if rng.random() < 0.7:
        rates[0] = max(1, rates[0])
    low = int(rng.choice([1, 1, 1, 2, 3]))
    asked, high = sorted(rng.integers(low, WIDEST + 1, 2).tolist())
    return a_job(
        name,
        work=float(rng.choice([30, 300, 300, 5000])),
        gpus=asked,
        min_gpus=low,
        max_gpus=high,
        speed=Table(rates={GPU: {at + 1: float(rate) for at, rate in enumerate(rates)}}),
        restart_s=float(rng.choice([0.0, 5.0, 60.0])),
    )


def any_town(rng, policy):
    """Some jobs run already, some come now, and supply may have risen or fallen meanwhile. The GPUs, and a snapshot."""
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    before, now = (int(rng.integers(1, 12)) for _ in range(2))
    driver.tell(AvailabilityChanged(0.0, "o", before))
    jobs = [any_job(rng, f"j{at}") for at in range(int(rng.integers(1, 6)))]
    early = int(rng.integers(0, len(jobs) + 1))
    driver.submit(*jobs[:early])
    driver.settle(policy)
    driver.now_s = float(rng.choice([10.0, 60.0]))
    driver.submit(*jobs[early:])
    driver.tell(AvailabilityChanged(driver.now_s, "o", now))
    snapshot = driver.kernel.snapshot()
    for job_id, state in snapshot.active.items():
        if rng.random() < 0.2:  # all but done, or done and nobody has said so
            nearly = replace(state, done=state.job.work - float(rng.choice([0.0, 0.5])), as_of_s=driver.now_s)
            snapshot = replace(snapshot, active={**snapshot.active, job_id: nearly})
    return now, snapshot


def planned(snapshot, policy):
    """GPUs of every job that has any once the plan is carried out."""
    held = {job_id: state.gpus for job_id, state in snapshot.active.items()}
    for job_id, shape in policy.decide(snapshot).shapes.items():
        held[job_id] = 0 if shape is None else shape.gpus
    return {job_id: gpus for job_id, gpus in held.items() if gpus}


class Asker:
    """One job, asked by hand."""

    def __init__(self, state, now_s, gpus):
        self.state, self.job, self.done = state, state.job, state.done_at(now_s)
        top = min(self.job.max_gpus, gpus)
        self.all_widths = [*range(self.job.min_gpus, top + 1)]
        self.widths = [width for width in self.all_widths if self.rate(width) > 0]
        self.given, self.ended = 0, False

    def rate(self, gpus):
        return self.job.speed.rate(GPU, (1,) * gpus, self.done)

    def left_s(self, gpus):
        return self.job.speed.seconds(GPU, (1,) * gpus, self.done, self.job.work)

    @property
    def over(self):
        return self.done >= self.job.work

    @property
    def one(self):
        """What counts as the speed of one GPU."""
        return self.rate(1) or self.rate(self.widths[0]) / self.widths[0]


def askers(snapshot, gpus, *, only_those_that_run=False):
    """In order of arrival: all that hold GPUs, and those that wait up to the first whose least does not fit beside."""
    found = [Asker(state, snapshot.now_s, gpus) for state in sorted(snapshot.active.values(), key=lambda s: s.seq)]
    taken = sum(each.job.min_gpus for each in found)
    for state in snapshot.waiting.by(arrival):
        each = Asker(state, snapshot.now_s, gpus)
        if only_those_that_run and not each.widths:
            continue
        if taken + each.job.min_gpus > gpus:
            break
        found.append(each)
        taken += each.job.min_gpus
    return sorted(found, key=lambda each: each.state.seq)


def sizes(found):
    return {each.job.id: each.given for each in found if each.given}


# ---------------------------------------------------------------------- greedy


def greedy_by_hand(snapshot, gpus, *, by_time=False, keeps=False):
    found = askers(snapshot, gpus, only_those_that_run=True)
    if keeps:
        found.sort(key=lambda each: each.state.shape is None)
    free = gpus
    for each in found:
        if not each.widths:
            continue
        asked = each.job.gpus if each.state.shape is None else each.state.gpus
        fitting = [width for width in each.widths if width <= free]
        if keeps or each.over:
            fitting = [width for width in fitting if width <= asked][-1:]
        if not fitting or (not (keeps or each.over) and fitting[0] != each.widths[0]):
            break
        each.given = fitting[0]
        free -= each.given
    while True:
        best, gain = None, 0.0
        for each in found:
            wider = [width for width in each.widths if width > each.given]
            if not each.given or each.ended or not wider:
                continue
            if by_time:
                saved_s = each.left_s(each.given) - each.left_s(wider[0])
                worth = max(saved_s, 0.0) / (wider[0] - each.given)
            else:
                worth = (each.rate(wider[0]) - each.rate(each.given)) / each.one / (wider[0] - each.given)
            if worth > gain:
                best, gain, then = each, worth, wider[0]
        if best is None:
            return sizes(found)
        if then - best.given > free:
            best.ended = True
        else:
            free -= then - best.given
            best.given = then


@pytest.mark.parametrize(
    ("policy", "facts"),
    [(GreedySpeed(), {}), (GreedyTime(), {"by_time": True}), (GreedyKeep(), {"keeps": True})],
    ids=["speed", "time", "keep"],
)
def test_greedy_takes_the_best_step_of_all_again_and_again(policy, facts):
    rng, various = np.random.default_rng(10), set()
    for _ in range(120):
        gpus, snapshot = any_town(rng, policy)
        found = planned(snapshot, policy)
        assert found == greedy_by_hand(snapshot, gpus, **facts)
        various.add(tuple(sorted(found.values())))
    assert len(various) > 30


# ---------------------------------------------------------------------- Optimus


def optimus_by_hand(snapshot, gpus):
    found, free = askers(snapshot, gpus), gpus
    for each in found:
        over = each.state.shape is not None and each.over
        need = each.state.gpus if over else each.job.min_gpus
        if need <= free:
            each.given, each.ended = need, over
            free -= need
    while free:
        best, most_s = None, 0.0
        for each in found:
            if not each.given or each.ended or each.given >= each.job.max_gpus:
                continue
            here_s, then_s = each.left_s(each.given), each.left_s(each.given + 1)
            if then_s < here_s and here_s - then_s > most_s:
                best, most_s = each, here_s - then_s
        if best is None:
            break
        best.given += 1
        free -= 1
    return sizes(found)


def test_optimus_gives_the_next_gpu_to_whom_it_saves_most():
    rng, various = np.random.default_rng(11), set()
    for _ in range(120):
        gpus, snapshot = any_town(rng, Optimus())
        found = planned(snapshot, Optimus())
        assert found == optimus_by_hand(snapshot, gpus)
        various.add(tuple(sorted(found.values())))
    assert len(various) > 30


# ---------------------------------------------------------------------- speedups


def speedups_by_hand(snapshot, gpus):
    """Along the hull of each: the widths, from which on no wider one gains more per GPU. Dents are stepped over."""
    found, free = askers(snapshot, gpus), gpus
    while free > 0:
        best, gain, then = None, 0.0, 0
        for each in found:
            if each.ended or not each.all_widths:
                continue
            base = each.rate(each.all_widths[0]) or max(map(each.rate, each.all_widths))
            if not each.given:
                worth, width = math.inf, each.all_widths[0]
            else:
                wider = [width for width in each.all_widths if width > each.given]
                slopes = [(each.rate(width) - each.rate(each.given)) / (width - each.given) for width in wider]
                if max(slopes, default=0.0) <= 0.0:
                    continue
                worth, width = max(slopes) / base, wider[slopes.index(max(slopes))]
            if worth > gain:
                best, gain, then = each, worth, width
        if best is None:
            break
        if then - best.given > free:
            best.ended = True
        else:
            free -= then - best.given
            best.given = then
    for each in found:
        held = each.state.gpus
        if 0 < held < each.given and not each.left_s(each.given) + each.job.restart_s < each.left_s(held):
            each.given = held  # it would end no sooner
    return sizes(found)


def test_speedups_grow_along_the_hull_and_nobody_restarts_in_vain():
    rng, various = np.random.default_rng(12), set()
    for _ in range(120):
        gpus, snapshot = any_town(rng, MaxSpeedup())
        found = planned(snapshot, MaxSpeedup())
        assert found == speedups_by_hand(snapshot, gpus)
        various.add(tuple(sorted(found.values())))
    assert len(various) > 30


# ---------------------------------------------------------------------- equal shares


def shares_by_hand(snapshot, gpus):
    """The least of each as far as they go, then one by one to who has least: first who has had more, then who came."""
    found, free = askers(snapshot, gpus), gpus
    for each in found:
        if each.job.min_gpus <= free:
            each.given = each.job.min_gpus
            free -= each.given
    while free and (growing := [each for each in found if 0 < each.given < each.job.max_gpus]):
        least = min(growing, key=lambda each: (each.given, -min(each.state.gpus, each.given + 1), each.state.seq))
        least.given += 1
        free -= 1
    return sizes(found)


def test_equal_shares_grow_one_by_one_and_who_holds_the_odd_gpu_keeps_it():
    rng, various = np.random.default_rng(13), set()
    for _ in range(120):
        gpus, snapshot = any_town(rng, Equal())
        found = planned(snapshot, Equal())
        assert found == shares_by_hand(snapshot, gpus)
        various.add(tuple(sorted(found.values())))
    assert len(various) > 30


# ---------------------------------------------------------------------- in order of rank


def ranked_by_hand(snapshot, gpus, rank):
    """Whoever fits at the size that it asked for (or all there is, if less), in order of rank and then of arrival."""
    everyone, free = [*snapshot.active.values(), *snapshot.waiting.by(arrival)], gpus
    given = {}
    for state in sorted(everyone, key=lambda state: (rank(state), state.seq)):
        asked = min(state.job.gpus, gpus)
        if state.job.min_gpus <= asked <= free:
            given[state.job.id] = asked
            free -= asked
    return given


@pytest.mark.parametrize(
    "policy",
    [Las(threshold_gpu_s=40.0), Tiresias(threshold_gpu_s=40.0, round_s=0.0), Srtf()],
    ids=["las", "tiresias", "srtf"],
)
def test_who_ranks_first_gets_what_it_asked_for_and_smaller_ones_fill_the_gaps(policy):
    """By what is left to do; or first who has not had its share, and of the others those first who had it first."""
    rng, again = np.random.default_rng(14), 0
    for _ in range(120):
        gpus, snapshot = any_town(rng, policy)
        now_s = snapshot.now_s

        def had(state, now_s=now_s):
            return state.attained_gpu_s(now_s) > 39.0  # a second before it is due

        def since_s(state, now_s=now_s):
            """It has had the same number of GPUs from the beginning, if any."""
            return state.held_since_s + 40.0 / state.gpus if state.attained_gpu_s(now_s) > 39.0 else 0.0

        def left_s(state, now_s=now_s):
            return state.job.speed.seconds(GPU, (1,) * state.job.gpus, state.done_at(now_s), state.job.work)

        rank = {Las: had, Tiresias: since_s, Srtf: left_s}[type(policy)]
        twin = ranked_by_hand(snapshot, gpus, rank)
        assert planned(snapshot, policy) == twin
        if rank is left_s:
            continue
        everyone = {**snapshot.active, **{state.job.id: state for state in snapshot.waiting.by(arrival)}}
        due_s = [
            now_s + (40.0 - everyone[name].attained_gpu_s(now_s)) / width
            for name, width in twin.items()
            if not had(everyone[name])
        ]
        asked_s = min(due_s) if due_s and len(twin) < len(everyone) else None
        assert policy.decide(snapshot).ask_again_s == (None if asked_s is None else pytest.approx(asked_s))
        again += asked_s is not None
    assert again > 20 or isinstance(policy, Srtf)
