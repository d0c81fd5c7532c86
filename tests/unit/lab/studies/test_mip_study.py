"""The allocators side by side: equal loads, all greedy rivals named, and checks that can fail."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from sublet.policies.fifo import Fifo
from sublet.policies.mip.policy import Mip
from sublet.sim.simulator import simulate
from sublet_lab.studies import mip as study
from sublet_lab.studies.mip import GREEDY, POLICIES, PROTOTYPE, Figures, figures, jobs_of


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(study, "JOBS", 40)


def as_published(per_h=7.0):
    """What the checks would see if ours were the published table."""
    blank = Figures(**{field.name: 1.0 for field in fields(Figures)})
    found = {}
    for name in POLICIES:
        queue_h, train_h, time_h = PROTOTYPE.get(name, {}).get(per_h, (1.0, 4.0, 5.0))
        efficiency = {"greedy-time (G2)": 1.0, "mip remaining": 1.3}.get(name, 1.1)
        found[name] = replace(
            blank, queue_h=queue_h, train_h=train_h, time_h=time_h, efficiency=efficiency, decision_s=0.1
        )
    return found


def test_every_seed_carries_the_same_load():
    for seed in range(3):
        jobs = jobs_of(5.0, seed)
        assert len(jobs) == 400
        assert sum(job.work for job in jobs) / 400 / 3600 == pytest.approx(5.6246, abs=1e-3)
        assert jobs[-1].submit_s == pytest.approx(400 / 5.0 * 3600)
        assert all(1 <= job.min_gpus <= job.gpus <= job.max_gpus <= 16 for job in jobs)


def test_the_mean_of_the_work_is_that_of_its_law():
    assert pytest.approx(5.6246, abs=1e-3) == study.MEAN_WORK_H


def test_the_figures_add_up(few):
    one = figures(jobs_of(7.0, 0), Mip())
    assert one.queue_h + one.train_h == pytest.approx(one.time_h)
    assert one.waiting_h >= one.queue_h - 1e-9
    static = figures(jobs_of(7.0, 0), Fifo())
    assert static.waiting_h == pytest.approx(static.queue_h)
    assert static.rescales == 0.0


def test_the_laws_of_the_kernel_hold_all_the_way(few):
    for name in ("mip remaining", *GREEDY):
        assert simulate(jobs_of(7.0, 1), POLICIES[name], study.CLOUD, checked=True).unfinished == ()


def test_the_published_table_passes_its_own_checks():
    for per_h in study.LOADS:
        found = {per_h: as_published(per_h)}
        assert all(check.ok for check in [*study._order(found), *study._magnitudes(found), *study._decisions(found)])
    assert all(check.ok for check in study._headline(as_published()))


def test_what_is_off_misses_its_check():
    found = as_published()
    found["mip remaining"] = replace(found["mip remaining"], queue_h=2.0, time_h=8.0, efficiency=1.2)
    missed = {check.name for check in study._headline(found) if not check.ok}
    assert missed == {
        "queueing below greedy-speed (G1)",
        "queueing below greedy-time (G2)",
        "training efficiency above greedy-time (G2)",
    }
    assert [check.ok for check in study._order({7.0: found})] == [False]
    names = {check.name for check in study._magnitudes({7.0: found}) if not check.ok}
    assert names == {"7/h: mip remaining: queue", "7/h: mip remaining: time"}


def test_every_greedy_rival_is_named_for_every_policy():
    rows = study._against_greedy(as_published()).rows
    assert {row[1] for row in rows} == set(GREEDY)
    assert {row[0] for row in rows} == {name for name in POLICIES if name not in GREEDY} - {"static fifo"}
    assert len(study._table({7.0: as_published()}).rows) == len(POLICIES)
    notes = " ".join(study._notes(as_published(), 2))
    assert "greedy-keep (G3)" in notes
    assert "greedy-speed (G1)" in notes
