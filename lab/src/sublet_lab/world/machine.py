"""The seams of a process of the world to its machine, and a wire across the one that it must not ask: the real one."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.machine.wall import WALL
from sublet_lab.world.heap import Process, Struck, World, nobody

EPOCH_S = 1.75e9  # 2025-06-15: what the clocks of the world say at its time 0


@dataclass
class HostClock:
    """The clock of one machine, which people set, and its boots."""

    jump_s: float = 0.0  # by which it is wrong
    boots: int = 1
    on_s: float = 0.0  # the world's time of the last boot
    set_s: float = -math.inf  # ... and of when it was last set
    set_forward: bool = False  # then
    asked: Struck = nobody  # told whenever it is asked

    def set_by(self, jump_s: float, now_s: float) -> None:
        """Forward or back."""
        self.jump_s, self.set_s, self.set_forward = self.jump_s + jump_s, now_s, jump_s > 0.0


class WorldWall:
    """The clocks that a process sees."""

    def __init__(self, process: Process, clock: HostClock) -> None:
        self._process, self._clock = process, clock

    def monotonic(self) -> float:
        """Its own zero."""
        return self._process.world.now_s + self._process.zero_s

    def unix(self) -> float:
        """As its machine's clock is set."""
        self._clock.asked()
        return EPOCH_S + self._process.world.now_s + self._clock.jump_s

    def since_boot(self) -> tuple[str, float]:
        """This one cannot be set."""
        return f"{self._process.host}/{self._clock.boots}", self._process.world.now_s - self._clock.on_s


class TrueWall:
    """The time of the world itself: for clocks on which nothing depends."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """The time of the world."""
        return self._world.now_s

    def unix(self) -> float:
        """It is not set."""
        return EPOCH_S + self._world.now_s

    def since_boot(self) -> tuple[str, float]:
        """One boot, for ever."""
        return "world", self._world.now_s


class WorldRng:
    """Unforeseeable for everybody but the seed."""

    def __init__(self, world: World, name: str = "dice") -> None:
        self._stream = world.stream(name)

    def token(self, nbytes: int) -> str:
        """As many bytes, in hexadecimal digits."""
        return self._stream.randbytes(nbytes).hex()

    def random(self) -> float:
        """In [0, 1)."""
        return self._stream.random()


class MemoryFiles:
    """The small files of one machine: they outlive its processes. `before` is asked before every write."""

    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}
        self.writes = 0
        self.full = False
        self.refused: Callable[[], None] = lambda: None  # told of every write for which there was no room
        self.before: Callable[[Path], None] = lambda _: None
        self.written: Callable[[Path], None] = lambda _: None  # ... after it
        self.watched: dict[Path, Struck] = {}  # told when this is read, until it is written anew

    def read(self, path: Path) -> bytes:
        """FileNotFoundError where there is none."""
        self.watched.get(path, nobody)()
        try:
            return self.contents[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def write(self, path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
        """At one go."""
        del mode, durable
        self.writes += 1
        self.before(path)
        if self.full:
            self.refused()
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        self.contents[path] = bytes(data)
        self.watched.pop(path, None)
        self.written(path)

    def make_room(self) -> None:
        """It is full no longer."""
        self.full = False

    def make_folder(self, folder: Path) -> None:
        """It is there whenever something is in it."""

    def append(self, path: Path, data: bytes) -> None:
        """To a draft."""
        self.write(path, self.contents.get(path, b"") + data)

    def settle(self, folder: Path, drafts: Mapping[str, str]) -> None:
        """One after the other: a crash may come before each."""
        for draft, name in drafts.items():
            self.before(folder / name)
            self.contents[folder / name] = self.contents.pop(folder / draft)

    def rename(self, source: Path, target: Path) -> None:
        """A file, or all that is in a folder."""
        for path in [path for path in self.contents if path == source or source in path.parents]:
            self.contents[target / path.relative_to(source)] = self.contents.pop(path)

    def remove(self, path: Path) -> None:
        """Whether it was there or not."""
        self.contents.pop(path, None)

    def remove_tree(self, folder: Path) -> None:
        """With all that is in it."""
        self.contents = {path: data for path, data in self.contents.items() if folder not in path.parents}

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in order."""
        return sorted({path.relative_to(folder).parts[0] for path in self.contents if folder in path.parents})


TRIPS: list[str] = []  # questions to the real machine in this life, though the error may have been swallowed


@contextlib.contextmanager
def trip_wired() -> Iterator[None]:
    """While a world lives, the clock, RNG and disk of the real machine must not be used: a seam was forgotten."""
    wired = [
        (WALL, ("monotonic", "unix")),
        (RNG, ("token", "random")),
        (FILES, ("read", "write", "append", "settle", "rename", "remove", "remove_tree", "names", "make_folder")),
    ]
    kept = [(type(real), name, getattr(type(real), name)) for real, names in wired for name in names]
    TRIPS.clear()
    for kind, name, _ in kept:
        setattr(kind, name, _forbidden(f"{kind.__name__}.{name}"))
    try:
        yield
    finally:
        for kind, name, call in kept:
            setattr(kind, name, call)


def _forbidden(what: str) -> Callable[..., NoReturn]:
    def ask(*_: object, **__: object) -> NoReturn:
        TRIPS.append(what)
        raise AssertionError(f"{what} of the real machine was asked in a simulated world: pass the world's own")

    return ask
