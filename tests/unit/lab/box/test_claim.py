"""A box has names that no other has, and what a dead one left is found by them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sublet_lab.box import claim as claims
from sublet_lab.box.claim import Claim, NoBox, claim
from sublet_lab.box.image import Image
from sublet_lab.box.network import Network

DIES = """
import os, signal
from sublet_lab.box.claim import claim
from sublet_lab.box.network import Network
here = claim()
network = Network(here)
network.build()
network.cable()
print(here.number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def ours():
    try:
        here = claim()
    except NoBox as error:
        pytest.skip(str(error))
    yield here
    here.give_up()


def names():
    return {name for kind in ("link", "netns") for name in claims._names(kind)}


def test_what_a_box_left_that_was_killed_is_gone_once_another_is_there_and_nothing_else_is(ours):
    Network(ours).build()
    between = claim()  # so that the dead one's number is not the next to be had
    dead = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    number = int(dead.stdout)
    assert number != ours.number
    assert {f"sbx{number}", f"sbx{number}h1"} <= names()
    between.give_up()
    another = claim()
    try:
        assert not {f"sbx{number}", f"sbx{number}h1"} & names()
        assert f"sbx{ours.number}" in names()  # it lives
    finally:
        another.give_up()
    assert not (claims.HOME / str(number)).exists()


def test_a_name_that_only_begins_like_ours_is_not_ours():
    assert [claims._number(name) for name in ("sbx7", "sbx7h12", "sbx", "sbx7x", "asbx7", "sbx77h", "br0")] == [
        *(7, 7),
        *(-1, -1, -1, -1, -1),
    ]


def test_who_may_not_or_has_no_tools_is_told_what_is_missing(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoBox, match="root"):
        claim()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(claims.shutil, "which", lambda tool: None if tool == "unshare" else tool)
    with pytest.raises(NoBox, match="need unshare"):
        claim()


def test_a_number_that_is_given_up_leaves_nothing(ours):
    assert ours.folder.is_dir()
    Network(ours).build()
    Claim(ours.number, ours._lock).clear()
    assert f"sbx{ours.number}" not in names()
    assert not ours.folder.exists()


def test_an_image_shows_programs_and_python_and_no_folder_twice():
    paths = Image(shown=("/usr/share",)).paths()
    assert "/usr" in paths
    assert "/usr/share" not in paths  # it is in another
    assert all(not other.startswith(f"{path}/") for path in paths for other in paths)
    assert any(sys.prefix == path or sys.prefix.startswith(f"{path}/") for path in paths)
    assert "/" not in paths
