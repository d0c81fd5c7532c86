"""A policy that fails, hangs or answers nonsense: it is told, asked again, and nothing else stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.domain.weighed import Weighed
from sublet.runtime.clock import Clock
from sublet.runtime.controller.watch.history import HistoryRow
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over, one_gpu_offer

PATIENCE_S = 90.0
SPEC = JobSpec(name="j", argv=("x",), cwd="/", max_workers=2)


class Speechless(Exception):
    """Does not say what it means."""

    def __str__(self):
        raise ValueError


class Weighing:
    """What a policy may say that it weighed."""

    def __init__(self, hour_usd, rows):
        self.hour_usd, self._rows = hour_usd, rows

    def rows(self):
        return self._rows


ROW = Weighed(
    shape=Shape("nowhere", 1), hours=1.0, usd_per_h=1.0, rent_usd=1.0, time_usd=0.0, scarce_usd=0.0, other_usd=0.0,
    usd=1.0, obtainable=True,
)  # fmt: skip


class Moody:
    """Asks `fault` first, each time; where that returns None it decides as a sound policy does."""

    def __init__(self, fault):
        self.sound, self.fault, self.asked = plugins.load("sublet.policies", "max-speedup")(), fault, 0

    def decide(self, snapshot):
        self.asked += 1
        answer = self.fault(self.asked)
        return self.sound.decide(snapshot) if answer is None else answer


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return found


def lived(folder, policy, scene, *, limit_s=60.0):
    """One controller with this policy, while `scene` lasts."""

    async def live():
        cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
        cloud.jobs["j-1"] = Training(steps=40)
        with api_over(cloud, folder / "state", policy, limits={"spot": Limit(max_nodes=4)}) as api:
            if (planner := getattr(api._controller, "planner", None)) is not None:
                planner.limit_s, planner.pause_s = limit_s, 0.2
            running = asyncio.create_task(api.run())
            await api.started()
            try:
                await scene(api)
            finally:
                await api.shutdown()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


async def alarms(api):
    return [event for event in await api.events() if event["kind"] == "Alarm"]


def _raises(error):
    raise error


@pytest.mark.parametrize(
    "fault",
    [
        lambda: _raises(MemoryError()),
        lambda: _raises(ZeroDivisionError("a bug")),
        lambda: _raises(SystemExit(3)),
        lambda: "not a plan",
        lambda: Plan(reasons={"j-1": {1, 2}}),  # cannot be written down
        lambda: _raises(Speechless()),
        lambda: Plan(weighed={"j-1": 7}),  # is not logged, but told
        lambda: Plan(weighed=[("j-1", None)]),
        lambda: Plan(weighed={"j-1": Weighing("a lot", ())}),
        lambda: Plan(weighed={"j-1": Weighing(1.0, ["no row"])}),
        lambda: Plan(weighed={"j-1": Weighing(1.0, [ROW])}),  # of a pool that nobody has
        lambda: Plan(warnings={"j-1": 7}),
        lambda: Plan(reasons={"j-1": "\ud800"}),  # JSON can have it, the history cannot
        lambda: Plan(congestion_usd_per_gpu_h={"spot": float("nan")}),
    ],
    ids=[
        *("memory", "bug", "exit", "no-plan", "unwritable", "speechless", "weighed", "weighed-list", "weighed-hour"),
        *("weighed-row", "weighed-pool", "warning", "half-a-letter", "nan"),
    ],
)
def test_a_policy_that_fails_twice_is_alarmed_and_asked_again_and_the_job_runs(tmp_path, fault):
    policy = Moody(lambda asked: fault() if asked <= 2 else None)

    async def scene(api):
        await api.submit(SPEC)

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "no plan was made after the failures")
        assert await alarms(api), "nobody was told"
        assert (await api.metrics())["alarms"]["policy"] == 2
        assert (await api.health())["ready"], "the plan is there: it is ready again"

    lived(tmp_path, policy, scene)


def test_while_no_plan_comes_the_controller_is_not_ready_and_says_why(tmp_path):
    mended = threading.Event()
    policy = Moody(lambda asked: None if mended.is_set() else _raises(MemoryError()))

    async def scene(api):
        await api.submit(SPEC)

        async def unready():
            health = await api.health()
            return None if health["ready"] else health

        health = await until(unready, "it said that it was ready, though no plan could be made")
        assert "MemoryError" in health["why"]
        assert health["started"], "it still answers and takes orders"
        mended.set()

        async def ready():
            return (await api.health())["ready"]

        await until(ready, "it never became ready again")

    lived(tmp_path, policy, scene)


def test_a_policy_that_never_answers_is_given_up_and_asked_anew_but_never_by_a_crowd(tmp_path):
    forever = threading.Event()
    policy = Moody(lambda asked: forever.wait() and None)

    async def scene(api):
        await api.submit(SPEC)

        async def unready():
            health = await api.health()
            return None if health["ready"] else health

        await until(unready, "it said that it was ready, though the policy hangs")

        async def told_again():
            return (await api.metrics())["alarms"].get("policy", 0) >= 4

        await until(told_again, "it was not asked again")
        assert policy.asked == 2, "at most one thread that was given up, and one more"
        forever.set()

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "no plan was made after the policy could answer again")

    try:
        lived(tmp_path, policy, scene, limit_s=0.2)
    finally:
        forever.set()


def test_a_controller_whose_policy_hangs_ends_at_once_when_told_to(tmp_path):
    forever = threading.Event()
    policy = Moody(lambda asked: forever.wait(30.0) and None)

    async def scene(api):
        await api.submit(SPEC)

        async def asked():
            return policy.asked

        await until(asked, "it was never asked")
        assert all(each.daemon for each in threading.enumerate() if each.name == "policy"), "nor does the process wait"

    try:
        lived(tmp_path, policy, scene)  # which would not end if it waited for the policy
    finally:
        forever.set()


def test_many_failures_are_few_lines_of_history(tmp_path):
    policy = Moody(lambda asked: _raises(ValueError("x" * 10_000)))

    async def scene(api):
        api._controller.planner.pause_s = 0.001
        await api.submit(SPEC)

        async def failed_often():
            return (await api.metrics())["alarms"].get("policy", 0) >= 8

        await until(failed_often, "it was not asked again")
        told = await alarms(api)
        assert len(told) == 1
        assert len(told[0]["text"]) <= 200

    lived(tmp_path, policy, scene)


def test_a_policy_that_fails_for_another_reason_is_told_again(tmp_path):
    faults = [ZeroDivisionError("one"), TypeError("two"), KeyError("three"), TypeError("four")]
    policy = Moody(lambda asked: _raises(faults[asked - 1]) if asked <= len(faults) else None)

    async def scene(api):
        api._controller.planner.pause_s = 0.001
        await api.submit(SPEC)

        async def failed_often():
            return (await api.metrics())["alarms"].get("policy", 0) >= len(faults)

        await until(failed_often, "it was not asked again")
        told = " ".join(each["text"] for each in await alarms(api))
        assert [told.count(type(fault).__name__) for fault in faults] == [1, 1, 1, 1]

    lived(tmp_path, policy, scene)


def test_what_a_policy_says_is_cut_before_it_is_logged_and_kept(tmp_path):
    policy = Moody(lambda asked: None)
    long = dict.fromkeys(["j-1"], "so " * 100_000)

    class Talker:
        def decide(self, snapshot):
            return replace(policy.decide(snapshot), reasons=long, warnings=long)

    async def scene(api):
        await api.submit(SPEC)

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "no plan was made")
        kept = api._controller.decisions.reasons["j-1"]
        assert (len(kept), kept[:6], kept[-3:]) == (2_000, "so so ", "...")
        assert max(len(line) for line in api._controller.store.lines()) < 10_000
        assert max(len(event["text"]) for event in await api.events()) < 3_000

    lived(tmp_path, Talker(), scene)


def test_a_plan_with_a_name_without_end_is_no_plan(tmp_path):
    endless = "x" * 100_000
    faults = [Plan(shapes={endless: None}), Plan(shapes={"j-1": Shape(endless, 1)}), Plan(hold={endless: 1})]
    faults.append(Plan(reasons={endless: "so"}))
    policy = Moody(lambda asked: faults[asked - 1] if asked <= len(faults) else None)

    async def scene(api):
        api._controller.planner.pause_s = 0.001
        await api.submit(SPEC)

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "no plan was made")
        assert (await api.metrics())["alarms"] == {"policy": len(faults)}

    lived(tmp_path, policy, scene)


def test_what_cannot_be_told_is_done_all_the_same(tmp_path, monkeypatch):
    def speechless(plan):
        raise AttributeError("no words for it")

    async def scene(api):
        monkeypatch.setattr("sublet.runtime.controller.watch.history.rows_from_plan", speechless)
        await api.submit(SPEC)

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "what the kernel had ordered was lost")
        assert (await api.metrics())["alarms"]["history"] >= 1
        assert any("PlanMade" in each["text"] for each in await alarms(api))

    lived(tmp_path, Moody(lambda asked: None), scene)


def test_half_a_letter_in_the_history_costs_nobody_an_order(tmp_path):
    async def scene(api):
        api._controller.note(HistoryRow(kind="Note", text="\ud800 of somebody's"))
        await api.submit(SPEC)

        async def finished():
            return (await api.job("j-1"))["phase"] == "finished"

        await until(finished, "what the kernel had ordered was lost")
        assert any(each["text"] == "? of somebody's" for each in await api.events())

    lived(tmp_path, Moody(lambda asked: None), scene)


def test_no_plan_that_is_needed_waits_for_what_users_try(tmp_path):
    """However many ask what would be, and however long that takes to think of."""
    go, tried = threading.Event(), []

    class Slow(Moody):
        def decide(self, snapshot):
            if any(state.job.id == "dry-run" for state in snapshot.waiting.by(lambda state: state.seq)):
                tried.append(True)
                assert go.wait(PATIENCE_S)
            return super().decide(snapshot)

    async def scene(api):
        asking = [asyncio.create_task(api.dry_run(SPEC)) for _ in range(4)]
        await until(lambda: asyncio.sleep(0, tried), "somebody tries")
        job_id = (await api.submit(SPEC))["job_id"]
        await until(lambda: is_running(api, job_id), "it is planned for")
        assert len(tried) == 1  # they wait for one another
        assert not any(task.done() for task in asking)
        go.set()
        assert [(await task)["name"] for task in asking] == ["j"] * 4

    async def is_running(api, job_id):
        return (await api.job(job_id))["step"] > 0

    lived(tmp_path, Slow(lambda _: None), scene, limit_s=120.0)
