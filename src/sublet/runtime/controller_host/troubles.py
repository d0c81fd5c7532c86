"""Troubles beside a controller on its host: the watchdog writes them down, and the controller tells them.

A missing backup, or a controller host that is not renewed, is no reason to end a controller. But its owner reads its
events and not the logs of that machine, and must hear of it in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path

from sublet.machine.files import FILES
from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller.watch import AlarmKind, Alarms
from sublet.runtime.controller_host.idle import KEEPER, is_held

FILE = "keeper-troubles.json"
OFTEN = 3  # failures in a row, before anybody is told: one may be the network's
LOOK_S = 30.0
REMIND_S = 3600.0
UNKEPT = (
    "this controller has no watchdog: it is not started again if it ends, nor its state copied; 'sublet up --on aws'"
)


class Troubles:
    """On the side of the watchdog."""

    def __init__(self, folder: Path) -> None:
        self._path, self._row = folder / FILE, Counter[str]()
        self._told: dict[str, str] = {}
        self._path.unlink(missing_ok=True)  # of another watchdog

    def failed(self, what: str, why: object) -> None:
        """Once more; told from the third time in a row on."""
        self._row[what] += 1
        if self._row[what] >= OFTEN:
            self._write({**self._told, what: f"{what} fails: {why}"})

    def tell(self, what: str, text: str) -> None:
        """At once, in place of what was told of it before."""
        self._write({**self._told, what: text})

    def done(self, what: str) -> None:
        """It is well again."""
        self._row.pop(what, None)
        self._write({name: text for name, text in self._told.items() if name != what})

    def _write(self, told: dict[str, str]) -> None:
        if told != self._told:
            self._told = told
            with contextlib.suppress(OSError):  # a disk that is full is told by the controller itself
                FILES.write(self._path, json.dumps(told).encode())


def is_anchor(folder: Path) -> bool:
    """Whether a watchdog keeps, or has kept, the controller of this directory."""
    return (folder / KEEPER).exists()


class TroubleWatch:
    """On the side of the controller."""

    def __init__(self, folder: Path, alarms: Alarms, wall: Wall = WALL) -> None:
        self._folder, self._alarms, self._wall = folder, alarms, wall
        self._told: dict[str, float] = {}  # what is wrong now -> when it was last said

    async def watching(self) -> None:
        """As long as the controller lives."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """News are told at once, and what stays, every hour."""
        now_s, found = self._wall.monotonic(), self._found()
        for text in found:
            if now_s - self._told.get(text, -REMIND_S) >= REMIND_S:
                self._alarms.sound(AlarmKind.ANCHOR, text, reason=text)
                self._told[text] = now_s
        self._told = {text: told_s for text, told_s in self._told.items() if text in found}

    def _found(self) -> list[str]:
        if not is_held(self._folder, KEEPER):
            return [UNKEPT]
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return sorted(map(str, json.loads((self._folder / FILE).read_bytes()).values()))
        return []
