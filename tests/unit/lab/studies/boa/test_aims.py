"""At which budgets rivals run: from the least that the work costs on, so that none is spared where they are tight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.errors import MissingData
from sublet.policies.price.policy import Price
from sublet_lab.studies.boa import envelope


def test_rivals_aim_at_all_budgets_from_the_least_to_three_times_that(monkeypatch):
    """The quick run, of three jobs: what is noted is what each policy was told to aim at."""
    try:
        workload = envelope.unseen_workload(envelope.REPORTED[0])
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])
    few = replace(workload, jobs=workload.jobs[:3])
    least, aims, run = envelope._least(few, envelope.t4_nodes()), {}, envelope.aimed

    def noted(workload, offer, policy, average):
        aims.setdefault(type(policy).__name__, []).append(average / least)
        return run(workload, offer, policy, average)

    monkeypatch.setattr(envelope, "unseen_workload", lambda _: few)
    monkeypatch.setattr(envelope, "aimed", noted)
    found = envelope.tight_budgets(True, lambda _: None)
    assert set(aims) == {"Boa", "BoaIdeal", Price.__name__, "_Curious"}
    for rival in ("Boa", "BoaIdeal"):
        assert min(aims[rival]) == pytest.approx(1.0)
        assert max(aims[rival]) == pytest.approx(3.0)
        assert min(aims[rival]) <= min(envelope.OURS)
    assert aims["Price"] == pytest.approx([1.32])
    assert len(found.checks) == 2
    assert envelope.QUICK_THEIRS[0] == envelope.THEIRS[0]
    assert envelope.QUICK_THEIRS[-1] == envelope.THEIRS[-1]
