"""A home for each job on a node, below what its agent keeps: what is brought to ~ replaces nothing of the machine's.

Programs look in ~ for caches, packages and settings, so what is in the machine's home is there, too, by links: a job
reads and writes through them as if it had them. If something is brought, the links give way.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sublet.machine.files import FILES

__all__ = ["SKY_WORKDIR", "Homes", "lead_to"]

SKY_WORKDIR = "sky_workdir"  # what SkyPilot calls the working directory, in ~
SHARED = (".cache", ".local", ".sublet")  # made where they are not: what is fetched for one job serves the next
WRITTEN = (".bashrc", ".bash_profile", ".profile")  # a setup adds lines to them, which are for its own job
MOST_BYTES = 1 << 20  # of one of those
MOST_LINKS = 10_000  # of one folder


class Homes:
    """In `folder`, one for each job; `machines` is the home of the agent's user."""

    def __init__(self, folder: Path, machines: Path) -> None:
        self._folder, self._machines = folder, machines

    def home(self, job_id: str, place: str, mounted: Iterable[str]) -> Path:
        """The home of a job in `place`; nothing of the machine's is where something is `mounted` below ~/."""
        home = self._folder / job_id
        if not home.is_dir():
            self._furnish(home)
        for path in mounted:
            if path.startswith("~/"):
                self._give_way(home, Path(path).parts[1:])
        lead_to(place, home)
        return home

    def _furnish(self, home: Path) -> None:
        FILES.make_folder(home)
        with suppress(OSError):  # a home that is nowhere, or not ours, has nothing for anybody
            for name in SHARED:
                (self._machines / name).mkdir(mode=0o700, exist_ok=True)
        _link_all(self._machines, home)
        for name in WRITTEN:
            with suppress(OSError):
                if (home / name).is_file() and (home / name).stat().st_size <= MOST_BYTES:
                    FILES.write(home / name, (self._machines / name).read_bytes(), durable=False)

    def _give_way(self, home: Path, names: tuple[str, ...]) -> None:
        """Folders on the way become the job's own, with links in them; what is at the end goes."""
        here, there = home, self._machines
        for name in names[:-1]:
            here, there = here / name, there / name
            if _leads_to(here, there):
                here.unlink()
                here.mkdir(mode=0o700)
                _link_all(there, here)
        for name in (names[-1], f"{names[-1]}.new"):  # as it is called while it is written
            if _leads_to(here / name, there / name):
                (here / name).unlink()


def lead_to(place: str, home: Path) -> None:
    """`~/sky_workdir` is the working directory, if it has a name; not where the job has something else there."""
    link = home / SKY_WORKDIR
    if not place:
        return
    if link.is_symlink() and str(link.readlink()) != place:
        link.unlink()
    if not link.is_symlink() and not link.exists():
        link.symlink_to(place)


def _link_all(there: Path, here: Path) -> None:
    with suppress(OSError):
        for path in islice(there.iterdir(), MOST_LINKS):
            (here / path.name).symlink_to(path)


def _leads_to(link: Path, target: Path) -> bool:
    return link.is_symlink() and link.readlink() == target
