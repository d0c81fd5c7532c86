"""What the CSV reader takes, what it refuses, and what its errors say."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace

import pytest

from sublet.errors import BadInput, InvalidValue, MissingData, SubletError
from sublet.perf.measured import total_work
from sublet.perf.restart import published_restart_s
from sublet.perf.speedup import Amdahl, Linear
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.workloads import DEFAULT_SPEEDUP, Workload, read_csv, workload_from_bytes, write_csv
from sublet.sim.workloads.csvformat import csv_from_workload
from sublet.sim.workloads.jobrows import LATEST_S, sizing_of
from sublet.testing.values import an_offer

HEADER = "job_id,submit_s,duration_s,gpus,model,batch_size,steps,group,gpu,deadline_s,klass"
GOOD = f"{HEADER}\na,0,100,4,resnet50,32,10,team,V100,500,\nb,10.5,200,1,,,,,,,low\n"
EXTRA = "job_id,submit_s,duration_s,gpus,min_gpus,max_gpus,restart_s,weight"


def read(text):
    return workload_from_bytes(text.encode() if isinstance(text, str) else text, "jobs.csv")


def refusal(text):
    with pytest.raises(BadInput) as caught:
        read(text)
    return caught.value


def test_a_duration_is_the_time_on_the_requested_gpus():
    first, second = read(GOOD).jobs
    assert first.speed is DEFAULT_SPEEDUP
    assert first.speed.seconds("V100", (4,), 0.0, first.work) == pytest.approx(100.0)
    assert (second.work, second.submit_s, second.gpus) == (200.0, 10.5, 1)


def test_the_speedup_is_the_callers_to_choose():
    job = workload_from_bytes(GOOD.encode(), "jobs.csv", speedup=Linear()).jobs[0]
    assert job.work == 400.0


def test_jobs_are_elastic_from_one_gpu_to_their_request_unless_columns_say_otherwise():
    assert [(job.min_gpus, job.max_gpus) for job in read(GOOD).jobs] == [(1, 4), (1, 1)]
    job = read(f"{EXTRA}\na,0,100,4,2,16,30,2.5\n").jobs[0]
    assert (job.min_gpus, job.gpus, job.max_gpus, job.restart_s, job.weight) == (2, 4, 16, 30.0, 2.5)


def test_deadline_model_and_group_reach_the_job_and_klass_stands_in_for_group():
    first, second = read(GOOD).jobs
    assert (first.deadline_s, first.model, first.group) == (500.0, "resnet50", "team")
    assert (second.deadline_s, second.model, second.group) == (None, "", "low")


def test_fractions_of_a_gpu_are_rounded_up_and_counted():
    workload = read(f"{HEADER}\na,0,100,0.46,,,,,,,\nb,0,100,1.5,,,,,,,\nc,0,100,2.0,,,,,,,\n")
    assert [job.gpus for job in workload.jobs] == [1, 2, 2]
    assert "2 jobs asked for a fraction of a GPU" in workload.notes[0]


def test_a_profiled_model_sizes_a_job_without_duration():
    job = read(f"{HEADER}\na,0,,6,bert,384,,,,,\n").jobs[0]
    assert job.work == total_work("bert")
    assert job.speed is sizing_of("bert").speed
    assert (job.min_gpus, job.gpus, job.max_gpus) == (1, 6, 64)
    assert job.restart_s == published_restart_s("bert", "pollux")


def test_a_duration_wins_over_a_profile():
    job = read(f"{HEADER}\na,0,50,6,bert,384,,,,,\n").jobs[0]
    assert job.speed is DEFAULT_SPEEDUP


def test_a_fixed_batch_keeps_the_batch_of_the_trace(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(f"{HEADER}\na,0,,6,bert,96,,,,,\n")
    job = read_csv(path, fixed_batch=True).jobs[0]
    assert job.speed is sizing_of("bert", batch=96).speed
    assert job.speed is not sizing_of("bert").speed


def test_rows_come_in_any_order_and_leave_in_order_of_arrival():
    workload = read("gpus,job_id,duration_s,submit_s\n1,z,5,9\n1,y,5,3\n1,x,5,9\n\n")
    assert [job.id for job in workload.jobs] == ["y", "x", "z"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_spreadsheet_habits_are_read(newline, mark):
    raw = mark + GOOD.replace("\n", newline).encode()
    assert read(raw).jobs == read(GOOD).jobs


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD.replace("a,0,", "a,-1,"), 2, ["submit_s", "-1", "from 0 to"]),
        (GOOD.replace("a,0,", "a,nan,"), 2, ["submit_s", "nan", "finite"]),
        (GOOD.replace("a,0,", "a,,"), 2, ["submit_s", "''", "a finite number from 0 to 10,000,000,000"]),
        (GOOD.replace("a,0,", "a,1e18,"), 2, ["submit_s", "'1e18'", "from 0 to 10,000,000,000"]),
        (GOOD.replace("a,0,", "a,1e300,"), 2, ["submit_s", "'1e300'", "from 0 to 10,000,000,000"]),
        (GOOD.replace("10.5,200", "10.5,1e11"), 3, ["duration_s", "'1e11'", "above 0 and at most 10,000,000,000"]),
        (GOOD.replace(",500,", ",1.7e12,"), 2, ["deadline_s", "'1.7e12'", "from 0 to 10,000,000,000"]),
        (f"{EXTRA}\na,0,100,4,1,8,1e18,1\n", 2, ["restart_s", "'1e18'", "from 0 to 10,000,000,000"]),
        (GOOD.replace("10.5,200", "10.5,0"), 3, ["duration_s", "'0'", "above 0"]),
        (GOOD.replace("10.5,200", "10.5,-3"), 3, ["duration_s", "'-3'", "above 0"]),
        (GOOD.replace("10.5,200", "10.5,inf"), 3, ["duration_s", "'inf'", "finite"]),
        (GOOD.replace("10.5,200", "10.5,1_0"), 3, ["duration_s", "'1_0'", "plain digits"]),
        (GOOD.replace("10.5,200", "10.5,1e400"), 3, ["duration_s", "'1e400'", "finite"]),
        (GOOD.replace("10.5,200", "10.5,"), 3, ["duration_s", "''", "profile"]),
        (GOOD.replace("200,1,", "200,0,"), 3, ["gpus", "'0'", "above 0"]),
        (GOOD.replace("200,1,", "200,-2,"), 3, ["gpus", "'-2'", "above 0"]),
        (GOOD.replace("200,1,", "200,two,"), 3, ["gpus", "'two'", "a finite number above 0"]),
        (GOOD.replace("200,1,", "200,1e9,"), 3, ["gpus", "'1e9'", "at most"]),
        (GOOD.replace("resnet50,32", "resnet50,x"), 2, ["batch_size", "'x'", "a whole number of at least 1"]),
        (GOOD.replace("resnet50,32", "resnet50,0.5"), 2, ["batch_size", "'0.5'", "whole"]),
        (GOOD.replace("32,10", "32,-10"), 2, ["steps", "'-10'", "above 0"]),
        (GOOD.replace(",500,", ",soon,"), 2, ["deadline_s", "'soon'", "a finite number from 0"]),
        (GOOD.replace("b,10.5,200,1,,,,,,", "b,10.5,200,1,,,,,,3"), 3, ["deadline_s", "3.0", "before submit_s"]),
        (GOOD.replace("\nb,", "\na,"), 3, ["job_id", "'a'", "line 2"]),
        (GOOD.replace("\nb,", "\n,"), 3, ["job id", "''", "name"]),
        (GOOD.replace("\nb,", "\n b,"), 3, ["job id", "' b'", "white space"]),
        (GOOD.replace("team", " team"), 2, ["group", "' team'", "white space"]),
        (GOOD.replace("low", "low,1"), 3, ["12 fields", "11"]),
        (GOOD.replace(",low", ""), 3, ["10 fields", "11"]),
        (GOOD.replace("team", '"team'), 3, ["not CSV"]),
        (f"{EXTRA}\na,0,100,4,5,16,30,1\n", 2, ["gpus", "4", "min_gpus 5"]),
        (f"{EXTRA}\na,0,100,4,1,2,30,1\n", 2, ["gpus", "4", "max_gpus 2"]),
        (f"{EXTRA}\na,0,100,4,9,2,30,1\n", 2, ["gpus", "4"]),
        (f"{EXTRA}\na,0,100,4,1.5,8,30,1\n", 2, ["min_gpus", "'1.5'", "whole"]),
        (f"{EXTRA}\na,0,100,4,1,8,-1,1\n", 2, ["restart_s", "-1", "from 0 to"]),
        (f"{EXTRA}\na,0,100,4,1,8,0,0\n", 2, ["weight", "'0'", "above 0"]),
    ],
)
def test_a_broken_row_is_refused_with_line_field_value_and_range(text, line, words):
    error = refusal(text)
    assert error.line == line
    assert error.source == "jobs.csv"
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        (" \n\n", ["empty"]),
        (HEADER + "\n", ["no job"]),
        ("job_id,submit_s,duration_s\na,0,1\n", ["missing columns: gpus"]),
        ("job_id,submit_s,gpus\na,0,1\n", ["missing columns: duration_s (or model)"]),
        ("job_id,submit_s,gpus,duration\na,0,1,5\n", ["column", "'duration'", "duration_s"]),
        ("job_id,submit_s,gpus,gpus,duration_s\na,0,1,1,5\n", ["'gpus' is there twice"]),
    ],
)
def test_a_header_that_cannot_be_is_refused(text, words):
    for word in words:
        assert word in str(refusal(text))


def test_binary_junk_is_refused_with_the_line():
    assert refusal(GOOD.encode() + b"\xff\xfe\x00").line == 4
    assert "zero byte" in str(refusal(GOOD.encode() + b"c\x00"))


def test_broken_gzip_is_refused():
    packed = gzip.compress(GOOD.encode())
    assert read(packed).jobs == read(GOOD).jobs
    for broken in (packed[:-4], packed[: len(packed) // 2], packed[:20] + b"!!" + packed[22:], packed + b"junk"):
        assert "gzip" in str(refusal(broken))


def test_a_plain_file_named_gz_is_refused(tmp_path):
    path = tmp_path / "jobs.csv.gz"
    path.write_text(GOOD)
    with pytest.raises(BadInput, match="not a gzip file"):
        read_csv(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(MissingData):
        read_csv(tmp_path / "absent.csv")
    with pytest.raises(BadInput, match="cannot be read"):
        read_csv(tmp_path)


def test_rows_without_a_size_are_dropped_and_counted_only_where_the_trace_says_so(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\na,0,,4,unheard,,,,,,\nb,0,10,1,,,,,,,\n")
    with pytest.raises(BadInput, match="no profile says how long unheard trains"):
        read_csv(path)
    workload = read_csv(path, drop_unsized=True)
    assert [job.id for job in workload.jobs] == ["b"]
    assert workload.notes[0] == "1 job without a duration: left out"
    path.write_text(f"{HEADER}\na,0,,4,unheard,,,,,,\n")
    with pytest.raises(BadInput, match="no job is left: 1 job without a duration"):
        read_csv(path, drop_unsized=True)


def test_a_speedup_that_cannot_run_the_kind_of_gpu_is_refused_by_line():
    with pytest.raises(BadInput, match=r"line 2.*gpu = 'V100'"):
        workload_from_bytes(GOOD.encode(), "jobs.csv", speedup=Amdahl(parallel=0.9, kinds={"T4": 1.0}))


def test_at_the_latest_arrival_a_job_takes_as_long_as_from_zero():
    """Beyond it a float no longer tells milliseconds apart, and times were wrong without a word."""
    cloud = Cloud(offers=(an_offer("o", gpus=1),))
    took = []
    for submit_s in (0.0, LATEST_S):
        (job,) = read(f"job_id,submit_s,duration_s,gpus\na,{submit_s:.0f},100.125,1\n").jobs
        took.append(simulate([job], Fifo(), cloud).metrics.mean_s)
    assert took[1] == pytest.approx(took[0], abs=1e-4)
    assert took[0] == pytest.approx(100.125)


def test_a_time_that_could_not_be_read_back_is_not_written():
    late = Workload(name="late", jobs=(replace(read(GOOD).jobs[1], submit_s=2 * LATEST_S),))
    with pytest.raises(InvalidValue, match=r"submit_s = 20000000000\.0 .* at most 10,000,000,000 s"):
        csv_from_workload(late)


def test_work_too_large_to_count_is_refused_by_line():
    assert refusal(GOOD.replace("0,100,4", "0,1e308,4")).line == 2


def test_every_number_survives_being_written(tmp_path):
    first = read(GOOD)
    for path in (tmp_path / "copy.csv", tmp_path / "copy.csv.gz"):
        write_csv(first, path)
        assert read_csv(path).jobs == first.jobs


def test_writing_the_same_workload_twice_gives_the_same_bytes(tmp_path):
    paths = tmp_path / "one.csv.gz", tmp_path / "two.csv.gz"
    for path in paths:
        write_csv(read(GOOD), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_speed_that_the_format_cannot_name_is_not_written():
    only_v100 = Amdahl(parallel=0.9, kinds={"V100": 1.0})
    job_line = f"{HEADER}\na,0,100,4,,,,,V100,,\n"
    workload = workload_from_bytes(job_line.encode(), "jobs.csv", speedup=only_v100)
    with pytest.raises(SubletError, match="every kind of GPU"):
        csv_from_workload(workload)


def test_checkpoint_columns_are_read_and_default_to_never_losing_work():
    job = read("job_id,submit_s,duration_s,gpus,checkpoint_every_s,checkpoint_write_s\na,0,9,1,600,20\n").jobs[0]
    assert (job.checkpoint_every_s, job.checkpoint_write_s) == (600.0, 20.0)
    assert read(GOOD).jobs[0].checkpoint_every_s == math.inf


def test_who_brings_a_job_is_read_written_and_refused_by_line():
    workload = read("job_id,submit_s,duration_s,gpus,user,team\na,0,100,1,ann,vision\nb,0,100,1,,\n")
    assert [(job.user, job.team) for job in workload.jobs] == [("ann", "vision"), ("", "")]
    assert read(csv_from_workload(workload)).jobs == workload.jobs
    assert "user" not in csv_from_workload(read(GOOD))
    assert "line 2" in str(refusal("job_id,submit_s,duration_s,gpus,user\na,0,100,1,../ann\n"))
