"""Which Python a worker finds: environments of one base are told apart, and one answer holds for every spelling."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.runtime.agent.interpreter import enter, is_environment, is_this_python, program, telling


@pytest.fixture
def venv(tmp_path):
    """As `python -m venv` lays it out: a link to the file behind our own interpreter."""
    return an_environment(tmp_path / "venv")


def an_environment(folder):
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n", encoding="utf-8")
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return folder


def test_another_environment_of_the_same_base_is_another_python(venv):
    assert is_this_python(sys.executable)
    assert not is_this_python(str(venv / "bin" / "python"))


def test_a_link_to_our_environment_is_ours(tmp_path):
    (tmp_path / "link").symlink_to(Path(sys.executable).parent.parent)
    assert is_this_python(f"{tmp_path}/link/bin/{Path(sys.executable).name}")


def test_a_name_is_what_the_path_says(venv, monkeypatch):
    monkeypatch.setenv("PATH", str(venv / "bin"))
    assert not is_this_python("python")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert is_this_python("python")
    monkeypatch.setenv("PATH", "")
    assert is_this_python("python"), "there is no other"
    assert not is_this_python("torchrun")


def test_who_enters_an_environment_finds_it_first_and_leaves_that_of_the_agents_shell(venv):
    variables = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/another", "PYTHONHOME": "/another"}
    python = str(venv / "bin" / "python")
    assert enter(python, variables) == python
    found = {"PATH": f"{venv}/bin:/usr/bin", "VIRTUAL_ENV": str(venv), "SUBLET_BIN": f"{venv}/bin"}
    assert variables == found
    enter(python, variables)
    assert variables == found, "once is enough"


def test_without_one_that_is_here_it_is_the_agents_own(tmp_path):
    variables = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/another"}
    assert enter(str(tmp_path / "gone" / "python"), variables) == sys.executable
    assert variables == {"PATH": f"{Path(sys.executable).parent}:/usr/bin"}


def test_a_python_that_no_folder_has_is_the_one_that_was_entered(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert program(("python", "-c", "pass"), "/x/python3") == ("/x/python3", "-c", "pass")
    assert program(("other", "python"), "/x/python3") == ("other", "python")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert program(("python", "x.py"), "/x/python3") == ("python", "x.py")


def test_only_an_environment_is_whole_wherever_its_folder_is_seen(venv, tmp_path):
    assert is_environment(f"{venv}/bin/python")
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    assert is_environment(f"{tmp_path}/conda/bin/python")
    assert not is_environment(f"{tmp_path}/bin/python")
    assert not is_environment("")


def said_by(setup, cwd, **variables):
    """The last words of a setup on its line."""
    ear, mouth = os.pipe()
    env = {"PATH": os.environ["PATH"], "SUBLET_CONTROL_FD": str(mouth), **variables}
    command = ["bash", "-euo", "pipefail", "-c", telling(setup, str(cwd))]
    code = subprocess.run(command, env=env, cwd=cwd, pass_fds=[mouth], check=False, timeout=60).returncode
    os.close(mouth)
    with os.fdopen(ear) as line:
        return code, line.read()


def test_a_setup_tells_what_it_has_activated_else_the_venv_that_it_made(tmp_path, venv):
    assert said_by("true", tmp_path) == (0, "")
    assert said_by(f"export PATH={venv}/bin:$PATH", tmp_path) == (0, f"{venv}/bin/python")
    own = an_environment(tmp_path / ".venv")
    assert said_by("cd /; exit 0  # it ends elsewhere", tmp_path) == (0, f"{own}/bin/python")
    assert said_by("true", tmp_path, VIRTUAL_ENV="/x") == (0, ""), "another was active: it is meant"
    assert said_by(f"export PATH={venv}/bin:$PATH", tmp_path, VIRTUAL_ENV="/x")[1] == f"{venv}/bin/python"


def test_a_setup_that_fails_fails_as_it_would(tmp_path):
    assert said_by("false; true", tmp_path)[0] == 1
    assert said_by("exit 7", tmp_path)[0] == 7
