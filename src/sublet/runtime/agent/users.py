"""A user for each job, where the agent of a rented machine is root: jobs read neither the node's key nor each other.

A user is a number that nobody on the machine has, with a home of its own; there is no account. All that root alone may
read stays root's: key, token, the content that files are made of. A job owns its home, its working directory, its
checkpoints on this disk, and what it prints. Devices and shared memory are reached as before, by the groups of root.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sublet.runtime.agent.processes import die_with_parent
from sublet.wire.messages import StartWorker

__all__ = ["User", "Users"]

FIRST, MOST = 60_200, 800  # Debian leaves 60000 to 64999 to whoever needs some; systemd takes them from 61184 on
DEVICES = ("video", "render")  # groups that GPUs may belong to
NEED_ROOT = ("sublet.runtime.travel.mounted", "sublet.runtime.travel.contained")
THROUGH = 0o711  # a folder that one may go through and not look into
PR_SET_DUMPABLE = 4  # linux/prctl.h


class User(NamedTuple):
    """Whom the workers of a job run as."""

    number: int
    home: Path

    def variables(self) -> dict[str, str]:
        """What programs ask for where they would look for an account."""
        return {"HOME": str(self.home), "USER": f"job{self.number}", "LOGNAME": f"job{self.number}"}

    def become(self) -> None:
        """In a child, for good."""
        os.setgroups(_device_groups())
        os.setresgid(self.number, self.number, self.number)
        os.setresuid(self.number, self.number, self.number)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or what it is told of itself in /proc is root's
        die_with_parent()  # which was forgotten with the user


class Users:
    """Of one machine; `folder` is the agent's, and has the jobs' directories."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._users = folder, dict[str, User]()
        self._given: set[tuple[str, str]] = set()  # (job, folder)
        for place in (folder.parent, folder, folder / "work", folder / "home"):
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

    def home(self, job_id: str) -> Path:
        """Where ~ is for its files."""
        return self.of(job_id).home

    def prepare(self, order: StartWorker, env: Mapping[str, str], log: int) -> User:
        """Everything that a worker of this order writes to is its user's; OSError where that cannot be."""
        user = self.of(order.job_id)
        if order.argv[1:2] == ("-m",) and order.argv[2].startswith(NEED_ROOT):
            raise OSError("buckets that are mounted, and containers, need root: own_users = false in aws.toml")
        if order.log:
            os.fchown(log, user.number, user.number)  # for whoever opens /dev/stdout again
        if Path(order.cwd).is_relative_to(self._folder):
            self._give(order.job_id, user, order.cwd)
        if (saved := env.get("SUBLET_CHECKPOINT_DIR", "")).startswith("/"):
            Path(saved).parent.mkdir(parents=True, exist_ok=True)
            _open_the_way(Path(saved).parent)
            Path(saved).mkdir(mode=0o700, exist_ok=True)
            self._give(order.job_id, user, saved)
        return user

    def give(self, job_id: str, folder: str) -> None:
        """What came for it there is its own."""
        self._given.discard((job_id, folder))
        if Path(folder).exists():
            self._give(job_id, self.of(job_id), folder)

    def _give(self, job_id: str, user: User, folder: str) -> None:
        """Once: what is there, and what it finds there when it comes again, is its own."""
        if (job_id, folder) in self._given:
            return
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.lchown(os.path.join(place, name), user.number, user.number)  # noqa: PTH118 - by the thousand
        os.chown(folder, user.number, user.number)
        self._given.add((job_id, folder))


def _open_the_way(folder: Path) -> None:
    """One may go through folders of root's on the way; what is in them says itself who may read it."""
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
