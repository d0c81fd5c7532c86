"""Watchdog of the controller on a controller host, which also renews the host at EC2: `watchdog STATE INSTANCE REGION`.

The controller is started again where it was killed; where that happens often, later each time, and it is told. It is
not started where it ended by itself, nor where it does not live for a minute, five times in a row. Its last words are
then where `sublet up --on aws` shows them. The machine turns itself off in a while (idle.py), as it does when the
budget is spent and nothing is rented. Troubles beside the controller (a backup, the tag by which `sublet gc` sees that
the controller host is wanted) do not end it: they are told through it, as an alarm (troubles.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from sublet.domain.units import SECONDS_PER_H
from sublet.machine.remote import open_uri
from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller_host import idle
from sublet.runtime.controller_host.backup import Backup, CheckpointCopies, place_of
from sublet.runtime.controller_host.idle import CONTROLLER, KEEPER, is_held, serving_pid
from sublet.runtime.controller_host.record import FENCED
from sublet.runtime.controller_host.troubles import Troubles
from sublet.runtime.private import home_of
from sublet.runtime.providers.aws.build import server_of
from sublet.runtime.providers.aws.calls import client_maker
from sublet.runtime.providers.aws.config import config_path, read_config
from sublet.runtime.providers.aws.fleet import EXPIRES_S
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, expiry_tag

ANSWER_S = 10.0
COMMAND = (sys.executable, "-m", "sublet.api.main")
STALE = 75  # another controller has the store
SHORT_S = 60.0
MOST_SHORT = 5
PAUSE_S = 5.0  # doubled with each crash within the last hour, up to
LONGEST_PAUSE_S = 300.0
OFTEN = 3  # crashes within an hour, from which on they are told
CRASHES = "the controller"
RENEW_S = EXPIRES_S / 4
BACKUP_S = 10.0
SELDOM = 20  # a chore that takes long is done more seldom: a twentieth of the time at most
SPENT_S = 60.0
LOOK_S = 1.0
LAST_COPY_S = 5.0  # for one that is under way when the controller has ended for good
LOCK_TRIES, LOCK_TRY_S = 20, 0.1
LAST_BYTES = 2000  # of what a controller wrote
UNKNOWN = 1  # how one ended that is no child of ours
Verdict = tuple[bool, int]  # (start it again, short lives in a row)


def is_over(budget: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Nothing may be rented, and nothing is."""
    return bool(budget["exhausted"]) and all(node["phase"] == "gone" for node in nodes)


def is_spent(state_dir: Path) -> bool:
    """As the controller of this directory says; OSError or ValueError where it says nothing."""
    address = json.loads((state_dir / "controller.json").read_text(encoding="utf-8"))
    token = (state_dir / "token.read").read_text(encoding="ascii").strip()
    return is_over(_ask(address, token, "/v1/budget"), _ask(address, token, "/v1/nodes")["nodes"])


def _ask(address: Mapping[str, Any], token: str, path: str) -> Any:
    connection = http.client.HTTPConnection(address["host"], address["port"], timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def after(code: int, lived_s: float, short: int, *, fenced: bool) -> Verdict:
    """The step after the end of a controller."""
    short = short + 1 if lived_s < SHORT_S else 0
    again = code not in (0, STALE) and not fenced and short < MOST_SHORT
    return again, short


def pause_s(crashes: int) -> float:
    """Before the next one is started, after so many ends within an hour.

    >>> [pause_s(crashes) for crashes in (1, 2, 3, 9)]
    [5.0, 10.0, 20.0, 300.0]
    """
    return min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** (min(crashes, 16) - 1))


def main(words: list[str], wall: Wall = WALL) -> None:
    """Until the controller has ended for good, and the machine is off or another's to keep."""
    folder, instance, region = Path(words[0]), words[1], words[2]
    with (folder / KEEPER).open("a") as lock:
        if not _take(lock):
            return  # one of them; the second ends here
        try:
            spent = _keep(folder, instance, region, wall)
        except Exception as error:
            _leave_words(folder, f"what keeps the controller has failed: {type(error).__name__}: {error}")
            raise
        finally:
            (folder / "controller.json").unlink(missing_ok=True)
    if spent:
        idle.turn_off("the budget is spent")
    else:
        idle.main(folder)


def _take(lock: IO[str]) -> bool:
    """Not at the first attempt where another process looks whether it is taken."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        threading.Event().wait(LOCK_TRY_S)
    return False


def _keep(folder: Path, instance: str, region: str, wall: Wall) -> bool:
    """Until the controller has ended for good; whether that is because the budget is spent."""
    if (folder / "credentials.env").is_file():  # what a laptop has sent, because its owner said so
        os.environ.update(line.partition("=")[::2] for line in (folder / "credentials.env").read_text().splitlines())
    config = read_config(config_path(folder))
    client = client_maker(config.endpoint_url)("ec2", region)
    troubles = Troubles(folder)
    chores = [Chore("renewing the controller host's tag", RENEW_S, partial(_renew, client, folder, instance, wall))]
    spent = Chore("looking at the budget", SPENT_S, partial(is_spent, folder), due_s=wall.monotonic() + SPENT_S)
    if config.anchor_backup:
        place = place_of(config.anchor_backup, server_of(folder))
        chores.append(Chore(f"the backup to {place}", BACKUP_S, Backup(folder, place).write))
        with _copying(folder, place, troubles):
            return _keep_alive(folder, chores, spent, troubles, wall)
    return _keep_alive(folder, chores, spent, troubles, wall)


def _keep_alive(folder: Path, chores: list[Chore], spent: Chore, troubles: Troubles, wall: Wall) -> bool:
    """One controller after the other."""
    again, short, crashes = not (folder / FENCED).exists(), 0, _Crashes(troubles, wall)
    while again:
        began_s, logged = wall.monotonic(), _size(folder / "controller.log")
        code = _watch(_controller(folder), [*chores, crashes.forgetting(), spent], troubles, wall)
        (folder / "controller.json").unlink(missing_ok=True)  # it has no listener any more
        if spent.found:
            return True
        again, short = after(code, wall.monotonic() - began_s, short, fenced=(folder / FENCED).exists())
        print(f"the controller ended with {code}; {'again' if again else 'for good'}", flush=True)  # noqa: T201 - its log
        said = _end_of(folder / "controller.log", logged)
        if again:
            _wait(crashes.note(code, said.rpartition("\n")[2]))
        elif short >= MOST_SHORT:
            why = f"the controller ended with {code}, {short} times in a row within {SHORT_S:g} s; its last words: "
            _leave_words(folder, why + (said or "none"))
    return False


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class _Crashes:
    """Crashes of controllers, within the last hour."""

    def __init__(self, troubles: Troubles, wall: Wall) -> None:
        self._troubles, self._wall = troubles, wall
        self._ends_s: list[float] = []

    def note(self, code: int, last: str) -> float:
        """One more; seconds until the next controller."""
        self._forget()
        self._ends_s.append(self._wall.monotonic())
        often, wait_s = len(self._ends_s), pause_s(len(self._ends_s))
        if often >= OFTEN:
            again = f"crashes again and again ({often} times within an hour), and was started {wait_s:g} s later"
            self._troubles.tell(CRASHES, f"{CRASHES} {again}; it ended with {code}, its last words: {last or 'none'}")
        return wait_s

    def forgetting(self) -> Chore:
        """Once it has lived for long, there is no alarm any more."""
        return Chore("forgetting crashes", SHORT_S, self._forget)

    def _forget(self) -> None:
        now_s = self._wall.monotonic()
        self._ends_s = [each for each in self._ends_s if now_s - each < SECONDS_PER_H]
        if not self._ends_s:
            self._troubles.done(CRASHES)


def _leave_words(folder: Path, why: str) -> None:
    """Write the words where `sublet up` looks for them; those of the controller itself count more."""
    path = folder / "start-failure.txt"
    if not path.is_file():
        path.write_text(f"1\n{why}", encoding="utf-8")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _end_of(path: Path, begin: int) -> str:
    """The output of one controller, or the last of it; nothing where no log is kept."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(begin, _size(path) - LAST_BYTES))
        return file.read().decode(errors="replace").strip()
    return ""


class RunningCopy(Protocol):
    """A process that is watched."""

    def wait(self, timeout: float) -> int:
        """Its exit code; subprocess.TimeoutExpired while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """To it."""
        ...


def _controller(folder: Path) -> RunningCopy:
    """A new one, or that of an earlier watchdog, which lives on."""
    if is_held(folder, CONTROLLER):
        return _Adopted(folder)
    (folder / "controller.json").unlink(missing_ok=True)
    with (folder / "controller.log").open("ab") as log:
        return subprocess.Popen([*COMMAND, str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - ourselves


class _Adopted:
    """A controller that is no child of ours: it lives as long as it holds its lock, and its exit code is unknown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, timeout: float) -> int:
        threading.Event().wait(timeout)
        if is_held(self._folder, CONTROLLER):
            raise subprocess.TimeoutExpired(COMMAND, timeout)
        return UNKNOWN

    def send_signal(self, sig: int) -> None:
        if (pid := serving_pid(self._folder)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)


@dataclass(slots=True)
class Chore:
    """A periodic task; it must not end the watchdog."""

    name: str
    every_s: float
    do: Callable[[], object]
    due_s: float = 0.0
    found: object = None  # what it answered last


def _watch(child: RunningCopy, chores: Sequence[Chore], troubles: Troubles, wall: Wall) -> int:
    """Until it has ended; the last of the chores says whether it is to."""
    told = False
    while True:
        for chore in chores:
            if wall.monotonic() >= chore.due_s:
                began_s = wall.monotonic()
                try:
                    chore.found = chore.do()
                    troubles.done(chore.name)
                except Exception as error:  # noqa: BLE001 - of a hundred kinds; the next time tries again
                    print(f"{chore.name} failed: {error}", flush=True)  # noqa: T201 - its log
                    troubles.failed(chore.name, error)
                now_s = wall.monotonic()
                chore.due_s = now_s + max(chore.every_s, SELDOM * (now_s - began_s))
        if chores[-1].found and not told:
            child.send_signal(signal.SIGTERM)  # it saves what it has
            told = True
        try:
            return child.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue


@contextlib.contextmanager
def _copying(folder: Path, uri: str, troubles: Troubles) -> Iterator[None]:
    """Checkpoints, beside the chores, which must not wait for gigabytes."""
    over = threading.Event()
    thread = threading.Thread(target=_copy_checkpoints, args=(folder, uri, troubles, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_COPY_S)


def _copy_checkpoints(folder: Path, uri: str, troubles: Troubles, over: threading.Event) -> None:
    copies, what = None, f"the copy of checkpoints to {uri}"
    while not over.wait(BACKUP_S):
        try:
            copies = copies or CheckpointCopies(folder, open_uri(uri))
            while copies.write_some():
                pass
            troubles.done(what)
        except Exception as error:  # noqa: BLE001 - as above
            print(f"{what} failed: {error}", flush=True)  # noqa: T201 - its log
            troubles.failed(what, error)


def _renew(client: Any, folder: Path, instance: str, wall: Wall) -> None:
    tag = {"Key": EXPIRES_TAG, "Value": expiry_tag(int(wall.unix() + EXPIRES_S), home_of(folder))}
    client.create_tags(Resources=[instance], Tags=[tag])


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1:])
