"""The Python that runs a job is the one that its owner named, or had active: with real environments of one base."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import os, sys\nprint('ran in', sys.prefix, os.environ.get('X', ''))\n"


class Place:
    """A directory with a script, two environments of one base Python, and a controller of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mine, self.other = folder, folder / "mine", folder / "other"
        for each in (self.mine, self.other):
            self.make(each)
        (folder / "x.py").write_text(SHOW, encoding="utf-8")
        self.env = {**os.environ, "SUBLET_STATE": str(folder / "state")}
        for name in ("VIRTUAL_ENV", "SUBLET_SERVER", "SUBLET_TOKEN", "COLUMNS"):
            self.env.pop(name, None)

    def make(self, folder: Path) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, timeout=120)

    def sublet(self, *words: object, active: Path | None = None) -> str:
        env = self.env if active is None else {**self.env, "PATH": f"{active / 'bin'}:{self.env['PATH']}"}
        command = [sys.executable, "-m", "sublet", *map(str, words)]
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def submit(self, text: str, **facts: Path) -> str:
        path = self.folder / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return self.sublet("submit", path, "--follow", **facts)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    here = Place(tmp_path_factory.mktemp("place").resolve())
    here.sublet(
        "up", "--market", "none", "--no-budget", active=here.other
    )  # of the controller's shell nothing is meant
    yield here
    here.sublet("down")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "words",
    [
        ["python", "x.py"],
        ["python3", "x.py"],
        ["env", "X=1", "python", "x.py"],
        ["bash", "-c", "python x.py"],
        ["bash", "-c", "cd /\ncd - > /dev/null\nX=1 python x.py"],
    ],
)
def test_a_plain_python_is_that_of_the_environment_which_is_active_where_it_is_submitted(place, words):
    said = place.sublet("run", "--", *words, active=place.mine)
    assert f"python: {place.mine}/bin/python" in said
    assert f"ran in {place.mine}" in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [["OTHER/bin/python", "x.py"], ["bash", "-c", "true && OTHER/bin/python x.py"]])
def test_a_python_that_the_command_names_is_that_one(place, words):
    words = [word.replace("OTHER", str(place.other)) for word in words]
    said = place.sublet("run", "--", *words, active=place.mine)
    assert f"python: {place.other}/bin/python (named by the command)" in said
    assert f"ran in {place.other}" in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", ["python x.py", "|\n  true\n  X=1 python x.py"])
def test_a_job_file_and_its_setup_find_the_same_one(place, run):
    setup = 'python -c \'import sys; open("of-setup", "w").write(sys.prefix)\''
    said = place.submit(f"run: {run}\nsetup: |\n  {setup}\n", active=place.mine)
    assert f"python: {place.mine}/bin/python (active here)" in said
    assert f"ran in {place.mine}" in said
    assert (place.folder / "of-setup").read_text(encoding="utf-8") == str(place.mine)


@pytest.mark.timeout(600)
def test_what_setup_has_activated_is_the_one_of_every_worker(place):
    setup = f"source {place.other}/bin/activate"
    for _ in range(2):  # the second on a node where the setup has run, or not
        assert f"ran in {place.other}" in place.submit(f"run: python x.py\nsetup: {setup}\n", active=place.mine)


@pytest.mark.timeout(600)
def test_a_venv_that_setup_makes_counts_where_none_was_active(place):
    made, base = place.folder / ".venv", Path(sys.base_prefix, "bin", "python3")
    text = f"run: python x.py\nsetup: {base} -m venv --without-pip .venv\n"
    assert f"ran in {made}" in place.submit(text)
    assert f"ran in {place.mine}" in place.submit(text, active=place.mine)


@pytest.mark.timeout(600)
def test_a_script_that_imports_what_its_python_lacks_is_warned_of_at_submit(place):
    (place.folder / "session.py").write_text("from sublet import train\n", encoding="utf-8")
    said = place.sublet("run", "-d", "--", "python", "session.py", active=place.mine)
    assert f"warning: {place.mine}/bin/python has no sublet" in said
