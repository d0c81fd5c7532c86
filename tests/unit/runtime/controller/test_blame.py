"""A job that brings its nodes down is told from a cloud that takes them, and does not rent for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.controller.memory.records import Suspicion
from sublet.runtime.jobs.spec import Retries
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.story import OFFERS, Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Deadly(MemoryCloud):
    """A node on which a worker of these jobs starts is gone at once."""

    deadly, starts = ("j-1",), 0
    why = ""  # the cloud knows that it was not the one

    def _start(self, node, message):
        super()._start(node, message)
        self.starts += message.job_id in self.deadly
        if message.job_id in self.deadly:
            asyncio.get_running_loop().call_soon(
                lambda: node.id in self.nodes and self.take(node.id, **({"why": self.why} if self.why else {}))
            )


def a_story(folder):
    story = Story(folder)
    story.cloud = Deadly(OFFERS, Clock(speedup=60.0))
    return story


def test_a_job_that_ends_its_agents_has_failed_after_a_few_nodes_and_others_train_on(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.runtime.controller.jobs.node_loss.FIRST_REST_S", 0.05, raising=False)
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await api.submit(a_spec(name="other", max_workers=1))
            view = await phase(api, "j-1", "failed")
            assert "its nodes ended" in view["error"]
            assert view["failures_user"] == 2
            assert view["preemptions_unnoticed"] == 0
            assert story.cloud.starts == 4
            await trained(api, "other-1", 5)
            assert (await api.job("other-1"))["preemptions_unnoticed"] == 0
            story.cloud.deadly = ()  # its owner mends it
            story.cloud.jobs["j-1"] = Training(steps=5)
            await api.resume("j-1")
            await phase(api, "j-1", "finished")
            adds_up(api)

    asyncio.run(live())


def test_a_job_that_ends_its_agents_late_fails_too_where_the_cloud_knows_that_it_took_no_node(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.runtime.controller.jobs.node_loss.FIRST_REST_S", 0.05)
    monkeypatch.setattr("sublet.runtime.controller.jobs.node_loss.EARLY_S", 0.0)  # every end is a late one
    story = a_story(tmp_path)
    story.cloud.why = "its agent ended"

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            view = await phase(api, "j-1", "failed")
            assert "the cloud did not take them (its agent ended)" in view["error"]
            assert (view["failures_user"], view["preemptions_unnoticed"], story.cloud.starts) == (2, 0, 4)
            said = [event["text"] for event in await api.events() if event["kind"] == "NodeLost"]
            assert set(said) == {"was lost, not taken by the cloud: its agent ended"}
            adds_up(api)

    asyncio.run(live())


def test_it_waits_before_it_is_started_for_the_third_time(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, retries=Retries(user=None)))

            async def waits():
                view = await api.job("j-1")
                return view["phase"] == "queued" and "waits before the next" in view["reason"]

            await until(waits, "it rents for ever")
            assert story.cloud.starts == 2
            assert [event["text"] for event in await api.events("j-1") if event["kind"] == "BackOff"]

    asyncio.run(live())


def test_its_owners_pause_outlasts_the_wait_and_only_its_owner_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.runtime.controller.jobs.node_loss.FIRST_REST_S", 600.0)
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, retries=Retries(user=None)))

            async def waits():
                view = await api.job("j-1")
                return view["phase"] == "queued" and "waits before the next" in view["reason"]

            await until(waits, "it rents for ever")
            view = await api.pause("j-1")
            assert (view["phase"], view["reason"]) == ("paused", "held back by its owner")
            controller = api._controller
            controller.groups.blame.end_rest(controller.records["j-1"], float("inf"))  # it has waited long enough
            assert (await api.job("j-1"))["phase"] == "paused"
            assert [event["text"] for event in await api.events("j-1") if event["kind"] == "Paused"]
            assert story.cloud.starts == 2
            story.cloud.deadly = ()
            await api.resume("j-1")
            await phase(api, "j-1", "running")

    asyncio.run(live())


def test_a_restart_of_the_controller_clears_nobody(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1))

            async def waits():
                return "waits before the next" in (await api.job("j-1"))["reason"]

            await until(waits, "it rents for ever")
            assert story.cloud.starts == 2
        async with story.controller() as api:
            view = await phase(api, "j-1", "failed")
            assert "4 times in a row" in view["error"]
            assert story.cloud.starts == 4

    asyncio.run(live())


def test_a_node_that_is_given_up_and_then_lost_is_looked_into_once(tmp_path, monkeypatch):
    """Twice would clear a job that brings its nodes down: the second time nobody is on it."""
    story, asked = Story(tmp_path), []

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            (node_id,) = (await api.job("j-1"))["node_ids"]
            controller = api._controller
            monkeypatch.setattr(
                controller.groups.blame, "judge_loss", lambda node, *_, **__: asked.append(node) or set()
            )
            await controller.leases.release_lost(node_id)
            assert node_id not in controller.kernel.cluster.nodes
            assert (await api.job("j-1"))["preemptions_unnoticed"] == 1

    asyncio.run(live())
    assert len(asked) == 1


# ---------------------------------------------------------------------- who is to blame


@pytest.fixture
def blame():
    from sublet.runtime.controller.jobs.node_loss import Blame

    return Blame(SimpleNamespace(note=lambda row: None), SimpleNamespace(relearn=lambda record: None))


def a_record(name="j", *, user=1):
    failures = dict.fromkeys(("user", "infra"), 0)
    group = SimpleNamespace(workers={}, round=0, failures=failures)
    spec = SimpleNamespace(retries=Retries(user=user))
    return SimpleNamespace(id=name, group=group, spec=spec, paused="", blamed="", unnoticed=0, suspicion=Suspicion())


def start(record, *nodes, at_s):
    record.paused = ""
    record.group.round += 1
    record.group.workers = {node: SimpleNamespace(node_id=node, born_s=at_s) for node in nodes}


def test_nodes_that_live_for_a_while_are_the_clouds_to_take(blame):
    record = a_record()
    for turn in range(10):
        start(record, "n", at_s=100.0 * turn)
        assert blame.judge_loss("n", [record], 100.0 * turn + 30.0) == set()
    assert (record.paused, record.blamed) == ("", "")


def test_a_start_that_lives_makes_up_for_those_that_did_not(blame):
    record = a_record()
    for turn in range(12):
        start(record, "n", at_s=100.0 * turn)
        blame.judge_loss("n", [record], 100.0 * turn + (30.0 if turn % 2 else 1.0))
    assert (record.paused, record.blamed) == ("", "")


def test_a_cloud_that_takes_older_nodes_at_the_same_time_is_to_blame_itself(blame):
    record, other = a_record(), a_record("other")
    start(other, "old", at_s=-1000.0)
    for turn in range(10):
        start(record, "n", at_s=100.0 * turn)
        assert blame.judge_loss("old", [other], 100.0 * turn + 1.0) == set()
        assert blame.judge_loss("n", [record], 100.0 * turn + 2.0) == set()
    assert (record.paused, record.blamed) == ("", "")


def test_two_jobs_that_both_bring_nodes_down_do_not_excuse_one_another(blame):
    records = [a_record("a"), a_record("b")]
    for turn in range(4):
        for record in records:
            start(record, record.id, at_s=100.0 * turn)
            blame.judge_loss(record.id, [record], 100.0 * turn + 1.0)
    assert all("4 times in a row" in record.blamed for record in records)


@pytest.mark.parametrize("age_s", [1.0, 24.0, 20_000.0])
def test_nodes_that_the_cloud_did_not_take_count_within_hours_and_what_it_takes_between_makes_up_for_nothing(
    blame, age_s
):
    record = a_record()
    for turn in range(4):
        start(record, "n", at_s=1e6 * turn)
        assert blame.judge_loss("n", [record], 1e6 * turn + 500_000.0) == set()  # the cloud's
        start(record, "n", at_s=1e6 * turn + 600_000.0)
        assert blame.judge_loss("n", [record], 1e6 * turn + 600_000.0 + age_s, "its agent ended") == {"j"}
        assert record.paused == ("" if turn == 0 else "back-off" if turn < 3 else "preemption")
    assert "4 times" in record.blamed


def test_a_start_that_lasted_for_hours_clears_what_came_before_it(blame):
    record = a_record()
    for turn in range(10):  # a machine that fails once a day
        start(record, "n", at_s=1e5 * turn)
        assert blame.judge_loss("n", [record], 1e5 * turn + 86_400.0, "its agent ended") == {"j"}
    assert (record.paused, record.blamed) == ("", "")


def test_of_two_jobs_on_a_node_that_ended_neither_is_failed_for_the_other_but_both_wait(blame):
    records = [a_record("a"), a_record("b")]
    for turn in range(10):
        for record in records:
            start(record, "n", at_s=1000.0 * turn)
        assert blame.judge_loss("n", records, 1000.0 * turn + 24.0, "its agent ended") == {"a", "b"}
    assert [(record.paused, record.blamed) for record in records] == [("back-off", "")] * 2


def test_several_nodes_of_one_start_count_once(blame):
    record = a_record()
    for turn in range(3):
        assert (record.paused, record.blamed) == ("" if turn < 2 else "back-off", "")
        start(record, "a", "b", "c", "d", at_s=100.0 * turn)
        for node in "abcd":  # from the third start on all of them are its own doing
            assert blame.judge_loss(node, [record], 100.0 * turn + 1.0) == ({"j"} if turn == 2 else set())
    assert record.group.failures["user"] == 1


def test_survivors_that_meet_again_are_no_other_start(blame):
    """Three of four nodes go within seconds: whoever is left trains on, and nobody makes it wait."""
    record = a_record()
    start(record, "a", "b", "c", "d", at_s=0.0)
    for at_s, node in enumerate("abc", 1):
        assert blame.judge_loss(node, [record], float(at_s)) == set()
        del record.group.workers[node]
        record.group.round += 1  # they have met without it
    assert (record.paused, record.blamed) == ("", "")
    record.group.workers["e"] = SimpleNamespace(node_id="e", born_s=4.0)
    blame.judge_loss("e", [record], 5.0)
    assert record.paused == "back-off", "one that came since, and went as the first did"


def test_rests_grow_and_without_a_limit_it_is_tried_for_ever(blame):
    record, rests = a_record(user=None), []
    for turn in range(14):
        start(record, "n", at_s=10_000.0 * turn)
        blame.judge_loss("n", [record], 10_000.0 * turn + 1.0)
        if record.paused:
            rests.append(record.suspicion.rests_until_s - 10_000.0 * turn - 1.0)
    assert rests[:4] == [2.0, 4.0, 8.0, 16.0]
    assert rests[-1] == 600.0
    assert record.blamed == ""


def test_nobody_is_blamed_for_a_node_that_ended_while_its_controller_was_away(blame):
    """Its agent had no word for a lease; news of it came some seconds after the controller woke up."""
    record = a_record()
    for turn in range(10):
        blame.keep_time(1000.0 * turn, 30.0)
        start(record, "n", at_s=1000.0 * turn + 1.0)
        blame.keep_time(1000.0 * turn + 10.0, 30.0)
        asleep_s = 1000.0 * turn + 100.0
        if turn % 2:
            blame.keep_time(asleep_s, 30.0)  # it is awake for some seconds when it hears of it
        assert blame.judge_loss("n", [record], asleep_s + turn % 2 * 5.0, "its agent ended") == {"j"}
    assert (record.paused, record.blamed) == ("", "")


def test_who_ends_a_node_soon_after_its_controller_came_is_blamed_as_ever(blame):
    record = a_record()
    blame.keep_time(0.0, 1000.0)
    for turn in range(4):
        start(record, "n", at_s=10.0 * turn + 1.0)
        blame.judge_loss("n", [record], 10.0 * turn + 9.0, "its agent ended")
    assert "4 times" in record.blamed
