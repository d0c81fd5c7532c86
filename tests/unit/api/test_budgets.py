"""Budgets of teams, users and jobs: who sets them, who sees what of them, and what a job learns of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from sublet.cli.main import run
from sublet.domain.budget import ORG, Holder, Level, Period
from sublet.domain.events import PurseSet
from sublet.domain.money import Money
from sublet.errors import InvalidValue, NoSuchJob
from sublet.kernel.invariants import check
from sublet.runtime.controller.core.pump import Pump, Timers
from sublet.runtime.controller.jobs.lifecycle import OwnBudgets
from sublet.runtime.controller_api.budgets import purse_reason, purse_rows
from sublet.runtime.controller_api.tokens import Scope
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.in_memory_api import served, status
from tests.rigs.story import OFFERS, Story, a_spec, phase, trained


@pytest.fixture
def there(tmp_path, monkeypatch):
    with served(tmp_path) as found:
        monkeypatch.setenv("SUBLET_STATE", str(found.state.path))
        yield found


def client_of(there, name, scope, **owner):
    made = there.client.post("/v1/tokens", {"name": name, "scope": scope, **owner})
    return replace(there.client, token=made["token"])


def names(client):
    return [(row["level"], row["name"], row["depth"]) for row in client.get("/v1/budgets")["purses"]]


# ---------------------------------------------------------------------- who may, and who sees


def test_admins_set_users_see_what_is_theirs_and_readers_see_all(there):
    ann = client_of(there, "ann", "user", team="vision")
    client_of(there, "bob", "user", team="speech")
    reader, admin = client_of(there, "screen", "read", user="carl"), client_of(there, "boss", "admin")
    body = {"level": "team", "name": "vision", "amount_usd": 500.0, "period": "month"}
    assert [status(lambda who=who: who.post("/v1/budgets", body)) for who in (ann, reader, admin)] == [403, 403, 200]
    assert names(ann) == [("org", "", 0), ("team", "vision", 1), ("user", "ann", 2)]
    assert names(reader) == names(there.client)
    assert ("user", "bob", 2) in names(reader)
    (row,) = [each for each in reader.get("/v1/budgets")["purses"] if each["name"] == "vision"]
    assert (row["limit_usd"], row["period"], row["spent_usd"], row["left_usd"]) == (500.0, "month", 0.0, 500.0)
    assert row["ends"] == "2026-12-01 00:00 UTC"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"level": "club", "name": "chess", "amount_usd": 1.0}, "level"),
        ({"level": "team", "name": "a b", "amount_usd": 1.0}, "team"),
        ({"level": "team", "name": "a", "amount_usd": 1.0, "period": "year"}, "period"),
        ({"level": "org", "name": "us", "amount_usd": 1.0}, "org"),
        ({"level": "team", "name": "a", "amount_usd": -1.0}, "amount_usd"),
        ({"level": "team", "name": "a", "amount": 1.0}, "amount"),
    ],
)
def test_what_cannot_be_set_is_refused_by_its_field(there, body, field):
    with pytest.raises(Exception, match=field) as error:
        there.client.post("/v1/budgets", body)
    assert error.value.status == 422
    assert not there.api.kernel.budgets.allowed


def test_a_user_is_in_one_team(there):
    client_of(there, "ann", "user", team="vision")
    client_of(there, "ann-too", "read", user="ann", team="vision")
    assert status(lambda: client_of(there, "ann3", "user", user="ann", team="speech")) == 422
    assert status(lambda: client_of(there, "ann4", "user", user="ann")) == 422
    assert status(lambda: client_of(there, "dan", "user", team="no such/team")) == 422
    assert there.api.tokens.owner("ann-too") == ("ann", "vision")
    assert there.api.tokens.owner("owner") == ("", "")


# ---------------------------------------------------------------------- the verb


def test_the_verb_sets_and_shows_the_tree(there, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    client_of(there, "ann", "user", team="vision")
    assert run(["budget", "set", "--team", "vision", "500/month"]) == 0
    assert run(["budget", "set", "--user", "ann", "50/week"]) == 0
    assert run(["budget", "set", "--org", "1000/month"]) == 0
    capsys.readouterr()
    assert run(["budget", "show"]) == 0
    tree = capsys.readouterr().out.splitlines()[-3:]
    assert tree[0].split()[:5] == ["org", "USD", "1000.00", "a", "month"]
    assert tree[1].startswith("  team vision")
    assert tree[2].startswith("    user ann")
    assert run(["budget", "show", "--json"]) == 0
    purses = json.loads(capsys.readouterr().out)["purses"]
    assert [each["limit_usd"] for each in purses] == [1000.0, 500.0, 50.0]
    assert run(["budget", "set", "--team", "vision", "none"]) == 0
    assert Holder(Level.TEAM, "vision") not in there.api.kernel.budgets.allowed
    assert there.api.kernel.budgets.allowed[ORG].period is Period.MONTH


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--team", "vision"], "500/month"),
        (["500/month"], "one of --team NAME, --user NAME, --job JOB and --org"),
        (["--team", "a", "--user", "b", "5"], "one of --team"),
        (["--team", "a", "5/year"], "USD/day, USD/week, USD/month"),
        (["--team", "a", "five/week"], "dollars"),
        (["--team", "a", "5", "--burn", "2"], "in a call of their own"),
        ([], "or an amount with --team"),
    ],
)
def test_the_verb_says_what_is_wrong_and_what_would_do(there, capsys, words, told):
    assert run(["budget", "set", *words]) != 0
    assert told in capsys.readouterr().err
    assert not there.api.kernel.budgets.allowed


# ---------------------------------------------------------------------- a controller


@pytest.mark.usefixtures("virtual_time")
def test_the_budget_of_all_is_by_periods_or_in_all_and_outlives_the_controller(tmp_path):
    async def live():
        story = Story(tmp_path)
        async with story.controller() as api:
            await api.budgets.set(level="org", amount_usd=30.0, period="month")
            with pytest.raises(InvalidValue, match="sublet budget set --org"):
                await api.set_budget(purse_usd=5.0)
            with pytest.raises(InvalidValue, match="sublet budget set --org"):
                await api.top_up(5.0)
            await api.set_budget(burn_limit_usd_per_h=9.0)
        async with story.controller() as api:
            (org,) = api.budgets.rows()
            await api.budgets.set(level="org", amount_usd=40.0)
        async with story.controller() as api:
            budget, (row,) = await api.budget(), api.budgets.rows()
            await api.top_up(2.0)
            return org, budget, row, await api.budget()

    org, budget, row, more = asyncio.run(live())
    assert (org["limit_usd"], org["period"]) == (30.0, "month")
    assert (budget["purse_usd"], budget["burn_limit_usd_per_h"]) == (40.0, 9.0)
    assert (row["limit_usd"], row["period"], row["ends"]) == (40.0, None, None)
    assert more["purse_usd"] == 42.0


@pytest.mark.usefixtures("virtual_time")
def test_a_job_is_of_its_tokens_team_stops_when_that_is_spent_and_goes_on_with_more(tmp_path):
    async def live():
        story = Story(tmp_path)
        async with story.controller() as api:
            api.tokens.create("ann", Scope.USER, team="vision")
            await api.submit(a_spec(user="boss", team="rich"), by="ann")  # the file claims what is not so
            first = await api.job("j-1")
            await trained(api, "j-1", 1)
            await api.budgets.set(level="team", name="vision", amount_usd=0.01, period="month", by="owner")
            stopped = await phase(api, "j-1", "out-of-budget")
            rows = {row["name"]: row for row in api.budgets.rows()}
        async with story.controller() as api:
            again = await phase(api, "j-1", "out-of-budget")
            await api.budgets.set(level="team", name="vision", amount_usd=100.0, period="month", by="owner")
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 1)
            events = await api.events()
            with pytest.raises(NoSuchJob):
                await api.budgets.set(level="job", name="k-1", amount_usd=1.0)
            await api.budgets.set(level="job", name="j", amount_usd=50.0)
            assert api.budgets.rows()[-1]["name"] == "j-1"
            return first, stopped, again, rows, events

    first, stopped, again, rows, events = asyncio.run(live())
    assert (first["user"], first["team"]) == ("ann", "vision")
    assert "team vision has spent its USD 0.01 a month" in stopped["reason"]
    assert "sublet budget set --team vision" in stopped["reason"]
    assert again["reason"] == stopped["reason"]
    assert rows["vision"]["exhausted"]
    assert rows["ann"]["spent_usd"] == rows["vision"]["spent_usd"]
    told = [event["text"] for event in events if event["kind"] in ("JobSubmitted", "PurseSet", "TellUser")]
    assert any("for ann of team vision" in text for text in told)
    assert "team vision may spend USD 100.00 a month" in told


@pytest.mark.usefixtures("virtual_time")
def test_the_budget_of_a_jobs_file_is_the_last_level_of_the_tree(tmp_path):
    async def live():
        async with Story(tmp_path).controller() as api:
            api.tokens.create("ann", Scope.USER, team="vision")
            await api.submit(a_spec(max_workers=1, purse_usd=0.8), by="ann")
            await api.submit(a_spec(name="free", max_workers=1))
            await trained(api, "j-1", 1)
            running = api.budgets.rows()
            held = await phase(api, "j-1", "out-of-budget")
            spent = api.budgets.rows(by="ann")
            await api.budgets.set(level="job", name="j-1", amount_usd=0.5)
            return running, spent, held, api.budgets.rows()[-1]

    running, spent, held, by_the_kernel = asyncio.run(live())
    assert [(row["level"], row["name"], row["depth"]) for row in running[-2:]] == [
        ("user", "ann", 2),
        ("job", "j-1", 3),
    ]
    row = running[-1]
    assert (row["limit_usd"], row["kept_by"], row["exhausted"], row["burn_usd_per_h"] > 0) == (
        0.8,
        "kernel",
        False,
        True,
    )
    assert row["by_file"]
    assert 0.0 < row["spent_usd"] < row["spent_usd"] + row["reserved_usd"] < 0.8
    assert row["left_usd"] == pytest.approx(0.8 - row["spent_usd"] - row["reserved_usd"])
    assert (spent[-1]["spent_usd"], spent[-1]["exhausted"]) == (pytest.approx(held["usd_total"]), True)
    assert (by_the_kernel["limit_usd"], by_the_kernel["kept_by"], by_the_kernel["by_file"]) == (0.5, "kernel", False)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("level", ["team", "job"])
@pytest.mark.parametrize("late_s", [0.5, 3000.0])
def test_timers_of_a_live_controller_ring_late_and_a_team_is_over_by_an_interval_and_a_job_by_nothing(
    tmp_path, monkeypatch, late_s, level
):
    """Also not while a controller is gone, and the next one finds that a purse is spent."""
    at_once, hear, heard = Timers.set, Pump._handle, [0.0]
    name = {"team": "vision", "job": "j-1"}[level]

    def hear_and_check(self, event):
        orders = hear(self, event)
        check(self.kernel)
        heard.append(event.at_s)
        return orders

    monkeypatch.setattr(Timers, "set", lambda self, action: at_once(self, replace(action, at_s=action.at_s + late_s)))
    monkeypatch.setattr(Pump, "_handle", hear_and_check)

    async def live():
        story = Story(tmp_path)
        async with story.controller(crash=True) as api:
            api.tokens.create("ann", Scope.USER, team="vision")
            await api.submit(a_spec(max_workers=1), by="ann")
            await api.budgets.set(level=level, name=name, amount_usd=1.0)
            await trained(api, "j-1", 1)
        await asyncio.sleep(20.0)  # less than a lease: its worker trains on
        async with story.controller() as api:
            await phase(api, "j-1", "out-of-budget")
            (row,) = [row for row in api.budgets.rows() if row["name"] == name]
            return row

    row = asyncio.run(live())
    interval_s = max(later - at_s for at_s, later in pairwise(heard)) + OFFERS[0].wind_down_s
    over_usd = 0.0 if level == "job" else OFFERS[0].price.usd_per_h * interval_s / 3600.0
    assert row["exhausted"]
    assert 0.0 < row["spent_usd"] <= 1.0 + over_usd


@pytest.mark.usefixtures("virtual_time")
def test_a_controller_that_finds_a_job_of_whose_budget_the_kernel_was_not_told_tells_it(tmp_path, monkeypatch):
    async def live():
        story, own = Story(tmp_path), Holder(Level.FILE, "j-1")
        with monkeypatch.context() as patched:
            patched.setattr(OwnBudgets, "tell", lambda *_: None)
            async with story.controller(crash=True) as api:
                await api.submit(a_spec(max_workers=1, purse_usd=0.8))
                await trained(api, "j-1", 1)
                before = own in api._controller.kernel.budgets.allowed
        async with story.controller() as api:
            after = own in api._controller.kernel.budgets.allowed
            await phase(api, "j-1", "out-of-budget")
            await api.top_up_job("j-1", 0.5)
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 1)
            return before, after, api.budgets.rows()[-1]

    before, after, row = asyncio.run(live())
    assert (before, after) == (False, True)
    assert (row["limit_usd"], row["kept_by"], row["by_file"], row["spent_usd"] < 1.3) == (1.3, "kernel", True, True)


def test_a_job_that_nobodys_purse_pays_for_waits_for_something_else():
    """It could not be looked at, and no page was told anything, as soon as somebody had a purse."""
    driver = Driver([an_offer("o", wind_down_s=60.0)])
    driver.submit(a_job("mine"), a_job("hers", user="ann", team="vision"))
    driver.tell(PurseSet(0.0, Holder(Level.TEAM, "vision"), Money(), None, 1_796_000_000.0))
    kernel = driver.kernel
    assert [kernel.budgets.held_by(kernel.jobs[job_id].job, 0.0) for job_id in ("mine", "hers")] == [
        None,
        Holder(Level.TEAM, "vision"),
    ]
    assert purse_reason(kernel, "mine", 0.0) == ""
    assert "team vision has spent" in purse_reason(kernel, "hers", 0.0)


def test_a_user_sees_no_purse_of_the_jobs_of_others():
    driver = Driver([an_offer("o")])
    driver.submit(a_job("hers", user="ann", team="vision"), a_job("his", user="bob", team="vision"))
    for job_id in ("hers", "his"):
        driver.tell(PurseSet(0.0, Holder(Level.JOB, job_id), Money.from_usd(5), None, 1_796_000_000.0))
    rows = purse_rows(driver.kernel, {"ann": "vision", "bob": "vision"}, 0.0, only=("ann", "vision"))
    assert [(row["level"], row["name"]) for row in rows] == [
        ("org", ""),
        ("team", "vision"),
        ("user", "ann"),
        ("job", "hers"),
    ]
    assert {row["name"] for row in purse_rows(driver.kernel, {}, 0.0)} >= {"hers", "his", "bob"}
