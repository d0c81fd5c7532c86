"""A user and a home for each job, where the agent is root: jobs read neither its keys nor each other's files.

A user is a number that is unused on the machine, with a home of its own; there is no account. All that root alone may
read stays root's: key, token, the content that files are made of. A job owns its home, its working directory, its
checkpoints on this disk, and what it prints, and nothing that was there before. If a job can have put links, root acts
as the job. Devices and shared memory are reached as before, by the groups of root.

Programs look in ~ for caches, packages and settings, so what is in the machine's home is there, too, by links: a job
reads and writes through them as if it had them. If something is brought, the links give way.

Looking first whether something is a link is not enough: a job may put one there a moment later.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sublet.machine.files import FILES
from sublet.runtime.agent.disk import Disk, FileFacts
from sublet.runtime.agent.processes import die_with_parent
from sublet.wire.messages import StartWorker

Acting = Callable[[str], AbstractContextManager[None]]  # of a path
AT_ONCE = 1_000  # names of a folder, as another user
NOBODY = -1  # that asks for the identity, and changes nothing
SKY_WORKDIR = "sky_workdir"  # what SkyPilot calls the working directory, in ~
SHARED = (".cache", ".local", ".sublet")  # made where they are not: what is fetched for one job serves the next
WRITTEN = (".bashrc", ".bash_profile", ".profile")  # a setup adds lines to them, which are for its own job
MOST_BYTES = 1 << 20  # of one of those
MOST_LINKS = 10_000  # of one folder
FIRST, MOST = 60_200, 800  # Debian leaves 60000 to 64999 for such uses; systemd takes them from 61184 on
DEVICES = ("video", "render")  # groups that GPUs may belong to
NEED_ROOT = ("sublet.runtime.file_sync.mounted", "sublet.runtime.file_sync.contained")
WITHOUT = "own_users = false in aws.toml"
THROUGH = 0o711  # a folder that one may go through and not look into
PR_SET_DUMPABLE = 4  # linux/prctl.h


def as_we_are(_: str) -> AbstractContextManager[None]:
    """For machines on which jobs run as the agent's user."""
    return nullcontext()


@contextmanager
def acting_as(number: int) -> Iterator[None]:
    """Files see this user and this group, and no others, in this thread; signals and processes still see root."""
    groups = os.getgroups()
    try:
        os.setgroups([])
        _be(number)
        yield
    finally:
        _be(0)
        os.setgroups(groups)


def _be(number: int) -> None:
    """For files alone; they return the earlier identity, so it takes another question to see whether it went well."""
    for change in _changes():
        change(number)
        if change(NOBODY) != number:
            raise PermissionError(f"cannot act as the user {number}")


@cache
def _changes() -> tuple[Callable[[int], int], ...]:
    library = ctypes.CDLL(None)
    return library.setfsgid, library.setfsuid


class ActingDisk:
    """A disk on which each path is touched as `acting` says."""

    def __init__(self, disk: Disk, acting: Acting) -> None:
        self._disk, self._acting = disk, acting

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        """As all of these, like that of `Disk`."""
        found, names = self._disk.below(folder, plain=plain), [""]
        while names:
            with self._acting(folder):
                names = list(islice(found, AT_ONCE))
            yield from names

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        """Facts of a file."""
        with self._acting(path):
            return self._disk.facts(path, follow=follow)

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """Its end."""
        with self._acting(path):
            return self._disk.tail(path, since_bytes=since_bytes, most_bytes=most_bytes)

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """A part of it."""
        with self._acting(path):
            return self._disk.piece(path, since_bytes=since_bytes, most_bytes=most_bytes)

    def touch(self, path: str) -> None:
        """It was written just now."""
        with self._acting(path):
            self._disk.touch(path)

    def set_back(self, file: str | int) -> None:
        """It was read before it was written. Set a held file back as the job."""
        with nullcontext() if isinstance(file, int) else self._acting(file):
            self._disk.set_back(file)

    def hold(self, path: str) -> int:
        """Without opening it."""
        with self._acting(path):
            return self._disk.hold(path)

    def held(self, number: int) -> FileFacts:
        """Facts of a held file."""
        return self._disk.held(number)

    def peek(self, number: int) -> None:
        """At what is held."""
        self._disk.peek(number)

    def let_go(self, number: int) -> None:
        """Let go of it."""
        self._disk.let_go(number)


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
        _lead_to(place, home)
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


def _lead_to(place: str, home: Path) -> None:
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


class User(NamedTuple):
    """The user of a job's workers."""

    number: int
    home: Path

    def variables(self) -> dict[str, str]:
        """Variables for programs that would look for an account."""
        return {"HOME": str(self.home), "USER": f"job{self.number}", "LOGNAME": f"job{self.number}"}

    def become(self) -> None:
        """In a child, for good."""
        os.setgroups(_device_groups())
        os.setresgid(self.number, self.number, self.number)
        os.setresuid(self.number, self.number, self.number)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or what it is told of itself in /proc is root's
        die_with_parent()  # which was forgotten with the user


class Users:
    """The users of one machine; `folder` is the agent's, and has the jobs' directories."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._users = folder, dict[str, User]()
        self._given: set[tuple[str, str]] = set()  # (job, folder)
        self._owners: dict[str, User] = {}  # of folders in which jobs put what they like
        for place in (folder.parent, folder, *(folder / name for name in ("work", "home", "checkpoints"))):
            place.mkdir(exist_ok=True)
            place.chmod(THROUGH)
        for found in (sys.executable, sys.base_prefix, sys.prefix, *sys.path):  # a Python in root's home, say
            if Path(found).is_absolute() and Path(found).exists():
                _open_the_way(Path(found).resolve().parent)

    def of(self, job_id: str) -> User:
        """The same for all workers of a job on this machine; OSError where there were too many jobs."""
        if job_id not in self._users:
            if len(self._users) == MOST:
                raise OSError(f"{MOST} jobs have run on this machine, each as a user of its own: no more are left")
            number = FIRST + len(self._users)
            home = self._folder / "home" / str(number)
            self._users[job_id] = User(number, home)
            home.mkdir(mode=0o700, exist_ok=True)
            os.chown(home, number, number)
        return self._users[job_id]

    def home(self, job_id: str, place: str, mounted: Sequence[str]) -> Path:
        """The home of its files; there is nothing but its own."""
        del mounted
        user = self.of(job_id)
        with acting_as(user.number):
            _lead_to(place, user.home)
        return user.home

    def prepare(self, order: StartWorker, env: Mapping[str, str], log: int) -> User:
        """Everything that a worker of this order writes to is its user's; OSError where that cannot be."""
        user = self.of(order.job_id)
        if any(word.startswith(NEED_ROOT) for word in order.argv[1:4]):
            raise OSError(f"buckets that are mounted, and containers, need root: {WITHOUT}")
        if order.log:
            os.fchown(log, user.number, user.number)  # for a process that opens /dev/stdout again
        if self._is_ours_to_give(order.job_id, order.cwd):
            self._give(order.job_id, user, order.cwd)
        if (saved := env.get("SUBLET_CHECKPOINT_DIR", "")).startswith("/"):
            if self._is_ours_to_give(order.job_id, saved):
                Path(saved).mkdir(mode=0o700, exist_ok=True)
                self._give(order.job_id, user, saved)
            else:
                _try(Path(saved), user)
                if not self._folder.is_relative_to(saved):
                    self._owners[str(Path(saved))] = user
        return user

    def give(self, job_id: str, folder: str) -> None:
        """Files that came for it there become its own."""
        self._given.discard((job_id, folder))
        if self._is_ours_to_give(job_id, folder) and Path(folder).exists():
            self._give(job_id, self.of(job_id), folder)

    def acting(self, path: str) -> AbstractContextManager[None]:
        """As the job, in a folder that it was given, or below it."""
        for place in (path, *map(str, Path(path).parents)):
            if (user := self._owners.get(place)) is not None:
                return acting_as(user.number)
        return nullcontext()

    def _is_ours_to_give(self, job_id: str, folder: str) -> bool:
        """This agent made it for the job: no folder of another's, wherever a job says that it works or saves."""
        place = Path(folder)
        return place == self._folder / "checkpoints" / job_id or (
            place.parent == self._folder / "work" and place.name.rpartition("-")[0] == job_id
        )

    def _give(self, job_id: str, user: User, folder: str) -> None:
        """Once: what is there, and what it finds there when it comes again, is its own.

        It may run meanwhile: no link is followed, and a file with several names may be another's.
        """
        if (job_id, folder) in self._given:
            return
        for _, folders, files, place in os.fwalk(folder):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):
                    seen = os.stat(name, dir_fd=place, follow_symlinks=False)
                    if seen.st_uid != user.number and (stat.S_ISDIR(seen.st_mode) or seen.st_nlink == 1):
                        os.chown(name, user.number, user.number, dir_fd=place, follow_symlinks=False)
        os.chown(folder, user.number, user.number)
        self._given.add((job_id, folder))
        self._owners[str(Path(folder))] = user


def _try(saved: Path, user: User) -> None:
    """Whether it can save there, which is not ours: as itself, or a job could have root make folders anywhere."""
    probe = saved / f".sublet-{user.number}"
    try:
        with acting_as(user.number):
            saved.mkdir(parents=True, exist_ok=True)
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
            probe.unlink()
    except OSError as error:
        text = f"its user cannot write to its checkpoint directory; let it (chmod 1777), or {WITHOUT}"
        raise OSError(error.errno, text, str(saved)) from None


def _open_the_way(folder: Path) -> None:
    """A job may go through folders of root's on the way; their files have rights of their own."""
    for place in (folder, *folder.parents):
        seen = place.stat()
        if seen.st_uid == 0 and not seen.st_mode & 0o001:
            place.chmod(stat.S_IMODE(seen.st_mode) | 0o011)


def _device_groups() -> list[int]:
    """Those that root is in, and those of GPUs."""
    import grp

    mine = os.getgrouplist(pwd.getpwuid(0).pw_name, 0)
    found = [group.gr_gid for group in grp.getgrall() if group.gr_name in DEVICES]
    return sorted({*found, *(number for number in mine if number)})
