"""What a profiling run comes to: files for the next run, also when interrupted; a fixed batch at every width."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from sublet.errors import BadInput
from sublet.perf.live.rows import Source
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.profiles.store import ProfileStore
from sublet.runtime.profiling.run import profile_script
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over
from tests.rigs.asgi import OFFERS

FIXED = (64, 0, 64)  # no range: it begins with 0
pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "train.py").write_text("from sublet import train\n")
    return JobSpec(name="net", argv=("python", "train.py"), cwd=str(tmp_path))


@pytest.fixture
def profiled(tmp_path, monkeypatch, spec):
    """A profiling run whose workers are in memory."""
    with ExitStack() as stack:

        def call(training, **asked):
            cloud = MemoryCloud(OFFERS, Clock(speedup=1.0))
            cloud.jobs["net-1"] = cloud.jobs["j-1"] = training

            def controller_from(settings, policy):
                (tmp_path / "used").write_text(settings.state_dir)
                return stack.enter_context(api_over(cloud, tmp_path / "scratch", policy))

            monkeypatch.setattr("sublet.runtime.profiling.run.controller_from", controller_from)
            return profile_script(spec, folder=tmp_path / "profiles", **asked)

        yield call


def test_an_interrupt_keeps_what_was_measured(tmp_path, spec, profiled):
    def interrupt_at_two(text):
        if "2 workers" in text:
            asyncio.current_task().cancel()  # as Ctrl-C does

    found = profiled(
        Training(steps=10**9, batches=(64, 32, 1024)), widths=[1, 2], batches=[64], seconds=600.0, tell=interrupt_at_two
    )
    assert found.interrupted
    assert [(each.width, each.batch) for each in found.seen] == [(1, 64)]
    assert found.seen[0].row.step_s == pytest.approx(0.089, rel=1e-2)  # 20 ms, 1 ms a sample, 5 ms to update
    assert found.seen[0].samples_per_s == pytest.approx(64 / 0.089, rel=1e-2)
    assert abs(found.seen[0].misfit) < 0.02
    (path,) = found.files
    assert path.parent == tmp_path / "profiles"
    begun = ProfileStore(tmp_path / "profiles").begin(spec)
    assert {(row.gpus, row.samples, row.source) for row in begun.earlier} == {(1, 64, Source.EARLIER)}


def test_a_fixed_batch_is_kept_as_a_range_of_one_under_the_kind_that_is_named(profiled):
    found = profiled(Training(steps=10**9, batches=FIXED), widths=[1], seconds=600.0, gpu="H200")
    (profile,) = found.profiles
    assert profile.gpu == "H200"
    assert profile.batches == (64, 64, 64)
    assert not any("--gpu" in note for note in found.notes)


def test_one_that_never_trained_is_refused_and_leaves_no_file(tmp_path, profiled):
    with pytest.raises(BadInput, match=r"nothing was measured in .*: boom"):
        profiled(Training(ends_with=1), widths=[1], seconds=600.0)
    assert not list((tmp_path / "profiles").glob("*"))
