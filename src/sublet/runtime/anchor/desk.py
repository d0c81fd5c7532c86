"""What a laptop asks of its anchor by ssh: `python -m sublet.runtime.anchor.desk VERB STATE_DIR ...`, one at a time.

look     what is there: JSON {"home", "lacks", "held", "running", "failure"}
staged   large files that came with a `put` that broke: JSON {path: SHA-256}
put      a state directory comes on standard input; its controller may not run yet
get      it goes on standard output, but for what is said on standard input to be staged; its controller may not run
fence    from now on no controller may run here
free     ... it may again
start    keep a controller running: see keeper.py
stop     tell the controller by a signal to save and end; where it is fenced, nobody starts it again
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
from sublet.runtime.anchor.parcel import pack_state, staged, unpack_state
from sublet.runtime.anchor.record import FENCED

__all__ = ["NEEDED", "main"]

# What a controller on AWS imports; docs/guides/laptop-to-aws.md has the line that installs them.
NEEDED = ("boto3", "cryptography", "fastapi", "numpy", "pathspec", "prometheus_client", "pydantic", "scipy")
CONTROLLER = b"sublet.api.main"  # a word of its command line
NEEDED_TOO = ("sortedcontainers", "uvicorn", "yaml")


def main(words: list[str]) -> None:
    """One verb."""
    verb, state_dir, *more = words
    folder = Path(state_dir)
    FILES.make_folder(folder)
    match verb:
        case "look":
            print(json.dumps(_look(folder)))  # noqa: T201 - what the laptop waits for
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


def _look(folder: Path) -> dict[str, object]:
    failure = folder / "start-failure.txt"
    return {
        "home": str(Path.home()),
        "lacks": [name for name in (*NEEDED, *NEEDED_TOO) if importlib.util.find_spec(name) is None],
        "held": (folder / "log.sqlite").is_file(),
        "running": _is_running(folder, "controller.lock") or _is_running(folder, "keeper.lock"),
        "fenced": (folder / FENCED).exists(),
        "failure": failure.read_text(encoding="utf-8", errors="replace") if failure.is_file() else "",
    }


def _is_running(folder: Path, name: str) -> bool:
    """Whether somebody holds this lock."""
    if not (folder / name).exists():
        return False
    with (folder / name).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _refuse_running(folder: Path) -> None:
    if _is_running(folder, "controller.lock") or _is_running(folder, "keeper.lock"):
        sys.exit("its controller runs: stop it first")


def _start(folder: Path, words: list[str]) -> None:
    """In a session of its own, so that it outlives ssh."""
    log = os.open(folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    command = [sys.executable, "-m", "sublet.runtime.anchor.keeper", str(folder), *words]
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=log, stderr=log, start_new_session=True)  # noqa: S603 - ourselves
    (Path.home() / ".sublet-anchored").touch()  # what the first boot waits for


def _stop(folder: Path) -> None:
    """Nothing is done where none serves, or another process has its number by now."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        pid = int(json.loads((folder / "controller.json").read_text(encoding="utf-8"))["pid"])
        if CONTROLLER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (SubletError, OSError) as error:
        sys.exit(str(error))
