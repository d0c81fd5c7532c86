"""Where it is clear what each job wants nothing is valued; its twin values everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.domain.plan import Plan, Snapshot
from sublet.perf.speedup import Amdahl
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import ask
from sublet.policies.price.cluster_split import _claims, _fits, _most_valuable, _possible, _sure, efficient, split
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer

OWNED = Cloud(offers=(an_offer("o", gpus=8, market=Market.ON_DEMAND),), limits={"o": Limit(min_nodes=2, max_nodes=2)})


@dataclass(frozen=True)
class Twice:
    """`price`, and at every decision the split as it is made and with everything valued."""

    policy: Price
    sure: list[bool] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Plan:
        terms = Terms.from_snapshot(snapshot)
        rules = {"patience_s": self.policy.patience_s, "knows": self.policy.knows}
        decision = Decision.read(terms, value_of_time(terms).over, review_s=60.0, **rules)
        asked = None if decision.jobs is None else ask(decision, decision.jobs)[0]
        if asked is not None:
            claims = _claims(decision, asked, efficient(decision.jobs, decision.value))
            can_JC = _possible(claims, terms.alone_R)
            ours, twin = split(claims, terms.alone_R), _most_valuable(claims, can_JC, terms.alone_R)
            assert ours.column_J.tolist() == twin.column_J.tolist()
            assert ours.price_R.tolist() == twin.price_R.tolist()
            sure_J = _sure(claims, can_JC)
            self.sure.append(sure_J is not None and _fits(claims.table, sure_J, terms.alone_R))
        return self.policy.decide(snapshot)


def jobs_of(wanted):
    return [
        a_job(
            f"j{at}", submit_s=300.0 * came, work=600.0 * size, gpus=least, min_gpus=least, max_gpus=least + more,
            speed=Amdahl(parallel=parallel), restart_s=pause_s,
        )
        for at, (came, size, least, more, parallel, pause_s) in enumerate(sorted(wanted))
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.integers(1, 40), st.integers(1, 5), st.sampled_from([0, 0, 3, 9]),
            st.sampled_from([0.3, 0.9, 1.0]), st.sampled_from([0.0, 30.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(list(WorkBelief)),
)  # fmt: skip
def test_what_is_clear_without_values_is_what_is_worth_most(wanted, knows):
    simulate(jobs_of(wanted), Twice(Price(knows=knows)), OWNED, keep_segments=False)


def test_nothing_is_valued_where_each_has_one_shape_and_all_fit_and_everything_where_they_do_not():
    alone, crowd = Twice(Price()), Twice(Price())
    simulate(jobs_of([(at, 9, 2, 0, 0.9, 30.0) for at in range(3)]), alone, OWNED)
    simulate(jobs_of([(0, 9, 5, 0, 0.9, 30.0)] * 4), crowd, OWNED)
    assert all(alone.sure)
    assert not crowd.sure[0]
