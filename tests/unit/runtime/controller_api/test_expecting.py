"""What a submission answers: what the job is expected to cost, and what that saves."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sublet.cli.print.submission import expected_line
from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Price as Rent
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price
from tests.rigs.asgi import serving
from tests.rigs.story import Story, a_spec, phase

pytestmark = pytest.mark.usefixtures("virtual_time")
KNOWN = {"work": 36_000.0, "samples_per_s": 10.0}  # an hour on one worker


def submitted(tmp_path, spec, policy=None):
    async def live():
        async with serving(tmp_path, policy=policy or Price(), speedup=1.0) as server:
            dry = await server.api.dry_run(spec)
            return await server.api.submit(spec), dry

    return asyncio.run(live())


def test_a_submission_says_what_it_is_expected_to_cost_and_what_that_saves(tmp_path):
    found, dry = submitted(tmp_path, a_spec(**KNOWN))
    expected = found["expected"]
    assert dry["expected"] == expected
    assert dry["shape"] == expected["shape"]  # it is alone: what is expected is what it gets
    assert expected["usd"] < expected["usd_on_demand"]
    assert expected["usd"] <= expected["usd_in_a_hurry"]
    assert expected["seconds"] >= expected["seconds_in_a_hurry"]
    line = expected_line(expected)
    assert line.startswith(f"expected: about USD {expected['usd']:.2f} in ")
    assert f"on demand USD {expected['usd_on_demand']:.2f}" in line
    assert "in a hurry USD" in line


def test_one_in_a_hurry_is_told_the_price_of_it(tmp_path):
    spec = replace(a_spec(max_workers=4, **KNOWN), hurry=True)
    found, _ = submitted(tmp_path, spec)
    expected = found["expected"]
    assert expected["usd"] == expected["usd_in_a_hurry"]
    assert expected["seconds"] == expected["seconds_in_a_hurry"]


def test_where_the_work_is_not_known_rents_are_told(tmp_path):
    found, _ = submitted(tmp_path, a_spec())
    assert found["expected"]["usd"] is None
    assert expected_line(found["expected"]).startswith(f"expected: USD {found['expected']['usd_per_h']:.2f}/h on ")


def test_a_policy_that_weighs_no_money_says_nothing(tmp_path):
    found, _ = submitted(tmp_path, a_spec(**KNOWN), Fifo())
    assert found["expected"] is None
    assert expected_line(None) == ""


def test_a_job_of_small_means_is_told_of_what_it_can_pay_for(tmp_path):
    spec = replace(a_spec(max_workers=4, **KNOWN), purse_usd=0.05)
    found, dry = submitted(tmp_path, spec)
    rich, _ = submitted(tmp_path / "rich", replace(spec, purse_usd=None))
    assert found["expected"]["shape"] == dry["shape"]
    assert found["expected"]["usd_per_h"] < rich["expected"]["usd_per_h"]


def test_what_others_have_is_not_promised(tmp_path):
    """The only spot node is taken: the next job rents on demand, and is told so; the third waits, and is told that."""
    limits = {"spot": Limit(max_nodes=1), "on-demand": Limit(max_nodes=1)}
    story, spec = Story(tmp_path, speedup=1.0, policy="price", limits=limits), a_spec(max_workers=1)

    async def live():
        async with story.controller() as api:
            expected, got = [], []
            for job_id in ("j-1", "j-2"):
                dry = await api.dry_run(spec)
                expected.append((await api.submit(spec))["expected"])
                got.append((await phase(api, job_id, "running"))["shape"])
                assert dry["expected"] == expected[-1]
            third = (await api.submit(spec))["expected"]
            return expected, got, third

    (first, second), got, third = asyncio.run(live())
    assert got == [first["shape"], second["shape"]] == ["1 x T4x1:spot", "1 x T4x1:on-demand"]
    assert (first["usd_per_h"], second["usd_per_h"]) == (0.5, 1.5)
    assert (first["waits"], second["waits"], third["waits"]) == (False, False, True)
    assert expected_line(second).startswith("expected: USD 1.50/h on 1 x T4x1:on-demand; ")
    assert expected_line(third).startswith("expected once others make room: USD 0.50/h on 1 x T4x1:spot; ")


def test_a_limit_on_spending_is_shared_with_others(tmp_path):
    budget = Budget(burn=Rent.from_usd_per_h(1.6))  # on demand alone, or three on spot
    limits = {"spot": Limit(max_nodes=1), "on-demand": Limit(max_nodes=1)}
    story, spec = Story(tmp_path, speedup=1.0, policy="price", limits=limits, budget=budget), a_spec(max_workers=1)

    async def live():
        async with story.controller() as api:
            await api.submit(spec)
            await phase(api, "j-1", "running")
            return (await api.submit(spec))["expected"]

    expected = asyncio.run(live())
    assert (expected["waits"], expected["shape"]) == (True, "1 x T4x1:spot")
