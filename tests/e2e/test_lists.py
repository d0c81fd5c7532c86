"""The verbs that list things: every one in both forms, with source and licence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.perf.live.rows import StepRow
from sublet.perf.live.stored import StoredProfile

LISTS = ("workloads", "profiles", "offers", "traces", "policies")
VERBS = ("simulate", "compare", "plan", "advise", "spot", "forecast", "study", *LISTS)


@pytest.mark.parametrize("verb", LISTS)
def test_a_list_is_a_table_or_the_same_as_json(sublet, verb):
    table, answer = sublet(verb), sublet(verb, "-o", "json")
    assert table.code == answer.code == 0
    assert table.err == answer.err == ""
    listed = answer.json[verb]
    assert answer.json["schema_version"] == 1
    assert answer.json["command"] == f"sublet {verb} -o json"
    assert listed
    if verb != "offers":  # its table puts the zones of a region together
        assert all(entry["name"] in table.out for entry in listed)


@pytest.mark.parametrize("verb", ["workloads", "profiles", "traces"])
def test_every_data_set_has_a_source_and_a_licence_and_says_whether_it_is_here(sublet, verb):
    for entry in sublet(verb, "--json").json[verb]:
        assert entry["source"]
        assert entry["licence"]
        assert entry["present"] or not entry["bundled"]


@pytest.mark.parametrize("verb", ["workloads", "profiles", "traces"])
def test_what_is_not_ours_to_ship_is_marked(sublet, verb, monkeypatch, tmp_path):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    answer = sublet(verb)
    assert answer.code == 0
    assert "bundled" in answer.out
    assert "read from SUBLET_DATA (absent)" in answer.out
    assert not all(entry["present"] for entry in sublet(verb, "--json").json[verb])


def test_workloads_can_be_narrowed_down(sublet):
    names = [entry["name"] for entry in sublet("workloads", "pollux-2.0", "--json").json["workloads"]]
    assert names == [f"pollux-2.0-{number}" for number in range(1, 7)]


def test_offers_are_filtered_and_cheapest_first(sublet):
    filters = ("--gpu", "H100", "--max-price", 5, "--spot", "--limit", 7)
    offers = sublet("offers", *filters, "--json").json["offers"]
    assert len(offers) == 7
    prices = [offer["usd_per_gpu_h"] for offer in offers]
    assert prices == sorted(prices)
    assert prices[-1] <= 5
    assert {(offer["gpu"], offer["market"]) for offer in offers} == {("H100", "spot")}


def test_an_offer_of_the_table_can_be_rented(sublet, jobs_csv):
    table = sublet("offers", "--gpu", "T4", "--cloud", "aws", "--limit", 1).out
    name = table.splitlines()[2].split()[0]
    assert sublet("simulate", jobs_csv, "--offer", name, "--budget", 5, "--json").code == 0


def test_traces_tell_how_often_nodes_are_lost(sublet):
    traces = {trace["name"]: trace for trace in sublet("traces", "--json").json["traces"]}
    assert traces["bamboo-p3"]["hazard_per_h"] > 0
    assert 0 < traces["bamboo-p3"]["mean_available"] <= 32
    assert traces["bamboo-p3"]["hazard_observed"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_verb_explains_itself(sublet, verb, flag):
    answer = sublet(verb, flag)
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: sublet {verb}")
    assert "--output" in answer.out


def test_the_program_explains_itself(sublet):
    bare, asked = sublet(), sublet("--help")
    assert bare == asked
    assert all(verb in asked.out for verb in VERBS)
    assert sublet("--version").out.startswith("sublet 0.")


def test_what_jobs_measured_here_is_listed_beside_what_comes_along(sublet, monkeypatch, tmp_path):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path))
    row = StepRow(gpu="T4", gpus=2, samples=32, step_s=0.1, piece_s=0.05)
    facts = {"name": "my-net", "script": "ab" * 32, "gpu": "T4", "torch": "2.11", "date": "2026-11-16T10:00:00"}
    profile = StoredProfile(
        **facts, batches=(64, 32, 1024), batch=64, noise=812.0, rows=(row,), memory={32: 5_120_000_000}
    )
    assert sublet("profiles", "--json").json["measured"] == []
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "my-net.csv").write_text(profile.to_text())
    (found,) = sublet("profiles", "--json").json["measured"]
    assert (found["name"], found["rows"][0]["step_s"]) == ("my-net", 0.1)
    line = next(line for line in sublet("profiles").out.splitlines() if line.startswith("my-net"))
    assert all(word in line for word in ("T4", "32 to 1024", "812", "5.12 GB at 32", "2026-11-16"))
    assert "CPUs" not in line
    (tmp_path / "profiles" / "my-net.csv").write_text(replace(profile, device="cpu").to_text())
    assert "CPUs, as T4" in sublet("profiles").out
