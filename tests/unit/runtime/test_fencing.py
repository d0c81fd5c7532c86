"""Two controllers on one store: only the one that began last writes, orders and rents; the other ends itself."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from sublet.errors import BadInput, InvalidValue, StaleController
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.engines.server import private_socket, refuse_taken
from sublet.runtime.settings import Settings
from sublet.runtime.store import MetaKey, Store
from sublet_lab.memory_cloud import api_over
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
WRITES = {
    "a fact": lambda store: store.put("a", "b"),
    "an event": lambda store: store.append(1.0, "{}"),
    "a snapshot": lambda store: store.add_snapshot(4, "{}"),
    "a job": lambda store: store.add_job("j-1", "", "{}"),
    "facts of a job": lambda store: store.change_job("i-1", facts='{"a": 1}'),
    "a specification": lambda store: store.change_job("i-1", spec='{"a": 1}'),
    "a row of history": lambda store: store.add_history([(0.0, "", "", "", "", "", "{}")]),
    "a cut": lambda store: store.cut("events", 1),
    "another claim": lambda store: store.claim("again", after=1),
}


def contents(path):
    visitor = Store(path)
    rows = "\n".join(visitor._db.iterdump())
    visitor.close()
    return rows


@pytest.fixture
def path(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.add_job("i-1", "", "{}")
    store.append(0.0, "{}")
    store.close()
    return store.path


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_of_a_controller_that_was_succeeded_is_refused(path, write):
    stale, new = Store(path), Store(path)
    stale.claim("first", after=0)
    new.claim("second", after=1)
    before = contents(path)
    with pytest.raises(StaleController, match=r"controller 2 of it has begun, this one was controller 1"):
        write(stale)
    assert contents(path) == before
    new.put("a", "c")  # and nothing stands in the way of the other one
    stale.close()
    new.close()


def test_of_two_that_begin_at_once_one_has_the_store(path):
    one, two = Store(path), Store(path)
    one.claim("one", after=0)
    with pytest.raises(StaleController):
        two.claim("two", after=0)
    one.put("a", "b")
    one.close()
    two.close()


def test_a_store_that_was_put_back_to_an_earlier_time_has_the_same_life_and_another_holder(path):
    slept = Store(path)
    slept.claim("slept", after=0)
    visitor = Store(path)  # as a restore in place would leave it: one life, and it is somebody else's
    visitor.put(MetaKey.LIFE, "0")
    visitor.claim("restored", after=0)
    with pytest.raises(StaleController):
        slept.put("a", "b")
    slept.close()
    visitor.close()


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_is_not_the_one_that_was_opened_is_noticed(path, change):
    store = Store(path)
    store.claim("first", after=0)
    store.insist()
    if change == "replaced":
        shutil.copy(path, path.with_name("other"))
        path.with_name("other").replace(path)
    else:
        path.unlink()
    with pytest.raises(StaleController, match="is another file"):
        store.insist()
    store.close()


def test_whoever_only_looks_may_write_its_fact_beside_nobody(path):
    visitor = Store(path)
    visitor.put(MetaKey.MOVED_TO, "here")
    assert visitor.get(MetaKey.MOVED_TO) == "here"
    visitor.close()


# ---------------------------------------------------------------------- whole controllers


class Slept:
    """A controller that is stopped for longer than a lease, while another one begins on the same store."""

    def __init__(self, story):
        self.story, self.calls = story, []

    def spy(self, api):
        """Write down what it asks of the cloud and says to agents from now on."""
        cloud = self.story.cloud
        rent, release, send = cloud.rent, cloud.release, cloud.send

        async def rent_(*args):
            self.calls.append(("rent", *args))
            return await rent(*args)

        async def release_(node_id):
            self.calls.append(("release", node_id))
            return await release(node_id)

        def send_(*args):
            self.calls.append(("send", *args))
            return send(*args)

        controller = api._controller
        leases, nodes = controller.leases, controller.nodes
        leases._provider = _Instead(cloud.provider, rent=rent_, release=release_)
        engine = leases._engine = _Instead(cloud.engine, send=send_)
        controller.groups._engine = nodes.agents._engine = nodes.notices._engine = engine


class _Instead:
    def __init__(self, real, **others):
        self._real = real
        self.__dict__.update(others)

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_a_controller_that_wakes_up_beside_its_successor_ends_itself_and_asks_nothing_of_anybody(tmp_path):
    story = Story(tmp_path)
    slept = Slept(story)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as stale:
            running = asyncio.create_task(stale.run())
            await stale.started()
            await stale.submit(a_spec())
            await trained(stale, "j-1", 3)
            asleep = stale._controller
            await _sleep(asleep)
            async with story.controller() as api:
                await phase(api, "j-1", "running")
                nodes = set(story.cloud.nodes)
                slept.spy(stale)
                _wake(asleep)
                for news in ("sweep", "plan"):  # what lay before it when it fell asleep
                    asleep.inbox.spawn(_late(asleep, news), news)
                with pytest.raises(StaleController, match="controller 2 of it has begun"):
                    await asyncio.wait_for(running, 120)
                with pytest.raises(StaleController):
                    await stale.submit(a_spec(name="k"))
                assert slept.calls == []
                assert set(story.cloud.nodes) == nodes
                assert [view["id"] for view in await api.jobs()] == ["j-1"]
                adds_up(api)

    asyncio.run(live())


async def _sleep(controller):
    """As SIGSTOP: nothing of it runs any more; what it had begun stays where it is."""
    for task in list(controller.inbox._tasks):
        task.cancel()
    await asyncio.sleep(0)


def _wake(controller):
    controller.inbox.spawn(controller._ticking(), "ticking")
    controller.inbox.spawn(controller.nodes.reaper.run(), "sweeping")


async def _late(controller, what):
    from sublet.domain.actions import RentNode

    if what == "sweep":
        await controller.leases.release(next(iter(controller.kernel.cluster.nodes)))
    else:
        await controller.leases.rent(RentNode("n9", "spot"))


def test_one_that_fell_asleep_while_it_started_begins_nothing(tmp_path):
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as slow:
            async with story.controller() as api:  # made later, started earlier
                with pytest.raises(StaleController):
                    await slow.run()
                await api.submit(a_spec())
                await phase(api, "j-1", "running")

    asyncio.run(live())


def test_a_job_is_refused_in_words_by_a_controller_that_does_not_know_yet_that_it_is_stale(tmp_path):
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as stale:
            running = asyncio.create_task(stale.run())
            await stale.started()
            other = Store(story.folder / "log.sqlite")
            other.claim("other", after=1)
            with pytest.raises(StaleController, match="nothing more is written, ordered or rented"):
                await stale.submit(a_spec())
            assert other.jobs() == []
            other.close()
            await until(lambda: asyncio.sleep(0, running.done()), "it went on")
            assert isinstance(running.exception(), StaleController)

    asyncio.run(live())


def test_a_start_that_cannot_hear_its_agents_leaves_the_store_to_whoever_has_it():
    with tempfile.TemporaryDirectory() as short:  # paths of sockets are
        held = Store(Path(short) / "log.sqlite")
        held.claim("first", after=0)
        with private_socket(f"{short}/agents.sock") as listener:
            listener.listen()
            with pytest.raises(InvalidValue, match="another controller listens there"):
                asyncio.run(controller_from(Settings(state_dir=short)).run())
        held.put("a", "b")
        held.close()


def test_a_port_that_somebody_listens_at_is_refused_and_a_free_one_stays_free():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadInput, match=r"aws\.toml: agents_port = .*another program listens there"):
            refuse_taken(f"tcp:127.0.0.1:{port}", "aws.toml: agents_port")
    for _ in range(2):
        refuse_taken(f"tcp:127.0.0.1:{port}")
