"""`sublet advise` from the command line to the answer."""

from __future__ import annotations

import pytest

BERT = ("advise", "--model", "bert", "--samples", "5M")


@pytest.fixture
def own_csv(tmp_path):
    """What a user measured on one and four T4s and on one L4."""
    path = tmp_path / "mine.csv"
    path.write_text("gpu,gpus,samples_per_s\nT4,1,100\nT4,4,360\nL4,1,220\n", encoding="utf-8")
    return path


def test_the_answer_is_a_frontier_with_what_would_change_it(sublet):
    answer = sublet(*BERT, "--budget", 40)
    assert answer.code == 0, answer.err
    for text in ("the fastest for USD 40.00", "> ", "1 in 20", "in the way: budget", "more budget", "becomes fastest"):
        assert text in answer.out
    assert len([line for line in answer.out.splitlines() if " x " in line and ":" in line]) >= 5


def test_json_holds_all_of_it(sublet):
    answer = sublet(*BERT, "--max-rate", "3/h", "--clouds", "aws,gcp", "--json")
    assert answer.code == 0, answer.err
    told = answer.json
    assert told["schema_version"] == 1
    assert told["goal"] == "fastest"
    assert told["limits"] == {"usd_per_h": 3.0}
    assert told["best"]["usd_per_h"] <= 3.0
    assert {each["offer"].partition(":")[0] for each in told["frontier"]} <= {"aws", "gcp"}
    usd = [each["usd"] for each in told["frontier"]]
    assert usd == sorted(usd)
    assert told["frontier"][0]["usd"] == told["cheapest"]["usd"]
    assert told["quarantined"] > 300
    assert told["offers"] > 3_000
    for each in told["frontier"]:
        assert each["late_h"] >= each["hours"] > 0
        assert each["samples_per_s"] > 0
        assert (each["market"] == "on-demand") == (each["reclaims"] == 0)


def test_the_few_that_are_shown_are_replayed_on_spot_traces(sublet):
    asked = (*BERT, "--clouds", "aws,gcp", "--kinds", "T4,V100,A100", "--budget", 30, "--top", 4)
    answer, again, other = sublet(*asked, "--json"), sublet(*asked, "--json"), sublet(*asked, "--json", "--seed", 5)
    assert answer.code == 0, answer.err
    assert answer.json == again.json
    told = [each for each in answer.json["frontier"] if each["outlook"]]
    assert 3 <= len(told) <= 4
    assert answer.json["best"]["outlook"]
    assert answer.json["best"]["outlook"] != other.json["best"]["outlook"]
    for each in told:
        outlook = each["outlook"]
        assert outlook["windows"] == 40
        assert bool(outlook["traces"]) == (each["market"] != "on-demand")
        for name in ("hours", "usd"):
            assert 0 < outlook[name]["p10"] < outlook[name]["p50"] < outlook[name]["p90"]
            assert outlook[name]["p50"] == pytest.approx(each[name], rel=0.35)
        assert 0.0 <= outlook["share_within_limits"] <= 1.0
    shown = sublet(*asked)
    for text in ("h p10", "p50", "p90", "USD p10", "in limits", "replayed", "bamboo-p3", "of 40 runs"):
        assert text in shown.out
    assert "predicted speeds" not in shown.out  # all of them were measured


def test_the_error_of_a_predicted_speed_is_told(sublet):
    answer = sublet(*BERT, "--kinds", "H100", "--json")
    assert answer.code == 0, answer.err
    assert any(note.startswith("predicted speeds: ") for note in answer.json["notes"])
    if errors := answer.json["speed_errors"]:  # else the step times of Sia are not here
        assert set(errors) == {"A100", "RTX-2080Ti", "T4", "V100-32GB"}
        assert any("where bert was measured" in note for note in answer.json["notes"])
    own = sublet("advise", "--model", "vit-b16", "--samples", "1M", "--kinds", "H100")
    assert "step times of vit-b16 are here for one kind only" in " ".join(own.out.split())


def test_a_deadline_asks_for_the_cheapest_and_explain_says_whence(sublet):
    answer = sublet("advise", "--model", "imagenet", "--samples", "50M", "--deadline", "12h", "--explain", "--top", 3)
    assert answer.code == 0, answer.err
    for text in ("the cheapest in 12.0 h", "why", "samples per second", "assumed", "quarantined", "Young and Daly"):
        assert text in answer.out


def test_own_figures_are_enough(sublet, own_csv):
    answer = sublet("advise", "--profile", own_csv, "--samples", "10M", "--clouds", "aws", "--json")
    assert answer.code == 0, answer.err
    told = answer.json
    assert told["goal"] == "cheapest"
    assert {each["gpu"] for each in told["frontier"]} <= {"T4", "T4g", "L4"}
    assert all(each["speed"] == "measured" for each in told["frontier"])
    one = next(each for each in told["frontier"] if each["gpus"] == 1 and each["gpu"] != "L4")
    assert one["samples_per_s"] == 100.0


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (("advise", "--samples", "5M"), 2, ["--model", "bert", "--profile"]),
        (("advise", "--model", "brt", "--samples", "5M"), 2, ["did you mean bert"]),
        (("advise", "--model", "bert", "--samples", "many"), 2, ["--samples", "50M"]),
        (("advise", "--model", "bert"), 2, ["--samples"]),
        ((*BERT, "--budget", "-4"), 2, ["--budget"]),
        ((*BERT, "--deadline", "soon"), 2, ["--deadline", "12h"]),
        ((*BERT, "--clouds", "asw"), 2, ["no cloud is called 'asw'", "aws"]),
        ((*BERT, "--kinds", "T44"), 2, ["no GPU kind is called 'T44'", "T4"]),
        ((*BERT, "--clouds", "asw"), 2, ["did you mean aws"]),
        ((*BERT, "--budget", "0.05"), 110, ["the budget", "is the least that suffices"]),
        ((*BERT, "--deadline", "1m"), 111, ["the time", "is the least that suffices"]),
        ((*BERT, "--deadline", "-3h"), 2, ["--deadline", "12h"]),
        ((*BERT, "--max-rate", "0.01/h"), 112, ["the rent", "is the least that suffices"]),
        ((*BERT, "--budget", "0.05", "--deadline", "1m"), 112, ["together", "relax"]),
        ((*BERT, "--top", "0"), 2, ["--top"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_step(sublet, arguments, code, texts):
    answer = sublet(*arguments)
    assert answer.code == code
    for text in texts:
        assert text in answer.err


def test_clusters_of_both_markets_say_what_is_what(sublet):
    asked = ("advise", "--model", "imagenet", "--samples", "500M", "--clouds", "aws", "--kinds", "A100,T4")
    told = sublet(*asked, "--deadline", "36h", "-o", "json").json
    markets = {each["market"] for each in told["frontier"]}
    assert {"mixed", "spot"} <= markets
    for each in told["frontier"]:
        steady, nodes = each["nodes_on_demand"], each["nodes"]
        assert (each["market"] == "mixed") == (0 < steady < nodes)
        assert (each["checkpoints"] == "nodes") == (each["market"] == "mixed")
        assert len(each["spot_offers"]) == (0 if each["market"] == "on-demand" else each["zones"])
        assert (each["after_a_loss"] is None) == (each["market"] == "on-demand")
        assert (each["traffic_usd"] > 0) <= (each["zones"] > 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--samples", "1"),
        ("--samples", "1e15"),
        ("--samples", "1e15", "--budget", "1e12"),
        ("--samples", "1e300"),
        ("--samples", "nan"),
        ("--samples", "5M", "--budget", "1e-9"),
        ("--samples", "5M", "--deadline", "1e9d"),
        ("--samples", "5M", "--state-gib", "1e6"),
        ("--samples", "5M", "--batch", "1"),
        ("--samples", "5M", "--most-nodes", "1", "--top", "1"),
        ("--samples", "5M", "--kinds", "M4000"),
    ],
)
def test_absurd_questions_end_in_an_answer_or_in_a_clear_error(sublet, options):
    answer = sublet("advise", "--model", "bert", *options, "--json")
    assert answer.code in {0, 2, 110, 111, 112}
    if answer.code:
        assert answer.err.startswith("error: ")
    else:
        assert 0 < answer.json["best"]["hours"] < float("inf")


@pytest.mark.parametrize(
    ("rows", "text"),
    [("T4,1,nan", "samples_per_s"), ("T4,0,100", "gpus"), ("", "row"), ("Nope,1,100", "runs on none"), ("T4,1,9", "")],
)
def test_a_profile_of_one_row_is_enough_or_refused(sublet, tmp_path, rows, text):
    path = tmp_path / "one.csv"
    path.write_text(f"gpu,gpus,samples_per_s\n{rows}\n", encoding="utf-8")
    answer = sublet("advise", "--profile", path, "--samples", "1M")
    assert answer.code == (0 if not text else 112 if "runs" in text else 2)
    assert text in answer.err


def test_offers_have_an_age_and_say_what_would_fit(sublet):
    market = sublet("offers", "--gpu", "H100", "--max-price", "3", "--spot", "-o", "json").json["offers"]
    prices = [each["usd_per_gpu_h"] for each in market]
    assert prices == sorted(prices)
    assert all(price <= 3 for price in prices)
    assert all(each["age_days"] > 0 for each in market)
    assert "age" in sublet("offers", "--gpu", "H100", "--max-price", "3", "--spot").out.splitlines()[0]
    none = sublet("offers", "--gpu", "H100", "--max-price", "0.1", "--spot")
    assert none.code == 0
    assert "nothing fits: the cheapest is USD" in none.out
    assert "--max-price" in none.out


def test_help_names_the_options(sublet):
    answer = sublet("advise", "--help")
    assert answer.code == 0
    for text in ("--model", "--samples", "--budget", "--max-rate", "--deadline", "--clouds", "--profile", "--explain"):
        assert text in answer.out
