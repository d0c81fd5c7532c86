"""A controller goes nowhere without what its jobs need: it takes them along, or is refused before anything is paid."""

from __future__ import annotations

import json
import shutil
import tarfile

import pytest
import torch

from sublet.cli.main import run
from sublet.cli.work import controller_process, hosted
from sublet.cli.work.copying import commit_step
from sublet.cli.work.taking_along import take_along
from sublet.machine.files import FILES
from sublet.runtime.controller.files.checkpoints import Anchor
from sublet.runtime.controller_host import parcel
from sublet.runtime.file_sync.content import Content, Fetch
from sublet.runtime.jobs.spec import JobSpec, spec_from_json, spec_to_json
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import Store
from sublet.train.checkpoint.checkpoints import Checkpoints, newest

LOCAL, AWS = (Settings(state_dir="/state", provider=name) for name in ("local", "aws"))


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('trains')")
    return folder


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def add_jobs(state, workdir, *outcomes, **facts):
    store = Store(state / "log.sqlite")
    store.append(1.0, json.dumps({"event": {"type": "NodeReady"}, "actions": []}))
    for number, outcome in enumerate(outcomes):
        spec = JobSpec(**{"name": f"long-{number}", "argv": ("python", "train.py"), "cwd": str(workdir)} | facts)
        store.add_job(f"long-{number}", f"key-{number}", json.dumps(spec_to_json(spec, secrets=False)))
        store.change_job(f"long-{number}", facts=json.dumps({"outcome": outcome}))
    store.close()


def spec_of(state, job_id):
    store = Store(state / "log.sqlite")
    ((_, text, _),) = store.jobs(job_id)
    store.close()
    return spec_from_json(json.loads(text))


@pytest.fixture
def begun(state, workdir, monkeypatch):
    """Commands in a state directory of a provider whose jobs are given by outcome; which of them came through."""

    def begin(provider, outcomes, **facts):
        monkeypatch.setenv("SUBLET_STATE", str(state))
        (state / "settings.json").write_text(settings_to_json(Settings(state_dir=str(state), provider=provider)))
        add_jobs(state, workdir, *outcomes, **facts)
        done = []

        def stop(*_, **__):
            done.append("paid or stopped")
            raise KeyboardInterrupt

        monkeypatch.setattr(hosted, "raise_host", stop)
        monkeypatch.setattr(controller_process, "start", stop)
        monkeypatch.setattr(controller_process, "stop", stop)
        return done

    return begin


@pytest.mark.parametrize("words", ["move --to aws", "up --on aws", "up --provider aws"])
@pytest.mark.parametrize(
    ("provider", "outcomes", "facts", "why"),
    [
        ("local", ["finished", ""], {}, ""),
        ("local", ["finished", ""], {"cwd": "/gone"}, "its working directory /gone is not here"),
        ("local", ["finished", ""], {"checkpoint_dir": "/data/ck"}, "its checkpoints are in /data/ck (checkpoint.uri)"),
        ("local", ["finished", ""], {"checkpoint_dir": "s3://bucket/ck"}, ""),
        ("local", ["finished", "cancelled", "failed"], {"cwd": "/gone"}, ""),
        ("local", [], {}, ""),
        ("aws", [""], {"cwd": "/gone"}, ""),
    ],
)
def test_jobs_that_cannot_go_along_are_named_before_anything_is_stopped(
    begun, capsys, words, provider, outcomes, facts, why
):
    done = begun(provider, outcomes, **facts)
    code = run(words.split())
    assert (code != 2, bool(done)) == (not why, not why)
    told = capsys.readouterr().err
    assert (f"long-1 has not ended, and cannot go along: {why}" in told) == bool(why)
    assert ("'sublet cancel long-1', then change, and 'sublet submit' it again" in told) == bool(why)
    assert "long-0" not in told


def test_files_that_are_too_large_to_travel_are_named_with_their_job(begun, workdir, capsys, monkeypatch):
    monkeypatch.setattr("sublet.runtime.file_sync.packing.LARGEST_FILE", 4)
    assert not begun("local", [""])
    assert run(["move", "--to", "aws"]) == 2
    told = capsys.readouterr().err
    assert "long-0 has not ended, and cannot go along" in told
    assert "the largest are train.py" in told


def test_one_that_stays_with_its_provider_goes_on(begun):
    done = begun("local", [""], cwd="/gone")
    run(["up"])
    assert done


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"cwd": "/gone"}, "/gone is not here"), ({"image": "x", "sdk": False}, "it has an image"), ({}, "")],
)
def test_on_the_way_back_it_is_the_same(begun, capsys, facts, why):
    done = begun("aws", [""], **facts)
    code = run(["up", "--provider", "local"])
    assert (code == 2, bool(done)) == (bool(why), not why)
    assert why in capsys.readouterr().err


def test_one_that_was_carried_though_it_names_a_directory_would_not_find_it_at_home(begun, state, tmp_path, capsys):
    done = begun("aws", [""], checkpoint_dir="/data/ck")
    with Checkpoints(tmp_path / "node", writer="w", generation=1) as checkpoints:
        checkpoints.save(10, {"x": torch.zeros(3)}, {}).wait()
    commit_step(Anchor(state / "checkpoints" / "long-0", FILES), tmp_path / "node", 10, keep=1)
    assert run(["up", "--provider", "local"]) == 2
    assert not done
    assert "its checkpoints were carried here, and here it would look for them in /data/ck" in capsys.readouterr().err
    shutil.rmtree(state / "checkpoints")
    run(["up", "--provider", "local"])
    assert done, "on nodes that saw it nothing was carried"


def test_a_job_goes_along_with_its_files_and_its_newest_checkpoint_and_comes_back_with_another(state, workdir):
    add_jobs(state, workdir, "finished", "")
    here, told = state / "jobs" / "long-1" / "checkpoints", []
    with Checkpoints(here, writer="w", generation=4) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, {"x": torch.full((1000,), float(step))}, {}).wait()
    take_along(state, LOCAL, "aws", told.append)
    assert told == ["long-1 goes along, from its checkpoint 20"]
    assert spec_of(state, "long-0").code == ""
    fetch = Fetch(Content(state / "content"), spec_of(state, "long-1").code)
    assert (fetch.here, [entry.path for entry in fetch.entries]) == (True, ["train.py"])
    anchor = Anchor(state / "checkpoints" / "long-1", FILES)
    (commit,) = anchor.head.commits
    assert (commit.step, commit.generation, anchor.is_whole(commit)) == (20, 4, True)
    assert newest(here).step == 20, "whoever stays after all has lost nothing"

    shutil.rmtree(here)
    with Checkpoints(here, writer="w", generation=1) as checkpoints:  # it was here before, and began anew
        checkpoints.save(5, {"x": torch.zeros(1)}, {}).wait()
    take_along(state, AWS, "local", told.append)
    assert told[1:] == ["long-1 goes along, from its checkpoint 20"]
    loaded = newest(here)
    assert loaded.step == 20
    assert torch.equal(loaded.state["x"], torch.full((1000,), 20.0))

    shutil.rmtree(here)
    with Checkpoints(here, writer="w", generation=9) as checkpoints:  # it was told to start over
        checkpoints.save(7, {"x": torch.zeros(1)}, {}).wait()
    take_along(state, LOCAL, "aws", told.append)
    assert Anchor(state / "checkpoints" / "long-1", FILES).head.newest.step == 7


def test_what_a_script_without_the_sdk_has_saved_goes_along_as_a_whole(state, workdir):
    add_jobs(state, workdir, "", sdk=False)
    here, told = state / "jobs" / "long-0" / "checkpoints", []
    (here / "in").mkdir(parents=True)
    (here / "in" / "model.pt").write_bytes(b"weights" * 100_000)
    take_along(state, LOCAL, "aws", told.append)
    shutil.rmtree(here)
    take_along(state, AWS, "local", told.append)
    assert told == ["long-0 goes along"] * 2
    assert {path.name: path.read_bytes() for path in here.rglob("*.pt")} == {"model.pt": b"weights" * 100_000}


def test_a_job_that_has_saved_nothing_goes_along_from_its_beginning(state, workdir):
    add_jobs(state, workdir, "")
    told = []
    take_along(state, LOCAL, "ssh", told.append)
    assert told == ["long-0 goes along, from its beginning: it has saved nothing"]
    take_along(state, LOCAL, "local", told.append)
    take_along(state, AWS, "ssh", told.append)
    assert len(told) == 1


def test_a_job_file_with_secrets_in_it_does_not_go_along(state, workdir):
    (workdir / "job.yaml").write_text("secrets: {KEY: hunter3}")
    add_jobs(state, workdir, "", unsent=(str(workdir / "job.yaml"),))
    take_along(state, LOCAL, "aws", print)
    files = Fetch(Content(state / "content"), spec_of(state, "long-0").code).entries
    assert [entry.path for entry in files] == ["train.py"]


def test_a_checkpoint_is_not_sent_twice(state, workdir, tmp_path):
    add_jobs(state, workdir, "")
    here = state / "jobs" / "long-0" / "checkpoints"
    here.mkdir(parents=True)
    other = state / "jobs" / "other" / "checkpoints" / "kept.bin"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of a job that has nothing carried")
    with Checkpoints(here, writer="w", generation=1) as checkpoints:
        checkpoints.save(3, {"x": torch.zeros(10)}, {}).wait()
    take_along(state, LOCAL, "aws", print)
    sent = tmp_path / "sent"
    sent.write_bytes(b"".join(parcel.pack_state(state)))
    with sent.open("rb") as file, tarfile.open(fileobj=parcel.Arriving(file), mode="r|") as archive:
        names = archive.getnames()
    assert "checkpoints/long-0/HEAD" in names
    assert "jobs/other/checkpoints/kept.bin" in names
    assert not [name for name in names if name.startswith("jobs/long-0/checkpoints/")]
