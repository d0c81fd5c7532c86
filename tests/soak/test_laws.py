"""What a soak measures by: a law without a figure does not hold, and the store is its pages, not SQLite's own log."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.runtime.providers.local.build import local_offers
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from tests.soak.controller import MOST, moving_market
from tests.soak.findings import WINDOW, Findings, Law, _budgets, _growth, _within, table
from tests.soak.machine import Sample
from tests.soak.run import CALM_S, Standstill
from tests.soak.work import POOR_USD, Work
from tests.soak.world import SoakRig

FACTS = dict.fromkeys(
    ("wall_s", "phases", "faults", "preemptions_noticed", "resizes", "controllers", "nodes", "events", "told")
)


def found(*holds):
    laws = tuple(Law(name=f"law {at}", holds=each, figure="") for at, each in enumerate(holds))
    return Findings(laws=laws, facts={**FACTS, "wrong": [], "errors": []})


def test_a_law_that_was_not_measured_does_not_hold_and_is_not_broken():
    seen = found(True, None)
    assert not seen.sound
    assert seen.broken == []
    assert "not measured  law 1" in table(seen)
    assert found(True, True).sound
    assert found(True, None, False).broken == ["law 2"]


def lived(*rss_mb, every_s=5.0):
    return [Sample(at_s=at * every_s, rss_mb=each, files=9, threads=2) for at, each in enumerate(rss_mb)]


def test_memory_of_whoever_did_not_outlive_the_warm_up_is_not_measured():
    assert _within("memory", _growth(lived(*[80.0] * 13))).holds is None
    assert _within("memory", _growth([])).holds is None


@pytest.mark.parametrize(("last", "holds"), [(84.0, False), (83.9, True), (70.0, True)])
def test_memory_may_grow_by_less_than_a_twentieth_after_the_warm_up(last, holds):
    """What came before the warm-up does not count, nor does one high sample."""
    samples = lived(*[40.0] * 12, *[80.0] * WINDOW, 200.0, *[80.0] * 3, *[last] * WINDOW)
    assert _within("memory", _growth(samples)).holds is holds


@pytest.mark.parametrize(("away_s", "usd", "holds"), [(0.0, 0.05, True), (0.0, 0.0501, False), (4.0, 0.0501, True)])
def test_a_job_may_cost_more_than_its_budget_only_while_no_controller_is_there(tmp_path, away_s, usd, holds):
    world = SimpleNamespace(longest_away_s=away_s, settings=Settings(state_dir=str(tmp_path)))
    work = Work("k", 0.0, 10, {"purse_usd": POOR_USD, "max_workers": 1}, ("out-of-budget",), "j")
    assert _budgets(world, [work], {"j": {"usd_total": usd}}, 16.0).holds is holds
    assert _budgets(world, [], {}, 16.0).holds is None


def test_the_store_is_as_large_as_its_pages_whatever_stands_in_sqlites_own_log(tmp_path):
    rig = SoakRig(tmp_path / "state")
    store = Store(rig.state.path / "log.sqlite")
    try:
        empty = rig.store_bytes()
        for at in range(200):
            store.append(float(at), "x" * 1000)
        assert 200_000 <= rig.store_bytes() - empty < 400_000
        assert rig.longest_wal > 2 * rig.store_bytes()  # every page, once for each commit
        store.cut("events", 200)
        assert rig.store_bytes() < empty + 50_000
    finally:
        store.close()


def seen(step, phase="running"):
    return [{"id": "j", "phase": phase, "step": step}]


def test_whoever_is_slow_is_waited_for_and_whoever_is_stuck_is_not():
    slow, stuck = Standstill(), Standstill()
    for at in range(20):
        assert not slow.lasts(seen(at), 0.9 * CALM_S * at)
    assert not stuck.lasts(seen(7), 0.0)
    assert not stuck.lasts(seen(3), 0.9 * CALM_S)  # steps once more that were lost: nobody has come on
    assert stuck.lasts(seen(7), 1.1 * CALM_S)
    assert not stuck.lasts(seen(7, "finished"), 1.2 * CALM_S)


@pytest.mark.parametrize("seed", range(20))
def test_once_nothing_goes_wrong_any_more_the_market_sells_what_is_asked_for(tmp_path, seed):
    """A job that may not rent on demand waits for it: while it is sold out, no job is late."""
    ends_s = 1000.0 + 100.0 * seed
    settings = SoakRig(tmp_path / "state", seed=seed, market_s=ends_s).settings
    offers = local_offers(settings, ())
    changes = list(moving_market(settings, (), offers))
    (spot,) = {change.offer_id for change in changes}
    assert [change.at_s for change in changes] == sorted(change.at_s for change in changes)
    assert changes[-2:] == [
        PriceChanged(ends_s, spot, next(offer.price for offer in offers if offer.id == spot)),
        AvailabilityChanged(ends_s, spot, MOST),
    ]
    assert len(changes) > 3
