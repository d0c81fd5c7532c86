"""Keys never travel with a working directory: not from a home, and not from anywhere below it."""

from __future__ import annotations

import asyncio

import pytest

from sublet.api.sending import check_files
from sublet.errors import BadInput
from sublet.runtime.file_sync.content import Content, Fetch
from sublet.runtime.file_sync.packing import pack
from sublet.runtime.jobs.file import job_from_file
from tests.rigs.asgi import serving
from tests.rigs.story import a_spec


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    put(folder, "job.yaml", "run: python train.py\n")
    put(folder, "train.py")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def put(folder, name, text=""):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def packed(folder, **mounts):
    content = Content(folder.parent / "content")
    return {entry.path for entry in Fetch(content, pack(content, folder, mounts)).entries}


def test_a_job_file_that_lies_in_a_home_sends_nothing_of_it(home):
    job = job_from_file(home / "job.yaml")
    assert job.cwd == str(home)
    for folder in (home, home.parent):
        with pytest.raises(BadInput, match="has your home in it") as refused:
            packed(folder)
        assert "workdir" in refused.value.hint
    with pytest.raises(BadInput, match="has your home in it"):
        packed(home / "none", data=home)


@pytest.mark.parametrize(
    "name",
    [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".kube/config",
        ".config/gcloud/application_default_credentials.json",
        "below/of/it/.ssh/id_rsa",
    ],
)
def test_keys_are_refused_by_name_unless_they_are_left_out_or_asked_for(home, name):
    work = home / "work"
    put(work, "train.py")
    put(work, ".config/matplotlibrc")
    put(work, name, "key")
    with pytest.raises(BadInput, match="is never sent: it has keys of yours"):
        packed(work)
    with pytest.raises(BadInput, match="is never sent"):
        packed(home / "none", data=work)
    folder = name.rpartition("/")[0] or name
    put(work, ".subletignore", f"{folder}\n")
    assert packed(work) == {"train.py", ".config/matplotlibrc", ".subletignore"}
    assert "asked/for" in packed(work, **{"asked/for": work / name})


def test_a_home_whose_owner_has_decided_what_goes_is_sent_without_its_keys(home):
    put(home, ".ssh/id_ed25519", "key")
    put(home, ".subletignore", "notes.txt\n")
    with pytest.raises(BadInput, match="is never sent"):
        packed(home)
    put(home, ".subletignore", "/*\n!train.py\n")
    assert packed(home) == {"train.py"}
    with pytest.raises(BadInput, match="has your home in it"):
        packed(home / "none", data=home)  # where nothing is left out


def test_the_state_directory_of_any_controller_is_refused(home):
    work = home / "work"
    put(work, "train.py")
    put(work, "state/log.sqlite")
    put(work, "state/other")
    assert packed(work) == {"train.py", "state/log.sqlite", "state/other"}
    put(work, "state/identity/authority.pem", "key")
    with pytest.raises(BadInput, match="is a state directory, with the keys of its controller"):
        packed(work)


@pytest.mark.parametrize("verb", ["dry_run", "submit"])
def test_a_dry_run_refuses_what_a_submission_would(home, tmp_path, verb):
    work = home / "work"
    put(work, ".ssh/id_ed25519", "key")
    spec = a_spec(cwd=str(work))

    async def asked(elsewhere):
        async with serving(tmp_path / "state") as server:
            server.api._controller.sync.elsewhere = elsewhere
            await getattr(server.api, verb)(spec)

    asyncio.run(asked(elsewhere=False))  # nothing travels
    with pytest.raises(BadInput, match="is never sent: it has keys of yours"):
        asyncio.run(asked(elsewhere=True))
    with pytest.raises(BadInput, match="is never sent: it has keys of yours"):
        check_files(spec, tmp_path / "state")  # for a controller that does not see them
