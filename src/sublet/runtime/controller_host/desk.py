"""Requests of a laptop by ssh: `python -m sublet.runtime.controller_host.desk VERB STATE_DIR ...`.

One runs at a time.

look     what is there, and what is lacking of the modules that are named besides: JSON, see `_look`
staged   large files that came with a `put` that broke: JSON {path: SHA-256}
put      a state directory comes on standard input; its controller may not run yet
get      it goes to standard output, but for files named as staged on standard input; its controller may not run
fence    from now on no controller may run here
mind     turn the machine off if no controller lives on it, and no request comes: see idle.py
free     ... it may again
start    keep a controller running: see watchdog.py; files of an earlier one do not count any more
stop     tell the controller by a signal to save and end; where it is fenced, it is not started again
trust    variables with credentials come on standard input, for the controller here
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from sublet.errors import SubletError
from sublet.machine.files import FILES
from sublet.runtime import last_run
from sublet.runtime.controller_host.idle import ANCHORED, CONTROLLER, DESK, KEEPER, is_held, serving_pid
from sublet.runtime.controller_host.parcel import pack_state, staged, unpack_state
from sublet.runtime.controller_host.record import FENCED

# What a controller on AWS imports; docs/guides/laptop-to-aws.md has the line that installs them.
NEEDED = ("boto3", "cryptography", "fastapi", "numpy", "pathspec", "prometheus_client", "pydantic", "scipy")
IDLE = "sublet.runtime.controller_host.idle"
NEEDED_TOO = ("sortedcontainers", "uvicorn", "yaml")
LAST_BYTES = 1000  # of the watchdog's output


def main(words: list[str]) -> None:
    """One verb."""
    verb, state_dir, *more = words
    folder = Path(state_dir)
    FILES.make_folder(folder)
    with (folder / DESK).open("a") as lock:  # a process about to turn the machine off sees this lock
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(folder / DESK)
        _answer(verb, folder, more)


def _answer(verb: str, folder: Path, more: list[str]) -> None:
    match verb:
        case "look":
            print(json.dumps(_look(folder, more)))  # noqa: T201 - what the laptop waits for
        case "staged":
            print(json.dumps(staged(folder)))  # noqa: T201 - as above
        case "put":
            _refuse_running(folder)
            FILES.write(folder / FENCED, b"it has just come\n")
            unpack_state(sys.stdin.buffer, folder)
            if (folder / "log.sqlite").is_file():
                last_run.mark_moved(folder)
        case "get":
            _refuse_running(folder)
            if not (folder / FENCED).exists():
                sys.exit("its controller may run: fence it first")
            for piece in pack_state(folder, have=json.loads(sys.stdin.buffer.read() or b"{}")):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        case "fence":
            FILES.write(folder / FENCED, b"it was handed over\n")
            _spawn(folder, IDLE)  # the laptop may go away, and the machine would stay on
        case "mind":
            _spawn(folder, IDLE)
        case "free":
            FILES.remove(folder / FENCED)
        case "trust":
            FILES.write(folder / "credentials.env", sys.stdin.buffer.read())
        case "start":
            _start(folder, more)
        case "stop":
            _stop(folder)
        case _:
            sys.exit(f"no such verb: {verb}")


def _look(folder: Path, needed: list[str]) -> dict[str, object]:
    kept = is_held(folder, KEEPER)
    return {
        "home": str(Path.home()),
        "lacks": [name for name in (*NEEDED, *NEEDED_TOO, *needed) if importlib.util.find_spec(name) is None],
        "held": (folder / "log.sqlite").is_file(),
        "kept": kept,
        "running": kept or is_held(folder, CONTROLLER),
        "serves": serving_pid(folder) is not None,
        "fenced": (folder / FENCED).exists(),
        "failure": _text(folder / "start-failure.txt"),
        "last": _text(folder / "watchdog.log")[-LAST_BYTES:],
    }


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # a controller removes the words of the one before it
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _refuse_running(folder: Path) -> None:
    if is_held(folder, CONTROLLER) or is_held(folder, KEEPER):
        sys.exit("its controller runs: stop it first")


def _start(folder: Path, words: list[str]) -> None:
    if not is_held(folder, CONTROLLER):  # of one that was killed, or ended with its machine
        for name in ("controller.json", "start-failure.txt"):
            (folder / name).unlink(missing_ok=True)
    _spawn(folder, "sublet.runtime.controller_host.watchdog", *words)
    (Path.home() / ANCHORED).touch()  # what the first boot waits for


def _spawn(folder: Path, module: str, *words: str) -> None:
    """In a session of its own, so that it outlives ssh."""
    log = os.open(folder / "watchdog.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    command, null = [sys.executable, "-m", module, str(folder), *words], subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=log, stderr=log, start_new_session=True)  # noqa: S603 - ourselves


def _stop(folder: Path) -> None:
    """Nothing is done where none serves, or another process has its number by now."""
    if (pid := serving_pid(folder)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (SubletError, OSError) as error:
        sys.exit(str(error))
