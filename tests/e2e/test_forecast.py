"""What a user gets from `sublet forecast`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sublet import plugins
from sublet_lab.forecasting.table import readable_traces

FORECASTERS = {"persistence", "drift", "parcae", "arima", "ar1", "markov", "skilled"}


def means(answer, place=0):
    assert answer.code == 0, answer.err
    return {each["name"]: each["mean"] for each in answer.json["traces"][place]["forecasters"]}


def test_forecast_is_a_table_or_the_same_as_json(sublet):
    table, answer = sublet("forecast", "parcae-ladp"), sublet("forecast", "parcae-ladp", "--json")
    assert table.code == answer.code == 0
    assert table.err == answer.err == ""
    (trace,) = answer.json["traces"]
    assert {each["name"] for each in trace["forecasters"]} == FORECASTERS == set(plugins.names("sublet.forecasters"))
    assert trace["moments"] == 60 - 12 - 12 + 1
    for each in trace["forecasters"]:
        assert len(each["per_minute"]) == 12
        line = next(line for line in table.out.splitlines() if line.removeprefix("> ").startswith(f"{each['name']} "))
        assert f"{each['mean']:.2f}" in line
    assert "> skilled " in table.out
    assert "nowhere worse than persistence" in table.out


def test_the_default_errs_no_more_than_persistence_however_far_one_looks(sublet):
    for minutes in (1, 2, 5, 18):
        answer = sublet("forecast", "parcae-ladp", "--minutes", minutes, "--moments", 20, "--json")
        assert means(answer)[answer.json["default"]] <= means(answer)["persistence"]
        assert [check["ok"] for check in answer.json["checks"]] == [True]


def test_the_published_forecaster_errs_more_than_persistence_where_it_was_published(sublet):
    found = means(sublet("forecast", "bamboo-p3", "--moments", 150, "--json"))
    assert found["parcae"] > found["persistence"]


def test_all_traces_that_are_here_have_a_row_and_a_check(sublet, monkeypatch):
    monkeypatch.delenv("SUBLET_DATA", raising=False)
    here = list(readable_traces())
    answer = sublet("forecast", "--all", "--moments", 2, "--json")
    assert [each["trace"] for each in answer.json["traces"]] == here
    assert all(len(each["forecasters"]) == len(FORECASTERS) for each in answer.json["traces"])
    assert len(answer.json["checks"]) == len(here)  # two moments prove nothing: the study has enough of them
    assert all(check["ok"] == (check["excess_instances"] <= 0.0) for check in answer.json["checks"])
    assert any("skynomad-h100: each of 13 zones: 1 hole" in note for note in answer.json["notes"])


def test_what_was_put_right_in_a_file_is_said(sublet, tmp_path):
    path = tmp_path / "late.csv"
    rows = [(60 * each, 8 + (each // 20) % 2) for each in range(60)]
    rows[10], rows[11] = rows[11], rows[10]
    path.write_text("t_s,zone,available\n" + "".join(f"{t_s},z,{value}\n" for t_s, value in rows), encoding="utf-8")
    answer = sublet("forecast", path, "--json")
    assert answer.code == 0
    assert "late: zone z: steps back of t_s: 1; the rows were sorted" in answer.json["notes"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("bambo-p3",), ["no trace is called", "did you mean bamboo-p3"]),
        (("parcae-ladp", "--minutes", 0), ["--minutes = 0", "1 to 120"]),
        (("parcae-ladp", "--minutes", 60), ["horizon + warm_up = 72", "at most 59 together for parcae-ladp"]),
        (("parcae-ladp", "--moments", 0), ["--moments = 0", "at least 1"]),
        (("parcae-ladp", "--all"), ["TRACE = 'parcae-ladp'", "--all in its place"]),
        ((), ["TRACE = None", "'sublet traces'", "--all"]),
    ],
)
def test_a_forecast_that_cannot_be_judged_says_why(sublet, arguments, texts):
    answer = sublet("forecast", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert all(text in answer.err for text in texts)


def test_the_market_does_not_import_statsmodels_until_it_is_used():
    code = "import sys, sublet_lab.forecasting.table; print('statsmodels' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
