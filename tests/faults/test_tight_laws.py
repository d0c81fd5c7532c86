"""Laws on money where nobody has records: each sees the bug that it is for, in a life that is right without it."""

from __future__ import annotations

from sublet.domain.money import Money
from sublet.kernel.purse import Purse
from sublet.runtime.providers.protocol import Billed
from sublet.testing.world.plain import PlainProvider
from tests.rigs.shrunk import a_job, a_story, breaks

TWO_NODES_AND_NO_RECORDS = a_story(
    1,
    [a_job("job0", 5.0, 400, 0.5, 1.0, 0.5), a_job("job1", 5.0, 40, 0.5, 1.0, 0.5)],
    [],
    keeps_records=False,
)
SPENT_IN_PART = a_story(
    1, [a_job("job0", 5.0, 60, 0.5, 1.0, 0.5), a_job("job1", 85.0, 60, 0.5, 1.0, 0.5)], [], purse_usd=0.12
)


def test_a_ledger_that_drops_the_bill_of_one_node_is_seen_though_the_provider_keeps_no_records(monkeypatch):
    """A node of a minute is less than the 150 s of each that the law once allowed."""
    assert not breaks(TWO_NODES_AND_NO_RECORDS)
    release = PlainProvider.release

    async def as_if_it_had_cost_nothing(self, node_id):
        told = await release(self, node_id)
        return Billed(nothing=True) if node_id == "n2" else told

    monkeypatch.setattr(PlainProvider, "release", as_if_it_had_cost_nothing)
    assert breaks(TWO_NODES_AND_NO_RECORDS) == "I6"


def test_a_job_that_waits_beside_a_purse_that_pays_for_a_node_is_wronged(monkeypatch):
    """... by a purse that keeps more back than it must."""
    assert not breaks(SPENT_IN_PART)
    left = Purse.left

    def less(self, now_s):
        found = left(self, now_s)
        kept = Money(0) if self._ledger.spent(now_s).usd < 0.001 else Money.from_usd(0.12)
        return None if found is None else found - kept

    monkeypatch.setattr(Purse, "left", less)
    assert breaks(SPENT_IN_PART) == "R"
