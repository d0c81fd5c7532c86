"""Agents on hosts that share nothing with the engine but a network: the rig of the engine between machines."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
import shutil
import sys

from sublet.wire.messages import StartWorker
from sublet_lab.box.claim import NoBox, claim
from sublet_lab.box.image import Image
from sublet_lab.box.machine import Machine
from sublet_lab.box.network import Network
from tests.rigs.secure_lines import TOKEN, TlsRig

FOLDER = "/opt/rig"


class BoxedRig(TlsRig):
    """Each agent has a host of its own; strangers come from this machine. NoBox where there are none."""

    def __init__(self) -> None:
        self.claim = claim()
        super().__init__()
        self.network = Network(self.claim)
        self.network.build()
        self.place = (self.network.address, self.place[1])
        self.address = f"tls:{self.place[0]}:{self.place[1]}"
        self.hosts: dict[str, Machine] = {}
        self._count = itertools.count()
        self._files: dict[str, str] = {}

    def agent(self, node_id, token, *, address="", lease_s=30.0):
        """Its host ends with it."""
        agent = [sys.executable, "-m", "sublet.runtime.agent", "--node", node_id, "--lease-s", str(lease_s)]
        agent += ["--address", address or self.address, "--token-file", "token", "--authority", "authority"]
        self._files[f"{FOLDER}/token"] = f"{token} of {node_id}" if token == TOKEN else token
        self._files[f"{FOLDER}/authority"] = self.authority.certificate
        folder = self.claim.folder / f"{node_id}-{next(self._count)}"
        folder.mkdir()
        boot = f"cd {FOLDER}; {shlex.join(agent)} > agent.log 2>&1; shutdown -h now\n"
        self.hosts[node_id] = Machine(self.network.cable(), Image(files=self._files), folder, boot.encode())
        return 0

    def left(self):
        return sorted(name for name, host in self.hosts.items() if host.is_on())

    def kill(self, node_id):
        self.hosts[node_id].cut_off(silently=False)  # else half a lease passes until its line is cut

    def script(self, name, text):
        path = f"{FOLDER}/{name}"
        self._files[path] = text
        for host in self.hosts.values():
            if host.is_on():
                host.write(path, text)
        return path

    def start(self, worker_id, script, *arguments, **facts):
        argv = facts.pop("argv", (sys.executable, script, *arguments))
        return StartWorker(worker_id=worker_id, job_id="job", argv=argv, log=f"{FOLDER}/{worker_id}.log", **facts)

    def clean_up(self):
        left = self.left()
        for host in self.hosts.values():
            host.cut_off()
        shutil.rmtree(self.folder)
        self.claim.give_up()
        return left


@functools.cache
def why_no_hosts() -> str:
    """Empty where they can be made."""
    with contextlib.ExitStack() as stack:
        try:
            here = claim()
            stack.callback(here.give_up)
            Network(here).build()
        except NoBox as error:
            return str(error)
    return ""


def rig_between_machines():
    """Hosts where they can be made, else this machine's loopback."""
    return TlsRig() if why_no_hosts() else BoxedRig()
