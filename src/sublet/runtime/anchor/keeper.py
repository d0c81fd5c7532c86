"""Keeps the controller of an anchor running, and says at EC2 that the anchor is wanted: `keeper STATE INSTANCE REGION`.

The controller is started again where it was killed. It is not where it ended by itself, nor where it does not live for
a minute, five times in a row. When the purse is spent and nothing is rented, the machine is stopped. Once nobody keeps
the controller, nobody renews the tag, and `sublet gc` calls the anchor an orphan.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sublet.machine.remote import open_uri
from sublet.machine.wall import WALL, Wall
from sublet.runtime.anchor.backup import Backup, place_of
from sublet.runtime.anchor.kept_checkpoints import CheckpointCopies
from sublet.runtime.anchor.record import FENCED
from sublet.runtime.anchor.spent import is_spent
from sublet.runtime.home import home_of
from sublet.runtime.providers.aws.build import server_of
from sublet.runtime.providers.aws.calls import client_maker
from sublet.runtime.providers.aws.config import config_path, read_config
from sublet.runtime.providers.aws.fleet import EXPIRES_S
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, expiry_tag

__all__ = ["Verdict", "after", "main"]

COMMAND = (sys.executable, "-m", "sublet.api.main")
STALE = 75  # another controller has the store
SHORT_S = 60.0
MOST_SHORT = 5
PAUSE_S = 5.0
RENEW_S = EXPIRES_S / 4
BACKUP_S = 10.0
SELDOM = 20  # a chore that takes long is done more seldom: a twentieth of the time at most
SPENT_S = 60.0
LOOK_S = 1.0

Verdict = tuple[bool, int]  # (start it again, short lives in a row)


def after(code: int, lived_s: float, short: int, *, fenced: bool) -> Verdict:
    """What follows from the end of a controller."""
    short = short + 1 if lived_s < SHORT_S else 0
    again = code not in (0, STALE) and not fenced and short < MOST_SHORT
    return again, short


def main(words: list[str], wall: Wall = WALL) -> None:
    """Until the controller has ended for good."""
    folder, instance, region = Path(words[0]), words[1], words[2]
    lock = (folder / "keeper.lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one of them; whoever comes second ends here
    if (folder / "credentials.env").is_file():  # what a laptop has sent, because its owner said so
        os.environ.update(line.partition("=")[::2] for line in (folder / "credentials.env").read_text().splitlines())
    config = read_config(config_path(folder))
    client = client_maker(config.endpoint_url)("ec2", region)
    chores = [Chore(RENEW_S, partial(_renew, client, folder, instance, wall))]
    spent = Chore(SPENT_S, partial(is_spent, folder), due_s=wall.monotonic() + SPENT_S)
    if config.anchor_backup:
        place = place_of(config.anchor_backup, server_of(folder))
        chores.append(Chore(BACKUP_S, Backup(folder, place).write))
        threading.Thread(target=_copy_checkpoints, args=(folder, place), daemon=True).start()
    again, short = not (folder / FENCED).exists(), 0
    while again:
        began_s = wall.monotonic()
        with (folder / "controller.log").open("ab") as log:
            child = subprocess.Popen([*COMMAND, str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - ourselves
        code = _watch(child, [*chores, spent], wall)
        if spent.found:
            _turn_off()
            return
        again, short = after(code, wall.monotonic() - began_s, short, fenced=(folder / FENCED).exists())
        print(f"the controller ended with {code}; {'again' if again else 'for good'}", flush=True)  # noqa: T201 - its log
        if again:
            threading.Event().wait(PAUSE_S)


@dataclass(slots=True)
class Chore:
    """Something to do every so often; it must not end the keeper."""

    every_s: float
    do: Callable[[], object]
    due_s: float = 0.0
    found: object = None  # what it answered last


def _watch(child: subprocess.Popen[bytes], chores: Sequence[Chore], wall: Wall) -> int:
    """Until it has ended; the last of the chores says whether it is to."""
    told = False
    while True:
        for chore in chores:
            if wall.monotonic() >= chore.due_s:
                began_s = wall.monotonic()
                try:
                    chore.found = chore.do()
                except Exception as error:  # noqa: BLE001 - of a hundred kinds; the next time tries again
                    print(f"what is due was not done: {error}", flush=True)  # noqa: T201 - its log
                now_s = wall.monotonic()
                chore.due_s = now_s + max(chore.every_s, SELDOM * (now_s - began_s))
        if chores[-1].found and not told:
            child.send_signal(signal.SIGTERM)  # it saves what it has
            told = True
        try:
            return child.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue


def _copy_checkpoints(folder: Path, uri: str) -> None:
    """Beside the chores, which must not wait for gigabytes."""
    copies, pause = None, threading.Event()
    while not pause.wait(BACKUP_S):
        try:
            copies = copies or CheckpointCopies(folder, open_uri(uri))
            while copies.write_some():
                pass
        except Exception as error:  # noqa: BLE001 - as above
            print(f"checkpoints were not copied: {error}", flush=True)  # noqa: T201 - its log


def _turn_off() -> None:
    """The machine is stopped, and its disk stays: 'sublet up --on aws --purse MORE' goes on."""
    print("the purse is spent: the machine is stopped", flush=True)  # noqa: T201 - as above
    for command in (("sudo", "-n", "shutdown", "-h", "now"), ("shutdown", "-h", "now")):
        with contextlib.suppress(OSError):
            if subprocess.run(command, check=False).returncode == 0:  # noqa: S603 - our own words
                return


def _renew(client: Any, folder: Path, instance: str, wall: Wall) -> None:
    tag = {"Key": EXPIRES_TAG, "Value": expiry_tag(int(wall.unix() + EXPIRES_S), home_of(folder))}
    client.create_tags(Resources=[instance], Tags=[tag])


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1:])
