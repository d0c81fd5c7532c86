"""What would be: futures of a real controller, the plan under other terms, who may ask, and the bounds of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.api.what_if import routes
from sublet.api.what_if.views import BranchView, FanView, WhatIfView
from sublet.cli.main import run
from sublet.client import connect
from sublet.errors import Refused
from sublet.runtime.controller_api.trials import TrialView
from sublet.runtime.jobs.file import job_from_command
from tests.rigs.console import fleet

HOURS = 2.0


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("what-if")) as found:
        yield found


@pytest.fixture(scope="module")
def ours(there):
    found = connect(there.state.path)
    found.set_budget(burn_limit_usd_per_h=1.0)
    facts = {
        "sdk": True,
        "work": 3.6e6,
        "samples_per_s": 60_000.0,
    }  # an hour of the cloud on one worker, 60 times as fast
    job = replace(job_from_command(["true"], name="a", workers=(1, 3)), **facts)
    found.wait(found.submit(job)["job_id"], until={"running"})
    return found


def status(ask):
    with pytest.raises(Refused) as refused:
        ask()
    return refused.value.status


def test_futures_of_a_live_controller_with_and_without_more_money(ours):
    before = ours.events()
    found = ours.what_if(hours=HOURS, futures=3, more_usd_per_h=1.0)
    assert set(found) - {"schema_version"} == set(WhatIfView.__annotations__)
    assert found["futures"] == 3
    assert found["otherwise"]["burn_limit_usd_per_h"] == 2.0
    for branch in (found["as_is"], found["otherwise"]):
        assert set(branch) == set(BranchView.__annotations__)
        fan = branch["fan"]
        assert set(fan) == set(FanView.__annotations__)
        assert fan["usd_p10"][0] == 0.0
        for what in ("usd", "done"):
            for low, middle, high in zip(*(fan[f"{what}_{name}"] for name in ("p10", "p50", "p90")), strict=True):
                assert low <= middle <= high
        assert branch["cost_usd"]["p90"] <= branch["burn_limit_usd_per_h"] * HOURS + 1e-6
        assert [job["job_id"] for job in branch["jobs"]] == ["a-1"]
    told = [event["kind"] for event in ours.events(after=before[-1]["seq"])]
    assert not {"BudgetChanged", "NodeLost", "JobFinished"} & set(told)


def test_the_plan_under_other_terms_changes_nothing(ours):
    budget, seen = ours.budget(), len(ours.events())
    for terms in ({"burn_limit_usd_per_h": 5.0}, {"hour_usd": 50.0}, {"purse_usd": 3.0}, {"hour_usd": 0.001}):
        found = ours.line.post("/v1/plans/dry-run", {"job": "a", **terms})
        assert set(found) - {"schema_version"} == set(TrialView.__annotations__)
        assert found["alternatives"]
    assert ours.budget()["burn_limit_usd_per_h"] == budget["burn_limit_usd_per_h"]
    assert not [event for event in ours.events()[seen:] if event["kind"] in ("BudgetChanged", "ValueOfTime")]
    rich = ours.line.post("/v1/plans/dry-run", {"job": "a", "hour_usd": 1000.0, "burn_limit_usd_per_h": 9.0})
    poor = ours.line.post("/v1/plans/dry-run", {"job": "a", "hour_usd": 0.001, "burn_limit_usd_per_h": 9.0})
    quickest = [min(each["alternatives"], key=lambda row: row["price_usd"])["left_s"] for each in (rich, poor)]
    assert quickest[0] <= quickest[1]


def test_the_value_of_time_is_set_with_a_word_and_kept(ours, there):
    ours.line.post("/v1/value-of-time", {"usd_per_h": 7.5})
    told = ours.events()[-1]
    assert (told["kind"], told["by"]) == ("ValueOfTime", "owner")
    assert "7.5" in told["text"]
    ours.set_budget(average_usd_per_h=1.0)
    assert status(lambda: ours.line.post("/v1/value-of-time", {"usd_per_h": 2.0})) == 422  # the budget says it


def test_who_may_look_alone_may_ask_for_no_futures(ours, there):
    reader = replace(there.client, token=there.state.reader_file.read_text())
    assert status(lambda: reader.post("/v1/what-if", {})) == 403
    assert status(lambda: reader.post("/v1/plans/dry-run", {})) == 403
    user = replace(there.client, token=there.client.post("/v1/tokens", {"name": "u", "scope": "user"})["token"])
    assert user.post("/v1/plans/dry-run", {})["jobs"] is not None
    assert status(lambda: user.post("/v1/value-of-time", {"usd_per_h": 1.0})) == 403


def test_what_is_asked_for_is_bounded(ours):
    for body in ({"hours": 1e9}, {"futures": 101}, {"futures": 0}, {"market": "/etc/passwd"}, {"more_usd": -1.0}):
        assert status(lambda body=body: ours.line.post("/v1/what-if", body)) == 422


def test_a_process_that_takes_too_long_is_ended_and_the_next_is_answered(ours, monkeypatch):
    monkeypatch.setattr(routes, "LIMIT_S", -100.0)  # over before it has begun
    assert status(lambda: ours.line.post("/v1/what-if", {"futures": 1})) == 422
    monkeypatch.undo()
    found = ours.what_if(hours=HOURS, futures=1)
    assert (found["futures"], found["otherwise"]) == (1, None)


def test_the_command_line_shows_them(ours, there, monkeypatch, capsys):
    monkeypatch.setenv("SUBLET_SERVER", there.client.address)
    monkeypatch.setenv("SUBLET_TOKEN", there.client.token)
    assert run(["what-if", "--futures", "1", "--hours", "1", "--more", "1"]) == 0
    assert "with USD 1/h more" in capsys.readouterr().out
