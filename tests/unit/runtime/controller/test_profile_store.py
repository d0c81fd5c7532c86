"""What a job measured is kept when it ends, in a file that a person can read, and the next run of it begins there."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.errors import BadInput, UnknownName
from sublet.machine.wall import WALL
from sublet.perf.live.rows import Source, StepRow, earlier
from sublet.perf.live.speed import LiveSpeed
from sublet.perf.live.stored import StoredProfile
from sublet.runtime.clock import Clock
from sublet.runtime.controller.memory.records import kernel_job
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.profiles.learned import Profiling
from sublet.runtime.profiles.store import ProfileStore, script_digest, text_of
from sublet.wire.messages import FITS, Profile, StartWorker, Stepped
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import OFFERS, serving
from tests.rigs.story import a_spec, phase, until

ROWS = (
    StepRow(gpu="T4", gpus=1, samples=64, step_s=0.089, piece_s=0.084, error=0.02),
    StepRow(gpu="T4", gpus=2, nodes=2, samples=32, pieces=2, step_s=0.15, piece_s=0.05, wait_s=0.03, error=0.03),
    StepRow(gpu="A10", gpus=1, samples=64, step_s=0.05, piece_s=0.045, error=0.02),
)


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "train.py").write_text("print('one')\n")
    return JobSpec(name="net", argv=("python", "train.py"), cwd=str(tmp_path))


def a_profiling():
    forms = {row.form: [(row.step_s, row.piece_s, row.wait_s)] for row in ROWS}
    return Profiling(forms=forms, initial=64, low=32, high=1024, batch=128, noise=812.5, growth=0.0004, torch="2.11.0")


def test_what_is_kept_is_read_again_and_by_people_too(tmp_path, spec):
    store = ProfileStore(tmp_path / "state" / "profiles")
    store.keep(spec, a_profiling(), WALL)
    a10, t4 = store.all()
    assert (a10.gpu, t4.gpu, t4.torch, t4.batches, t4.batch, t4.noise) == (
        "A10",
        "T4",
        "2.11.0",
        (64, 32, 1024),
        128,
        812.5,
    )
    assert t4.rows == tuple(replace(row, error=0.02) for row in ROWS[:2])
    (path,) = (tmp_path / "state" / "profiles").glob("net-*-T4.csv")
    head, columns, first, *_ = path.read_text().splitlines()
    assert json.loads(head.removeprefix("#"))["script"] == script_digest(spec)
    assert columns.startswith("gpus,nodes,samples,pieces,step_s")
    assert first.startswith("1,1,64,1,0.089,")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list((tmp_path / "state" / "profiles").glob("*.new"))


def test_two_jobs_of_one_name_may_end_at_the_same_moment(tmp_path, spec, monkeypatch):
    store, replace_file, ended = ProfileStore(tmp_path / "profiles"), Path.replace, []

    def replaced(path, target):
        if not ended:  # the other one is through between this one's last word and its place
            ended.append(path)
            other = threading.Thread(target=store.keep, args=(spec, a_profiling(), WALL))
            other.start()
            other.join()
        return replace_file(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    store.keep(spec, a_profiling(), WALL)
    assert {profile.gpu for profile in store.all()} == {"T4", "A10"}
    assert not list((tmp_path / "profiles").glob("*.new"))


def test_only_the_same_name_and_the_same_script_begin_with_it(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    assert store.begin(spec) == Profiling()
    store.keep(spec, a_profiling(), WALL)
    begun = store.begin(spec)
    assert {row.source for row in begun.earlier} == {Source.EARLIER}
    assert {row.gpu for row in begun.earlier} == {"T4", "A10"}
    assert (begun.batch, begun.noise, begun.forms) == (64, None, {})  # the noise of its end is not that of a beginning
    assert begun.speed().source("T4", (1,)) is Source.EARLIER
    assert store.begin(replace(spec, name="other")) == Profiling()
    (tmp_path / "train.py").write_text("print('two')\n")
    assert store.begin(spec) == Profiling()


def test_a_job_whose_script_cannot_be_read_or_whose_batch_is_fixed_leaves_nothing(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    store.keep(replace(spec, argv=("python", "gone.py")), a_profiling(), WALL)
    store.keep(replace(spec, argv=("true",)), a_profiling(), WALL)
    store.keep(spec, replace(a_profiling(), initial=0), WALL)
    assert list(store.all()) == []


@pytest.mark.parametrize("text", ["", "# []\n", "# {}\ngpus\n1\n", '# {"gpu": 1}\n', "\x00" * 40])
def test_a_file_that_is_none_is_passed_over(tmp_path, spec, text):
    store = ProfileStore(tmp_path)
    (tmp_path / "net.csv").write_text(text)
    assert list(store.all()) == []
    assert store.begin(spec) == Profiling()
    with pytest.raises(BadInput):
        StoredProfile.from_text(text, "net.csv")


def test_a_run_that_had_fewer_forms_leaves_those_of_before_in_the_file(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    store.keep(spec, a_profiling(), WALL)
    narrow = store.begin(spec)
    narrow.forms[ROWS[0].form] = deque([(0.1, 0.09, 0.0)])
    store.keep(spec, narrow, WALL)
    (t4,) = (profile for profile in store.all() if profile.gpu == "T4")
    assert [(row.gpus, row.step_s, row.error) for row in t4.rows] == [(1, 0.1, 0.02), (2, 0.15, 0.1)]


def test_a_profile_is_found_by_the_name_of_its_job_or_by_its_file(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    (a10, t4) = store.write(spec, a_profiling(), WALL)
    assert {profile.gpu for profile in store.find("net")} == {"A10", "T4"}
    assert [profile.gpu for profile in store.find(str(t4))] == ["T4"]
    with pytest.raises(UnknownName, match="did you mean net"):
        store.find("nett")
    with pytest.raises(BadInput, match="cannot be read"):
        store.find(str(a10.with_name("gone.csv")))
    (tmp_path / "train.py").write_text("print('two')\n")
    store.write(spec, replace(a_profiling(), forms={ROWS[0].form: deque([(0.1, 0.09, 0.0)])}), Later())
    (found,) = store.find("net")  # of the newest script alone
    assert (found.gpu, len(found.rows)) == ("T4", 1)


class Later(type(WALL)):
    """A minute from now."""

    def unix(self):
        return super().unix() + 60.0


def test_a_fixed_batch_that_was_measured_on_purpose_is_not_forgotten_when_its_job_speaks():
    known = Profiling(earlier=tuple(earlier(row) for row in ROWS[:2]), initial=64, low=64, high=64, batch=64)
    unknown = Profiling()
    for at in range(2):  # the first of a group does not count
        told = Profile(step_s=0.09, compute_s=0.08, samples=64)
        facts = {"worker_id": "w", "generation": 1, "step": at, "done": 0.0, "epoch": 0, "loss": 0.0, "step_s": 0.09}
        report = Stepped(**facts, global_batch=64, local_batch=64, profile=told)
        known.learn(report, "T4", 1, 1)
        unknown.learn(report, "T4", 1, 1)
    assert unknown.speed() is None
    speed = known.speed()
    assert speed.batches == (64,)
    assert [speed.source("T4", spread) for spread in ((1,), (1, 1))] == [Source.MEASURED, Source.EARLIER]


@pytest.mark.usefixtures("virtual_time")
def test_the_next_run_of_a_job_begins_where_this_one_ended(tmp_path):
    (tmp_path / "train.py").write_text("print('one')\n")
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs["j-1"] = Training(steps=6_000, batches=(64, 32, 1024), noise=800.0)
    spec = a_spec(max_workers=2, argv=("python", "train.py"), cwd=str(tmp_path), work=6_000.0)

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            api = server.api
            await api.submit(spec)

            async def kept():
                return list(tmp_path.glob("state/profiles/*.csv"))

            await until(kept, "its profile is kept")
            cloud.jobs["j-2"] = Training(steps=100_000_000, batches=(64, 32, 1024))
            await api.submit(spec)
            return kernel_job(api.record("j-2"), 60.0).speed

    speed = asyncio.run(live())
    assert isinstance(speed, LiveSpeed)
    assert {row.source for row in speed.rows} == {Source.EARLIER}
    assert {row.gpu for row in speed.rows} == {OFFERS[0].gpu}


def test_how_the_noise_grew_is_kept_and_a_file_from_before_says_nothing_of_it(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    store.keep(spec, a_profiling(), WALL)
    assert store.begin(spec).growth == 0.0004
    for path in (tmp_path / "profiles").glob("*.csv"):
        path.write_text(path.read_text().replace(', "growth": 0.0004', ""))
    assert "growth" not in next((tmp_path / "profiles").glob("*.csv")).read_text()
    assert store.begin(spec).growth == 0.0


@pytest.mark.usefixtures("virtual_time")
def test_memory_is_kept_by_kind_and_workers_on_it_are_told_what_fits(tmp_path):
    (tmp_path / "train.py").write_text("print('one')\n")
    gpu, told = OFFERS[0].gpu, []

    class Cloud(MemoryCloud):
        def _arrive(self, node_id, message):
            if isinstance(message, StartWorker):
                told.append(message.env.get(FITS))
            super()._arrive(node_id, message)

    spec = a_spec(argv=("python", "train.py"), cwd=str(tmp_path), work=6_000.0)
    forms = {(gpu, 1, 1, 64, 1): [(0.1, 0.09, 0.0)], ("K80", 1, 1, 64, 1): [(0.3, 0.2, 0.0)]}
    facts = {"memory": {(gpu, 64): 15_000_000_000}, "most": {gpu: 48, "K80": 24}}
    profiling = Profiling(forms=forms, initial=64, low=32, high=1024, batch=64, most_samples=48, **facts)
    store = ProfileStore(tmp_path / "state" / "profiles")
    store.keep(spec, profiling, WALL)
    begun = store.begin(spec)
    assert (begun.memory, begun.most) == (profiling.memory, profiling.most)
    assert (begun.fits(gpu), begun.fits("K80")) == (48, 0)

    async def live():
        async with serving(tmp_path, cloud=Cloud(OFFERS, Clock(speedup=60.0))) as server:
            job = await server.api.submit(spec)
            await phase(server.api, job["job_id"], "running")

    asyncio.run(live())
    assert set(told) == {"48"}


@pytest.mark.parametrize(
    "text",
    [
        "# " + "[" * 100_000,
        "# {}\n" + "x" * 200_000 + "," * 3,
        '# {"name": 1e999}\n',
        "\x00" * 100,
        "{head}\n{columns}\n" + "9" * 400 + ",1,64,1,0.089,0.084,0.0,0.02,0\n",
        '{head}\n{columns}\n"' + "y" * 200_000 + '"\n',
        "{head}\n{columns}\n" + "1,1,64,1,0.089,0.084,0.0,0.02,0\n" * 1_000,
        "{head}\n{columns}\n1,1,64,1,0.089,0.084,0.0,0.02," + "9" * 5_000 + "\n",
    ],
)
def test_one_file_that_nobody_can_read_stands_in_no_jobs_way(text, tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    store.keep(spec, a_profiling(), WALL)
    good = next((tmp_path / "profiles").glob("*-T4.csv")).read_text().splitlines()
    (tmp_path / "profiles" / "bad.csv").write_text(text.replace("{head}", good[0]).replace("{columns}", good[1]))
    os.mkfifo(tmp_path / "profiles" / "pipe.csv")  # to read it would be to wait for ever
    assert len(list(store.all())) == 2
    assert store.begin(spec).earlier
    with pytest.raises(BadInput, match=r"bad\.csv"):
        store.find(str(tmp_path / "profiles" / "bad.csv"))


def test_of_a_large_file_only_the_beginning_is_read(tmp_path):
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse; no memory holds it
    assert len(text_of(path)) == 1 << 20


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path, spec, monkeypatch):
    store, read = ProfileStore(tmp_path / "profiles"), []
    store.keep(spec, a_profiling(), WALL)
    monkeypatch.setattr("sublet.runtime.profiles.store.text_of", lambda path: read.append(path) or text_of(path))
    first = store.begin(spec)
    assert len(read) == 2
    assert store.begin(spec) == first
    assert len(read) == 2
    changed = next((tmp_path / "profiles").glob("*-T4.csv"))
    changed.write_text(changed.read_text().replace("0.089", "0.0891"))
    assert store.begin(spec) != first
    assert len(read) == 3


def test_two_runs_of_one_job_beside_one_another_keep_what_both_have_measured(tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    one, other = a_profiling(), a_profiling()
    one.forms = {form: told for form, told in one.forms.items() if form[1] == 1}
    other.forms = {form: told for form, told in other.forms.items() if form[1] == 2}
    store.keep(spec, one, WALL)
    store.keep(spec, other, WALL)
    t4 = next(profile for profile in store.all() if profile.gpu == "T4")
    assert [row.gpus for row in t4.rows] == [1, 2]


@pytest.mark.parametrize(("before", "now", "kept"), [("cpu", "Tesla T4", 0), ("Tesla T4", "cpu", 0), ("cpu", "cpu", 1)])
def test_what_cpus_took_that_were_called_a_gpu_is_not_believed_of_the_gpu(before, now, kept, tmp_path, spec):
    store = ProfileStore(tmp_path / "profiles")
    first = replace(a_profiling(), device=before)
    first.forms = {form: told for form, told in first.forms.items() if form[0] == "T4"}
    store.keep(spec, first, WALL)
    second = store.begin(spec)
    assert len(second.earlier) == 2
    facts = {"step_s": 0.01, "samples": 64, "compute_s": 0.009, "wait_s": 0.0, "update_s": 0.0, "device": now}
    profile = Profile(**facts, batch_initial=64, batch_low=32, batch_high=1024)
    common = {"worker_id": "w", "generation": 1, "done": 0.0, "epoch": 0, "loss": 0.0, "step_s": 0.01}
    for step in range(3):
        second.learn(Stepped(**common, step=step, global_batch=64, noise=500.0, profile=profile), "T4", 1, 1)
    assert bool(second.earlier) == bool(kept)
    store.keep(spec, second, WALL)
    (profile,) = store.all()
    assert len(profile.rows) == (2 if kept else 1)
