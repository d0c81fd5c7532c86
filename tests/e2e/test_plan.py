"""`sublet plan` from the command line to the page."""

from __future__ import annotations

import pytest

ON_DEMAND = ("plan", "pollux-1", "--offer", "aws:g4dn.12xlarge:us-east-1")


@pytest.fixture
def steady_csv(tmp_path):
    """Forty jobs of an hour on one to eight GPUs, six minutes apart."""
    path = tmp_path / "steady.csv"
    rows = [f"j{number},{number * 360},3600,4,1,8" for number in range(40)]
    path.write_text("\n".join(["job_id,submit_s,duration_s,gpus,min_gpus,max_gpus", *rows]) + "\n", encoding="utf-8")
    return path


def test_the_table_says_what_to_rent_why_and_what_more_money_would_buy(sublet):
    answer = sublet("plan", "pollux-1", "--budget", "63/h", "--markets", "on-demand")
    assert answer.code == 0, answer.err
    for text in (
        *("mean completion time", "value of time", "USD 63.00 per hour", "cuts the mean completion time by"),
        *("GPUs held", "99% of the time at most", "smallest budget"),
        *("cifar10", "T4 (on-demand", "per hour saved", "time is worth USD"),
        *("days old", "fragmentation", "M/G/infinity"),
    ):
        assert text in answer.out
    assert "spot" not in answer.out


def test_json_holds_all_of_it(sublet):
    answer = sublet(*ON_DEMAND, "--offer", "aws:g4dn.xlarge:us-east-1", "--budget", 80, "--quota", "T4=140", "--json")
    assert answer.code == 0, answer.err
    told = answer.json
    assert told["schema_version"] == 1
    assert told["jobs"] == 160
    assert told["spend_usd_per_h"] == pytest.approx(80)
    assert told["held"]["T4"]["mean"] == pytest.approx(140)  # money and GPUs are both scarce
    assert told["held"]["T4"]["p99"] > 140
    assert told["congestion_usd_per_gpu_h"]["T4"] > 0
    assert told["value_of_time_usd_per_h"] > 0
    assert [offer["rented"] for offer in told["offers"]] == [True, True]
    assert sum(of["jobs"] for of in told["classes"]) == 160
    for of in told["classes"]:
        assert sum(shape["share"] for shape in of["shapes"]) == pytest.approx(1)
        assert of["why"]
    assert {"usd_per_h", "mean_s", "value_of_time_usd_per_h"} == set(told["frontier"][0])
    assert told["least_usd_per_h"] == pytest.approx(told["frontier"][0]["usd_per_h"], rel=1e-6)
    assert told["least_usd_per_h"] < told["budget_usd_per_h"]


def test_the_report_is_one_page_with_the_frontier_in_it(sublet, tmp_path, steady_csv):
    answer = sublet("plan", steady_csv, "--budget", 100, "--speedup", "amdahl:0.9", "--report", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"frontier.png", "plan.html", "plan.json"}
    page = (tmp_path / "out" / "plan.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert 'src="http' not in page
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert "does not depend on the kind of GPU" in answer.out


def test_spot_is_bought_when_money_is_tight_and_what_is_assumed_of_it_is_said(sublet, steady_csv):
    offers = ("--offer", "aws:g4dn.12xlarge:us-east-1", "--offer", "aws:g4dn.12xlarge:us-east-1:spot")
    arguments = ("plan", steady_csv, *offers, "--restart-s", 60, "--json")
    markets = []
    for budget in (30, 1000):
        told = sublet(*arguments, "--budget", budget).json
        markets.append({shape["market"] for of in told["classes"] for shape in of["shapes"]})
        assert any("--reclaims-per-h" in note for note in told["notes"])
    assert "spot" in markets[0]
    assert markets[1] == {"on-demand"}


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        ((*ON_DEMAND, "--budget", 63), 112, ["the budget", "is the smallest budget that suffices", "98.3"]),
        (("plan", "pollux-1", "--budget", 63, "--kinds", "T44"), 2, ["no GPU kind is called 'T44'", "did you mean T4"]),
        (("plan", "pollux-1", "--budget", 63, "--kinds", "A100"), 112, ["cannot run on A100", "next:"]),
        (("plan", "pollux-1", "--budget", 63, "--markets", "sopt"), 2, ["'sopt'", "did you mean spot"]),
        (("plan", "pollux-1", "--budget", "lots"), 2, ["--budget = 'lots'"]),
        ((*ON_DEMAND, "--budget", 120, "--kinds", "T4"), 2, ["--offer", "left out with --kinds"]),
        ((*ON_DEMAND, "--budget", 120, "--quota", "T4"), 2, ["--quota = 'T4'", "A100=64"]),
        ((*ON_DEMAND, "--budget", 120, "--quota", "T44=3"), 2, ["T44", "did you mean T4"]),
        ((*ON_DEMAND, "--budget", 120, "--quota", "T4=3"), 112, ["the quota of T4", "raise the quota"]),
        (("plan", "pollux-1", "--budget", 9, "--offer", "aws:g4dn.12xlrge"), 2, ["did you mean aws:g4dn.12xlarge"]),
        (("plan", "pollux-1", "--jobs", 1, "--budget", 9), 2, ["span of arrivals"]),
        (("plan", "pollux-1"), 2, ["--budget", "next: sublet plan --help"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_step(sublet, arguments, code, texts):
    answer = sublet(*arguments)
    assert answer.code == code, answer.err
    assert answer.out == ""
    for text in texts:
        assert text in answer.err
