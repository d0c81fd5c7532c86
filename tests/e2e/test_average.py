"""An average to spend per hour, and what policies are told of the jobs to come."""

from __future__ import annotations

import pytest

SMALL = ("pollux-1", "--jobs", 40)
POLICIES = ("price", "boa", "boa-ideal")


def compare(sublet, *options, policies=POLICIES):
    answer = sublet("compare", *SMALL, "--policies", ",".join(policies), *options, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def refused(answer, *texts):
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    for text in texts:
        assert text in answer.err
    return True


def test_compare_at_an_average_ends_all_jobs_for_about_that_money(sublet):
    """T4 nodes at USD 3.912: jobs are never faster than at any price, and never cheaper than at none."""
    answer = compare(sublet, "--average", 150)
    assert [run["policy"] for run in answer["runs"]] == list(POLICIES)
    for run in answer["runs"]:
        figures = run["metrics"]
        assert (figures["jobs"], figures["finished"], run["unfinished"]) == (40, 40, [])
        assert 0 < figures["p50_s"] <= figures["p99_s"] <= figures["max_s"]
        assert figures["usd"] == pytest.approx(
            figures["gpu_hours"] * 3.912 / 4, rel=0.02
        )  # a minute at least is billed
        assert 0 < figures["utilisation"] <= 1
        assert figures["mean_s"] >= figures["mean_wait_s"] >= 0
    assert any("may know the rates" in note for note in answer["notes"])


def test_more_money_per_hour_buys_time(sublet):
    tight, rich = (compare(sublet, "--average", usd, policies=["price", "boa-ideal"]) for usd in (20, 2000))
    for poor_run, rich_run in zip(tight["runs"], rich["runs"], strict=True):
        assert rich_run["metrics"]["mean_s"] < poor_run["metrics"]["mean_s"]
        assert rich_run["metrics"]["usd"] > poor_run["metrics"]["usd"]


def test_the_average_is_in_the_answer_and_in_the_notes(sublet):
    answer = compare(sublet, "--average", "USD 150/h", policies=["price"])
    assert any("150" in note for note in answer["notes"])


@pytest.mark.long
def test_the_cap_holds_beside_the_average(sublet):
    """USD 16 per hour are four nodes at most at any time."""
    answer = compare(sublet, "--average", 10, "--budget", 16, policies=["price"])
    (run,) = answer["runs"]
    assert run["metrics"]["finished"] == 40
    assert answer["budget_usd_per_h"] == 16.0
    hours = run["metrics"]["makespan_s"] / 3600
    assert run["metrics"]["usd"] <= 16 * hours * 1.01


def test_owned_gpus_and_an_average_do_not_go_together(sublet):
    answer = sublet("compare", *SMALL, "--policies", "price", "--average", 150, "--gpus", 8)
    assert refused(answer, "--average = '150'", "left out with --gpus")


@pytest.mark.parametrize("text", ["-1", "nan", "lots", "inf"])
def test_an_average_that_is_no_amount_is_refused(sublet, text):
    answer = sublet("compare", *SMALL, "--policies", "price", "--average", text)
    assert refused(answer, f"--average = '{text}'", "dollars per hour")


@pytest.mark.parametrize("text", ["-1", "nan", "inf"])
def test_a_forecast_that_is_no_factor_is_refused(sublet, text):
    answer = sublet("compare", *SMALL, "--policies", "price", "--average", 150, "--forecast", text)
    assert refused(answer, f"--forecast = {float(text)}", "at least 0")


def test_without_a_forecast_a_note_says_so(sublet):
    answer = compare(sublet, "--average", 150, "--forecast", 0, policies=["price"])
    assert any("no policy is told anything" in note for note in answer["notes"])


def test_a_wrong_forecast_is_noted_with_its_factor(sublet):
    answer = compare(sublet, "--average", 150, "--forecast", 1.3, policies=["price"])
    assert any("times 1.3" in note for note in answer["notes"])


def test_told_of_twice_the_jobs_the_open_loop_policy_spends_less(sublet):
    true, doubled = (
        compare(sublet, "--average", 300, "--forecast", x, policies=["boa-ideal"])["runs"][0] for x in (1, 2)
    )
    assert doubled["metrics"]["usd"] < true["metrics"]["usd"]
    assert doubled["metrics"]["mean_s"] > true["metrics"]["mean_s"]


def test_an_average_of_nothing_leaves_no_job_without_a_word(sublet):
    """Either it is refused, or whoever waits for ever is named."""
    answer = sublet("compare", *SMALL, "--policies", "price", "--average", 0, "--json")
    if answer.code == 0:
        (run,) = answer.json["runs"]
        assert run["metrics"]["finished"] + len(run["unfinished"]) == 40
        assert run["unfinished"] == [] or any(
            "never ended" in note for note in answer.json["notes"] + run.get("notes", [])
        )
