"""Everything that can go wrong at the command line: exit code, what is said, and never a traceback."""

from __future__ import annotations

import pytest

from sublet.cli import main

MINIMAL = ("simulate", "pollux-1", "--jobs", 2)


def refused(answer, code, *texts):
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    for text in texts:
        assert text in answer.err
    return True


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (("simulate", "pollux-1", "--policy", "fiffo"), 2, ["no policy is called 'fiffo'", "did you mean fifo"]),
        (("compare", "pollux-1", "--policies", "fifo,equall"), 2, ["'equall'", "did you mean equal"]),
        (("compare", "pollux-1", "--policies", "fifo,fifo"), 2, ["--policies", "twice"]),
        (("simulate", "pollux-11"), 2, ["no workload is called 'pollux-11'", "did you mean pollux-1"]),
        (("simulate", "no/such.csv"), 1, ["no/such.csv does not exist", "next:"]),
        ((*MINIMAL, "--gpus", 8, "--budget", 8), 2, ["--budget = '8'", "left out with --gpus"]),
        ((*MINIMAL, "--budget", -5), 2, ["--budget = '-5'", "at least 0"]),
        ((*MINIMAL, "--budget", "nan"), 2, ["--budget = 'nan'", "finite"]),
        ((*MINIMAL, "--budget", "lots"), 2, ["--budget = 'lots'"]),
        ((*MINIMAL, "--budget", 1), 112, ["--budget", "3.912 is needed", "next: raise --budget"]),
        ((*MINIMAL, "--gpus", 0), 2, ["gpus = 0", "at least 1"]),
        ((*MINIMAL, "--gpus", 6), 2, ["gpus = 6", "multiple of 4", "4 or 8"]),
        ((*MINIMAL, "--gpus", "many"), 2, ["--gpus", "integer", "'many'", "sublet simulate --help"]),
        ((*MINIMAL, "--offer", "aws:g4dn.12xlrge"), 2, ["did you mean aws:g4dn.12xlarge", "sublet offers"]),
        ((*MINIMAL, "--offer", "aws:p3.2xlarge", "--gpus", 8), 112, ["no speed on V100", "--as-gpu T4"]),
        (
            (*MINIMAL, "--offer", "aws:g4dn.xlarge", "--offer", "aws:g4dn.metal"),
            2,
            ["--offer", "one offer with --gpus"],
        ),
        ((*MINIMAL, "--as-gpu", "T44"), 2, ["GPU kind", "did you mean T4"]),
        ((*MINIMAL, "--market", "bambo-p3"), 2, ["no trace is called", "did you mean bamboo-p3"]),
        ((*MINIMAL, "--market", "bamboo-p3"), 112, ["no speed on V100", "--as-gpu T4"]),
        ((*MINIMAL, "--market", "bamboo-p3", "--spot-price", "nan"), 2, ["--spot-price = 'nan'"]),
        ((*MINIMAL, "--spot-price", 1), 2, ["--spot-price", "without --market"]),
        ((*MINIMAL, "--provision-s", "nan"), 2, ["provision_s = nan"]),
        ((*MINIMAL, "--round-s", "-1"), 2, ["round_s = -1"]),
        ((*MINIMAL, "--restart-s", "inf"), 2, ["--restart-s = inf"]),
        ((*MINIMAL, "--seed", -1), 2, ["--seed = -1"]),
        (("simulate", "pollux-1", "--jobs", 0), 2, ["--jobs = 0", "at least 1"]),
        ((*MINIMAL, "--speedup", "amdal:0.9"), 2, ["did you mean amdahl"]),
        ((*MINIMAL, "--speedup", "amdahl:9"), 2, ["--speedup = 'amdahl:9'", "0 to 1"]),
        ((*MINIMAL, "-o", "xml"), 2, ["xml", "table", "json", "yaml"]),
        ((*MINIMAL, "--gpuz", 1), 2, ["--gpuz", "next: sublet simulate --help"]),
        (("simulate",), 2, ["WORKLOAD", "next: sublet simulate --help"]),
        (("simulat", "pollux-1"), 2, ["simulat", "next: sublet --help"]),
        (("offers", "--gpu", "H1000"), 2, ["H1000", "did you mean H100"]),
        (("offers", "--limit", -1), 2, ["--limit = -1"]),
        (("offers", "--max-price", "nan"), 2, ["--max-price = nan"]),
        (("offers", "--spot", "--on-demand"), 2, ["--spot", "--on-demand"]),
        (("offers", "--catalogue", "1999"), 2, ["no catalogue is called '1999'"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_is_told_what_is_wrong_and_what_to_do(sublet, arguments, code, texts):
    assert refused(sublet(*arguments), code, *texts)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("", ["empty"]),
        ("job_id,submit_s,duration_s,gpus\n", ["no job"]),
        ("job_id,submit_s,duration_s,gpus\na,0,60,1\nb,zero,60,1\n", ["line 3", "submit_s", "'zero'"]),
        ("job_id,submit_s,duration_s,gpus\na,0,nan,1\n", ["line 2", "duration_s"]),
        ("job_id,submit_s,duration_s,gpus\na,0,60\n", ["line 2"]),
        ("job_id,submit_s,duration_s,gpus\na,0,60,1\na,1,60,1\n", ["line 3", "job_id"]),
        ("name,start\na,0\n", ["column", "'name'"]),
        ("\x00\x01\x02", []),
    ],
    ids=["empty", "header only", "no number", "nan", "short row", "twice", "other columns", "binary"],
)
def test_a_broken_workload_file_is_refused_with_file_and_line(sublet, tmp_path, content, texts):
    path = tmp_path / "broken.csv"
    path.write_text(content, encoding="utf-8")
    assert refused(sublet("simulate", path), 2, "broken.csv", *texts)


def test_a_job_larger_than_the_cluster_is_refused_before_anything_runs(sublet, tmp_path):
    path = tmp_path / "large.csv"
    path.write_text("job_id,submit_s,duration_s,gpus,min_gpus\nbig,0,60,32,32\n", encoding="utf-8")
    assert refused(sublet("simulate", path, "--gpus", 16), 112, "big", "32 is needed", "raise --gpus or --budget")


def test_a_market_without_a_price_asks_for_one(sublet, jobs_csv, short_trace):
    assert refused(sublet("simulate", jobs_csv, "--market", short_trace), 2, "--offer", "does not say which GPUs")


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(sublet, tmp_path, monkeypatch):
    occupied = tmp_path / "file"
    occupied.write_text("", encoding="utf-8")
    monkeypatch.setattr("sublet.sim.simulator.simulate", lambda *_, **__: pytest.fail("it ran"))
    answer = sublet("simulate", "pollux-1", "--report", occupied / "report")
    assert refused(answer, 2, "cannot be written", "next: give a folder")


def test_a_log_that_cannot_be_written_is_refused(sublet, tmp_path):
    assert refused(sublet(*MINIMAL, "--log", tmp_path), 2, "cannot be written")


def test_a_run_that_breaks_leaves_no_half_written_log(sublet, jobs_csv, tmp_path, monkeypatch):
    def break_down(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sublet.kernel.journal.line_from", break_down)
    answer = sublet("simulate", jobs_csv, "--gpus", 4, "--log", tmp_path / "log.jsonl")
    assert answer.code == 1
    assert "No space left" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.csv"]


def test_a_fault_of_ours_is_one_line_that_asks_for_a_report(sublet, monkeypatch):
    monkeypatch.setattr("sublet.plugins.names", lambda _group: 1 / 0)
    answer = sublet("policies")
    assert answer.code == 1
    assert answer.err.startswith("internal error: ZeroDivisionError")
    assert "SUBLET_DEBUG=1" in answer.err


def test_debugging_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("SUBLET_DEBUG", "1")
    assert main.run(["simulate", "nosuch"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_130(sublet, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sublet.sim.simulator.simulate", interrupt)
    answer = sublet(*MINIMAL)
    assert (answer.code, answer.err) == (130, "error: interrupted\n")
