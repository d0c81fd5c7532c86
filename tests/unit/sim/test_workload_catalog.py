"""Every workload with a name loads, counts as its index says, and tells where it comes from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sublet.data import bundled, external
from sublet.errors import BadInput, MissingData, UnknownName
from sublet.perf.speedup import Linear
from sublet.sim.workloads import CATALOG, load_workload, workload_names

UNSIZED = {"gavel-msr": 1548}  # rows without a duration, left out on purpose
BUNDLED = [name for name, entry in CATALOG.items() if entry.bundled]
EXTERNAL = [name for name, entry in CATALOG.items() if not entry.bundled]


def index(folder):
    path = folder / "jobs" / "index.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {f"jobs/{row['file']}": row for row in csv.DictReader(file)}


IN_PACKAGE = index(bundled(""))
OUTSIDE = index(external())


def check(name, row):
    workload = load_workload(name)
    assert len(workload) + UNSIZED.get(name, 0) == int(row["jobs"])
    assert workload.name == name
    assert workload.source
    assert workload.licence
    assert workload.notes
    if name not in UNSIZED:
        assert workload.span_s == pytest.approx(float(row["span_s"]), abs=1.0)
        assert max(job.gpus for job in workload.jobs) >= float(row["max_gpus"])
    if row["gpu_hours"] and name not in UNSIZED and name != "alibaba-openb":  # whose fractions are rounded up
        assert workload.gpu_hours() == pytest.approx(float(row["gpu_hours"]), abs=0.1)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_workload_loads_and_agrees_with_the_index(name):
    entry = CATALOG[name]
    assert bundled(entry.file).exists()
    check(name, IN_PACKAGE[entry.file])


@pytest.mark.outside_data
@pytest.mark.parametrize("name", EXTERNAL)
def test_every_outside_workload_loads_where_it_is_present(name):
    entry = CATALOG[name]
    assert not bundled(entry.file).exists()
    if entry.file not in OUTSIDE or not (external() / entry.file).exists():
        pytest.skip(f"{entry.file} is not in {external()}")
    check(name, OUTSIDE[entry.file])


def test_every_bundled_trace_has_a_name():
    assert set(IN_PACKAGE) == {CATALOG[name].file for name in BUNDLED}


def test_outside_data_that_is_absent_is_missing_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="SUBLET_DATA"):
        load_workload("sia-saturn-1")


def test_a_typo_gets_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean philly"):
        load_workload("phily")


def test_a_file_wins_over_a_name_and_a_folder_does_not(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("tiresias-60").mkdir()
    assert len(load_workload("tiresias-60")) == 60
    Path("muri-1").write_text("job_id,submit_s,duration_s,gpus\na,0,5,1\n")
    assert len(load_workload("muri-1")) == 1


def test_paths_that_lead_nowhere_say_so(tmp_path):
    for path in (tmp_path / "absent.csv", str(tmp_path / "absent"), "absent.csv.gz", "x" * 5000 + ".csv"):
        with pytest.raises(MissingData):
            load_workload(path)
    with pytest.raises(BadInput, match="folder"):
        load_workload(tmp_path)


@pytest.mark.parametrize("name", ["", "\0", "x" * 5000, "a\nb", ":", "=,"])
def test_names_that_cannot_be_are_unknown(name):
    with pytest.raises(UnknownName):
        load_workload(name)


def test_jobs_of_one_workload_share_their_speeds():
    jobs = load_workload("pollux-1").jobs
    assert len({id(job.speed) for job in jobs}) == len({job.model for job in jobs})


def test_the_speedup_reaches_the_jobs():
    linear = Linear()
    assert all(job.speed is linear for job in load_workload("tiresias-60", speedup=linear).jobs)


def test_workloads_with_deadlines_keep_them_after_the_clock_is_moved():
    jobs = load_workload("itp-195").jobs
    assert jobs[0].submit_s == 0.0
    assert all(job.deadline_s > job.submit_s for job in jobs)


def test_philly_is_read_whole():
    assert len(load_workload("philly")) == 82_247


def test_names_are_listed_once_in_order_of_the_catalogue():
    names = workload_names()
    assert names[0] == "philly"
    assert len(names) == len(set(names)) == len(CATALOG)
