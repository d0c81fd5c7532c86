"""A job whose secrets are not here, as after a restore of a backup: it waits until its owner gives them again."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest

from sublet.cli.verbs.resume import _named
from sublet.errors import InvalidValue, NotNow
from sublet.runtime.clock import Clock
from sublet.runtime.secret_files import SecretFiles
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import serving
from tests.rigs.story import OFFERS, a_spec

SECRETS = {"TOKEN": "hush-hush", "KEY": "sesame"}
PATIENCE_S = 90.0


async def until(api, job_id, phase):
    end_s = time.monotonic() + PATIENCE_S
    while (view := await api.job(job_id))["phase"] != phase:
        assert time.monotonic() < end_s, f"{job_id} is {view['phase']}, never {phase}"
        await asyncio.sleep(0.02)
    return view


def begun(tmp_path):
    """A cloud with a job of two secrets that has run; its controller is gone, and its state as a backup has it."""
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs |= {"long-1": Training(), "plain-1": Training()}

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            await server.api.submit(a_spec(name="long", max_workers=1, secrets=SECRETS))
            await server.api.submit(a_spec(name="plain", max_workers=1))
            await until(server.api, "long-1", "running")
            await server.api.shutdown()

    asyncio.run(live())
    shutil.rmtree(tmp_path / "state" / "secrets")
    return cloud


def test_it_waits_with_the_reason_and_the_command_and_goes_on_when_they_are_given(tmp_path):
    cloud = begun(tmp_path)

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            api = server.api
            view = await until(api, "long-1", "paused")
            assert view["reason"].endswith("next: sublet resume long-1 --secret TOKEN --secret KEY")
            await until(api, "plain-1", "running")
            told = [row["text"] for row in await api.events() if row["kind"] == "Alarm"]
            assert sum("needs its secrets again" in text for text in told) == 1
            for given in ({}, {"TOKEN": "hush-hush"}):
                with pytest.raises(NotNow, match="--secret KEY"):
                    await api.resume("long-1", secrets=given)
            with pytest.raises(InvalidValue, match="OTHER"):
                await api.resume("long-1", secrets={**SECRETS, "OTHER": "x"})
            with pytest.raises(InvalidValue):
                await api.resume("long-1", secrets={**SECRETS, "KEY": "a\0b"})
            assert not SecretFiles(tmp_path / "state").has("long-1")
            assert (await api.job("long-1"))["phase"] == "paused"
            await api.resume("long-1", secrets=SECRETS)
            await until(api, "long-1", "running")
            assert api.record("long-1").group.spec.secrets == SECRETS  # what workers are started with
            await server.api.shutdown()
        async with serving(tmp_path, cloud=cloud) as server:
            await until(server.api, "long-1", "running")  # they are kept
            assert server.api.record("long-1").spec.secrets == SECRETS

    asyncio.run(live())


def test_one_that_its_owner_has_paused_does_not_go_on_without_them_either(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs["long-1"] = Training()

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            await server.api.submit(a_spec(name="long", max_workers=1, secrets=SECRETS))
            await server.api.pause("long-1")
            await server.api.shutdown()
        shutil.rmtree(tmp_path / "state" / "secrets")
        async with serving(tmp_path, cloud=cloud) as server:
            with pytest.raises(NotNow, match="--secret TOKEN --secret KEY"):
                await server.api.resume("long-1")
            await server.api.resume("long-1", secrets=SECRETS)
            await until(server.api, "long-1", "running")

    asyncio.run(live())


def test_a_secret_is_named_and_found_in_the_environment_or_given_whole():
    assert _named("TOKEN", {"TOKEN": "a=b"}) == ("TOKEN", "a=b")
    assert _named("TOKEN=c=d", {"TOKEN": "a=b"}) == ("TOKEN", "c=d")
    with pytest.raises(InvalidValue, match="TOKEN"):
        _named("TOKEN", {})
