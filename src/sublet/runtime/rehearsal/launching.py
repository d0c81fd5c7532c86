"""`python -m sublet.runtime.rehearsal.launching train.py --lr 1`: a script as ever, but with a fixed random seed.

It also notes which files this worker opens to write, so that one written by two is seen.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sublet.wire.rehearsal import Cue, cue_here

MODULE = "sublet.runtime.rehearsal.launching"
WRITES = os.O_WRONLY | os.O_RDWR


def launched(argv: Sequence[str]) -> tuple[str, ...]:
    """The command, by way of this module, where it is a Python that runs a file or a module; else as it is."""
    rest = argv[1:]
    flags = 1 if rest and rest[0] == "-u" else 0
    words = rest[flags:]
    if not Path(argv[0]).name.startswith("python") or not words or (words[0].startswith("-") and words[0] != "-m"):
        return tuple(argv)
    return (argv[0], *rest[:flags], "-m", MODULE, *words)


def main(words: Sequence[str]) -> None:
    """Run the script, or with -m the module."""
    cue = cue_here()
    _seed()
    if cue is not None:
        _note_writes(cue)
        if cue.kill_after_s and os.environ.get("RANK", "0") == "0" and cue.claim("timer"):
            killer = threading.Timer(cue.kill_after_s, os.kill, (os.getpid(), signal.SIGKILL))
            killer.daemon = True
            killer.start()
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def _seed() -> None:
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


def _note_writes(cue: Cue) -> None:
    here = str(Path.cwd())
    place = cue.opened_file(os.environ.get("SUBLET_WORKER_ID", ""))
    notes = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(name: Any) -> None:
        path = os.path.realpath(os.fsdecode(name))
        if path.startswith(here + os.sep):
            os.write(notes, f"{os.path.relpath(path, here)}\n".encode())

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & WRITES:
            note(arguments[0])

    sys.addaudithook(hear)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "save"):  # which opens files without Python
        save = torch.save

        def noted(what: Any, file: Any, *more: Any, **options: Any) -> Any:
            if isinstance(file, str | os.PathLike):
                note(file)
            return save(what, file, *more, **options)

        torch.save = noted


if __name__ == "__main__":
    main(sys.argv[1:])
