"""A working directory by what is in it: which files travel, under which names, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import zlib

import pytest

from sublet.api.sending import check_files, send_files
from sublet.errors import BadInput
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.file_sync import packing
from sublet.runtime.file_sync.content import PART_BYTES, Content, Fetch, digest_of, entries_from, write_manifest
from sublet.runtime.file_sync.packing import pack, pack_texts, packed_names, travelling_files
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.spec import JobSpec, spec_from_json, spec_to_json
from tests.rigs.in_memory_api import served

RULES = """
*.log
!keep.log
/top.txt
data/
**/deep/*.bin
"""
TREE = {
    "train.py": "print(1)",
    "a.log": "",
    "keep.log": "",
    "top.txt": "",
    "sub/top.txt": "",
    "sub/b.log": "",
    "sub/.gitignore": "!b.log\nown.txt\n",
    "sub/own.txt": "",
    "data/x.csv": "",
    "sub/data/y.csv": "",
    "sub/deep/z.bin": "",
    "sub/deep/z.txt": "",
}
WRITTEN = "run: python train.py\nsecrets: {MYSECRET: hunter3}\n"


@pytest.fixture
def folder(tmp_path):
    def make(files):
        for name, text in files.items():
            path = tmp_path / "work" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path / "work"

    return make


@pytest.fixture
def content(tmp_path):
    return Content(tmp_path / "content")


def names(folder, **knobs):
    return {name for name, _ in travelling_files(folder, **knobs)}


def test_the_same_files_are_left_out_as_by_git(folder):
    work = folder({**TREE, ".gitignore": RULES})
    if shutil.which("git") is None:
        pytest.skip("there is no git to compare with")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    asked = ["git", "-C", str(work), "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert names(work) == set(seen)
    assert {"keep.log", "sub/b.log", "sub/top.txt"} < set(seen)


def test_subletignore_has_the_last_word_and_a_named_folder_is_whole(folder):
    work = folder({**TREE, ".gitignore": RULES, ".subletignore": "!a.log\n*.py\n", "__pycache__/x.pyc": ""})
    found = names(work)
    assert "a.log" in found
    assert not found & {"train.py", "__pycache__/x.pyc", "data/x.csv"}
    assert names(work / "data", whole=True) == {"x.csv"}
    assert names(work, whole=True) >= TREE.keys()


def test_the_state_directory_does_not_travel(folder):
    work = folder({"train.py": "", "state/log.sqlite": "", "state/secrets/job": "key"})
    assert names(work, besides=[work / "state"]) == {"train.py"}


def test_a_link_is_what_it_leads_to_and_one_out_of_the_folder_is_refused_by_name(folder, tmp_path):
    work = folder({"train.py": "x", "runs/3/a.txt": "y"})
    (work / "latest").symlink_to("runs/3")
    (work / "main.py").symlink_to("train.py")
    assert names(work) == {"train.py", "main.py", "runs/3/a.txt", "latest/a.txt"}
    (tmp_path / "secret").write_text("s")
    (work / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(BadInput, match=r"work/out: is a link that leads out"):
        names(work)
    (work / "out").unlink()
    (work / "gone").symlink_to("nothing")
    with pytest.raises(BadInput, match=r"work/gone: is a link that leads nowhere"):
        names(work)
    (work / "gone").unlink()
    (work / "runs" / "round").symlink_to("..")
    with pytest.raises(BadInput, match=r"runs/round: is a link to a folder that it is in"):
        names(work)


def test_a_link_to_itself_leads_nowhere_and_is_left_out_where_it_is_ignored(folder, content):
    work = folder({"train.py": "x"})
    (work / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match=r"work/loop: is a link that leads nowhere"):
        names(work)
    with pytest.raises(BadInput, match=r"work/loop: cannot be read"):
        pack(content, work.parent / "none", {"in": work / "loop"})
    folder({".subletignore": "loop\n"})
    assert names(work) == {"train.py", ".subletignore"}


def test_what_is_too_large_is_refused_and_the_largest_are_named(folder, content, monkeypatch):
    work = folder({"train.py": "x", "weights.bin": "w" * 3000, "data.bin": "d" * 2000})
    monkeypatch.setattr(packing, "MOST_BYTES", 4000)
    with pytest.raises(BadInput, match=r"the largest are weights\.bin .*, data\.bin .*, train\.py") as refusal:
        pack(content, work, {})
    assert ".subletignore" in refusal.value.hint
    monkeypatch.setattr(packing, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(packing, "MOST_FILES", 2)
    with pytest.raises(BadInput, match="3 files, and at most 2"):
        pack(content, work, {})
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    monkeypatch.setattr(packing, "LARGEST_FILE", 2999)
    with pytest.raises(BadInput, match="a file of"):
        pack(content, work, {})
    monkeypatch.setattr(packing, "LARGEST_FILE", 3000)
    assert pack(content, work, {})


def test_the_same_files_have_the_same_name_and_only_what_changed_is_new(folder, content):
    work = folder({"train.py": "x", "big.txt": "abc" * PART_BYTES})
    first = pack(content, work, {})
    kept = set(content.folder.iterdir())
    assert pack(content, work, {}) == first
    assert set(content.folder.iterdir()) == kept
    (work / "train.py").write_text("y")
    assert pack(content, work, {}) != first
    assert len(set(content.folder.iterdir()) - kept) == 3, "the file, the manifest and its root"
    (work / "train.py").write_text("x")
    (work / "train.py").chmod(0o755)
    assert pack(content, work, {}) != first, "the mode is a part of it"


@pytest.mark.parametrize(
    ("here", "there"),
    [(0o600, 0o600), (0o400, 0o600), (0o640, 0o640), (0o700, 0o700), (0o666, 0o644), (0o777, 0o755), (0o4755, 0o755)],
)
def test_a_file_is_no_wider_on_a_node_than_here_and_written_by_its_owner_alone(folder, content, here, there):
    work = folder({"key": "secret"})
    (work / "key").chmod(here)
    (entry,) = Fetch(content, pack(content, work, {})).entries
    assert oct(entry.mode) == oct(there)


def test_a_manifest_of_before_modes_is_read_as_it_was_and_named_as_it_was(content):
    text = b'[["run.sh",1,0],["train.py",0,0]]'
    entries = entries_from(text)
    assert [(entry.path, oct(entry.mode)) for entry in entries] == [("run.sh", "0o755"), ("train.py", "0o644")]
    assert write_manifest(content, entries) == content.add(content.add(text).encode())


def test_mounts_are_where_they_are_asked_for_and_win_over_the_folder(folder, content, tmp_path):
    work = folder({"train.py": "x", "data/old.csv": "old", "data/a.csv": "old"})
    other = tmp_path / "other"
    (other / "in").mkdir(parents=True)
    (other / "a.csv").write_text("new")
    (other / "in" / "b.csv").write_text("b")
    (other / ".gitignore").write_text("*\n")
    root = pack(content, work, {"./data": other, "~/key": other / "a.csv", "/corpus": other / "in"})
    entries = {entry.path: entry for entry in Fetch(content, root).entries}
    expected = {"train.py", "data/old.csv", "data/a.csv", "data/in/b.csv", "data/.gitignore", "~/key", "/corpus/b.csv"}
    assert entries.keys() == expected
    assert content.data(entries["data/a.csv"].parts[0]) == b"new"


def test_a_folder_that_is_not_here_is_the_nodes_own(content, tmp_path):
    (tmp_path / "a.csv").write_text("a")
    assert pack(content, tmp_path / "none", {}) == ""
    assert pack(content, tmp_path / "none", {"in.csv": tmp_path / "a.csv"})


def test_a_part_that_is_not_what_its_name_says_is_not_there(content):
    digest = content.add(b"hello")
    assert content.data(digest) == b"hello"
    packed = content.packed(digest)
    path = content.folder / digest
    path.chmod(0o600)
    path.write_bytes(b"rot")
    assert content.data(digest) is None
    assert content.lacks([digest]) == [digest]
    assert not content.take(digest, b"rot")
    assert not content.take(digest_of(b"other"), packed)
    assert not content.take("../../etc/passwd", packed)
    assert content.take(digest, packed)
    assert content.data(digest) == b"hello"


def test_what_a_crash_has_left_half_written_is_written_anew_when_it_is_packed_again(content):
    digest = content.add(b"hello")
    (content.folder / digest).write_bytes(b"hel")
    again = Content(content.folder)  # of the next controller, which knows its name
    assert again.add(b"hello") == digest
    assert again.data(digest) == b"hello"


def test_code_is_packed_and_what_cannot_be_is_hardly_longer(content):
    code, noise = b"def step(batch): ...\n" * 1000, hashlib.shake_256(b"noise").digest(PART_BYTES)
    for data, most in ((code, len(code) // 10), (noise, PART_BYTES + 64), (b"x", 16)):
        digest = content.add(data)
        assert len(content.packed(digest)) <= most
        assert content.data(digest) == data


def test_no_part_unpacks_to_more_than_a_part(content):
    bomb = b"\0" * (PART_BYTES + 1)
    assert not content.take(digest_of(bomb), zlib.compress(bomb))
    assert content.take(digest_of(bomb[1:]), zlib.compress(bomb[1:]))


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/a/../../x"])
def test_no_manifest_reaches_above_its_folder(content, path):
    fetch = Fetch(content, pack_texts(content, {path: b"x"}))
    assert "could be called" in fetch.why_not
    assert not fetch.here


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


def noted(folder, script, *, elsewhere=True, **more):
    (folder / "train.py").write_text(script)
    spec = JobSpec(**{"name": "job", "argv": ("python", "train.py"), "cwd": str(folder), **more})
    carrier = FileSync(folder, files=FILES, rng=RNG, engine=None, logs=None, elsewhere=elsewhere)

    async def no_buckets(spec, *, make):
        return []

    carrier.buckets = no_buckets
    return asyncio.run(carrier.check(spec))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from sublet.integrations.tensorboard import TensorBoard", ["TensorBoard"]),
        ("import sublet.integrations.wandb", ["Wandb"]),
        ("if x:\n    from sublet.integrations import mlflow, wandb as w, tensorboard", ["TensorBoard", "Wandb"]),
        ("from sublet.integrations.mlflow import Mlflow", []),
        ("from torch.utils.tensorboard import SummaryWriter", []),
        ("# from sublet.integrations.wandb import Wandb", []),
    ],
)
def test_what_keeps_files_is_named(line, names, tmp_path):
    assert [note.split()[0] for note in noted(tmp_path, f"import torch\n{line}\n")] == names


WANDB = "from sublet.integrations.wandb import Wandb\n"


def test_nothing_is_said_where_files_last(tmp_path):
    assert noted(tmp_path, WANDB)
    assert not noted(tmp_path, WANDB, elsewhere=False)
    assert not noted(tmp_path, WANDB, mounts={"/runs": "s3://bucket/runs"}, kept_mounts=("/runs",))
    assert not noted(tmp_path, WANDB, argv=("python", "other.py"))
    assert not noted(tmp_path, WANDB, code="a" * 64)  # who sent it has looked
