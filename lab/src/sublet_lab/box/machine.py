"""One host: namespaces of its own for network, mounts, processes, names and memory that is shared."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

from sublet_lab.box.claim import NoBox
from sublet_lab.box.image import Image
from sublet_lab.box.network import Cable

HERE = Path(__file__).parent
OFF = "#!/bin/sh\nkill -TERM 1\n"  # what `shutdown` and `poweroff` do
BOOT_S = 120.0  # far more than it takes
PATH = "/box/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Machine:
    """It is on from the beginning. `folder` is ours, outside."""

    def __init__(self, cable: Cable, image: Image, folder: Path, user_data: bytes) -> None:
        self.cable, self._folder = cable, folder
        added = folder / "added"
        _write(added / "box/user-data", user_data)
        _write(added / "box/init", (HERE / "init.sh").read_bytes())
        env = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **image.env}
        _write(added / "box/env", "".join(f"export {k}={shlex.quote(v)}\n" for k, v in env.items()).encode())
        for name in ("shutdown", "poweroff"):
            _write(added / "box/bin" / name, OFF.encode(), mode=0o755)
        for path, text in image.files.items():
            _write(added / path.lstrip("/"), text.encode(), mode=0o755 if text.startswith("#!") else 0o644)
        _write(folder / "shown", "".join(f"{path}\n" for path in image.paths()).encode())
        (folder / "root").mkdir()
        name = f"ip-{cable.address.replace('.', '-')}"
        command = ["nsenter", f"--net=/run/netns/{cable.name}"]
        command += ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        command += ["/bin/bash", str(HERE / "boot.sh"), str(folder / "root"), name]
        command += [str(folder / "shown"), str(added)]
        with (folder / "boot.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env={"PATH": PATH}
            )

    def is_on(self) -> bool:
        """Until it is shut down, inside or outside."""
        return self._process.poll() is None

    def cut_off(self, *, silently: bool = True) -> None:
        """As if its power had failed: the cable is pulled first, so that no farewell is sent; or as if it crashed."""
        if silently:
            with contextlib.suppress(NoBox):  # it may be gone
                self.cable.pull()
        if self.is_on():  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first_pid() or self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.cable.remove()
        shutil.rmtree(self._folder / "added", ignore_errors=True)

    def read(self, path: str) -> str:
        """A file of its own, as root sees it there; "" where there is none, or the host is off."""
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{self.first_pid()}/root", path.lstrip("/"))
            return place.read_text(encoding="utf-8", errors="replace")
        return ""

    def write(self, path: str, text: str) -> None:
        """A file of its own, put there from outside; OSError where the host is off."""
        self.wait_until_up()
        _write(Path(f"/proc/{self.first_pid()}/root", path.lstrip("/")), text.encode())

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Something that is typed there, to its end."""
        here = self.popen(*command)
        out, err = here.communicate()
        return subprocess.CompletedProcess(command, here.returncode, out, err)

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Something that is typed there, once it is up."""
        self.wait_until_up()
        pipe = subprocess.PIPE
        return subprocess.Popen(  # noqa: S603 - ourselves
            ["nsenter", "-t", str(self.first_pid()), "-a", *command],  # noqa: S607 - a tool of the system
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={"PATH": PATH},
        )

    def wait_until_up(self) -> None:
        """Until it has a filesystem of its own, or is off."""
        end_s = time.monotonic() + BOOT_S
        while self.is_on() and not Path(f"/proc/{self.first_pid()}/root/var/log/user-data.log").exists():
            assert time.monotonic() < end_s, (self._folder / "boot.log").read_text(encoding="utf-8")
            time.sleep(0.01)

    def first_pid(self) -> int:
        """Its pid 1, as it is called here; 0 where there is none."""
        pid = self._process.pid  # nsenter, which became unshare, which forked
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])
        return 0


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
