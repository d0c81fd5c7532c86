"""The study of shared clusters on the first jobs of a trace: speeds known and learned, and what nobody may know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sublet.errors import MissingData
from sublet.perf.speedup import Amdahl
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.sim.simulator import simulate
from sublet_lab.rivals.fitness import by_age
from sublet_lab.rivals.pollux import Pollux
from sublet_lab.rivals.sia.policy import Sia
from sublet_lab.sia_learned import Learned
from sublet_lab.studies import cluster, entrants
from sublet_lab.studies.learning import LearnsSpeeds
from sublet_lab.studies.peers import homogeneous_cluster, measured, sizes_spread

JOBS = 12


def quiet(_line):
    """Nobody listens."""


@pytest.fixture(scope="module")
def setting():
    try:
        whole = homogeneous_cluster("1", load="1.5")
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])
    return replace(whole, jobs=whole.jobs[:JOBS])


def test_a_quick_run_has_a_row_for_every_belief_and_a_check_for_every_goal(setting):
    known = cluster._cluster("64 T4", [setting], True, quiet)
    learned = cluster._speeds_learned("64 T4", [setting], True, quiet)
    names = [check.name for check in (*known.checks, *learned.checks)]
    for ours in cluster.MEAN["64 T4"]:
        for rival in ("pollux", "sia"):
            assert f"64 T4: mean time of {ours} over {rival}, free" in names
            assert f"64 T4, speeds learned: mean time of {ours} over {rival}, learns" in names
    assert len(known.checks) == 7
    assert len(learned.checks) == 6
    told = {row[0]: row[1:3] for row in learned.tables[0].rows}
    assert told["sia, learns"] == ["learns", "none"]
    assert told["price, sizes learned"] == ["learns", "learned by group"]
    never = next(check for check in known.checks if "never ended" in check.name)
    assert never.ok


def test_who_has_to_learn_its_speeds_is_slower_for_it(setting):
    plain = measured(setting, "price", Price())
    learns = measured(setting, "price", entrants.learns(setting, Price()))
    assert learns.unfinished == 0
    assert learns.mean_h > 1.02 * plain.mean_h


def test_sizes_are_spread_over_what_is_said_and_the_order_of_arrivals_stays(setting):
    spread = sizes_spread(setting, 3)
    shares = [job.work / whole.work for job, whole in zip(spread.jobs, setting.jobs, strict=True)]
    assert 0.1 <= min(shares) < 0.3
    assert 0.8 < max(shares) <= 1.0
    assert [job.submit_s for job in spread.jobs] == [job.submit_s for job in setting.jobs]
    assert sizes_spread(setting, 3).jobs == spread.jobs


# ---------------------------------------------------------------------- no leak


class Reported:
    """Progress is as it is reported; of all else another speed is told."""

    def __init__(self, truth, told):
        self.work, self.ends, self.rate, self.seconds = truth.work, told.ends, told.rate, told.seconds


class Elsewhere:
    """Decides as another policy; beside it, looks what that would do were jobs of other speeds than they are."""

    def __init__(self, policy, again, seed):
        self.policy, self.again, self.rng, self.same, self.other = policy, again, np.random.default_rng(seed), 0, 0

    def decide(self, snapshot):
        def other(state):
            speed = Reported(state.job.speed, Amdahl(parallel=float(self.rng.random()), kinds={"T4": 3.0}))
            return replace(state, job=replace(state.job, speed=speed))

        plan = self.policy.decide(snapshot)
        waiting = list(snapshot.waiting.by(lambda state: state.seq))
        changed = replace(
            snapshot,
            active={name: other(state) for name, state in snapshot.active.items()},
            waiting=Line(other(state) for state in waiting),
        )
        again = self.again.decide(changed)
        self.same, self.other = self.same + (again.shapes == plan.shapes), self.other + (again.shapes != plan.shapes)
        return plan


class Line(list):
    """Jobs that wait."""

    def by(self, key):
        return iter(sorted(self, key=lambda state: (key(state), state.seq)))

    def orders(self, *keys):
        return tuple(list(self.by(key)) for key in keys)


@pytest.mark.parametrize(
    "policy",
    [Price(), Price(knows=WorkBelief.PAST), Sia(discount=by_age), Pollux()],
    ids=lambda policy: type(policy).__name__,
)
def test_speeds_that_have_to_be_learned_do_not_change_what_is_decided(setting, policy):
    notebook = Learned(setting.batch, {"T4": 4}, source="pollux")
    learns = LearnsSpeeds(policy=policy, notebook=notebook, growth=2.0)
    seen = Elsewhere(learns, learns, 1)  # one notebook: what was seen is the same
    simulate(setting.jobs, seen, setting.cloud)
    assert (seen.other, seen.same > 20) == (0, True)


def test_and_where_they_are_known_they_do(setting):
    seen = Elsewhere(Price(), Price(), 1)
    simulate(setting.jobs, seen, setting.cloud)
    assert seen.other > 3
