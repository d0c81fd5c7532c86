"""Records end, and may be read the wrong way round: every verb that takes one says so instead of guessing."""

from __future__ import annotations

import pytest


@pytest.fixture
def turned_trace(tmp_path):
    """A market that is empty most of the time, or the other way round: nobody has said which."""
    path = tmp_path / "turned.csv"
    path.write_text("t_s,zone,available\n0,z,0\n3000,z,1\n3600,z,0\n7200,z,0\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_a_trace_that_may_be_the_wrong_way_round_is_refused_until_somebody_says(sublet, jobs_csv, turned_trace, verb):
    asked = [verb, jobs_csv, "--market", turned_trace, "--offer", "aws:g4dn.xlarge:us-east-1:spot", "--quiet"]
    asked += ["--policies", "fifo"] if verb == "compare" else ["--policy", "fifo"]
    answer = sublet(*asked)
    assert answer.code == 2
    assert "it is not stated whether a 1 means" in answer.err
    assert "--polarity availability" in answer.err
    assert sublet(*asked, "--polarity", "preempted").code == 0


def test_the_controller_refuses_such_a_trace_before_it_starts(sublet, turned_trace, tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    answer = sublet("up", "--market", turned_trace)
    assert answer.code == 2
    assert "--polarity availability" in answer.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("verb", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("day", "words"),
    [
        ("2031-06-01", "2022-12-03 to 2026-08-21 of aws:us-east-1"),
        ("2022-12-02", "2022-12-03 to"),  # the record begins in the evening of that day
        ("soon", "a day such as"),
    ],
)
def test_prices_of_a_day_beyond_the_record_are_refused(sublet, jobs_csv, verb, day, words):
    offer = "aws:g4dn.12xlarge:us-east-1:spot"
    answer = sublet(verb, jobs_csv, "--offer", offer, "--budget", 20, "--prices-since", day, "--quiet")
    assert answer.code == 2
    assert f"--prices-since = '{day}'" in answer.err
    assert words in answer.err


@pytest.mark.parametrize("more", [[], ["--by-zone"]])
def test_more_hours_than_were_recorded_are_refused(sublet, short_trace, more):
    answer = sublet("spot", short_trace, "--polarity", "availability", "--hours", 3, *more)
    assert answer.code == 2
    assert "--hours = 3.0" in answer.err
    assert "market has 1.50 hours" in answer.err


def test_a_model_that_fits_in_no_zone_is_said_to(sublet, tmp_path):
    path = tmp_path / "zones.csv"
    path.write_text("t_s,zone,available\n0,a,7\n0,b,8\n3600,a,7\n3600,b,8\n", encoding="utf-8")
    answer = sublet("spot", path, "--by-zone", "--model", "gpt-6.7b")
    assert answer.code == 112
    assert "fits in no zone" in answer.err
    assert "12 is needed" in answer.err
    assert "leave --by-zone out: all zones together have up to 15" in answer.err
    assert answer.out == ""


def test_zones_that_are_too_small_for_the_model_are_named(sublet, tmp_path):
    path = tmp_path / "zones.csv"
    path.write_text("t_s,zone,available\n0,small,7\n0,large,16\n3600,small,7\n3600,large,16\n", encoding="utf-8")
    answer = sublet("spot", path, "--by-zone", "--model", "gpt-6.7b", "--hours", 0.5)
    assert answer.code == 0
    assert "there never were as many in small" in " ".join(answer.out.split())


def test_a_run_that_outlasts_the_record_of_prices_says_that_the_last_one_is_held(sublet, jobs_csv):
    offer = "aws:g4dn.12xlarge:us-east-1:spot"
    asked = ("simulate", jobs_csv, "--offer", offer, "--budget", 20, "--quiet", "--json", "--prices-since")
    held = "outlasted the record of prices"
    assert any(held in note for note in sublet(*asked, "2026-08-21T07:48:00Z").json["notes"])
    assert not any(held in note for note in sublet(*asked, "2025-06-01").json["notes"])
