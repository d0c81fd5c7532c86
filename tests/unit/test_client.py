"""A controller in Python, over HTTP, against a real controller: a job's life, waiting, money, and what is refused."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from sublet.client import Fleet, connect
from sublet.errors import InvalidValue, NoSuchJob, Refused, SubletError
from sublet.runtime.controller_api import views
from sublet.runtime.jobs.file import job_from_command
from tests.rigs.console import fleet


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("client")) as found:
        yield found


@pytest.fixture
def ours(there):
    return connect(there.state.path)


def a_job(name):
    return replace(job_from_command(["true"], name=name, workers=(1, 2)), sdk=True)


def test_a_job_lives_its_life(ours, tmp_path):
    file = tmp_path / "life.yaml"
    file.write_text("name: life\nrun: 'true'\nelastic: {workers: 1..2}\n")
    assert ours.dry_run(file)["feasible"]
    assert "life" not in [job["name"] for job in ours.jobs()]
    job_id = ours.submit(file, key="once")["job_id"]
    assert ours.submit(file, key="once")["job_id"] == job_id
    assert ours.wait("life", until={"running"})["id"] == job_id
    assert ours.pause(job_id)["id"] == job_id
    assert ours.wait(job_id)["phase"] == "paused"
    ours.resume(job_id)
    assert ours.scale(job_id, 1, 3)["max_workers"] == 3
    assert ours.explain("life")["job_id"] == job_id
    ours.cancel(job_id, now=True)
    ended = ours.wait(job_id, until=views.ENDED)
    assert (ended["phase"], ended["node_ids"]) == ("cancelled", [])
    kinds = [event["kind"] for event in ours.events(job_id)]
    assert kinds[0] == "JobSubmitted"
    assert {"Paused", "Resumed", "Scaled"} <= set(kinds)
    assert ours.cost(job_id)["usd_total"] == pytest.approx(ended["usd_total"])


def test_every_answer_has_the_fields_of_its_type(ours):
    job_id = ours.submit(a_job("typed"))["job_id"]
    ours.wait(job_id, until={"running"})
    for answer, kind in (
        (ours.job(job_id), views.JobView),
        (ours.jobs()[0], views.JobView),
        (ours.nodes()[0], views.NodeView),
        (ours.events()[0], views.EventView),
        (ours.cost(), views.CostView),
        (ours.budget(), views.BudgetView),
        (ours.explain(job_id), views.ExplainView),
        (ours.dry_run(a_job("tried")), views.DryRunView),
        (ours.health(), views.HealthView),
    ):
        assert set(answer) - {"schema_version"} == set(kind.__annotations__), kind
    assert {node["hazard_per_h"] for node in ours.nodes() if node["market"] == "on-demand"} <= {0.0}
    assert {price["offer_id"] for price in ours.prices()} == {"spot", "on-demand"}
    ours.cancel(job_id, now=True)


def test_a_curve_is_there_for_whoever_comes_late(ours):
    job_id = ours.submit(a_job("curve"))["job_id"]
    ours.wait(job_id, until={"running"})
    end_s = time.monotonic() + 120.0
    while len(found := ours.losses(job_id)) < 3 and time.monotonic() < end_s:
        time.sleep(0.05)
    assert [step for step, _ in found] == sorted(step for step, _ in found)
    assert found[0][1] > found[-1][1] > 0
    ours.cancel(job_id, now=True)


def test_what_happens_is_told_as_it_happens(ours):
    told = ours.follow(after=ours.events()[-1]["seq"] if ours.events() else 0, every_s=0.01)
    job_id = ours.submit(a_job("followed"))["job_id"]
    first = next(event for event in told if event["job_id"] == job_id)
    assert first["kind"] == "JobSubmitted"
    ours.cancel(job_id, now=True)
    assert any(event["kind"] == "JobCancelled" for event in itertools.islice(told, 1000))


def test_a_wait_has_an_end_and_says_why(ours):
    job_id = ours.submit(a_job("waited"))["job_id"]
    with pytest.raises(TimeoutError, match=f"{job_id} is still "):
        ours.wait(job_id, until={"finished"}, timeout_s=0.0)
    with pytest.raises(InvalidValue, match="done"):
        ours.wait(job_id, until={"done"})
    ours.cancel(job_id, now=True)


def test_money_is_set_and_topped_up(ours):
    assert ours.set_budget(purse_usd=50)["purse_usd"] == 50.0
    assert ours.top_up(5)["purse_usd"] == 55.0
    assert ours.set_budget(burn_limit_usd_per_h=9)["purse_usd"] == 55.0  # what is left out stays
    job_id = ours.submit(replace(a_job("purse"), purse_usd=2.0))["job_id"]
    assert ours.top_up(1, job=job_id)["purse_usd"] == 3.0
    ours.cancel(job_id, now=True)


def test_budgets_of_teams_are_set_and_listed(ours, there):
    before = ours.budgets.list()
    assert [row["level"] for row in before][:1] == ["org"]
    told = ours.budgets.set("team", "vision", amount_usd=500, period="month")
    (row,) = [row for row in told if (row["level"], row["name"]) == ("team", "vision")]
    assert (row["limit_usd"], row["period"], row["spent_usd"]) == (500.0, "month", 0.0)
    assert [(row["level"], row["name"], row["limit_usd"]) for row in ours.budgets.list()] == [
        (row["level"], row["name"], row["limit_usd"]) for row in told
    ]
    with pytest.raises(Refused, match="period"):
        ours.budgets.set("team", "vision", amount_usd=5, period="year")
    reader = Fleet(replace(there.client, token=there.state.reader_file.read_text()))
    with pytest.raises(Refused, match="may only read"):
        reader.budgets.set("team", "vision", amount_usd=5)
    lifted = ours.budgets.set("team", "vision", amount_usd=None)
    assert [row["limit_usd"] for row in lifted if row["level"] == "team"] == [None] * sum(
        row["level"] == "team" for row in lifted
    )


def test_what_is_refused_is_an_error_of_ours(ours, there):
    with pytest.raises(Refused) as refused:
        ours.job("nobody")
    assert refused.value.status == 404
    with pytest.raises(NoSuchJob):
        ours.job("../budget")
    reader = Fleet(replace(there.client, token=there.state.reader_file.read_text()))
    with pytest.raises(SubletError, match="missing or wrong"):
        Fleet(replace(there.client, token=reader.line.token[::-1])).jobs()
    assert reader.budget()
    with pytest.raises(Refused, match="may only read"):
        reader.top_up(1)
