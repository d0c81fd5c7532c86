"""Which Python a job is submitted with, by the PATH of its owner's shell, and what its owner is told of it."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest

from sublet.runtime.jobs.command import python_lines, uses_sdk, with_python
from sublet.runtime.jobs.spec import JobSpec


def a_spec(cwd, *argv, **facts):
    return JobSpec(name="j", argv=argv or ("python", "x.py"), cwd=str(cwd), **{"sdk": False, **facts})


@pytest.fixture
def python(tmp_path):
    """Makes an executable that answers as an interpreter of that path would; the folder that it is in."""

    def make(name, *, says=None, active=True, has_sublet=True, called="python"):
        path = tmp_path / name / called
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = json.dumps([str(says or path), active, has_sublet])
        path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path.parent

    return make


def test_the_first_on_the_path_is_active_and_says_itself_where_it_is(tmp_path, python):
    first, second = python("shims", says="/opt/env/bin/python"), python("second")
    assert with_python(a_spec(tmp_path), {"PATH": f"{first}:{second}"}).python == "/opt/env/bin/python"


def test_a_python3_will_do_and_without_either_the_nodes_own_does(tmp_path, python):
    folder = python("three", called="python3")
    assert with_python(a_spec(tmp_path), {"PATH": str(folder)}).python == f"{folder}/python3"
    assert with_python(a_spec(tmp_path), {}).python == ""


def test_the_systems_python_is_left_where_the_script_needs_sublet_and_it_has_none(tmp_path, python):
    bare, venv = python("bare", active=False, has_sublet=False), python("venv", active=True, has_sublet=False)
    assert with_python(a_spec(tmp_path, sdk=True), {"PATH": str(bare)}).python == ""
    assert with_python(a_spec(tmp_path, sdk=False), {"PATH": str(bare)}).python == f"{bare}/python"
    assert with_python(a_spec(tmp_path, sdk=True), {"PATH": str(venv)}).python == f"{venv}/python"


def test_a_container_has_its_own_and_what_was_said_before_stays(tmp_path, python):
    folder = python("some")
    assert with_python(a_spec(tmp_path, image="x"), {"PATH": str(folder)}).python == ""
    assert with_python(a_spec(tmp_path, python="/x/python"), {"PATH": str(folder)}).python == "/x/python"


@pytest.mark.parametrize(
    "argv",
    [
        ("PYTHON", "x.py"),
        ("env", "X=1", "PYTHON", "x.py"),
        ("bash", "-euo", "pipefail", "-c", "cd /\nX=1 PYTHON x.py && true"),
    ],
)
def test_a_path_in_the_command_is_told_as_named(tmp_path, python, argv):
    named, active = python("named", has_sublet=False), python("active")
    argv = tuple(word.replace("PYTHON", f"{named}/python") for word in argv)
    assert python_lines(a_spec(tmp_path, *argv, python=f"{active}/python")) == [
        f"python: {named}/python (named by the command)"
    ]
    (warning,) = python_lines(a_spec(tmp_path, *argv, sdk=True))[1:]
    assert warning.startswith(f"warning: {named}/python has no sublet")


def test_a_plain_python_is_told_as_the_active_one_or_that_of_the_nodes(tmp_path, python):
    active = python("active")
    assert python_lines(a_spec(tmp_path, python=f"{active}/python", sdk=True)) == [
        f"python: {active}/python (active here)"
    ]
    for facts, what in (
        ({"setup": ". venv/bin/activate"}, "setup"),
        ({"env": {"PATH": "/x"}}, "PATH in envs"),
        ({"argv": ("bash", "-c", ". venv/bin/activate && python x.py")}, "a line of the command"),
        ({"argv": ("env", "PATH=/x", "python", "x.py")}, "a line of the command"),
    ):
        spec = replace(a_spec(tmp_path, python=f"{active}/python"), **facts)
        assert python_lines(spec) == [f"python: {active}/python (active here, unless {what} chooses another)"]
    assert python_lines(a_spec(tmp_path)) == ["python: that of its nodes, or what setup makes there"]
    assert python_lines(a_spec(tmp_path, image="x")) == ["python: that of the image"]


@pytest.mark.parametrize(
    "argv",
    [
        ("env", "X=1", "python", "train.py"),
        ("bash", "-c", "python train.py"),
        ("/bin/sh", "-c", "python -m train"),
        ("bash", "-euo", "pipefail", "-c", "python prepare.py\nX=1 python train.py --lr 1"),
        ("env", "X=1", "bash", "-c", "exec python train.py"),
    ],
)
def test_a_session_is_seen_through_env_and_shells(tmp_path, argv):
    (tmp_path / "prepare.py").write_text("print('hello')\n", encoding="utf-8")
    (tmp_path / "train.py").write_text("from sublet import train\n", encoding="utf-8")
    assert uses_sdk(argv, str(tmp_path))


def test_a_shell_without_a_session_opens_none(tmp_path):
    (tmp_path / "prepare.py").write_text("print('hello')\n", encoding="utf-8")
    assert not uses_sdk(("bash", "-c", "python prepare.py; echo 'python train.py"), str(tmp_path))
