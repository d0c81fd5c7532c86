"""Whatever is refused, and however long nodes take: the job ends, and no node is launched to be given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from tests.rigs.silent_cloud import simulate_silent

clouds = st.tuples(
    st.integers(1, 3),  # kinds of spot
    st.booleans(),  # each in a pool of its own
    st.sampled_from([0.0, 30.0, 240.0, 900.0]),  # boot
    st.sampled_from([0.0, 2.0, 45.0]),  # until a refusal is told
    st.booleans(),  # there are limits: all jobs are looked at in each decision
)
answers = st.lists(st.sampled_from([True, True, True, False]), min_size=2, max_size=40)  # mostly no


@given(clouds, answers, st.lists(st.booleans(), max_size=3), st.floats(60.0, 20_000.0))
def test_a_job_ends_and_launches_one_node_of_a_pool_at_most(cloud, spot, on_demand, work_s):
    kinds, apart, boot_s, answer_s, limited = cloud
    offers = [
        an_offer(f"s{at}", gpus=1, usd_per_h=f"0.{30 + at}", boot_s=boot_s, pool=f"p{at if apart else 0}")
        for at in range(kinds)
    ]
    offers.append(an_offer("d", gpus=1, usd_per_h="1.58", market=Market.ON_DEMAND, boot_s=boot_s))
    left, left_on_demand = iter(spot), iter(on_demand)
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, seen = simulate_silent(
            monkeypatch,
            [a_job(work=work_s, restart_s=30.0)],
            Price(),
            Cloud(
                offers=offers,
                limits={offer.id: Limit(max_nodes=4 if limited else None) for offer in offers},
                physics=Physics(provision_s=boot_s),
            ),
            refuses=lambda _, offer_id: next(left_on_demand if offer_id == "d" else left, False),
            answer_s=answer_s,
        )
    assert found.unfinished == ()
    assert all(seen.had(offer.id) <= 1 for offer in offers)
    assert seen.had() <= len({offer.pool for offer in offers})
