"""Who knew what in the study of clusters, by what is decided: every entrant, as the study makes it, on eight GPUs.

What a policy must not know is changed, and nothing that it decides may change with it. Each test has a twin in which
somebody does know, and the change is seen.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.demand import Ended
from sublet.errors import MissingData
from sublet.perf.measured import goodput_model
from sublet.sim.simulator import simulate
from sublet_lab import sia_learned
from sublet_lab.studies import cluster, entrants
from sublet_lab.studies.peers import homogeneous_cluster

JOBS, NODES = 10, 2
OF_THE_NOTEBOOK = ("_expect_speed", "_unknown", "_expect_goodput", "_local_batch", "_single")  # kept by model
PRICES, RIVALS = tuple(entrants.PRICES), entrants.FREE["64 T4"]
LEARNING_PRICES = tuple(cluster.MEAN["64 T4"])


@pytest.fixture(scope="module")
def setting():
    """Ten jobs within minutes on two nodes of four: GPUs are short, and some wait."""
    try:
        whole = homogeneous_cluster("1", load="1.5")
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])
    jobs = [replace(job, submit_s=job.submit_s / 20.0) for job in whole.jobs[:JOBS]]
    limits = {offer.id: Limit(min_nodes=NODES, max_nodes=NODES) for offer in whole.cloud.offers}
    return replace(whole, jobs=jobs, cloud=replace(whole.cloud, limits=limits))


@pytest.fixture
def notebooks():
    """Nobody remembers another world."""
    yield forget
    forget()


def forget():
    for name in OF_THE_NOTEBOOK:
        getattr(sia_learned, name).cache_clear()


def entrant(setting, name, *, learns=False):
    """A fresh one, as it is entered."""
    named = {each.name: each for each in (entrants.learners if learns else entrants.contenders)(setting)}
    return named[name].policy


class Written:
    """Decides as another policy, and writes down what it decided."""

    def __init__(self, policy):
        self.policy, self.lines = policy, []

    def decide(self, snapshot):
        plan = self.policy.decide(snapshot)
        self.lines.append((snapshot.now_s, dict(plan.shapes), dict(plan.hold)))
        return plan


class Widths:
    """Hears of every start and every change: on what jobs of a model ran, and how many times as wide each became."""

    def __init__(self, jobs):
        self.model = {job.id: job.model for job in jobs}
        self.spreads, self.most, self.growth = defaultdict(set), defaultdict(lambda: 1), defaultdict(list)

    def __call__(self, _event, actions):
        for action in actions:
            if isinstance(action, StartJob | ResizeJob):
                spread = tuple(sorted(gpus for _, gpus in action.placement))
                self.spreads[self.model[action.job_id]].add(spread)
                self.growth[action.job_id].append(sum(spread) / self.most[action.job_id])
                self.most[action.job_id] = max(self.most[action.job_id], sum(spread))


def run(setting, policy):
    written, widths = Written(policy), Widths(setting.jobs)
    done = simulate(setting.jobs, written, setting.cloud, watch=widths)
    assert not done.unfinished
    return written.lines, widths


# ---------------------------------------------------------------------- how far a job may grow at once


@pytest.mark.parametrize("name", [*LEARNING_PRICES, *entrants.LEARNERS["64 T4"]])
def test_where_all_learn_nobody_has_more_than_twice_what_it_has_had(setting, name):
    """And each does double, so that the rule is what holds them."""
    _, widths = run(setting, entrant(setting, name, learns=True))
    assert max(max(each) for each in widths.growth.values()) == 2.0


@pytest.mark.parametrize("name", [*PRICES, *RIVALS])
def test_where_all_know_each_may_have_any_number_at_once(setting, name):
    few = replace(setting, jobs=setting.jobs[:2])
    _, widths = run(few, entrant(few, name))
    assert max(max(each) for each in widths.growth.values()) > 2.0


def test_and_as_published_pollux_may_not(setting):
    few = replace(setting, jobs=setting.jobs[:2])
    _, widths = run(few, entrant(few, "pollux, as published"))
    assert max(max(each) for each in widths.growth.values()) == 2.0


# ---------------------------------------------------------------------- speeds


class Elsewhere:
    """Step times as they are where somebody ran, and thirty times as fast or slow where nobody did."""

    def __init__(self, truth, known, factor):
        self.truth, self.known, self.factor = truth, known, factor

    def times(self, spread, local):
        used = tuple(sorted(gpus for gpus in spread if gpus > 0))
        full, compute = self.truth.times(spread, local)
        return (full, compute) if used in self.known else (full * self.factor, compute * self.factor)


def elsewhere(spreads, factor):
    """The tables of a world that is another where nobody has been; one GPU of a kind may be tried by anyone."""
    made = {}

    def model_of(model, *, source="pollux"):
        if model not in made:
            truth = goodput_model(model, source=source)
            known = {(1,), *spreads[model]}
            made[model] = replace(truth, step={gpu: Elsewhere(of, known, factor) for gpu, of in truth.step.items()})
        return made[model]

    return model_of


def in_both_worlds(setting, make, monkeypatch, factor):
    """What is decided here, and in a world in which all that nobody measured here is another."""
    forget()
    here, widths = run(setting, make())
    other = elsewhere(widths.spreads, factor)
    with monkeypatch.context() as there:
        there.setattr(sia_learned, "goodput_model", other)
        forget()
        jobs = [replace(job, speed=other(job.model).speed()) for job in setting.jobs]
        again, _ = run(replace(setting, jobs=jobs), make())
    return here, again


FASTER, SLOWER = 1 / 30, 30.0


@pytest.mark.parametrize(
    ("name", "factor"),
    [*((name, FASTER) for name in (*LEARNING_PRICES, *entrants.LEARNERS["64 T4"])), ("price", SLOWER)],
)
def test_where_all_learn_nobody_knows_a_speed_that_was_not_measured(setting, monkeypatch, notebooks, name, factor):
    del notebooks
    here, again = in_both_worlds(setting, lambda: entrant(setting, name, learns=True), monkeypatch, factor)
    assert len(here) > 20
    assert again == here


@pytest.mark.parametrize("name", ["price", *RIVALS])
def test_where_speeds_are_known_the_same_is_seen(setting, monkeypatch, notebooks, name):
    del notebooks
    here, again = in_both_worlds(setting, lambda: entrant(setting, name), monkeypatch, FASTER)
    assert again != here


def test_a_notebook_that_reads_on_in_the_tables_is_seen(setting, monkeypatch, notebooks):
    """As if `Learned` answered by what is measured, not by what the job has measured."""
    del notebooks

    def peeks(notebook, state, _now_s):
        return sia_learned.goodput_model(state.job.model, source=notebook._source).speed()

    monkeypatch.setattr(sia_learned.Learned, "speed", peeks)
    few = replace(setting, jobs=setting.jobs[:4])
    here, again = in_both_worlds(few, lambda: entrant(few, "price", learns=True), monkeypatch, FASTER)
    assert again != here


# ---------------------------------------------------------------------- sizes


class Line(list):
    """Jobs that wait."""

    def by(self, key):
        return iter(sorted(self, key=lambda state: (key(state), state.seq)))

    def orders(self, *keys):
        return tuple(list(self.by(key)) for key in keys)


class Beside:
    """Decides as another policy; beside it, looks what that would do were something else than it is."""

    def __init__(self, policy, changed):
        self.policy, self.changed, self.same, self.other = policy, changed, 0, 0

    def decide(self, snapshot):
        plan = self.policy.decide(snapshot)
        again = self.policy.decide(self.changed(snapshot))
        alike = again.shapes == plan.shapes and again.hold == plan.hold
        self.same, self.other = self.same + alike, self.other + (not alike)
        return plan


def of_other_sizes(seed):
    """All that are not done yet."""
    rng = np.random.default_rng(seed)

    def larger(state):
        return replace(state, job=replace(state.job, work=state.job.work * float(rng.uniform(1.0, 50.0))))

    def changed(snapshot):
        active = {name: larger(state) for name, state in snapshot.active.items()}
        line = Line(larger(state) for state in snapshot.waiting.by(lambda state: state.seq))
        return replace(snapshot, active=active, waiting=line)

    return changed


def after_others_were_done(snapshot):
    """Of the jobs that are done each was forty times as much."""
    needed = (each._replace(work=40.0 * each.work, gpu_h=40.0 * each.gpu_h) for each in snapshot.ended.jobs)
    return replace(snapshot, ended=Ended(tuple(needed)))


def beside(setting, policy, changed):
    seen = Beside(policy, changed)
    simulate(setting.jobs, seen, setting.cloud)
    assert seen.same + seen.other > 20
    return seen.other


@pytest.mark.parametrize(
    ("name", "learns"),
    [
        ("price, blind", False),  # it is not entered where all learn
        *product(["price, sizes learned", "price, no sizes", "pollux", "sia"], [False, True]),
    ],
)
def test_who_is_told_no_sizes_decides_the_same_whatever_they_are(setting, name, learns):
    full = name if name in PRICES else f"{name}, {'learns' if learns else 'free'}"
    assert beside(setting, entrant(setting, full, learns=learns), of_other_sizes(1)) == 0


@pytest.mark.parametrize("learns", [False, True], ids=["speeds known", "speeds learned"])
def test_and_who_is_told_does_not(setting, learns):
    assert beside(setting, entrant(setting, "price", learns=learns), of_other_sizes(1)) > 0


@pytest.mark.parametrize(
    ("name", "reads"),
    [("price", False), ("price, sizes learned", True), ("price, no sizes", True), ("price, blind", False)],
)
def test_sizes_are_learned_of_jobs_that_are_done_and_not_where_they_are_declared(setting, name, reads):
    assert (beside(setting, entrant(setting, name), after_others_were_done) > 0) is reads
