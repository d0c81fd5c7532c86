"""What is wanted is held within limits and quotas: beside trying all that one could hold."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.errors import InvalidValue
from sublet.kernel.cluster import Node
from sublet.kernel.listing import hold_within, listing_from, quotas_from, refuse_other_machines
from sublet.testing.values import an_offer

SPOT, SURE = Market.SPOT, Market.ON_DEMAND


def offers_of(*names, pool="p", gpus=2, **facts):
    return [an_offer(name, gpus=gpus, pool=pool, **facts) for name in names]


def is_allowed(hold, limits, pools):
    within = all(
        limit.min_nodes <= hold[o] <= (99 if limit.max_nodes is None else limit.max_nodes)
        for o, limit in limits.items()
    )
    quotas = [(pool.gpus_per_node, *quota) for pool in pools.values() for quota in pool.quotas]
    return within and all(sum(hold[o] for o in ids) * size <= most for size, ids, most in quotas)


def test_of_what_was_wanted_the_most_is_kept_and_the_first_offers_keep_theirs_longest():
    """Of all that is allowed and not beyond what was wanted, or owned, the one that keeps most, offer by offer."""
    rng = np.random.default_rng(3)
    cut = 0
    for _ in range(120):
        offers = offers_of("a", "b", "c", gpus=int(rng.integers(1, 4)))
        owned = rng.integers(0, 2, 3)
        limits = {
            offer.id: Limit(min_nodes=int(least), max_nodes=int(rng.choice([4, 5])) if rng.random() < 0.5 else None)
            for offer, least in zip(offers, owned, strict=True)
        }
        least = int(owned.sum()) * offers[0].gpus_per_node
        quotas = {"p": least + int(rng.integers(0, 12))} if rng.random() < 0.8 else {}
        listing = listing_from(offers, limits, quotas)
        wanted = {offer.id: int(rng.integers(0, 7)) for offer in offers}
        most = {o: max(limit.min_nodes, wanted[o]) for o, limit in limits.items()}
        every = [dict(zip(most, hold, strict=True)) for hold in product(*(range(n + 1) for n in most.values()))]
        best = max(
            (hold for hold in every if is_allowed(hold, limits, listing.pools)), key=lambda hold: [*hold.values()]
        )
        assert hold_within(wanted, listing.limits, listing.pools) == best
        cut += best != most
    assert 30 < cut < 110


def test_what_is_not_named_is_held_as_far_as_it_is_owned():
    listing = listing_from(offers_of("a", "b"), {"a": Limit(min_nodes=1)}, {})
    assert hold_within({}, listing.limits, listing.pools) == {"a": 1, "b": 0}


def test_a_quota_is_of_a_pool_or_of_one_market_of_it():
    offers = [*offers_of("a", "b"), *offers_of("sure", market=SURE), *offers_of("other", pool="q", market=SURE)]
    pools = listing_from(offers, {}, {"p": 9, "p:spot": 4, "q": 0}).pools
    assert (pools["p"].max_gpus, dict(pools["p"].max_of), pools["q"].max_gpus) == (9, {SPOT: 4}, 0)
    assert (pools["p"].offer_ids, dict(pools["p"].markets)) == (("a", "b", "sure"), {SPOT: ("a", "b"), SURE: ("sure",)})
    assert quotas_from(pools, offers) == {"p": 9, "p:spot": 4, "q": 0}
    assert quotas_from(pools, offers[2:3]) == {"p": 9}
    assert quotas_from(pools, offers[3:]) == {"q": 0}
    assert quotas_from(pools, []) == {}
    assert quotas_from(pools, offers_of("new", pool="r")) == {}


def test_a_pool_may_have_a_name_that_ends_in_a_market():
    pools = listing_from([*offers_of("a", pool="p:spot"), *offers_of("b")], {}, {"p:spot": 4}).pools
    assert (pools["p:spot"].max_gpus, pools["p"].max_of) == (4, {})


@pytest.mark.parametrize(
    ("offers", "limits", "quotas", "match"),
    [
        ([], {}, {}, "at least one offer"),
        (offers_of("a", "a"), {}, {}, "of different ids"),
        (offers_of("a", "b"), {"c": Limit(), "d": Limit()}, {}, "limits = 'c'.*an offer that is there: a, b"),
        (offers_of("a", "b"), {"a": Limit(min_nodes=1), "b": Limit(min_nodes=2)}, {"p": 5}, "at least the 6 GPUs"),
        (offers_of("a"), {}, {"q": 5}, "quotas = 'q'"),
        (offers_of("a"), {}, {"p:on-demand": 5}, "quotas = 'p:on-demand'"),
        (offers_of("a"), {}, {"q:spot": 5}, "quotas = 'q:spot'"),
        (offers_of("a"), {}, {"p": -1}, r"quotas\[p\]"),
        ([*offers_of("a"), *offers_of("b", gpus=4)], {}, {}, "offer b.*like the others of pool p"),
        ([*offers_of("a"), *offers_of("b", gpu="A100")], {}, {}, "offer b.*like the others of pool p"),
    ],
)
def test_what_contradicts_itself_is_refused(offers, limits, quotas, match):
    with pytest.raises(InvalidValue, match=match):
        listing_from(offers, limits, quotas)


def test_as_much_as_is_owned_is_enough_of_a_quota():
    limits = {"a": Limit(min_nodes=1), "b": Limit(min_nodes=2)}
    assert listing_from(offers_of("a", "b"), limits, {"p": 6}).pools["p"].max_gpus == 6


@pytest.mark.parametrize("facts", [{"gpu": "A100"}, {"gpus": 4}, {"market": SURE}, {"pool": "q"}])
def test_a_node_that_is_held_stays_what_it_is(facts):
    (offer,) = offers_of("a")
    (other,) = offers_of("a", **{"gpus": 2, "pool": "p", **facts})
    (cheaper,) = offers_of("a", usd_per_h="0.1")
    node = Node("n1", offer, 0)
    refuse_other_machines([node], {"a": cheaper})
    refuse_other_machines([node], {"b": other})
    with pytest.raises(InvalidValue, match="as long as node n1 is held"):
        refuse_other_machines([node], {"a": other})
