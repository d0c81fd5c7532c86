"""What cannot run is said at once, with what could; and a job's own purse can be raised."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from dataclasses import dataclass, replace

import pytest

from sublet.domain.budget import Budget
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.errors import Infeasible, InvalidValue, OutOfBudget
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import spec_to_json
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import serving
from tests.rigs.story import OFFERS, a_spec

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 90.0


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return found


async def phase(api, job_id, *phases):
    async def reached():
        view = await api.job(job_id)
        return view if view["phase"] in phases else None

    return await until(reached, f"{job_id} never became {phases}")


async def told(api, job_id, kind, word):
    async def reached():
        events = await api.events(job_id)
        return [event["text"] for event in events if event["kind"] == kind and word in event["text"]]

    return await until(reached, f"{job_id} was never told of {word}")


def budget(**usd):
    of = {"purse": Money.from_usd, "burn": Price.from_usd_per_h}
    return Budget(**{name: of[name](amount) for name, amount in usd.items()})


# ---------------------------------------------------------------------- at submission

BOTH = tuple(replace(offer, pool="both") for offer in OFFERS)
SLOW = {"work": 3_600_000.0, "samples_per_s": 100.0}  # ten hours on one worker at a clock of the wall
IMPOSSIBLE = [
    (a_spec(min_workers=9, max_workers=9), {}, 112, "ask for 1..4"),
    (a_spec(min_workers=1, max_workers=16, sizes=(8, 16)), {}, 112, "ask for 1..4"),
    (a_spec(purse_usd=0.0001), {}, 110, "give it at least USD 0.01"),
    (a_spec(), {"budget": budget(burn=0.2)}, 110, "sublet budget set --burn 0.50"),
    (a_spec(min_workers=3, max_workers=4), {"budget": budget(burn=1.0)}, 110, "--burn 1.50"),
    (a_spec(market="on-demand"), {"budget": budget(burn=1.0)}, 110, "--burn 1.50"),
    (a_spec(min_on_demand=1), {"budget": budget(burn=1.0)}, 110, "--burn 1.50"),
    (a_spec(min_workers=5, max_workers=5, min_on_demand=5), {"offers": BOTH}, 112, "resources: {min_on_demand: 4}"),
    (a_spec(min_workers=2, min_on_demand=1), {"offers": BOTH, "budget": budget(burn=1.2)}, 110, "--burn 2.00"),
    (a_spec(), {"budget": budget(purse=0.1)}, 110, "sublet budget top-up 0.11"),
    (a_spec(min_workers=2), {"budget": budget(purse=0.3)}, 110, "sublet budget top-up 0.12"),  # two reserves
    (a_spec(deadline_s=3600.0, **SLOW), {}, 111, "could be met, on 2 x"),
    # a grid has a worker for each part of its model, however few its owner allows
    (a_spec(max_workers=8, stages=5), {}, 112, "parallel.stages 1..4"),
    (a_spec(max_workers=6, sizes=(2, 6), stages=3), {}, 112, "ask for 1..4"),
    (a_spec(max_workers=8, stages=3), {"budget": budget(burn=1.0)}, 110, "--burn 1.50"),
    (a_spec(max_workers=8, stages=2), {"budget": budget(purse=0.3)}, 110, "sublet budget top-up 0.12"),
]


@pytest.mark.parametrize(("offers", "word"), [(OFFERS, "sublet up --mix-markets"), (BOTH, "")])
def test_who_asks_for_a_core_where_no_job_can_be_on_both_markets_is_told(tmp_path, offers, word):
    async def live():
        async with serving(tmp_path, offers=offers) as server:
            answer = await server.api.submit(a_spec(min_on_demand=1))
            assert word in answer["warning"]
            assert bool(answer["warning"]) == bool(word)

    asyncio.run(live())


@pytest.mark.parametrize(("spec", "facts", "code", "advice"), IMPOSSIBLE)
def test_what_can_never_run_is_refused_with_what_could(tmp_path, spec, facts, code, advice):
    async def live():
        async with serving(tmp_path, speedup=1.0, **facts) as server:
            for path in ("/v1/jobs", "/v1/dry-run"):
                status, answer = await server.post(path, {"job": spec_to_json(spec, secrets=True)})
                assert (status, answer["exit_code"]) == (422, code), answer
                assert advice in answer["next"]
            assert await server.api.jobs() == []

    asyncio.run(live())


def test_the_deadline_that_is_offered_instead_is_taken(tmp_path):
    async def live():
        async with serving(tmp_path, speedup=1.0) as server:
            with pytest.raises(Infeasible) as caught:
                await server.api.submit(a_spec(deadline_s=3600.0, **SLOW))
            minutes = int(str(caught.value).partition("a deadline ")[2].partition("m")[0])
            assert 5 * 60 < minutes < 6 * 60  # two workers halve the parallel part of ten hours
            await server.api.submit(a_spec(deadline_s=60.0 * minutes, **SLOW))
            with pytest.raises(Infeasible):
                await server.api.submit(a_spec(deadline_s=60.0 * (minutes - 1), **SLOW))

    asyncio.run(live())


def test_a_deadline_of_a_job_of_unknown_speed_is_taken_with_a_warning(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            answer = await server.api.submit(a_spec(deadline_s=3600.0))
            assert "not known" in answer["warning"]
            assert await told(server.api, "j-1", "Warning", "not known")

    asyncio.run(live())


def test_a_price_that_is_high_today_is_no_reason_to_refuse_a_job(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))

    async def live():
        async with serving(tmp_path, cloud=cloud, budget=budget(burn=0.7)) as server:
            cloud.reprice("spot", 0.9)
            await asyncio.sleep(0)
            await server.api.submit(a_spec())
            cloud.reprice("spot", 0.5)
            await phase(server.api, "j-1", "running")

    asyncio.run(live())


def test_scaling_to_what_cannot_be_had_is_refused_alike(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            await server.api.submit(a_spec())
            await server.api.submit(a_spec(name="even", max_workers=4, sizes=(2, 4)))
            status, answer = await server.post("/v1/jobs/j-1/scale", {"low": 9, "high": 9})
            assert (status, answer["exit_code"]) == (422, 112)
            with pytest.raises(InvalidValue, match="one of its sizes: 2, 4"):
                await server.api.scale("even-1", low=3, high=3)
            assert (await server.api.job("j-1"))["max_workers"] == 2

    asyncio.run(live())


# ---------------------------------------------------------------------- while it waits


def test_a_job_that_waits_is_told_why_and_again_when_the_reason_changes(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))

    def stock(nodes):
        cloud._tell(AvailabilityChanged(cloud.clock.now_s(), "spot", nodes))

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            stock(0)
            await api.submit(a_spec(market="spot"))
            assert await told(api, "j-1", "Waits", "the market has too few nodes of T4x1:spot")
            assert "too few nodes" in (await api.job("j-1"))["reason"]
            await api.set_budget(burn_limit_usd_per_h=0.1)
            assert await told(api, "j-1", "Waits", "burn limit")
            await api.set_budget(burn_limit_usd_per_h=5.0)
            stock(4)
            await phase(api, "j-1", "running")
            assert len([event for event in await api.events("j-1") if event["kind"] == "Waits"]) <= 4

    asyncio.run(live())


@dataclass
class Unwilling:
    """Lets the first so many jobs run, each on one worker, and says nothing of the others."""

    jobs: int

    def decide(self, snapshot):
        waiting = snapshot.waiting.by(lambda state: state.seq)
        room = self.jobs - len(snapshot.active)
        shapes = {state.job.id: Shape("T4x1:spot", 1) for state in itertools.islice(waiting, max(0, room))}
        return Plan(shapes=shapes, hold={"spot": len(snapshot.active) + len(shapes)})


@pytest.mark.parametrize(
    ("jobs", "word"), [(0, "no other job has anything of what may be held"), (1, "in use by others")]
)
def test_others_are_named_as_the_reason_only_where_they_have_something(tmp_path, jobs, word):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with serving(tmp_path, cloud=cloud, policy=Unwilling(jobs)) as server:
            await server.api.submit(a_spec())
            await server.api.submit(a_spec(name="late"))
            assert await told(server.api, "late-1", "Waits", word)

    asyncio.run(live())


# ---------------------------------------------------------------------- a purse of its own


def test_a_spent_purse_holds_a_job_until_it_is_topped_up_also_over_a_restart(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=600.0))
    cloud.jobs["j-1"] = Training(steps=200, step_s=0.02)

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            await api.submit(a_spec(max_workers=1, purse_usd=0.8))
            view = await phase(api, "j-1", "out-of-budget")
            assert "sublet budget top-up --job j-1" in view["reason"]
            assert f"USD {view['usd_total']:.4f} of its own budget of USD 0.8" in view["reason"]
            ((spent, kept),) = [
                [float(usd) for usd in re.findall(r"USD (0\.\d{4})\b", event["text"])]
                for event in await api.events("j-1")
                if event["kind"] == "Budget"
            ]
            assert spent + kept == pytest.approx(0.8, abs=2e-4)
            assert 0 < spent < 0.8  # it was stopped in time
            status, answer = await server.post("/v1/jobs/j-1/resume", {})
            assert (status, answer["exit_code"]) == (409, 110)
            assert "sublet budget top-up --job j-1 " in answer["next"]
            status, view = await server.post("/v1/jobs/j-1/top-up", {"usd": 0.0001})  # too little to start with
            assert (status, view["phase"], view["purse_usd"]) == (200, "out-of-budget", 0.8001)
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            assert (await api.job("j-1"))["purse_usd"] == 0.8001
            await api.top_up_job("j-1", 30.0)
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            view = await phase(api, "j-1", "finished")
            assert (view["purse_usd"], view["steps_lost"]) == (30.8001, 0)
            assert any("30.8001" in event["text"] for event in await api.events("j-1") if event["kind"] == "Budget")

    asyncio.run(live())


def test_a_job_that_its_owner_paused_is_not_resumed_on_an_empty_purse(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=600.0))
    cloud.jobs["j-1"] = Training(steps=100_000, step_s=0.02)

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            await api.submit(a_spec(max_workers=1, purse_usd=5.0))
            await phase(api, "j-1", "running")

            async def spent():
                return (await api.job("j-1"))["usd_total"] > 0.1

            await until(spent, "nothing was spent")
            await api.pause("j-1")
            view = await phase(api, "j-1", "paused")
            record = api.record("j-1")
            api._controller.jobs.respecify(record, a_spec(max_workers=1, purse_usd=view["usd_total"]))
            with pytest.raises(OutOfBudget, match="top-up --job j-1"):
                await api.resume("j-1")
            await api.top_up_job("j-1", 5.0)
            assert (await api.job("j-1"))["phase"] == "paused"  # its owner's word stands
            assert api._controller.jobs.describe(record).purse_left_usd == pytest.approx(5.0)  # the planner hears of it
            await api.resume("j-1")
            await phase(api, "j-1", "running")

    asyncio.run(live())


def test_a_job_that_is_paused_while_its_purse_is_spent_stays_so_when_it_is_topped_up(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=600.0))
    cloud.jobs["j-1"] = Training(steps=100_000, step_s=0.02)

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            await api.submit(a_spec(max_workers=1, purse_usd=0.8))
            await phase(api, "j-1", "out-of-budget")
            view = await api.pause("j-1")
            assert (view["phase"], view["reason"]) == ("paused", "held back by its owner")
            with pytest.raises(OutOfBudget, match="top-up --job j-1"):
                await api.resume("j-1")
            assert (await api.top_up_job("j-1", 30.0))["phase"] == "paused"
            assert not api._controller.kernel.jobs["j-1"].shape
            await api.resume("j-1")
            await phase(api, "j-1", "running")

    asyncio.run(live())


def test_a_job_without_a_purse_has_nothing_to_top_up(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            await server.api.submit(a_spec())
            with pytest.raises(InvalidValue, match="no limit of its own"):
                await server.api.top_up_job("j-1", 1.0)

    asyncio.run(live())
