"""Jobs that stay on noticed nodes until they must leave, and prepare: boots and notices cost next to nothing."""

from __future__ import annotations

import pytest

from sublet.perf.parcae import measured_job
from sublet_lab.rides.ride import ride
from sublet_lab.rides.ways import way_of
from sublet_lab.studies.liveput.study import part_of
from tests.rigs.notices import percent


@pytest.mark.parametrize(("model", "notice_s"), [("bert", 30.0), ("bert", 120.0), ("gpt-1.5b", 120.0)])
def test_with_boots_and_notices_liveput_makes_99_5_percent_of_its_undisturbed_samples(model, notice_s):
    """Before jobs stayed until they must leave: 99.2, 98.2 and 98.8. All of them: `python -m tests.rigs.notices`."""
    assert percent(model, 45.0, notice_s) >= 99.5


@pytest.mark.parametrize("notice_s", [25.0, 120.0])
def test_where_instances_run_out_a_notice_costs_nothing(notice_s):
    """Of gpt-6.7b on parcae-ladp; 97.8 percent when a job that would have too few stopped at the notice."""
    job, record = measured_job("gpt-6.7b"), part_of("lh").record
    way = way_of("liveput", job, record)
    told, untold = (ride(job, way, record, notice_s=each, checked=True) for each in (notice_s, 0.0))
    assert told.samples >= untold.samples
    assert told.suspended_s == untold.suspended_s
