"""What a job prints is found whoever printed it: over resizes, losses, and restarts of the controller."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from sublet.wire.messages import Joined
from sublet_lab.memory_cloud import Training
from tests.rigs.asgi import ask
from tests.rigs.story import Story, a_spec, phase, until


class Printing:
    """Workers of the cloud in memory print into the files that they were told to."""

    def __init__(self, cloud):
        self.file = {}
        start, regroup = cloud._start, cloud._regroup

        def started(node, message):
            self.file[message.worker_id] = Path(message.log)
            self.say(message.worker_id, "begins")
            start(node, message)

        def regrouped(worker, order):
            self.say(worker.id, f"is rank {order.rank}")
            regroup(worker, order)

        cloud._start, cloud._regroup = started, regrouped

    def say(self, worker_id, text):
        with self.file[worker_id].open("a") as file:
            file.write(f"{worker_id} {text}\n")


def leader(api):
    workers = api.record("j-1").group.workers.values()
    return next((worker for worker in workers if worker.rank == 0 and worker.phase == "member"), None)


async def led_by_another(api, than):
    async def changed():
        group, now = api.record("j-1").group, leader(api)
        return now if now is not None and now.id != than and group.training else None

    return await until(changed, "nobody took over")


def test_the_log_goes_on_with_whoever_is_rank_0_now(tmp_path):
    story = Story(tmp_path)
    prints = Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=3))
            await phase(api, "j-1", "running")
            first = (await led_by_another(api, "")).id
            prints.say(first, "trains")
            story.cloud.take(api.record("j-1").group.workers[first].node_id)
            second = await led_by_another(api, first)
            prints.say(second.id, "trains on")
            text = await ask(api, "/v1/jobs/j-1/log")
            assert f"{first} trains\n" in text
            assert f"{second.id} trains on\n" in text, "the log went silent"
            moved = f"-- rank 0 is worker {second.id} on node {second.node_id} from here --\n"
            assert text.index("trains\n") < text.index(moved) < text.index("trains on\n")
            assert f"{second.id} begins" not in text, "it was rank 1 or 2 then"
            everything = await ask(api, "/v1/jobs/j-1/log", every="true")
            assert everything.count(" begins\n") == len(prints.file)
            alone = await ask(api, "/v1/jobs/j-1/log", worker=second.id)
            assert {line.split()[0] for line in alone.splitlines()[1:]} == {second.id}
            assert (await ask(api, "/v1/jobs/j-1/log", tail=1)) == f"{second.id} trains on\n"
            files = (tmp_path / "state" / "jobs" / "j-1" / "logs").glob("*.jsonl")
            assert [file.stat().st_mode & 0o077 for file in files] == [0]
            lines = [json.loads(line) for line in (await ask(api, "/v1/jobs/j-1/log", lines="true")).splitlines()]
            assert {line["rank"] for line in lines} == {0}
            assert lines[-1] == {
                "worker": second.id,
                "node": second.node_id,
                "rank": 0,
                "line": f"{second.id} trains on",
            }

    asyncio.run(live())


def test_what_was_printed_before_a_restart_of_the_controller_is_there_after_it(tmp_path):
    story = Story(tmp_path)
    prints = Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            first = (await led_by_another(api, "")).id
            node = api.record("j-1").group.workers[first].node_id
        old = tmp_path / "state" / "jobs" / "j-1" / "logs" / "rank-0.log"
        old.write_text("of an older version\n")
        story.cloud.take(node)
        async with story.controller() as api:
            second = await led_by_another(api, first)
            prints.say(second.id, "trains on")
            text = await ask(api, "/v1/jobs/j-1/log")
            assert text.startswith("of an older version\n")
            order = [f"{first} begins", f"-- rank 0 is worker {second.id}", f"{second.id} trains on"]
            assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)

    asyncio.run(live())


def test_following_a_log_moves_to_the_next_worker_and_ends_with_the_job(tmp_path):
    story = Story(tmp_path)
    prints = Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            first = (await led_by_another(api, "")).id
            following = asyncio.create_task(ask(api, "/v1/jobs/j-1/log", follow="true"))
            await asyncio.sleep(0.2)
            story.cloud.take(api.record("j-1").group.workers[first].node_id)
            second = await led_by_another(api, first)
            prints.say(second.id, "trains on")
            await api.cancel("j-1", now=True)
            text = await asyncio.wait_for(following, 120.0)
            assert f"{first} begins\n" in text
            assert f"from here --\n{second.id} begins\n" in text
            assert f"{second.id} trains on\n" in text

    asyncio.run(live())


def test_how_a_worker_ended_is_told_in_its_log_and_in_the_history(tmp_path):
    story = Story(tmp_path)
    Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(ends_with=3)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            view = await phase(api, "j-1", "failed")
            assert view["exit_code"] == 3
            assert "ended: exit code 3 --" in await ask(api, "/v1/jobs/j-1/log")
            texts = [event["text"] for event in await api.events("j-1")]
            assert "failed: exit code 3: boom" in texts

    asyncio.run(live())


def test_a_signal_has_a_name_in_the_history(tmp_path):
    story = Story(tmp_path)
    prints = Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            first = (await led_by_another(api, "")).id
            story.cloud.kill_worker(first)
            await led_by_another(api, first)
            restarted = [event for event in await api.events("j-1") if event["kind"] == "Restarted"]
            killed = f"a worker was killed, and is started again: {first} was ended by SIGKILL"
            assert restarted[0]["text"] == killed
            assert f"-- worker {first} on node" in await ask(api, "/v1/jobs/j-1/log")
            assert prints.file

    asyncio.run(live())


def test_a_line_that_a_worker_printed_as_rank_1_is_not_shown_again_when_it_is_rank_0(tmp_path):
    story = Story(tmp_path)
    prints = Printing(story.cloud)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)
    regroup, word = story.cloud._regroup, story.cloud._word

    def late(worker, order):
        """As the SDK: it follows the order at the end of a step, and prints until then what it would have printed."""
        prints.say(worker.id, "epoch 1 as before")
        regroup(worker, order)

    def counted(node_id, message):
        if isinstance(message, Joined):
            message = replace(message, printed=prints.file[message.worker_id].stat().st_size)
        word(node_id, message)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=2))
            await phase(api, "j-1", "running")

            async def both():
                return len(api.record("j-1").group.workers) > 1 and api.record("j-1").group.training

            await until(both, "it never had two workers")
            first = (await led_by_another(api, "")).id
            story.cloud._regroup, story.cloud._word = late, counted
            story.cloud.take(api.record("j-1").group.workers[first].node_id)
            second = await led_by_another(api, first)
            prints.say(second.id, "epoch 2")
            text = await ask(api, "/v1/jobs/j-1/log")
            assert f"from here --\n{second.id} epoch 2\n" in text
            assert f"{second.id} epoch 1" not in text

    asyncio.run(live())
