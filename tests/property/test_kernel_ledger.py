"""The bill against a biller who has all the time in the world: every lease, interval by interval, in fractions."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.money import GRAINS_PER_USD, Money, Price
from sublet.kernel.ledger import Ledger
from sublet.testing.strategies import prices
from sublet.testing.values import an_offer

OFFERS = (
    an_offer("cheap", usd_per_h="0.333333", minimum_billing_s=0.0),
    an_offer("dear", usd_per_h="32.77", minimum_billing_s=60.0),
)
US_PER_S = 1_000_000
verbs = st.sampled_from(["open", "open", "close", "void", "reprice"])
steps = st.tuples(
    st.sampled_from([0, 0, 1, 999_999, 17 * US_PER_S, 60 * US_PER_S, 3_600 * US_PER_S]),  # microseconds since the last
    verbs,
    st.integers(0, 3),  # which node or offer
    prices,
)
scripts = st.lists(steps, min_size=20, max_size=30)


class PatientBiller:
    """Remembers everything and adds up nothing until asked."""

    def __init__(self):
        self.prices = {offer.id: [(0, offer.price)] for offer in OFFERS}
        self.leases = {}  # node -> [offer, start, end or None]

    def price_at(self, offer_id, us):
        return [price for since_us, price in self.prices[offer_id] if since_us <= us][-1]

    def usd(self, now_us):
        return sum((self._lease_usd(*lease, now_us) for lease in self.leases.values()), Fraction(0))

    def _lease_usd(self, offer_id, start_us, end_us, last_price, now_us):
        until_us = now_us if end_us is None else end_us
        cuts = {start_us, until_us, *(us for us, _ in self.prices[offer_id] if start_us < us < until_us)}
        total = Fraction(0)
        for since_us, next_us in zip(sorted(cuts), sorted(cuts)[1:], strict=False):
            total += self._usd_per_us(self.price_at(offer_id, since_us)) * (next_us - since_us)
        if end_us is not None:
            minimum_s = next(offer.minimum_billing_s for offer in OFFERS if offer.id == offer_id)
            unused_us = max(Fraction(0), Fraction(minimum_s) * US_PER_S - (end_us - start_us))
            total += self._usd_per_us(last_price) * unused_us
        return total

    @staticmethod
    def _usd_per_us(price):
        return Fraction(price.micro_usd_per_h, 10**6) / 3600 / US_PER_S


def live(script, *, refusals_are_prompt=False):
    """Run a script on both; yield (time in us, what happened, ledger, biller) after every step."""
    ledger, biller, now_us, count = Ledger(OFFERS), PatientBiller(), 0, 0
    for wait_us, verb, which, price in script:
        now_us += wait_us
        offer_id = OFFERS[which % 2].id
        held = [node for node, lease in biller.leases.items() if lease[2] is None]
        if verb == "open":
            count += 1
            ledger.open(f"n{count}", offer_id, now_us / US_PER_S)
            biller.leases[f"n{count}"] = [offer_id, now_us, None, None]
        elif verb == "reprice":
            ledger.reprice(offer_id, price, now_us / US_PER_S)
            biller.prices[offer_id].append((now_us, price))
        elif held:
            node = held[which % len(held)]
            offer_id, start_us = biller.leases[node][:2]
            if verb == "close":
                ledger.close(node, now_us / US_PER_S)
                biller.leases[node][2:] = [now_us, biller.price_at(offer_id, now_us)]
            elif not refusals_are_prompt or start_us == now_us:
                ledger.void(node, now_us / US_PER_S)
                del biller.leases[node]
        yield now_us, ledger, biller


def exact(usd):
    """Whole grains; a fraction of one would be a rounding that the ledger promises not to need."""
    grains = usd * GRAINS_PER_USD
    assert grains.denominator == 1
    return Money(int(grains))


@given(scripts)
def test_the_bill_is_exact_to_the_grain_after_every_step(script):
    for now_us, ledger, biller in live(script):
        assert ledger.spent(now_us / US_PER_S) == exact(biller.usd(now_us))


@given(scripts, st.integers(0, 10**10))
def test_the_bill_is_exact_between_events_too(script, later_us):
    *_, (now_us, ledger, biller) = live(script)
    assert ledger.spent((now_us + later_us) / US_PER_S) == exact(biller.usd(now_us + later_us))


@given(scripts)
def test_closed_leases_and_what_is_open_make_up_the_bill(script):
    for now_us, ledger, biller in live(script):
        closed = sum((lease.cost.grains for lease in ledger.closed), 0)
        still_open = PatientBiller()
        still_open.prices = biller.prices
        still_open.leases = {node: lease for node, lease in biller.leases.items() if lease[2] is None}
        assert {lease.node_id for lease in ledger.open_leases()} == set(still_open.leases)
        assert ledger.spent(now_us / US_PER_S).grains == closed + exact(still_open.usd(now_us)).grains


@given(scripts)
def test_money_once_spent_stays_spent_unless_a_cloud_refuses_late(script):
    before = Money(0)
    for now_us, ledger, _ in live(script, refusals_are_prompt=True):
        now = ledger.spent(now_us / US_PER_S)
        assert now >= before
        before = now


@given(scripts)
def test_the_burn_rate_is_what_the_next_hour_costs_if_nothing_changes(script):
    for now_us, ledger, _ in live(script):
        now, later = (ledger.spent(us / US_PER_S) for us in (now_us, now_us + 3_600 * US_PER_S))
        assert later - now == ledger.burn().over(3_600 * US_PER_S)


@given(st.integers(0, 10**9), st.integers(0, 10_000), st.integers(0, 10**6))
def test_one_node_at_one_price_costs_price_times_hours_exactly(micro_usd_per_h, hours, start_s):
    offer = an_offer(minimum_billing_s=0.0)
    ledger = Ledger([offer])
    ledger.reprice(offer.id, Price(micro_usd_per_h), 0.0)
    ledger.open("n1", offer.id, float(start_s))
    cost = ledger.close("n1", float(start_s + 3600 * hours))
    assert cost == Money(micro_usd_per_h * hours * (GRAINS_PER_USD // 10**6))
    assert ledger.spent(float(start_s + 3600 * hours)) == cost
