"""`sublet data`: what is missing is told with the commands that bring it, and a wrong clone is refused."""

from __future__ import annotations

import pytest


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine that has what ships, and no more."""
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path / "data"))
    return tmp_path


def test_what_is_missing_is_told_with_the_commands_that_bring_it(sublet, bare):
    answer = sublet("data")
    assert (answer.code, answer.err) == (0, "")
    assert "  git clone https://github.com/siasosp23/artifacts sia\n" in answer.out
    assert "  git -C sia checkout aaf7a0de7b6cb5eab06ea020467ede5d2fd18e70\n" in answer.out
    assert "  sublet data import sia sia\n" in answer.out
    assert "data import parcae" not in answer.out  # it ships
    states = {each["name"]: set(each["files"].values()) for each in sublet("data", "--json").json["artifacts"]}
    assert states["sia"] == {"missing"}
    assert states["pollux"] == {"missing", "ships"}
    assert states["parcae"] == {"ships"}


def test_a_wrong_clone_is_refused_and_nothing_is_written(sublet, bare):
    workload = bare / "clone" / "sia-simulator" / "workloads" / "test.csv"
    workload.parent.mkdir(parents=True)
    workload.write_text("name,time,application,num_replicas,batch_size\nbert-0,4.0,bert,1,12\n", encoding="utf-8")
    answer = sublet("data", "import", "boa", bare / "clone")
    assert answer.code == 2
    assert "checkout 3f8207f96634210c182ff17103edfdad840871d5" in answer.err
    assert not (bare / "data").exists()


def test_a_study_without_its_data_leads_there(sublet, bare):
    answer = sublet("study", "pollux-oracle", "--quick")
    assert answer.code == 1
    assert "sublet data" in answer.err
