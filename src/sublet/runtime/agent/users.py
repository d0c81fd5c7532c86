"""A user for each job, where the agent of a rented machine is root: jobs read neither the node's key nor each other.

A user is a number that is unused on the machine, with a home of its own; there is no account. All that root alone may
read stays root's: key, token, the content that files are made of. A job owns its home, its working directory, its
checkpoints on this disk, and what it prints, and nothing that was there before. If a job can have put links, root acts
as the job. Devices and shared memory are reached as before, by the groups of root.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from sublet.runtime.agent.acting import acting_as
from sublet.runtime.agent.homes import lead_to
from sublet.runtime.agent.processes import die_with_parent
from sublet.wire.messages import StartWorker

__all__ = ["User", "Users"]

FIRST, MOST = 60_200, 800  # Debian leaves 60000 to 64999 for such uses; systemd takes them from 61184 on
DEVICES = ("video", "render")  # groups that GPUs may belong to
NEED_ROOT = ("sublet.runtime.file_sync.mounted", "sublet.runtime.file_sync.contained")
WITHOUT = "own_users = false in aws.toml"
THROUGH = 0o711  # a folder that one may go through and not look into
PR_SET_DUMPABLE = 4  # linux/prctl.h


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
            lead_to(place, user.home)
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
