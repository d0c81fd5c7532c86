"""Machines of one's own that share nothing: hosts of a box, each with an ssh server, to which our code is sent."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.providers.ssh.config import Host
from sublet.runtime.providers.ssh.hostline import Way
from sublet.runtime.providers.ssh.provider import SshProvider
from sublet_lab.box.claim import claim
from sublet_lab.box.image import Image
from sublet_lab.box.machine import Machine
from sublet_lab.box.network import Network
from sublet_lab.box.sshd import service

NAMES = ("ada", "bell")
PUBLIC_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
UP_S = 120.0
SHOW = "for f in /root/.local/state/sublet-nodes/{}/nodes/*.json; do [ -f $f ] && cat $f && printf '\\0'; done"
_RIGS = itertools.count()


@functools.cache
def machines():
    """For all tests of this process: machines and where they are. NoBox where none can be made."""
    asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install '.[ssh]'")
    here = claim()
    atexit.register(here.give_up)
    network = Network(here)
    network.build()
    key, key_file = asyncssh.generate_private_key("ssh-ed25519"), here.folder / "id_ed25519"
    key.write_private_key(str(key_file))
    files = {**service(), "/root/.ssh/authorized_keys": key.export_public_key().decode()}
    image, made = Image(files=files, sublet=False), {}
    for name in NAMES:
        (folder := here.folder / name).mkdir()
        machine = Machine(network.cable(), image, folder, b"")
        atexit.register(machine.cut_off)
        machine.wait_until_up()
        end_s = time.monotonic() + UP_S
        while not (host_key := machine.read(PUBLIC_KEY).strip()):
            assert time.monotonic() < end_s, machine.read("/var/log/service.log")
            time.sleep(0.05)
        way = {"host": machine.cable.address, "port": 22, "user": "root", "key": str(key_file), "slots": 1}
        made[Host(name=name, host_key=host_key, **way)] = machine
    return made


class BoxedSshRig:
    """A server's corner of them; what exists is what is written down there, and runs there."""

    offer_id = "ssh:cpux1"

    def __init__(self):
        self.machines = machines()
        self.folder = Path(tempfile.mkdtemp(prefix="sublet-boxed-ssh-"))
        self.clock = Clock()
        self.server = f"boxed-{os.getpid()}-{next(_RIGS)}"
        self._seen = {}  # node -> machine, pid there, start

    def provider(self, *, supply=None):
        way = Way(server=self.server, python=sys.executable, preload=(), back=None, gone_s=60.0)
        request = {"address": "tcp:198.18.0.1:7070", "lease_s": 30.0}  # nobody is there: providers are tested
        facts = {"state_dir": self.folder, "clock": self.clock, "hosts": list(self.machines), "way": way}
        return SshProvider(**facts, request=request, most=supply)

    def left(self):
        for machine in self.machines.values():
            for text in machine.run("sh", "-c", SHOW.format(self.server)).stdout.split("\0")[:-1]:
                record = json.loads(text)
                if record["pid"]:
                    self._seen[record["node_id"]] = (machine, record["pid"], record["start"])
        return sorted(name for name, place in self._seen.items() if _runs(*place))

    def kill(self, node_id):
        assert node_id in self.left()
        machine, pid, _ = self._seen[node_id]
        machine.run("kill", "-KILL", str(pid))

    def clean_up(self):
        left = self.left()
        for node_id in left:
            self.kill(node_id)
        shutil.rmtree(self.folder)
        return left


def _runs(machine, pid, start):
    """As the machine's own /proc has it: state, and when it began."""
    facts = machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return len(facts) > 19 and facts[0] not in "ZX" and int(facts[19]) == start
