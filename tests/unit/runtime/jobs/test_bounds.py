"""What a job may be, whoever brings it; and what becomes of one that an earlier version let in."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sublet.domain.job import Job
from sublet.errors import InvalidValue, NotNow
from sublet.perf.learned import Learned
from sublet.planning.widths import useful_widths
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import spec_from_json, spec_to_json
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import serving
from tests.rigs.story import OFFERS, a_spec

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 90.0
REFUSED = {
    "name": ["../../../x", "a/b", "a..b", "", ".", "-x", "a b", "x" * 64, "n\n", "\u0430"],
    "argv": [[], [""], ["a\0b"], ["\ud800"], ["x" * 140_000], ["x"] * 5000],
    "cwd": ["/\0", "/" * 5000],
    "env": [{"A=B": "1"}, {"": "1"}, {"A\0": "1"}, {"A": "\0"}, {"1A": "1"}, {"A": "x" * 140_000}],
    "secrets": [{"A=B": "hush"}, {"A": "hush\0"}, {"A": "hush\ud800"}],
    "max_workers": [10**9, 4097, 0, -1, 10**400, True],
    "sizes": [[3], [0], [10**400]],
    "accelerators": [[""], ["\0"], ["T4"] * 100],
    "min_on_demand": [-1, 2, 10**400, True, 1.0],
    "work": [10**400, 1e300, 0, -1.0, 1e-300],
    "samples_per_s": [10**400, 0.0, 1e-300],
    "deadline_s": [0.0, -1.0, 10**400, 1e300],
    "purse_usd": [0.0, 1e300, 10**400],
    "weight": [0.0, 1e300],
    "restart_s": [-1.0, 1e300],
    "checkpoint_keep": [1, 10**400],
    "retries": [{"user": -1}, {"infra": 10**400}],
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_job_beyond_the_bounds_is_refused_by_name_and_range(field):
    for value in REFUSED[field]:
        with pytest.raises(InvalidValue) as caught:
            spec_from_json({**spec_to_json(a_spec(), secrets=True), field: value})
        assert len(str(caught.value)) < 600
        assert "hush" not in str(caught.value)


def test_what_people_write_is_let_in():
    a_spec(name="Llama-3.1_8b", max_workers=4096, env={"PATH": "/bin", "_x1": "a=b\nc"}, work=1e12, purse_usd=0.05)


def test_a_job_of_a_billion_workers_has_a_bounded_menu_of_widths():
    job = Job(id="j", submit_s=0.0, work=1.0, speed=Learned(guess=1.0), gpus=10**9)
    widths = useful_widths(job, 1, float("inf"))
    assert len(widths) < 3000
    assert widths[:512] == list(range(1, 513))
    assert useful_widths(job, 4, 16.0) == [1, 2, 3, 4, 8, 12, 16]
    assert useful_widths(job, 1, 5000.0)[-1] == 5000


# ---------------------------------------------------------------------- over the API


def test_a_name_that_is_a_path_writes_nothing_anywhere(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            job = {**spec_to_json(a_spec(secrets={"TOKEN": "hush"}), secrets=True), "name": "../../../x"}
            status, answer = await server.post("/v1/jobs", {"job": job})
            assert (status, answer["field"], answer["exit_code"]) == (422, "name", 2)
            assert "letters, digits" in answer["error"]
        assert {path.name for path in tmp_path.iterdir()} == {"state"}

    asyncio.run(live())


def test_a_relative_path_over_the_api_is_refused_and_made_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def live():
        async with serving(tmp_path) as server:
            for field, name in (("cwd", "workdir"), ("checkpoint_dir", "checkpoint.uri")):
                job = {**spec_to_json(a_spec(), secrets=True), field: "somewhere/below"}
                for path in ("/v1/jobs", "/v1/dry-run"):
                    status, answer = await server.post(path, {"job": job})
                    assert (status, answer["field"], answer["exit_code"]) == (422, name, 2)
                    assert "absolute" in answer["error"]
        assert {path.name for path in tmp_path.iterdir()} == {"state"}

    asyncio.run(live())


def test_numbers_of_400_digits_are_refused_not_a_fault(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            for field in ("work", "weight", "max_workers", "purse_usd", "restart_s"):
                job = {**spec_to_json(a_spec(), secrets=True), field: 10**400}
                status, answer = await server.post("/v1/jobs", {"job": job})
                assert (status, answer["exit_code"]) == (422, 2)
            status, _ = await server.get(f"/v1/events?after={10**30}")
            assert status == 422

    asyncio.run(live())


# ---------------------------------------------------------------------- from the store


def _spoil(folder, job_id, **facts):
    """As if an earlier version had taken it."""
    store = Store(folder / "state" / "log.sqlite")
    spec = next(json.loads(text) for known, text, _ in store.jobs() if known == job_id)
    store.change_job(job_id, spec=json.dumps({**spec, **facts}))
    store.close()


@pytest.mark.parametrize("facts", [{"max_workers": 10**9}, {"name": "../../x"}, {"argv": []}, {"accelerators": ["H9"]}])
def test_a_stored_job_beyond_the_bounds_is_held_and_the_others_run(tmp_path, facts):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            for name in ("bad", "good"):
                await server.api.submit(a_spec(name=name))
        _spoil(tmp_path, "bad-1", **facts)
        cloud.jobs["good-1"] = Training(steps=20)
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            bad = await until(api, "bad-1", "paused")
            assert "not allowed" in bad["reason"]
            assert any("is held" in event["text"] for event in await api.events("bad-1") if event["kind"] == "Alarm")
            await until(api, "good-1", "finished")
            with pytest.raises(NotNow, match="held"):
                await api.resume("bad-1")
            await api.cancel("bad-1")
            await until(api, "bad-1", "cancelled")
        store = Store(tmp_path / "state" / "log.sqlite")
        kept = next(json.loads(text) for known, text, _ in store.jobs() if known == "bad-1")
        store.close()
        assert kept.items() >= facts.items()  # it is as it was

    asyncio.run(live())


# ---------------------------------------------------------------------- secrets


async def until(api, job_id, phase):
    end_s = time.monotonic() + PATIENCE_S
    while (view := await api.job(job_id))["phase"] != phase:
        assert time.monotonic() < end_s, f"{job_id} is {view['phase']}, never {phase}"
        await asyncio.sleep(0.02)
    return view


async def gone(path):
    end_s = time.monotonic() + PATIENCE_S
    while path.exists():
        assert time.monotonic() < end_s, f"{path} is still there"
        await asyncio.sleep(0.02)


def test_secrets_are_deleted_with_their_job_and_starred_out_of_its_logs(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs |= {"done-1": Training(steps=20), "bad-1": Training(ends_with=1), "long-1": Training()}
    state = tmp_path / "state"

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            for name in ("done", "bad", "long"):
                await api.submit(a_spec(name=name, max_workers=1, secrets={"TOKEN": "hush-hush"}))
                (state / "jobs" / f"{name}-1" / "logs" / "rank-0.log").write_text("token hush-hush, the end")
            await until(api, "done-1", "finished")
            await gone(state / "secrets" / "done-1.json")
            assert (state / "jobs" / "done-1" / "logs" / "rank-0.log").read_text().replace(
                "\0", ""
            ) == "token ***, the end"
            await until(api, "bad-1", "failed")
            cloud.jobs["bad-1"] = Training()
            await api.resume("bad-1")  # it failed: they were kept for this
            await until(api, "bad-1", "running")
            assert (state / "secrets" / "bad-1.json").exists()
            await api.cancel("long-1")
            await gone(state / "secrets" / "long-1.json")

    asyncio.run(live())


def test_ending_all_jobs_deletes_the_secrets_of_failed_ones_too(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs["bad-1"] = Training(ends_with=1)

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            await server.api.submit(a_spec(name="bad", secrets={"TOKEN": "hush-hush"}))
            await until(server.api, "bad-1", "failed")
            assert (tmp_path / "state" / "secrets" / "bad-1.json").exists()
            await server.api.shutdown(end_jobs=True)
            assert not list((tmp_path / "state" / "secrets").iterdir())
        async with serving(tmp_path, cloud=cloud) as server:
            with pytest.raises(NotNow, match="its secrets are deleted"):
                await server.api.resume("bad-1")

    asyncio.run(live())


def test_cancelling_a_failed_job_ends_it_for_good_and_deletes_its_secrets(tmp_path):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs |= {"bad-1": Training(ends_with=1), "plain-1": Training(ends_with=1)}
    state = tmp_path / "state"

    async def live():
        async with serving(tmp_path, cloud=cloud, crash=True) as server:
            await server.api.submit(a_spec(name="bad", secrets={"TOKEN": "hush-hush"}))
            await server.api.submit(a_spec(name="plain"))
            log = state / "jobs" / "bad-1" / "logs" / "rank-0.log"
            log.write_text("token hush-hush, the end")
            for job_id in ("bad-1", "plain-1"):
                await until(server.api, job_id, "failed")
                assert (await server.api.cancel(job_id))["phase"] == "failed", "how it ended stays as it was"
            await gone(state / "secrets" / "bad-1.json")
            assert log.read_text().replace("\0", "") == "token ***, the end"
            with pytest.raises(NotNow, match="ended for good"):
                await server.api.resume("bad-1")
        async with serving(tmp_path, cloud=cloud) as server:
            for job_id in ("bad-1", "plain-1"):
                with pytest.raises(NotNow, match="ended for good"):
                    await server.api.resume(job_id)
                assert (await server.api.job(job_id))["phase"] == "failed"

    asyncio.run(live())
