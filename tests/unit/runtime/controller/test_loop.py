"""The real controller, kernel and store over a cloud in memory: crashes, purses, pauses and what users see."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from dataclasses import replace

import pytest

from sublet.domain.budget import Budget
from sublet.domain.events import JobCancelled
from sublet.domain.money import Money, Price
from sublet.errors import BadInput, InvalidValue, NotNow, OutOfBudget
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.runtime.controller.watch.history import HistoryRow
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import Retries
from sublet.runtime.settings import Settings
from sublet_lab.memory_cloud import Training, api_over
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
# ---------------------------------------------------------------------- a life without trouble


def test_a_job_trains_to_its_end_and_everything_is_given_back(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = Training(steps=60)
            assert (await api.submit(a_spec()))["job_id"] == "j-1"
            view = await phase(api, "j-1", "finished")
            assert (view["step"], view["progress"], view["exit_code"]) == (60, 1.0, 0)
            adds_up(api)
        assert story.cloud.nodes == {}

    asyncio.run(live())
    check(replay(story.log()))


def test_a_job_runs_where_its_owner_lets_it(tmp_path):
    story = Story(tmp_path, policy="price")  # which weighs shapes, for `explain`

    async def live():
        async with story.controller() as api:
            for market in ("spot", "on-demand"):
                await api.submit(a_spec(name=market, market=market))
            for market in ("spot", "on-demand"):
                await phase(api, f"{market}-1", "running")
                nodes = (await api.job(f"{market}-1"))["node_ids"]
                assert {story.cloud.nodes[node].offer_id for node in nodes} == {market}
                rows = (await api.explain(f"{market}-1"))["alternatives"]
                assert {row["market"] for row in rows} == {market}
            with pytest.raises(InvalidValue, match="H100"):
                await api.submit(a_spec(accelerators=("H100",)))

    asyncio.run(live())


# ---------------------------------------------------------------------- crashes


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_that_crashes_anywhere_is_followed_by_one_that_goes_on(tmp_path, seed):
    rng = random.Random(seed)
    story = Story(tmp_path)
    story.cloud.jobs |= {f"j-{n}": Training(steps=60, step_s=0.03) for n in (1, 2)}

    async def live():
        for life in range(5):
            async with story.controller(crash=True) as api:
                for key in ("one", "two"):
                    await api.submit(a_spec(), key=key)
                if life and story.cloud.nodes and rng.random() < 0.7:
                    story.cloud.take(rng.choice(list(story.cloud.nodes)))
                await asyncio.sleep(rng.uniform(0.0, 0.25))
            if story.cloud.nodes and rng.random() < 0.3:  # a node dies while nobody looks
                story.cloud.take(rng.choice(list(story.cloud.nodes)))
        async with story.controller() as api:
            assert [view["id"] for view in await api.jobs()] == ["j-1", "j-2"]
            for job_id in ("j-1", "j-2"):
                view = await phase(api, job_id, "finished", "failed")
                assert (view["phase"], view["step"]) == ("finished", 60), view["error"]
            adds_up(api)
        assert story.cloud.nodes == {}

    asyncio.run(live())
    kernel = replay(story.log())
    check(kernel)
    assert len(set(story.cloud.rented)) == len(story.cloud.rented), "a node was rented twice"
    assert {lease.node_id for lease in kernel.ledger.closed if not lease.void} >= set(story.cloud.rented)


def test_a_job_that_was_taken_but_not_told_to_the_kernel_runs_after_a_restart(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=20)

    async def live():
        async with story.controller(crash=True) as api:
            api._controller.jobs.submit = lambda record: None  # it dies between the two commits
            await api.submit(a_spec(), key="k")
        async with story.controller() as api:
            assert (await api.submit(a_spec(), key="k"))["job_id"] == "j-1"
            await phase(api, "j-1", "finished")

    asyncio.run(live())


def test_an_abandoned_controller_does_nothing_more_and_the_next_one_finds_all_as_it_was(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await phase(api, "j-1", "running")
            await trained(api, "j-1", 5)
            controller, nodes = api._controller, set(story.cloud.nodes)
            await controller.abandon()
            controller.tell(JobCancelled(controller.now_s(), "j-1"))
            controller.note(HistoryRow(kind="Alarm", text="from beyond"))
            with pytest.raises(NotNow, match="has ended"):
                controller.add("late-1", a_spec(name="late"))
            await asyncio.sleep(0.3)
            assert "j-1" in controller.kernel.jobs, "it hears on"
            assert set(story.cloud.nodes) == nodes, "it gave something back"
            await controller.wait()  # which says that it is over, and raises nothing
        async with story.controller() as api:
            await phase(api, "j-1", "running")
            assert "from beyond" not in [event["text"] for event in await api.events()]
            assert len(story.cloud.rented) == len(nodes), "another node was rented for it"

    asyncio.run(live())


def test_what_users_decided_survives_a_restart(tmp_path):
    story = Story(tmp_path, budget=Budget(purse=Money.from_usd(50)))

    async def live():
        async with story.controller(crash=True) as api:
            for name in ("held", "free"):
                await api.submit(a_spec(name=name))
                await phase(api, f"{name}-1", "running")
            await api.pause("held-1")
            await phase(api, "held-1", "paused")
            await api.scale("free-1", low=1, high=1)
            await api.top_up(7.0)
            await api.set_budget(burn_limit_usd_per_h=9.0)
        async with story.controller() as api:  # then it is shut down, and started again
            assert (await api.job("held-1"))["phase"] == "paused"
            budget = await api.budget()
            assert (budget["purse_usd"], budget["burn_limit_usd_per_h"]) == (57.0, 9.0)
            assert (await api.job("free-1"))["max_workers"] == 1
            await trained(api, "free-1", 5)
        async with story.controller() as api:
            await phase(api, "free-1", "running")
            assert (await api.job("held-1"))["phase"] == "paused"
            await api.resume("held-1")
            await phase(api, "held-1", "running")

    asyncio.run(live())


def test_a_state_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        controller_from(Settings(state_dir=str(tmp_path / "file" / "state")))


# ---------------------------------------------------------------------- failures


def test_a_script_that_fails_before_its_first_step_is_tried_once(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(ends_with=1)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(retries=Retries(user=5)))
            view = await phase(api, "j-1", "failed")
            assert (view["exit_code"], view["error"], view["failures_user"]) == (1, "boom", 1)
            story.cloud.jobs["j-1"] = Training(steps=10)  # the user mends it
            await api.resume("j-1")
            assert (await phase(api, "j-1", "finished"))["error"] == ""
            adds_up(api)

    asyncio.run(live())
    check(replay(story.log()))


def test_killed_workers_cost_no_step_while_one_survives(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=120)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(min_workers=2, retries=Retries(infra=None)))
            for round_ in range(1, 5):
                await trained(api, "j-1", 20 * round_)
                node = next(iter(story.cloud.nodes.values()))
                for worker_id in list(node.workers):
                    story.cloud.kill_worker(worker_id)
            view = await phase(api, "j-1", "finished", "failed")
            assert (view["phase"], view["step"], view["steps_lost"]) == ("finished", 120, 0)

    asyncio.run(live())


def test_infrastructure_that_fails_too_often_fails_the_job(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(ends_with=-9)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, retries=Retries(infra=2)))
            view = await phase(api, "j-1", "failed")
            assert view["failures_infra"] == 3

    asyncio.run(live())


# ---------------------------------------------------------------------- money


def _spend(tmp_path, *, purse, during=None):
    """A job under a purse, until it is out of budget; then more money and its end. (spent, step then, view after)."""
    story = Story(tmp_path, speedup=600.0, budget=Budget(purse=Money.from_usd(purse)))
    story.cloud.jobs["j-1"] = Training(steps=240, step_s=0.02)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            if during is not None:
                await trained(api, "j-1", 5)
                await during(story, api)
            stopped = await phase(api, "j-1", "out-of-budget")
            await until(lambda: asyncio.sleep(0, not story.cloud.nodes), "nodes are kept without money")
            spent = (await api.budget())["spent_usd"]
            adds_up(api)
            await api.top_up(60.0)
            await phase(api, "j-1", "running", "finished")
            ended = await phase(api, "j-1", "finished")
            adds_up(api)
        return spent, stopped, ended

    found = asyncio.run(live())
    check(replay(story.log()))
    return found


def test_a_purse_is_never_exceeded_and_the_job_goes_on_from_the_same_step_after_a_top_up(tmp_path):
    spent, stopped, ended = _spend(tmp_path, purse=0.45)
    assert 0.0 < spent <= 0.45
    assert 0 < stopped["step"] < 240
    assert (ended["step"], ended["steps_lost"]) == (240, 0)


def test_a_price_that_rises_fivefold_in_mid_run_does_not_break_the_purse(tmp_path):
    async def jump(story, api):
        story.cloud.reprice("spot", 2.5)

    spent, _, ended = _spend(tmp_path, purse=0.45, during=jump)
    assert 0.0 < spent <= 0.45
    assert (ended["step"], ended["steps_lost"]) == (240, 0)


def test_a_job_that_does_not_leave_in_time_is_ended_before_the_purse_is_exceeded(tmp_path):
    async def deafen(story, api):
        arrive = story.cloud._arrive
        from sublet.wire import messages as wire

        story.cloud._arrive = lambda node, message: None if isinstance(message, wire.Leave) else arrive(node, message)

    spent, _, ended = _spend(tmp_path, purse=0.45, during=deafen)
    assert 0.0 < spent <= 0.45
    assert ended["step"] == 240


def test_a_jobs_own_purse_stops_it_alone_and_more_of_it_lets_it_go_on(tmp_path):
    story = Story(tmp_path, speedup=600.0)
    story.cloud.jobs |= {"poor-1": Training(steps=200, step_s=0.02), "rich-1": Training(steps=100_000)}

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(name="poor", max_workers=1, purse_usd=0.8))
            await api.submit(a_spec(name="rich", max_workers=1))
            stopped = await phase(api, "poor-1", "out-of-budget")
            assert 0.0 < stopped["usd_total"] <= 0.8
            assert stopped["step"] > 0
            assert (await api.job("rich-1"))["phase"] == "running"
            with pytest.raises(OutOfBudget):
                await api.resume("poor-1")
            await api.top_up_job("poor-1", 30.0)
            view = await phase(api, "poor-1", "finished")
            assert (view["step"], view["steps_lost"]) == (200, 0)
            adds_up(api)

    asyncio.run(live())


def test_a_burn_limit_holds_at_every_moment(tmp_path):
    story = Story(tmp_path, budget=Budget(burn=Price.from_usd_per_h(1.0)))

    async def live():
        async with story.controller() as api:
            for number in range(3):
                await api.submit(a_spec(name=f"j{number}", max_workers=4))
            for _ in range(30):
                await asyncio.sleep(0.02)
                assert (await api.budget())["burn_usd_per_h"] <= 1.0
            assert len(story.cloud.nodes) == 2

    asyncio.run(live())


def test_an_offer_that_is_sold_out_costs_nothing_and_another_is_rented(tmp_path):
    story = Story(tmp_path, policy="price")
    story.cloud.sold_out.add("spot")

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=4))
            await trained(api, "j-1", 3)
            assert {node.offer_id for node in story.cloud.nodes.values()} == {"on-demand"}
            adds_up(api)

    asyncio.run(live())
    kernel = replay(story.log())
    check(kernel)
    assert all(lease.void for lease in kernel.ledger.closed if lease.offer_id == "spot")


def test_a_store_that_cannot_be_written_stops_everything_with_a_reason(tmp_path):
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            store, rented = api._controller.store, len(story.cloud.rented)

            def full(at_s, line):
                raise sqlite3.OperationalError("database or disk is full")

            store.append = full
            with pytest.raises(BadInput, match="disk is full"):
                await api.submit(a_spec())
            with pytest.raises(BadInput, match="disk is full"):
                await running
            await asyncio.sleep(0.2)
            assert len(story.cloud.rented) == rented, "it acts though nothing can be written"
            await api._controller.abandon()
            await story.cloud.close()
        async with story.controller() as api:  # there is room again: the job was taken before the disk was full
            await phase(api, "j-1", "running")

    asyncio.run(live())


# ---------------------------------------------------------------------- secrets


def test_secrets_are_in_no_store_event_or_view(tmp_path):
    story = Story(tmp_path)
    secret = "s3cr3t-value-7788"  # noqa: S105 - what must not be found
    story.cloud.jobs["j-1"] = Training(ends_with=1)

    async def live():
        async with story.controller() as api:
            end = story.cloud._end
            story.cloud._end = lambda node, worker, code, error="": end(node, worker, code, f"bad token {secret}")
            await api.submit(replace(a_spec(), secrets={"TOKEN": secret}), key="k")
            await phase(api, "j-1", "failed")
            shown = [await api.jobs(), await api.events(), await api.cost(), await api.explain("j-1")]
            assert secret not in json.dumps(shown)
            assert "***" in json.dumps(shown)

    asyncio.run(live())
    for path in story.folder.glob("log.sqlite*"):
        assert secret.encode() not in path.read_bytes(), path.name
    (kept,) = (story.folder / "secrets").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
