"""Bills worked out by hand."""

from __future__ import annotations

from sublet.domain.money import Money, Price
from sublet.kernel.ledger import REMEMBERED, Ledger
from sublet.testing.values import an_offer

OFFER = an_offer("o", usd_per_h="6", minimum_billing_s=60.0)


def usd(text):
    return Money.from_usd(text)


def ledger_with_a_node():
    ledger = Ledger([OFFER])
    ledger.open("n1", "o", 0.0)
    return ledger


def test_a_node_is_paid_from_the_order_on():
    assert ledger_with_a_node().spent(1800.0) == usd("3")


def test_a_short_lease_is_charged_the_minimum():
    ledger = ledger_with_a_node()
    assert ledger.close("n1", 30.0) == usd("0.1")  # 60 s of USD 6/h
    assert ledger.spent(30.0) == usd("0.1")


def test_the_unused_part_of_a_minimum_is_charged_at_the_price_of_the_end():
    ledger = ledger_with_a_node()
    ledger.reprice("o", Price.from_usd_per_h("12"), 30.0)
    assert ledger.close("n1", 45.0) == usd("0.15")  # 30 s at 6, 15 s at 12, 15 s of minimum at 12: 0.05 + 0.05 + 0.05


def test_of_two_prices_at_one_instant_the_later_holds():
    ledger = ledger_with_a_node()
    for price in ("100", "12"):
        ledger.reprice("o", Price.from_usd_per_h(price), 3600.0)
    assert ledger.price("o") == Price.from_usd_per_h("12")
    assert ledger.spent(7200.0) == usd("18")


def test_a_price_change_does_not_touch_what_has_ended():
    ledger = ledger_with_a_node()
    ledger.close("n1", 3600.0)
    ledger.reprice("o", Price.from_usd_per_h("1000"), 3600.0)
    assert ledger.spent(1e6) == usd("6")


def test_a_price_that_is_heard_late_counts_from_when_it_began():
    """For what is held, what was ordered since and what has ended since; 1800 s at 6 and 1800 s at 12 are USD 9."""
    ledger = ledger_with_a_node()
    ledger.open("n2", "o", 2700.0)
    ledger.open("n3", "o", 0.0)
    ledger.close("n3", 3600.0)
    ledger.reprice("o", Price.from_usd_per_h("12"), 1800.0)
    assert [lease.cost for lease in ledger.closed] == [usd("9")]
    assert ledger.spent(3600.0) == usd("21")
    assert ledger.close("n1", 3600.0) == usd("9")
    assert ledger.close("n2", 3600.0) == usd("3")
    assert ledger.spent(3600.0) == usd("21")


def test_a_price_that_is_heard_late_counts_for_no_time_at_which_another_is_known():
    ledger = ledger_with_a_node()
    ledger.reprice("o", Price.from_usd_per_h("12"), 1800.0)
    ledger.reprice("o", Price.from_usd_per_h("24"), 900.0)
    assert ledger.spent(3600.0) == usd("15")  # 1800 s at 6, 1800 s at 24


def test_leases_that_a_snapshot_forgets_are_billed_for_good():
    """Or the ledger that went on from it and the one that read the whole log would differ."""
    ledger = ledger_with_a_node()
    for number in range(REMEMBERED + 1):
        ledger.open(f"m{number}", "o", 60.0 * number)
        ledger.close(f"m{number}", 60.0 * number + 60.0)
    later = Ledger([OFFER])
    later.restore(ledger.facts())
    for each in (ledger, later):
        each.reprice("o", Price.from_usd_per_h("12"), 0.0)
    assert ledger.spent(3600.0) == later.spent(3600.0) == usd("22")  # n1: 60 s at 6, 3540 s at 12; m0, and fifty at 12
    assert ledger.closed[0].cost == usd("0.1")
    assert ledger.closed[1].cost == usd("0.2")


def test_a_refused_node_costs_nothing_however_late_the_refusal():
    ledger = ledger_with_a_node()
    ledger.void("n1", 3600.0)
    assert ledger.spent(7200.0) == usd("0")
    assert [lease.void for lease in ledger.closed] == [True]
    assert ledger.open_leases() == []


def test_burn_counts_open_leases_at_todays_prices():
    ledger = ledger_with_a_node()
    ledger.open("n2", "o", 10.0)
    assert ledger.burn() == Price.from_usd_per_h("12")
    ledger.reprice("o", Price.from_usd_per_h("1"), 20.0)
    assert ledger.burn() == Price.from_usd_per_h("2")
    ledger.close("n1", 30.0)
    assert ledger.burn() == Price.from_usd_per_h("1")


def test_the_ledger_remembers_when_each_lease_began_and_ended():
    ledger = ledger_with_a_node()
    ledger.close("n1", 90.0)
    (lease,) = ledger.closed
    assert (lease.node_id, lease.offer_id, lease.start_us, lease.end_us) == ("n1", "o", 0, 90_000_000)
    assert lease.cost == usd("0.15")


def test_where_the_cloud_says_what_it_charges_for_that_is_the_bill_at_the_prices_of_then():
    ledger = Ledger([an_offer("o", usd_per_h="6", minimum_billing_s=60.0)])
    ledger.open("n1", "o", 100.0)
    ledger.reprice("o", Price.from_usd_per_h("12"), 400.0)
    ledger.reprice("o", Price.from_usd_per_h("60"), 700.0)
    cost = ledger.close("n1", 900.0, billed_from_s=130.0, billed_to_s=460.0)
    assert cost == usd("0.65")  # 270 s at 6, 60 s at 12: 0.45 + 0.20; nothing at 60
    (lease,) = ledger.closed
    assert (lease.start_us, lease.end_us) == (130_000_000, 460_000_000)
    assert lease.last_price == Price.from_usd_per_h("12")
    assert ledger.spent(2000.0) == cost


def test_a_bill_of_the_cloud_counts_only_between_our_order_and_the_news_of_the_end():
    ledger = Ledger([an_offer("o", usd_per_h="6", minimum_billing_s=0.0)])
    ledger.open("n1", "o", 100.0)
    assert ledger.close("n1", 280.0, billed_from_s=40.0, billed_to_s=900.0) == usd("0.3")  # 180 s


def test_the_minimum_counts_from_the_times_that_the_cloud_says():
    ledger = ledger_with_a_node()
    assert ledger.close("n1", 3600.0, billed_from_s=100.0, billed_to_s=130.0) == usd("0.1")  # 30 s, charged as 60
    again = ledger_with_a_node()
    assert again.close("n1", 3600.0, billed_from_s=1800.0) == usd("3")
    (lease,) = again.closed
    assert (lease.start_us, lease.end_us, lease.minimum_us) == (1_800_000_000, 3_600_000_000, 60_000_000)


def test_a_time_that_is_over_is_billed_interval_by_interval_and_ends_at_the_price_of_its_end():
    """At 6 an hour, from 100 s on at 12, from 200 s on at 24; in grains a second of 6 USD an hour is 6e12."""
    ledger = Ledger([OFFER])
    for at_s, price in ((100.0, "12"), (200.0, "24")):
        ledger.reprice("o", Price.from_usd_per_h(price), at_s)
    second, six = int(1e6), Price.from_usd_per_h("6").micro_usd_per_h

    def between(start_s, end_s):
        grains, price = ledger.between("o", int(start_s * 1e6), int(end_s * 1e6))
        return grains / (six * second), price.usd_per_h

    assert between(0, 50) == (50.0, 6.0)
    assert between(50, 150) == (50.0 + 100.0, 12.0)
    assert between(50, 300) == (50.0 + 200.0 + 400.0, 24.0)
    assert between(100, 200) == (200.0, 24.0)  # at its very end another one began
    assert between(150, 150) == (0.0, 12.0)
    assert between(0, 100) == (100.0, 12.0)
    late = Ledger([])
    late.offer(OFFER, 10.0)
    assert late.between("o", 0, 5 * second) == (0, OFFER.price)  # before it was known it had its first price
