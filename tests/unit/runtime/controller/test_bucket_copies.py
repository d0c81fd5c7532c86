"""When the controller copies checkpoints to a bucket and brings them back: one at a time, at their interval."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sublet.runtime.controller.files.buckets import AGAIN_S, BucketCopies, Copied, CopyFailed
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.memory.tiers import Tally, Tiers
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story as Live
from tests.rigs.story import a_spec, phase, trained, until

BUCKET = "s3://bucket/job"


class Story:
    """A job whose copies a test ends when it likes."""

    def __init__(self, **facts):
        spec = {"checkpoint_copy": BUCKET, "checkpoint_keep": 3, "env": {}, "secrets": {}} | facts
        self.record = SimpleNamespace(
            id="job-1",
            spec=SimpleNamespace(**spec),
            tiers=Tiers(),
            paused=Hold.NONE,
            outcome=Ending.NONE,
            checkpoint_step=None,
            group=SimpleNamespace(done=0.0),
            hide=lambda text: text.replace("secret", "***"),
        )
        self.asked, self.work, self.answer = [], [], Copied(step=0, size_bytes=1, seconds=1.0)
        self.alarms, self.freed = [], []
        context = SimpleNamespace(
            inbox=SimpleNamespace(note=lambda row: self.alarms.append(row.text)),
            table=SimpleNamespace(records={"job-1": self.record}),
            bill=SimpleNamespace(book_checkpoint=lambda job_id, cloud_s: 0),
            host=SimpleNamespace(aside=self.work.append, clock=SimpleNamespace(speedup=1.0)),
        )
        self.copies = BucketCopies(
            context,
            place=lambda record: "/here",
            every_s=lambda record: 100.0,
            freed=self.freed.append,
            copy=self.copy,
        )

    def copy(self, source, target, *, keep, access):
        self.asked.append((source, target, keep, dict(access)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def has(self, step):
        self.record.tiers.tallies.setdefault("anchor", Tally()).step = step

    def tick(self, wall_s, answer=None):
        self.copies.tick(wall_s)
        self.answer = answer if answer is not None else self.answer
        while self.work:
            self.work.pop()()


def done(step):
    return Copied(step=step, size_bytes=9, seconds=2.0)


def test_what_the_controller_has_is_copied_at_the_interval_of_the_bucket():
    story = Story()
    story.tick(0.0)
    assert not story.asked  # there is nothing yet
    story.has(10)
    story.tick(1.0, done(10))
    assert story.asked == [("/here", BUCKET, 3, {})]
    story.has(20)
    story.tick(2.0)  # the first is settled now
    assert story.record.tiers.of("bucket").step == 10
    story.tick(101.0)
    assert len(story.asked) == 1
    story.tick(102.0, done(20))
    story.tick(103.0)
    assert len(story.asked) == 2
    story.tick(1000.0)
    assert len(story.asked) == 2  # nothing is new


def test_one_copy_is_under_way_at_a_time():
    story = Story()
    story.has(10)
    story.copies.tick(0.0)
    story.has(20)
    story.copies.tick(1000.0)
    assert len(story.work) == 1


def test_the_last_one_of_a_job_that_ended_is_copied_at_once_and_once():
    story = Story()
    story.has(10)
    story.tick(0.0, done(10))
    story.has(20)
    story.record.outcome = Ending.FINISHED
    story.tick(1.0, done(10))  # that of step 20 turned out damaged
    assert len(story.asked) == 2  # long before the interval is over
    for wall_s in range(2, 300):
        story.tick(float(wall_s))
    assert len(story.asked) == 2


def test_one_that_fails_is_told_without_secrets_and_tried_again_later_and_later():
    story = Story()
    story.has(10)
    story.tick(0.0, CopyFailed("no secret there"))
    at = []
    for wall_s in range(1, 400):
        story.tick(float(wall_s))
        at += [wall_s] * (len(story.asked) - 1 - len(at))
    assert at[0] == 1 + AGAIN_S
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]), abs=2)
    assert "***" in story.alarms[0]
    assert BUCKET in story.alarms[0]


def test_a_copy_that_breaks_in_an_unknown_way_is_one_that_failed():
    story = Story()
    story.has(10)
    story.tick(0.0, RuntimeError("odd"))
    story.tick(1.0)
    assert "odd" in story.alarms[0]


def test_a_job_that_is_new_here_waits_for_what_its_bucket_has():
    story = Story()
    story.record.paused = Hold.COPY
    story.tick(0.0, done(40))
    assert story.asked == [(BUCKET, "/here", 3, {})]
    assert not story.freed
    story.tick(1.0)
    assert (story.record.paused, story.record.checkpoint_step, story.freed) == (Hold.NONE, 40, [story.record])
    story.tick(2.0)
    assert len(story.asked) == 1  # it is not sent back to where it came from


def test_an_empty_bucket_lets_a_job_begin_and_one_that_cannot_be_asked_does_not():
    story = Story()
    story.record.paused = Hold.COPY
    story.tick(0.0, CopyFailed("away"))
    story.tick(1.0)
    assert story.record.paused is Hold.COPY
    story.tick(2.0 + AGAIN_S, done(-1))
    story.tick(3.0 + AGAIN_S)
    assert (story.record.paused, story.record.checkpoint_step) == (Hold.NONE, None)


def test_an_owner_who_goes_on_without_it_is_not_overruled():
    story = Story()
    story.record.paused = Hold.COPY
    story.tick(0.0, done(40))
    story.record.paused = Hold.OWNER
    story.tick(1.0)
    assert story.record.paused is Hold.OWNER
    assert not story.freed


def test_only_what_opens_a_bucket_is_taken_from_the_variables_of_a_job():
    env, secrets = {"AWS_REGION": "here", "LD_PRELOAD": "evil"}, {"AWS_SECRET_ACCESS_KEY": "s", "TOKEN": "t"}
    story = Story(env=env, secrets=secrets)
    story.has(10)
    story.tick(0.0)
    assert story.asked[0][3] == {"AWS_REGION": "here", "AWS_SECRET_ACCESS_KEY": "s"}


def test_a_job_without_a_bucket_is_left_alone():
    story = Story(checkpoint_copy="")
    story.has(10)
    story.tick(0.0)
    assert not story.asked


@pytest.mark.usefixtures("virtual_time")
def test_a_live_job_waits_for_its_bucket_and_what_it_saves_is_copied_there_and_billed(tmp_path):
    pytest.importorskip("obstore")
    story, ways = Live(tmp_path), []
    story.cloud.jobs["j-1"] = Training(steps=100_000)

    def copy(source, target, *, keep, access):
        ways.append(target)
        step = -1 if source == BUCKET else api._controller.records["j-1"].tiers.of("anchor").step
        return Copied(step=step, size_bytes=7, seconds=0.5)

    async def live():
        nonlocal api
        async with story.controller() as api:
            api._controller.copies._copy = copy
            await api.submit(a_spec(max_workers=1, checkpoint_copy=BUCKET))
            await trained(api, "j-1", 5)
            assert [way for way in ways if way != BUCKET] == ways[:1]  # first from there, once
            await api.pause("j-1")
            saved = (await phase(api, "j-1", "paused"))["checkpoint_step"]

            async def copied():
                return (await api.job("j-1"))["checkpoint_tier"] == "bucket"

            await until(copied, "it is not copied")
            tiers = {tier["tier"]: tier for tier in (await api.cost("j-1"))["tiers"]}
            assert tiers["bucket"]["size_bytes"] == 7
            assert api._controller.records["j-1"].tiers.of("bucket").step == saved
            assert (await api.cost())["tiers"] == list(tiers.values())

    api = None
    asyncio.run(live())
