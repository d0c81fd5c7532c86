"""A run has a copy of the folder; what is big is a link to the user's own, and only what the run wrote is looked at."""

from __future__ import annotations

from sublet.runtime.rehearsal import running
from sublet.runtime.rehearsal.running import SCRATCH, copied, written


def test_what_a_run_writes_stays_in_its_copy(tmp_path):
    own = tmp_path / "own"
    (own / "src/__pycache__").mkdir(parents=True)
    (own / "train.py").write_text("print()")
    (own / "src/log.csv").write_text("a\n")
    (own / "src/__pycache__/x.pyc").write_text("")
    copy = copied(own, tmp_path / "copy")
    assert written(copy) == {}
    assert copy.linked == ()
    (copy.folder / "src/log.csv").write_text("a\nb\n")
    (copy.folder / "out").mkdir()
    (copy.folder / "out/model.pt").write_bytes(b"1")
    assert written(copy) == {"out/model.pt": b"1", "src/log.csv": b"a\nb\n"}
    assert (own / "src/log.csv").read_text() == "a\n"
    assert not (copy.folder / "src/__pycache__").exists()


def test_big_files_and_environments_are_links_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "BIG_BYTES", 10)
    own = tmp_path / "own"
    (own / ".venv/bin").mkdir(parents=True)
    (own / "data.bin").write_bytes(b"x" * 11)
    (own / "small.bin").write_bytes(b"x" * 10)
    copy = copied(own, tmp_path / "copy")
    assert set(copy.linked) == {".venv", "data.bin"}
    assert (copy.folder / "data.bin").is_symlink()
    assert (copy.folder / ".venv/bin").is_dir()
    assert not (copy.folder / "small.bin").is_symlink()
    assert written(copy) == {}


def test_no_more_is_copied_than_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MOST_BYTES", 15)
    own = tmp_path / "own"
    own.mkdir()
    for name in "abc":
        (own / name).write_bytes(b"x" * 10)
    assert len(copied(own, tmp_path / "copy").linked) == 2


def test_a_folder_that_the_script_names_beside_its_own_is_copied_too(tmp_path):
    own = tmp_path / "own"
    for folder in (own, tmp_path / "data", tmp_path / "other"):
        folder.mkdir()
        (folder / "a.txt").write_text("theirs")
    (own / "train.py").write_text('root = "../data"\nnobody = "../missing"\nhere = "../own"\n')
    copy = copied(own, tmp_path / "scratch/own")
    (copy.folder / "../data/a.txt").write_text("of the run")
    assert (tmp_path / "data/a.txt").read_text() == "theirs"
    assert sorted(each.name for each in (tmp_path / "scratch").iterdir()) == ["data", "own"]


def test_the_temporary_folder_is_copied_without_the_copies_in_it(tmp_path):
    (tmp_path / "train.py").write_text("print()")
    copy = copied(tmp_path, tmp_path / f"{SCRATCH}1/one" / tmp_path.name)
    assert [each.name for each in copy.folder.iterdir()] == ["train.py"]
