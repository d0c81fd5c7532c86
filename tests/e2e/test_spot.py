"""What a user gets from one job that rides a spot market, and what goes wrong with the record of it."""

from __future__ import annotations

from itertools import cycle, product

import pytest

from sublet import data
from sublet.errors import MissingData
from sublet.market.traces import TRACES
from sublet_lab.verbs.spot import POLICIES
from tests.rigs.browser import refused
from tests.rigs.sizes import FULL

HEADER = "t_s,zone,available\n"
REAL = ("bamboo-gcp", "skynomad-h100", "skypilot-v100-2023-08")
MODELS = ("bert", "resnet152", "gpt-1.5b", "gpt-6.7b")
RIDES = list(product(REAL, MODELS)) if FULL else list(zip(REAL, cycle(MODELS), strict=False))


def here(name):
    try:
        return data.locate(TRACES[name].file).exists()
    except MissingData:
        return False


def by_name(answer):
    assert answer.code == 0, answer.err
    return {each["name"]: each for each in answer.json["policies"]}


# ---------------------------------------------------------------------- spot


def test_spot_is_a_table_or_the_same_as_json(sublet):
    arguments = ("spot", "parcae-ladp", "--policy", "all")
    table, found = sublet(*arguments), by_name(sublet(*arguments, "--json"))
    assert table.code == 0
    assert tuple(found) == POLICIES
    for name, each in found.items():
        line = next(line for line in table.out.splitlines() if line.startswith(f"{name} "))
        assert f"{each['samples']:,.0f}" in line
        assert f"{each['usd']:,.2f}" in line
        assert each["samples_per_usd"] == pytest.approx(each["samples"] / each["usd"])


def test_nobody_beats_the_bounds_and_liveput_is_ahead_of_parcae(sublet):
    samples = {name: each["samples"] for name, each in by_name(sublet("spot", "parcae-ladp", "-o", "json")).items()}
    assert max(samples.values()) == samples["oracle"]
    assert samples["liveput"] > samples["parcae"] > samples["checkpoint-restart"]
    (ideal,) = by_name(sublet("spot", "parcae-ladp", "--policy", "ideal", "--json")).values()
    assert ideal["samples"] >= samples["oracle"]
    assert ideal["migrations"] == 0


def test_a_sample_that_is_worth_little_buys_fewer_instances(sublet):
    def liveput(*more):
        return by_name(sublet("spot", "parcae-hadp", "--policy", "liveput", *more, "--json"))["liveput"]

    plain, thrifty, idle = liveput(), liveput("--value", "1.2e-5"), liveput("--value", "1e-9")
    assert plain["net_usd"] is None
    assert thrifty["samples_per_usd"] > 1.2 * plain["samples_per_usd"]
    assert thrifty["net_usd"] > 1.2e-5 * plain["samples"] - plain["usd"]
    assert (idle["samples"], idle["usd"], idle["samples_per_usd"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("trace", "model"),
    [pytest.param(*ride, marks=() if TRACES[ride[0]].bundled else pytest.mark.outside_data) for ride in RIDES],
)
def test_every_policy_rides_every_kind_of_real_trace(sublet, trace, model):
    if not here(trace):
        pytest.skip(f"{trace} is not here")
    answer = sublet("spot", trace, "--model", model, "--policy", "all", "--hours", 2, "--json")
    assert len(by_name(answer)) == len(POLICIES)
    assert answer.json["minutes"] == 120


@pytest.mark.parametrize("model", MODELS)
def test_every_policy_survives_a_market_that_dries_up(sublet, tmp_path, model):
    path = tmp_path / "wild.csv"
    path.write_text(HEADER + "0,z,0\n300,z,32\n900,z,0\n1200,z,1\n1500,z,17\n1560,z,3\n2400,z,30\n", encoding="utf-8")
    for each in by_name(sublet("spot", path, "--model", model, "--policy", "all", "--json")).values():
        assert each["suspended_s"] >= 600.0
        assert each["samples"] >= 0.0


def test_too_few_instances_for_the_model_is_said(sublet, short_trace):
    answer = sublet("spot", short_trace, "--model", "gpt-6.7b")
    assert answer.code == 0
    assert "gpt-6.7b needs 12 instances, and there were never more than 4" in answer.out


def test_fewer_instances_than_the_model_fits_on_are_refused(sublet, short_trace):
    answer = sublet("spot", short_trace, "--model", "gpt-6.7b", "--most", 11)
    assert (answer.code, answer.out) == (112, "")
    assert "gpt-6.7b cannot run: --most is 11, 12 is needed" in answer.err
    assert "next: --most 12 or more, or a smaller model" in answer.err
    assert sublet("spot", short_trace, "--model", "gpt-6.7b", "--most", 12).code == 0


def test_what_the_oracle_does_not_know_of_a_record_cut_off_is_said(sublet, short_trace):
    said = "of the future they know up to 3 instances"
    found = [sublet("spot", short_trace, "--policy", "oracle", "--most", most).out for most in (3, 4)]
    assert [said in " ".join(out.split()) for out in found] == [True, False]


def test_one_zone_can_be_taken_alone(sublet, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(HEADER + "0,a,8\n0,b,4\n3600,a,8\n3600,b,4\n", encoding="utf-8")
    arguments = ("spot", path, "--policy", "greedy-live", "--json")
    means = [sublet(*arguments, *more).json["mean_instances"] for more in ((), ("--zone", "b"), ("--most", 5))]
    assert means == [12.0, 4.0, 5.0]


def test_a_report_is_one_page_with_its_picture(sublet, tmp_path):
    arguments = ("spot", "parcae-lasp", "--policy", "liveput,parcae", "--report", tmp_path / "report")
    answer = sublet(*arguments)
    assert answer.code == 0
    assert answer.out.endswith(f"report: {tmp_path / 'report' / 'report.html'}\n")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "timeline.png", "spot.json"}
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "bert on parcae-lasp" in page
    assert refused(page) == []
    assert "data:image/png;base64," in page
    picture = (tmp_path / "report" / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert sublet(*arguments).code == 0
    assert (tmp_path / "report" / "timeline.png").read_bytes() == picture


# ---------------------------------------------------------------------- notice, deadlines, values and zones


def test_a_deadline_is_kept_with_instances_on_demand_only_where_spot_is_too_slow(sublet):
    arguments = ("spot", "parcae-ladp", "--model", "gpt-6.7b", "--policy", "liveput", "--deadline", "1h", "--json")
    loose, tight = (by_name(sublet(*arguments, "--samples", each))["on-time"] for each in (8_000, 32_000))
    assert (loose["samples"] >= 8_000, loose["on_demand_h"]) == (True, 0.0)
    assert tight["samples"] >= 32_000
    assert tight["on_demand_h"] > 0
    assert tight["usd"] > loose["usd"]


def test_a_deadline_that_nobody_can_keep_is_refused_with_111(sublet):
    answer = sublet("spot", "parcae-ladp", "--model", "gpt-6.7b", "--deadline", "1h", "--samples", 100_000)
    assert (answer.code, answer.out) == (111, "")
    assert "100,000 samples of gpt-6.7b in 1 h" in answer.err
    assert "next: give it more time" in answer.err


def test_the_frontier_goes_from_the_cheapest_to_the_fastest(sublet, tmp_path):
    arguments = ("spot", "parcae-hadp", "--policy", "liveput", "--frontier", "--report", tmp_path, "--json")
    rows = [each for name, each in by_name(sublet(*arguments)).items() if "value" in name]
    assert len(rows) == 8
    assert [row["usd"] for row in rows] == sorted(row["usd"] for row in rows)
    assert rows[0]["samples_per_usd"] > 1.3 * rows[-1]["samples_per_usd"]
    assert (tmp_path / "frontier.png").stat().st_size > 1_000


def test_zones_of_several_traces_are_chosen_together(sublet, tmp_path):
    for name, rows in {"a": "0,us-east-1a,8\n3600,us-east-1a,0\n", "b": "0,us-west-2b,0\n3600,us-west-2b,8\n"}.items():
        last = rows.splitlines()[-1].split(",", 1)[1]
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}{rows}7200,{last}\n", encoding="utf-8")
    answer = sublet("spot", tmp_path / "a.csv", tmp_path / "b.csv", "--polarity", "availability", "--json")
    assert answer.code == 0, answer.err
    samples = {(each["zones"], each["name"]): each["samples"] for each in answer.json["policies"]}
    assert samples["all", "liveput"] > 0.98 * (samples["us-east-1a", "liveput"] + samples["us-west-2b", "liveput"])
    assert samples["all", "oracle"] >= samples["all", "liveput"]


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("verb", ["spot", "forecast"])
@pytest.mark.parametrize(
    ("content", "more", "texts"),
    [
        ("", (), ["empty"]),
        (HEADER + "0,z,4\n", (), ["one row is no trace", "line 2", "next:"]),
        (HEADER + "0,z,4\n60,z,-2\n120,z,3\n", (), ["line 3", "available", "-2"]),
        (HEADER + "0,z,4\n60,z,\n120,z,3\n", (), ["line 3", "available"]),
        (HEADER + "0,z,4\n60,z\n120,z,3\n", (), ["line 3"]),
        (HEADER + "0,z,4\n60,z,3\n60,z,2\n", (), ["line 4", "t_s does not rise in zone z"]),
        (
            HEADER + "".join(f"{60 * each},z,4\n" for each in (*range(9), *range(90, 99))),
            (),
            ["line 11", "4920 s without"],
        ),
        (HEADER + "".join(f"{60 * each},z,{each % 9 == 8:d}\n" for each in range(90)), (), ["--polarity"]),
        (HEADER + "0,z,4\n60,z,2\n120,z,3\n", ("--polarity", "preempted"), ["polarity", "counts up to 4"]),
        (HEADER + "0,z,4\n60,z,nan\n120,z,3\n", (), ["line 3", "available"]),
    ],
    ids=["empty", "one row", "negative", "hole", "short row", "clash", "gap", "reversed", "polarity of counts", "nan"],
)
def test_a_broken_trace_is_refused_with_file_and_line(sublet, tmp_path, verb, content, more, texts):
    path = tmp_path / "broken.csv"
    path.write_text(content, encoding="utf-8")
    answer = sublet(verb, path, *more)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert all(text in answer.err for text in ("broken", *texts)), answer.err


@pytest.mark.parametrize("verb", ["spot", "forecast"])
def test_the_polarity_of_a_known_trace_is_known(sublet, verb):
    answer = sublet(verb, "bamboo-p3", "--polarity", "preempted")
    assert answer.code == 2
    assert "bamboo-p3 is known to state" in answer.err


def test_a_file_that_marks_preemptions_is_turned_round(sublet, tmp_path):
    path = tmp_path / "marks.csv"
    path.write_text(HEADER + "".join(f"0,z{each},0\n3600,z{each},1\n" for each in range(4)), encoding="utf-8")
    arguments = ("spot", path, "--policy", "greedy-live", "--hours", 1, "--json")
    found = [sublet(*arguments, *more).json for more in (("--polarity", "availability"), ("--polarity", "preempted"))]
    assert [each["mean_instances"] for each in found] == [0.0, 4.0]


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        (("--model", "brt"), ["no spot model is called 'brt'", "did you mean bert"]),
        (("--policy", "livput"), ["no spot policy is called 'livput'", "did you mean liveput"]),
        (("--policy", "parcae,parcae"), ["--policy", "twice"]),
        (("--value", 0), ["--value = 0"]),
        (("--value", "nan"), ["--value = nan"]),
        (("--value", "much"), ["--value = 'much'"]),
        (("--price", -1), ["--price = -1"]),
        (("--zone", "nowhere"), ["no zone is called 'nowhere'"]),
        (("--most", 0), ["--most = 0"]),
        (("--hours", 0), ["--hours = 0"]),
        (("--hours", "nan"), ["--hours = nan"]),
        (("--notice", -1), ["--notice = -1"]),
        (("--deadline", "soon", "--samples", 5), ["--deadline = 'soon'", "such as 8h"]),
        (("--deadline", "1h"), ["--samples", "given"]),
        (("--deadline", "9h", "--samples", 5), ["--deadline = '9h'", "h of the record"]),
        (("--by-zone", "--value", 1), ["--by-zone", "without --value"]),
        (("--by-zone", "--most", 8), ["--by-zone", "without --most"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_is_told_what_is_wrong(sublet, more, texts):
    answer = sublet("spot", "parcae-lasp", *more)
    assert (answer.code, answer.out) == (2, "")
    assert all(text in answer.err for text in texts), answer.err


@pytest.mark.parametrize("verb", ["spot", "forecast"])
def test_the_verbs_explain_themselves(sublet, verb):
    answer = sublet(verb, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: sublet {verb}")
    assert "--output" in answer.out
