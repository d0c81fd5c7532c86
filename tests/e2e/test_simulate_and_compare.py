"""What a user gets from the two verbs that run things."""

from __future__ import annotations

import csv
import json

import pytest

from sublet.kernel.journal import replay

FIGURES = {"mean_s", "p50_s", "p99_s", "gpu_hours", "usd", "utilisation", "rescales", "jobs_per_s", "finished"}
TIMINGS = {"seconds", "jobs_per_s"}


def without_timings(answer):
    runs = answer.get("runs", [answer])
    for one in runs:
        one["metrics"] = {name: value for name, value in one["metrics"].items() if name not in TIMINGS}
    return answer


def test_simulate_prints_one_table_with_the_figures_and_the_assumptions(sublet, jobs_csv):
    answer = sublet("simulate", jobs_csv, "--policy", "fifo", "--gpus", 8)
    assert answer.code == 0
    for title in ("mean", "p50", "p99", "GPU-hours", "USD", "utilisation", "rescales", "jobs/s"):
        assert title in answer.out
    assert "8 GPUs are always held: 2 x" in answer.out
    assert answer.err == ""


def test_simulate_json_is_pure_and_complete(sublet, jobs_csv):
    answer = sublet("simulate", jobs_csv, "--policy", "fifo", "--gpus", 8, "--json").json
    keys = {"schema_version", "command", "workload", "policy", "seed", "metrics", "unfinished", "notes"}
    assert keys <= set(answer)
    assert answer["schema_version"] == 1
    assert answer["policy"] == "fifo"
    assert answer["command"].startswith("sublet simulate ")
    assert set(answer["metrics"]) >= FIGURES
    assert answer["metrics"]["finished"] == 4
    assert answer["metrics"]["mean_s"] == pytest.approx(3600.0)


def test_both_spellings_of_json_say_the_same(sublet, jobs_csv):
    short = sublet("simulate", jobs_csv, "--json").json
    long = sublet("simulate", jobs_csv, "-o", "json").json
    assert {**without_timings(short), "command": ""} == {**without_timings(long), "command": ""}


def test_the_same_seed_gives_the_same_answer(sublet, jobs_csv, short_trace):
    command = (
        "simulate",
        jobs_csv,
        "--market",
        short_trace,
        "--offer",
        "aws:g4dn.xlarge:spot",
        "--budget",
        9,
        "--json",
    )
    first, second = (without_timings(sublet(*command, "--seed", 7).json) for _ in range(2))
    assert first == second


def test_without_a_cluster_64_gpus_are_taken_and_the_notes_say_so(sublet, jobs_csv):
    answer = sublet("simulate", jobs_csv, "--json").json
    assert any("neither --gpus, --budget nor --market" in note for note in answer["notes"])
    assert any("64 GPUs are always held" in note for note in answer["notes"])


def test_a_budget_is_never_exceeded_and_nodes_are_given_back(sublet, jobs_csv):
    owned = sublet("simulate", jobs_csv, "--policy", "fifo", "--gpus", 16, "--json").json["metrics"]
    rented = sublet("simulate", jobs_csv, "--policy", "fifo", "--budget", "USD 16", "--json").json
    assert rented["budget_usd_per_h"] == 16.0
    assert rented["metrics"]["usd"] < owned["usd"]
    assert owned["mean_s"] < rented["metrics"]["mean_s"] <= owned["mean_s"] + 120  # nodes take two minutes to boot


def test_compare_has_ratios_to_the_first_policy(sublet, jobs_csv):
    answer = sublet("compare", jobs_csv, "--policies", "fifo,equal", "--gpus", 4, "--json").json
    assert [run["policy"] for run in answer["runs"]] == ["fifo", "equal"]
    assert answer["baseline"] == "fifo"
    fifo, equal = answer["runs"]
    assert fifo["ratios"] == {"mean_s": 1.0, "usd": 1.0}
    assert equal["ratios"]["mean_s"] == pytest.approx(equal["metrics"]["mean_s"] / fifo["metrics"]["mean_s"])


def test_compare_takes_all_installed_policies_by_default(sublet, jobs_csv):
    installed = {policy["name"] for policy in sublet("policies", "--json").json["policies"]}
    answer = sublet("compare", jobs_csv, "--gpus", 4, "--json").json
    assert {run["policy"] for run in answer["runs"]} == installed


def test_a_narrow_screen_turns_the_table_and_cuts_no_number(sublet, jobs_csv, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    answer = sublet("compare", jobs_csv, "--policies", "fifo,equal", "--gpus", 4)
    assert "policy" in answer.out.splitlines()[2]
    assert any(line.startswith("mean") for line in answer.out.splitlines())
    assert "…" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 60


def test_a_report_is_a_folder_that_needs_nothing_else(sublet, jobs_csv, tmp_path):
    folder = tmp_path / "new" / "report"
    command = ("compare", jobs_csv, "--policies", "fifo,equal", "--gpus", 4, "--report", folder)
    answer = sublet(*command)
    assert answer.out.splitlines()[-1] == f"report: {folder / 'report.html'}"
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.html", "jobs.csv", "metrics.json", "completion-times.png", "gpus.png", "dollars.png"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "sublet compare" in page
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace(str(jobs_csv), "").replace("http-equiv", "")  # nothing is fetched from anywhere
    rows = list(csv.DictReader((folder / "jobs.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 8
    assert {row["policy"] for row in rows} == {"fifo", "equal"}
    assert json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["runs"][0]["policy"] == "fifo"


def test_a_trace_that_ends_early_holds_its_last_values_and_says_by_how_much(sublet, jobs_csv, short_trace):
    market = ("--market", short_trace, "--offer", "aws:g4dn.xlarge:spot", "--budget", 9, "--notice-s", 0)
    answer = sublet("simulate", jobs_csv, *market, "--json").json
    assert any("outlasted the market trace by" in note for note in answer["notes"])
    assert answer["offers"][0]["id"] == "z:spot"
    assert answer["metrics"]["losses"] > 0


def test_the_clock_of_a_market_starts_with_the_first_job(sublet, tmp_path, short_trace):
    late = tmp_path / "late.csv"
    late.write_text("job_id,submit_s,duration_s,gpus\na,1000000,600,1\n", encoding="utf-8")
    market = ("--market", short_trace, "--offer", "aws:g4dn.xlarge:spot", "--budget", 9)
    answer = sublet("simulate", late, *market, "--json").json
    assert answer["metrics"]["finished"] == 1
    assert not any("outlasted" in note for note in answer["notes"])


def test_jobs_that_never_end_are_named_and_their_figures_are_null(sublet, tmp_path):
    jobs, market = tmp_path / "jobs.csv", tmp_path / "market.csv"
    jobs.write_text("job_id,submit_s,duration_s,gpus\na,0,600,1\n", encoding="utf-8")
    market.write_text("t_s,zone,available\n0,z,0\n3600,z,0\n", encoding="utf-8")
    market_options = (
        "--market",
        market,
        "--polarity",
        "availability",
        "--offer",
        "aws:g4dn.xlarge:spot",
        "--budget",
        9,
    )
    answer = sublet("simulate", jobs, *market_options, "--json")
    assert answer.code == 0
    assert answer.json["unfinished"] == ["a"]
    assert answer.json["metrics"]["mean_s"] is None
    assert any("never ended" in note for note in answer.json["notes"])


def test_a_named_market_brings_its_own_nodes_and_prices(sublet):
    command = ("simulate", "pollux-1", "--jobs", 5, "--market", "bamboo-p3", "--as-gpu", "T4", "--budget", 20, "--json")
    answer = sublet(*command).json
    (offer,) = answer["offers"]
    assert (offer["gpu"], offer["gpus_per_node"], offer["market"]) == ("T4", 1, "spot")
    assert any("p3.2xlarge in the 2023-02-15 catalogue" in note for note in answer["notes"])
    assert answer["metrics"]["finished"] == 5


def test_a_log_can_be_lived_again(sublet, jobs_csv, tmp_path):
    log = tmp_path / "log.jsonl"
    assert sublet("simulate", jobs_csv, "--gpus", 4, "--log", log).code == 0
    lines = log.read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line) for line in lines)
    replay(lines)  # raises if the kernel gives other orders


def test_options_of_the_jobs_change_the_jobs(sublet, jobs_csv):
    def mean_s(*options):
        answer = sublet("simulate", jobs_csv, "--policy", "fifo", "--gpus", 8, "--json", *options).json
        return answer["metrics"]["mean_s"]

    assert mean_s("--restart-s", 60) == pytest.approx(mean_s() + 60)
    assert sublet("simulate", jobs_csv, "--jobs", 2, "--json").json["metrics"]["jobs"] == 2
    linear = sublet("simulate", jobs_csv, "--policy", "equal", "--gpus", 8, "--speedup", "linear", "--json").json
    assert any("Linear" in note for note in linear["notes"])


def test_fewer_gpus_than_a_node_has_are_a_smaller_node(sublet, jobs_csv):
    (offer,) = sublet("simulate", jobs_csv, "--gpus", 2, "--json").json["offers"]
    assert (offer["gpus_per_node"], offer["usd_per_h"]) == (2, pytest.approx(3.912 / 2))


def test_a_team_spends_no_more_than_its_purse_and_the_others_go_on(sublet, tmp_path):
    path = tmp_path / "teams.csv"
    path.write_text(
        "job_id,submit_s,duration_s,gpus,user,team\n"
        "poor,0,72000,4,ann,vision\nrich,0,72000,4,bob,speech\nown,0,72000,4,cyd,speech\n"
    )
    command = ("simulate", path, "--policy", "fifo", "--budget", "100/h", "--json", "--release-s", 60)
    purses = ("--purse-of", "team:vision=5", "--purse-of", "job:own=3")
    answer = sublet(*command, *purses).json
    assert sorted(answer["unfinished"]) == ["own", "poor"]
    assert any("team vision may spend USD 5.00 in all" in note for note in answer["notes"])
    assert any("told: job own has spent its USD 3.00 in all" in note for note in answer["notes"])
    free = sublet(*command).json
    assert free["unfinished"] == []
    each = free["metrics"]["usd"] / 3
    assert each + 5 < answer["metrics"]["usd"] <= each + 5 + 3 + 0.25 * each  # boots and idle GPUs are everybody's


@pytest.mark.parametrize(
    "text", ["vision=5", "team:=5", "team:a", "org:x=5", "clan:a=5", "team:a=none", "team:a=5/year"]
)
def test_a_purse_that_is_nobodys_is_refused(sublet, jobs_csv, text):
    answer = sublet("simulate", jobs_csv, "--purse-of", text)
    assert answer.code == 2
    assert "--purse-of" in answer.err
