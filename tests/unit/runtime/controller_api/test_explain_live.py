"""`explain` and `--dry-run` print what the policy compared, and all that look ahead say one number."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sublet.cli.print.submission import print_alternatives
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import PlanMade
from sublet.domain.money import Price as Rent
from sublet.domain.offer import Market, Offer
from sublet.kernel.journal import event_from_json, line_from
from sublet.policies.price.policy import Price
from sublet.rental.shapes import JobClass, shapes_of
from sublet.runtime.clock import Clock
from sublet.runtime.controller.memory.records import kernel_job
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import serving
from tests.rigs.story import a_spec

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 90.0
KNOWN = {"work": 36_000.0, "samples_per_s": 10.0}  # an hour on one worker
WIDE = {"gpu": "T4", "gpus_per_node": 4, "notice_s": 0.0, "boot_s": 120.0, "wind_down_s": 120.0}
ONE = {**WIDE, "gpus_per_node": 1}
NODES_OF_FOUR = (
    Offer(id="spot", market=Market.SPOT, price=Rent.from_usd_per_h(0.2), hazard_per_h=0.6, **WIDE),
    Offer(id="on-demand", market=Market.ON_DEMAND, price=Rent.from_usd_per_h(0.8), **WIDE),
)


async def running(api, job_id="j-1"):
    end_s = time.monotonic() + PATIENCE_S
    while (await api.job(job_id))["phase"] != "running":
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)


class Listening:
    """A policy, and what it answered."""

    def __init__(self, policy):
        self.policy, self.plans = policy, []

    def decide(self, snapshot):
        plan = self.policy.decide(snapshot)
        self.plans.append(plan)
        return plan


@pytest.mark.parametrize("average", [None, 0.6])
def test_explain_prints_the_very_numbers_that_the_policy_compared(tmp_path, average):
    policy = Listening(Price())
    budget = Budget(average=None if average is None else Rent.from_usd_per_h(average))

    async def live():
        async with serving(tmp_path, policy=policy, budget=budget, speedup=1.0) as server:
            await server.api.submit(a_spec(max_workers=4, **KNOWN))
            await running(server.api)
            found = await server.api.explain("j-1")
            _, weighed = server.api._controller.decisions.weighed["j-1"]
            compared = [plan.weighed["j-1"].rows() for plan in policy.plans if "j-1" in plan.weighed]
            assert weighed.rows() in compared
            rows = {str(row.shape): row for row in weighed.rows()}
            assert len(found["alternatives"]) == len(rows) == 8  # one to four workers on two markets
            for shown in found["alternatives"]:
                row = rows[shown["shape"]]
                assert (shown["left_s"], shown["left_usd"]) == (3600 * row.hours, row.rent_usd)
                assert row.usd == pytest.approx(row.rent_usd + row.time_usd + row.scarce_usd + row.other_usd)
                if weighed.hour_usd is not None:
                    assert (shown["time_usd"], shown["price_usd"]) == (row.time_usd, row.usd)
                    assert row.time_usd == pytest.approx(row.hours * weighed.hour_usd)
            assert found["value_of_time_usd_per_h"] == weighed.hour_usd
            (chosen,) = (shown for shown in found["alternatives"] if shown["chosen"])
            assert chosen["shape"] == found["shape"]

    asyncio.run(live())


def test_no_dollars_are_printed_that_nobody_pays(tmp_path):
    """An hour of a job that may have all it wants was worth a million rents: USD 192866.77 for an 11-cent job."""

    async def live():
        async with serving(tmp_path, speedup=1.0) as server:
            spec = a_spec(max_workers=4, **KNOWN)
            dry = await server.api.dry_run(spec)
            await server.api.submit(spec)
            await running(server.api)
            for found in (dry, await server.api.explain("j-1")):
                dollars = [row[key] for row in found["alternatives"] for key in row if key.endswith("_usd")]
                assert dollars
                assert max(usd for usd in dollars if usd is not None) < 10.0
            texts = [event["text"] for event in await server.api.events("j-1") if event["kind"] == "Plan"]
            assert texts
            assert not any("1000000" in text or "500000" in text for text in texts)

    asyncio.run(live())


@pytest.mark.parametrize("policy", ["fifo", "las", "max-speedup"])
def test_a_policy_that_weighs_nothing_has_no_table(tmp_path, policy):
    async def live():
        async with serving(tmp_path, policy=policy) as server:
            await server.api.submit(a_spec(**KNOWN))
            await running(server.api)
            found = await server.api.explain("j-1")
            assert found["alternatives"] == []
            assert any("weighed no shapes" in note for note in found["notes"])
            assert "time and rent" not in found["reason"]
            dry = await server.api.dry_run(a_spec(name="k", **KNOWN))
            assert (dry["alternatives"], dry["feasible"]) == ([], True)

    asyncio.run(live())


def test_dry_run_explain_ps_and_plan_say_one_number_for_the_same_shape(tmp_path):
    """Reclaims count per node of four GPUs, not per GPU."""
    cloud = MemoryCloud(NODES_OF_FOUR, Clock(speedup=1.0))
    cloud.jobs["j-1"] = Training(steps=36_000, step_s=0.1)
    limits = {offer.id: Limit(max_nodes=2) for offer in NODES_OF_FOUR}
    spec = a_spec(min_workers=8, max_workers=8, market="spot", restart_s=60.0, **KNOWN)

    async def live():
        async with serving(tmp_path, cloud=cloud, limits=limits) as server:
            api = server.api
            dry = await api.dry_run(spec)
            (row,) = dry["alternatives"]
            assert dry["finish_s"]["p50"] == pytest.approx(row["left_s"], rel=0.05)
            assert dry["cost_usd"]["p50"] == pytest.approx(row["left_usd"], rel=0.05)
            assert dry["usd_per_h"] == pytest.approx(0.4)
            await api.submit(spec)
            api.record("j-1").group.work = KNOWN["work"]
            like = kernel_job(api.record("j-1"), 1.0)
            (planned,) = shapes_of(JobClass(name="j", like=like, works=((1.0, 1),), per_h=1.0), NODES_OF_FOUR[:1])
            assert 3600 * planned.hours == pytest.approx(row["left_s"], rel=1e-9)  # `sublet plan`, before it ran
            await running(api)
            (after,) = (await api.explain("j-1"))["alternatives"]
            start_s = 120.0 + 60.0
            assert after["left_s"] == pytest.approx(row["left_s"], abs=start_s + 5.0)
            eta = (await api.job("j-1"))["eta_s"]
            assert eta["p50"] == pytest.approx(row["left_s"] - start_s, rel=0.07)

    asyncio.run(live())


def test_what_was_weighed_is_not_written_to_the_log(tmp_path):
    policy = Listening(Price())

    async def live():
        async with serving(tmp_path, policy=policy) as server:
            await server.api.submit(a_spec(**KNOWN))
            await running(server.api)

    asyncio.run(live())
    plan = next(plan for plan in policy.plans if plan.weighed)
    line = line_from(PlanMade(1.0, plan, 1), [])
    assert "weighed" not in line
    assert event_from_json(json.loads(line)["event"]).plan == plan


BOTH = (
    Offer(id="spot", market=Market.SPOT, price=Rent.from_usd_per_h(0.2), pool="both", hazard_per_h=0.6, **ONE),
    Offer(id="on-demand", market=Market.ON_DEMAND, price=Rent.from_usd_per_h(0.8), pool="both", **ONE),
)


@pytest.mark.parametrize("limit", [0.85, 1.1])
def test_what_costs_more_than_the_limit_says_so_and_is_not_expected(tmp_path, limit):
    """A core and one spot worker cost 1.00 an hour, the core alone 0.80."""
    budget = Budget(burn=Rent.from_usd_per_h(limit))

    async def live():
        async with serving(tmp_path, policy="price", offers=BOTH, speedup=1.0, budget=budget) as server:
            return await server.api.dry_run(a_spec(min_workers=1, max_workers=4, min_on_demand=1, **KNOWN))

    dry = asyncio.run(live())
    assert {row["usd_per_h"] > limit for row in dry["alternatives"]} == {True, False}
    for row in dry["alternatives"]:
        above = row["usd_per_h"] > limit
        assert (row["why"] == f"above the limit of USD {limit:.2f}/h") == above
        assert not (row["chosen"] and above)


def test_in_a_pool_of_both_markets_each_option_says_its_mix_its_losses_and_why_not(tmp_path, capsys):
    """Losses by hand: each spot node is taken 0.6 times an hour, one at a time."""

    async def live():
        async with serving(tmp_path, policy="price", offers=BOTH, speedup=1.0) as server:
            spec = a_spec(min_workers=2, max_workers=4, min_on_demand=1, **KNOWN)
            dry = await server.api.dry_run(spec)
            await server.api.submit(spec)
            await running(server.api)
            return dry, await server.api.explain("j-1")

    dry, found = asyncio.run(live())
    for rows in (dry["alternatives"], found["alternatives"]):
        assert {row["market"] for row in rows} == {"both", "on-demand"}
        for row in rows:
            spot = row["workers"] - row["workers_on_demand"]
            assert row["workers_on_demand"] >= 1
            assert row["losses"] == row["restarts"] == pytest.approx(0.6 * spot * row["left_s"] / 3600)
            assert row["shape"] == f"{row['workers']} x both, {row['workers_on_demand']} on demand"
            assert row["usd_per_h"] == pytest.approx(0.2 * spot + 0.8 * row["workers_on_demand"])
    (chosen,) = (row for row in dry["alternatives"] if row["chosen"])
    assert dry["shape"] == chosen["shape"]
    (sure,) = (r for r in dry["alternatives"] if (r["workers"], r["market"]) == (chosen["workers"], "on-demand"))
    assert dry["usd_on_demand"] == pytest.approx(sure["left_usd"])
    assert all(row["why"] for row in dry["alternatives"])
    print_alternatives(dry["alternatives"])
    printed = capsys.readouterr().out
    assert "losses" in printed.splitlines()[0]
    assert f"> {chosen['shape']}" in printed
