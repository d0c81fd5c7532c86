"""Secrets that lie in a working directory: the job file stays, and what looks like a key is named at submit."""

from __future__ import annotations

import asyncio

import pytest

from sublet.api.sending import check_files, send_files
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.fetching import Fetch
from sublet.runtime.file_sync.packing import packed_names
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.serialize import spec_from_json, spec_to_json
from tests.rigs.in_memory_api import served

WRITTEN = "run: python train.py\nsecrets: {MYSECRET: hunter3}\n"


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("")
    return tmp_path / "work"


def a_job(work, text, **given):
    (work / "job.yaml").write_text(text)
    return spec_from_json(spec_to_json(job_from_file(work / "job.yaml", **given), secrets=True))  # as it is stored


def by_the_controller(spec, folder):
    """(files, notes) where the controller is on the machine of whoever submits; a dry run says the same."""
    carrier = FileSync(folder / "state", files=FILES, rng=RNG, engine=None, logs=None, elsewhere=True)
    packed = asyncio.run(carrier.pack(spec))
    assert tuple(asyncio.run(carrier.look(spec))) == packed.notes
    return set(packed_names(carrier.content, packed.code)), packed.notes


def by_the_owner(spec, folder):
    """... and where it is on an anchor."""
    with served(folder / "anchor") as there:
        sent, _ = send_files(there.client, spec, folder / "state")
        assert check_files(spec, folder / "state").notes == sent.notes
        content = there.api.parts._content
        assert Fetch(content, sent.code).here
        assert not any(b"hunter3" in (content.data(path.name) or b"") for path in content.folder.iterdir())
        assert not any(
            b"hunter3" in (Content(folder / "state" / "anchor" / "content").data(path.name) or b"")
            for path in (folder / "state" / "anchor" / "content").iterdir()
        )
        return {entry.path for entry in Fetch(content, sent.code).entries}, sent.notes


WAYS = pytest.mark.parametrize("way", [by_the_controller, by_the_owner])


@WAYS
def test_a_job_file_with_secrets_written_in_it_stays_and_that_is_said(work, tmp_path, way):
    (work / "again.yaml").symlink_to("job.yaml")
    names, notes = way(a_job(work, WRITTEN + "file_mounts: {/code: .}\n"), tmp_path)
    assert names == {"train.py", "/code/train.py"}
    assert [note.split(":")[0] for note in notes] == ["job.yaml stays on this machine"]


@WAYS
def test_a_job_file_that_names_secrets_of_the_environment_travels(work, tmp_path, way):
    spec = a_job(work, "run: python train.py\nsecrets: {MYSECRET: }\n", environment={"MYSECRET": "hunter3"})
    assert way(spec, tmp_path) == ({"train.py", "job.yaml"}, ())


def test_nothing_is_said_of_a_job_file_that_lies_elsewhere(work, tmp_path):
    (tmp_path / "job.yaml").write_text(f"workdir: work\n{WRITTEN}")
    assert by_the_controller(job_from_file(tmp_path / "job.yaml"), tmp_path) == ({"train.py"}, ())


@WAYS
def test_what_may_be_a_key_is_named_unless_it_is_left_out_or_asked_for(work, tmp_path, way):
    for name in (".env", "sub/id_rsa", "tls.PEM", ".env.example", "id_rsa.pub", "keys.py"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("k")
    (work / ".subletignore").write_text("job.yaml\n")
    run = "run: python train.py\n"
    names, notes = way(a_job(work, run), tmp_path)
    assert {".env", "sub/id_rsa", "tls.PEM"} < names
    (note,) = notes
    assert note.startswith("warning: .env, sub/id_rsa, tls.PEM may hold keys")
    assert ".subletignore" in note
    (work / ".subletignore").write_text(".env\nid_rsa\n*.PEM\n")
    assert way(a_job(work, f"{run}file_mounts: {{~/.env: .env}}\n"), tmp_path / "again")[1] == ()
    assert "in/id_rsa" in way(a_job(work, f"{run}file_mounts: {{in: sub}}\n"), tmp_path / "more")[1][0]


def test_of_many_that_may_be_keys_a_few_are_named(work, tmp_path):
    for number in range(8):
        (work / f"{number}.key").write_text("k")
    ((note,),) = by_the_controller(a_job(work, "run: python train.py\n"), tmp_path)[1:]
    assert "4.key and 3 more may" in note
