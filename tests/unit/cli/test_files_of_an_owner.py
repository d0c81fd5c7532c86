"""Files of a job are looked at on the machine of whoever submits it, never on that of an anchor."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from sublet.api.sending import check_files
from sublet.cli.main import run
from sublet.errors import InvalidValue
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_host.idle import KEEPER
from sublet.runtime.file_sync.content import Content
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.settings import Settings
from tests.rigs.in_memory_api import served


@pytest.fixture
def job(tmp_path):
    """The path of a job file with a mount that lies beside its folder."""
    (tmp_path / "work").mkdir()
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "weights").write_text("w")
    (tmp_path / "work" / "train.py").write_text("from sublet.integrations.wandb import Wandb\n")
    path = tmp_path / "work" / "job.yaml"
    path.write_text("run: python train.py\nfile_mounts: {/opt/q: ../ck}\n")
    return path


@pytest.fixture
def anchor(tmp_path):
    carrier = FileSync(tmp_path / "there", files=FILES, rng=RNG, engine=None, logs=None, elsewhere=True)
    carrier.is_owners = False
    return carrier


def test_a_dry_run_asks_the_anchor_for_no_path_of_ours(job, anchor, tmp_path):
    asked = check_files(job_from_file(job), tmp_path / "state")
    assert [note.split()[0] for note in asked.notes] == ["Wandb"]
    shutil.rmtree(tmp_path / "ck")  # over there it is not
    assert asyncio.run(anchor.look(asked)) == []
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("verb", ["look", "pack"])
def test_an_anchor_looks_for_nothing_on_its_own_disk(job, anchor, verb):
    with pytest.raises(InvalidValue, match=r"file_mounts\./opt/q.*of the machine that submits the job"):
        asyncio.run(getattr(anchor, verb)(job_from_file(job)))
    job.write_text("run: python train.py\n")
    asyncio.run(getattr(anchor, verb)(spec := job_from_file(job)))  # of the nodes' own folder of that name
    if verb == "pack":
        assert asyncio.run(anchor.pack(spec)) == spec


def test_a_controller_that_is_kept_is_on_an_anchor(tmp_path):
    for name, kept in (("laptop", False), ("anchor", True)):
        (tmp_path / name).mkdir()
        if kept:
            (tmp_path / name / KEEPER).touch()
        api = controller_from(Settings(state_dir=str(tmp_path / name)))
        assert api._controller.sync.is_owners is not kept


def test_whoever_is_logged_in_on_an_anchor_brings_files_as_others_do(job, tmp_path, monkeypatch, capsys):
    asked = []
    with served(tmp_path / "anchor") as there:
        monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
        for verb in ("submit", "dry_run"):
            monkeypatch.setattr(there.api, verb, _listening(getattr(there.api, verb), asked))
        for kept in (False, True):
            if kept:
                (there.state.path / KEEPER).touch()
            assert run(["submit", str(job), "--dry-run"]) == 0, capsys.readouterr().err
            assert run(["submit", str(job)]) == 0, capsys.readouterr().err
        assert Content(there.state.path / "anchor" / "content").data(asked[3].code)
    assert [bool(spec.code) for spec in asked] == [False, False, True, True]


def _listening(answer, asked):
    async def listen(spec, **facts):
        asked.append(spec)
        return await answer(spec, **facts)

    return listen
