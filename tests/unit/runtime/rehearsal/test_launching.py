"""A script is run by way of a module that notes what it writes; anything but a Python with a script is run as it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sublet.runtime.rehearsal.launching import launched
from sublet.runtime.rehearsal.report import opened_by_several
from sublet.wire.rehearsal import REHEARSAL, Cue

US = ("-m", "sublet.runtime.rehearsal.launching")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["python", "train.py", "--lr", "1"], ("python", *US, "train.py", "--lr", "1")),
        (["/usr/bin/python3.12", "-u", "-m", "pkg.train"], ("/usr/bin/python3.12", "-u", *US, "-m", "pkg.train")),
        (["python", "-c", "print()"], ("python", "-c", "print()")),
        (["bash", "-c", "python train.py"], ("bash", "-c", "python train.py")),
    ],
)
def test_a_command_goes_by_way_of_it(command, found):
    assert launched(command) == found


def test_files_that_two_workers_open_to_write_are_noted_and_dice_begin_alike(tmp_path):
    (tmp_path / "train.py").write_text(
        "import random, sys, os\n"
        "open('read.txt').read()\n"
        "open('log.csv', 'a').write(str(random.random()))\n"
        "open(f'own-{os.environ[\"SUBLET_WORKER_ID\"]}', 'w')\n"
        "open('/dev/null', 'w')\n"
        "assert sys.argv == ['train.py', '--lr', '1'] and __name__ == '__main__'\n"
    )
    (tmp_path / "read.txt").write_text("")
    cue = Cue(folder=str(tmp_path / "seen"), steps=3)
    cue.write()
    for worker in ("a", "b"):
        env = {**os.environ, REHEARSAL: cue.folder, "SUBLET_WORKER_ID": worker}
        words = launched([sys.executable, "train.py", "--lr", "1"])
        subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=60)
    assert opened_by_several(cue) == ["log.csv"]
    written = (tmp_path / "log.csv").read_text()
    half = len(written) // 2
    assert written[:half] == written[half:]
