"""A policy by its name and its options."""

from __future__ import annotations

import pytest

from sublet import plugins
from sublet.errors import InvalidValue, UnknownName
from sublet.policies.boa.policy import Boa
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.fifo import Fifo
from sublet.policies.liveput.policy import Liveput
from sublet.policies.mip.policy import Mip
from sublet.policies.named import policy_named
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.policies.regions.policy import Regions


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fifo", Fifo()),
        ("fifo()", Fifo()),
        ("mip(objective=throughput, horizon_s=3600, most_changes=2, may_pause=false)", None),
        ("mip(most_changes=none)", Mip()),
        ("elastic-batch(drop=true, stickiness=0.1)", ElasticBatch(drop=True, stickiness=0.1)),
        ("liveput(usd_per_sample=1e-5)", Liveput(usd_per_sample=1e-5)),
        ("regions( egress_usd = 0 )", Regions(egress_usd=0.0)),
        ("boa(exact=true, seed=7)", Boa(exact=True, seed=7)),
        ("price(knows=learned, hour_usd=2)", Price(knows=WorkBelief.LEARNED, hour_usd=2.0)),
    ],
)
def test_options_are_fields_of_the_policy(text, policy):
    wanted = policy or Mip(objective="throughput", horizon_s=3600.0, most_changes=2, may_pause=False)
    assert policy_named(text) == wanted


@pytest.mark.parametrize("name", plugins.names("sublet.policies"))
def test_every_policy_has_a_name_without_options(name):
    assert policy_named(name) == plugins.load("sublet.policies", name)()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mpi(objective=total)", "did you mean mip"),
        ("mip(objective=speed)", "objective = 'speed' .* one of remaining, throughput, total, time-left"),
        ("mip(horizon_s=soon)", "horizon_s = 'soon' .* a number"),
        ("mip(horizon_s=0)", "horizon_s"),
        ("mip(most_changes=1.5)", "most_changes = '1.5' .* a whole number or none"),
        ("elastic-batch(drop=yes)", "drop = 'yes' .* true or false"),
        ("elastic-batch(dorp=true)", "option of elastic-batch = 'dorp' .* every_s, stickiness, drop"),
        ("liveput(losses=few)", "option of liveput = 'losses' .* usd_per_sample"),
        ("fifo(first=true)", "it has no options"),
        ("mip(objective)", r"policy = 'mip\(objective\)'"),
        ("mip(objective=total", r"policy = 'mip\(objective=total'"),
        ("mip(objective=total) now", "policy = "),
    ],
)
def test_what_cannot_be_is_refused_in_words(text, error):
    with pytest.raises((InvalidValue, UnknownName), match=error):
        policy_named(text)
