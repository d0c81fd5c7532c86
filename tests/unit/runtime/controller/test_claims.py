"""What workers say is in a bucket counts when it was looked for there."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from unittest.mock import patch

import pytest

pytest.importorskip("obstore")

import torch

from sublet.machine.remote import open_uri
from sublet.runtime.controller.files.buckets import BELIEVED_S, Claims, LookFailed, look_in_process
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet.wire.files import Saved, SaveFailed
from sublet.wire.messages import FromWorker, WorkerDown
from tests.rigs import moto_bucket
from tests.rigs.story import Story as Live
from tests.rigs.story import a_spec, trained, until

BUCKET = "s3://bucket/job"
WORKER = "job-1.1.0"


def claim(step, worker_id=WORKER, tier="bucket"):
    facts = {"done": float(step), "seconds": 1.0, "blocked_s": 0.5, "size_bytes": 9}
    return FromWorker(message=Saved(worker_id=worker_id, step=step, tier=tier, **facts))


class Story:
    """A job, its bucket, and what its controller hears."""

    def __init__(self, uri=BUCKET):
        spec = SimpleNamespace(checkpoint_dir=uri, env={"X": "x", "AWS_REGION": "r"}, secrets={"AWS_KEY": "k"})
        self.record = SimpleNamespace(id="job-1", spec=spec, hide=lambda text: text)
        self.asked, self.work, self.heard, self.notes, self.there = [], [], [], [], -1
        self.table = SimpleNamespace(records={"job-1": self.record})
        self.claims = Claims(self.table, hear=self.hear, note=self.notes.append, aside=self.work.append, look=self.look)

    def look(self, uri, *, access):
        self.asked.append((uri, access))
        if isinstance(self.there, Exception):
            raise self.there
        return self.there

    def hear(self, node_id, message):
        if not self.claims.holds(node_id, message, 0.0):
            self.heard.append(message)

    def tick(self, wall_s=0.0):
        self.claims.tick(wall_s)
        while self.work:
            self.work.pop()()


def test_what_is_said_to_be_in_a_bucket_is_heard_when_it_was_found_there():
    story = Story()
    story.hear("n1", claim(10))
    story.hear("n1", FromWorker(message=SaveFailed(worker_id=WORKER, step=9, why="full")))
    assert [type(each.message) for each in story.heard] == [SaveFailed], "nothing else waits for it"
    story.there = 10
    story.tick()
    assert story.asked == [(BUCKET, {"AWS_REGION": "r", "AWS_KEY": "k"})]
    story.tick()
    assert story.heard[1:] == [claim(10)]
    story.tick()
    assert len(story.asked) == 1


def test_a_later_one_will_do_and_an_earlier_one_will_not():
    story = Story()
    for step in (10, 20, 30):
        story.hear("n1", claim(step))
    story.there = 20
    story.tick()
    story.tick()
    assert len(story.asked) == 1, "one look for all of them"
    assert story.heard[:2] == [claim(10), claim(20)]
    (failed,) = (each.message for each in story.heard[2:])
    assert failed == SaveFailed(
        worker_id=WORKER, step=30, why=f"{WORKER} said so, and the bucket has no whole one after step 20"
    )


def test_what_is_said_while_somebody_looks_is_looked_for_once_more():
    story = Story()
    story.hear("n1", claim(10))
    story.claims.tick(0.0)
    story.hear("n1", claim(20))
    story.there = 10
    story.tick()
    story.there = 20
    story.tick()
    assert story.heard == [claim(10)]
    story.tick()
    assert story.heard == [claim(10), claim(20)]
    assert len(story.asked) == 2


def test_the_end_of_a_worker_is_heard_after_what_it_saved():
    story = Story()
    end, other = WorkerDown(worker_id=WORKER, code=0), WorkerDown(worker_id="job-1.1.1", code=0)
    story.hear("n1", claim(10))
    story.tick()
    story.hear("n1", other)
    assert story.heard == [other]
    story.hear("n2", end)
    assert story.heard == [other, end], "a node does not hold up what another says"
    story.hear("n1", end)
    assert story.heard == [other, end]
    story.there = 10
    story.work.clear()
    story.claims._looks["job-1"].outcome = 10
    story.tick()
    assert story.heard == [other, end, claim(10), end]


def test_where_nobody_can_look_workers_are_believed_and_that_is_told_once():
    story = Story()
    story.there = LookFailed("403 Forbidden")
    story.hear("n1", claim(10))
    story.tick()
    story.hear("n1", claim(20))
    story.tick(5.0)
    assert story.heard == [claim(10), claim(20)]
    (note,) = story.notes
    assert (note.kind, note.job_id) == ("Alarm", "job-1")
    assert note.text.endswith(f"is in {BUCKET} cannot be looked at from the controller, and is believed: 403 Forbidden")
    assert not story.claims.holds("n1", claim(30), 5.0 + BELIEVED_S - 1.0), "no worker waits for a store that is away"
    assert story.claims.holds("n1", claim(40), 5.0 + BELIEVED_S)
    story.tick(5.0 + BELIEVED_S)
    story.tick(6.0 + BELIEVED_S)
    assert story.heard[-1] == claim(40)
    assert len(story.notes) == 1


def test_it_does_not_help_to_name_another_tier():
    story = Story()
    story.hear("n1", claim(10, tier="anchor"))
    assert story.heard == []
    on_disk = claim(10, tier="disk")  # which counts for nothing
    story.hear("n1", on_disk)
    assert story.heard == [on_disk]


@pytest.mark.parametrize("uri", ["", "/shared/folder"])
def test_nothing_is_held_of_a_job_without_a_bucket_or_of_one_that_is_gone(uri):
    story = Story(uri)
    story.hear("n1", claim(10))
    story.hear("n1", claim(11, tier="anchor"))
    story.hear("n1", claim(12, worker_id="gone.1.0"))
    assert [each.message.step for each in story.heard] == [10, 11, 12]


def test_a_look_finds_the_newest_of_which_all_objects_are_there(tmp_path):
    with patch.dict(os.environ, moto_bucket.environment()):
        uri = moto_bucket.a_bucket("looked-at")
        assert look_in_process(uri, access={}) == -1
        with Checkpoints(uri, writer="w", generation=1, keep=3) as checkpoints:
            for step in (5, 6):
                checkpoints.save(step, {"x": torch.ones(100)}, {}).wait()
        assert look_in_process(uri, access={}) == 6
        objects = open_uri(uri)
        gone = next(found.key for found in objects.list() if found.key.startswith("step-6.") and "data" in found.key)
        objects.delete([gone])
        assert look_in_process(uri, access={}) == 5
        with pytest.raises(LookFailed, match=r"address of the job's own"):
            look_in_process(uri, access={"AWS_ENDPOINT_URL": "http://elsewhere"})
        with pytest.raises(LookFailed, match=r"NoSuchBucket"):
            look_in_process("s3://there-is-none/x", access={})


def test_a_job_whose_worker_lies_about_its_bucket_has_nothing_saved(tmp_path):
    story = Live(tmp_path)

    async def live():
        async with story.controller() as api:
            controller = api._controller
            there = [-1]
            controller.claims.look = lambda uri, *, access: there[0]
            await api.submit(a_spec(max_workers=1, checkpoint_dir=BUCKET))
            await trained(api, "j-1", 3)
            (worker,) = controller.records["j-1"].group.workers.values()

            async def alarmed():
                rows = await api.events()
                return any("the checkpoint of step 1000000 was not written" in row["text"] for row in rows)

            controller.nodes.agents.receive(worker.node_id, claim(10**6, worker.id))
            await until(alarmed, "nobody was told")
            assert (await api.job("j-1"))["checkpoint_step"] is None
            there[0] = 3

            async def counted():
                return (await api.job("j-1"))["checkpoint_step"] == 3

            controller.nodes.agents.receive(worker.node_id, claim(3, worker.id))
            await until(counted, "it does not count")

    asyncio.run(live())
