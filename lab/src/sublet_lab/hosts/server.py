"""A controller outside the box, in a process of its own, which may be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sublet.api.client import connect
from sublet.api.state import StateDir
from sublet.errors import NoController, Refused, SubletError
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from sublet.runtime.settings import Settings, settings_to_json
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.renting import write_config

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # util-linux: a killed study leaves no process
UP_S = 90.0
DOWN_S = 120.0
LOOK_S = 0.2


class Server:
    """One state directory; it rents at most `nodes` hosts of the box."""

    def __init__(self, folder: Path, box: Box, *, nodes: int, lease_s: float) -> None:
        self.state = StateDir(folder)
        self.state.prepare()
        self._box = box
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        write_config(folder, box, port, {"lease_s": lease_s})
        self.settings = Settings(state_dir=str(folder), provider="aws", policy="max-speedup", most_nodes=nodes)
        self.state.write(self.state.settings, settings_to_json(self.settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers."""
        with self.state.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [*DIES_WITH_US, sys.executable, "-m", "sublet.api.main", str(self.state.path)],
                env={**os.environ, **self._box.account},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end_s = time.monotonic() + UP_S
        while not (self.ask("health") or {}).get("ready"):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise NoController(str(self.state.path), "it did not come up: see controller.log there")
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """As if this machine had lost its power; hosts go on."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def down(self) -> None:
        """`sublet down`; killed where that does not end it."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(SubletError):
            connect(self.state.path).post("/v1/shutdown")
        try:
            self._process.wait(DOWN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def submit(self, spec: JobSpec) -> str:
        """Its id."""
        answer = connect(self.state.path).post("/v1/jobs", {"job": spec_to_json(spec, secrets=True)})
        return str(answer["job_id"])

    def ask(self, what: str) -> dict[str, Any] | None:
        """None without an answer."""
        try:
            return connect(self.state.path).get(f"/v1/{what}")
        except (NoController, Refused):
            return None

    def job(self, job_id: str) -> dict[str, Any]:
        """Its view; {} without an answer."""
        answer = self.ask(f"jobs/{job_id}") or {}
        found: dict[str, Any] = answer.get("job", answer)
        return found

    def printed(self, job_id: str) -> dict[str, list[str]]:
        """Output of its workers that was sent home, by worker."""
        files = sorted((self.state.path / "jobs" / job_id / "logs").glob("*.log"))
        return {path.stem: path.read_text(encoding="utf-8", errors="replace").splitlines() for path in files}
