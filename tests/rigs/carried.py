"""Hosts with disks of their own and a controller, joined by lines in memory: nothing happens but what a test does.

The checkpoints are the SDK's own, the code at both ends is what ships; a machine, a line or the controller can be lost
between any two messages.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from sublet.machine.files import FILES
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.keeping import Keeping
from sublet.runtime.agent.users import as_we_are
from sublet.runtime.controller.files.checkpoints import PulledJobs, Pulling
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.manifest import TREE, verify, write_files
from sublet.wire.files import DISK as ON_DISK
from sublet.wire.files import Lacks, Part, Saved, Travel, Wants
from sublet.wire.lines import from_line, to_line
from sublet.wire.messages import FromWorker, StartWorker
from sublet_lab.world.machine import MemoryFiles

JOB = "job-1"


class Host:
    """A node: its disk is `folder`."""

    def __init__(self, scene, name):
        self.scene, self.name = scene, name
        self.folder = scene.folder / name
        self.answers, self.ends, self.logged, self.out = [], [], [], deque()
        self.begin()

    def begin(self):
        """An agent begins here, with what is on the disk."""
        wall = SimpleNamespace(monotonic=lambda: self.scene.now_s, unix=lambda: self.scene.now_s)
        machine = SimpleNamespace(
            files=FILES, disk=DISK, wall=wall, log=self.logged.append, give=lambda *_: None, acting=as_we_are
        )
        self.out.clear()
        self.keeping = Keeping(
            self.folder, machine, self.out.append, answer=self.answers.append, tell_end=self.ends.append
        )

    def start(self, generation, number=0):
        """A worker; its id."""
        worker_id = f"{JOB}.{generation}.{number}"
        order = StartWorker(worker_id=worker_id, job_id=JOB, argv=("train",), travel=Travel(carries=True))
        self.order = self.keeping.adopt(order)
        self.scene.generation = max(self.scene.generation, generation)
        return worker_id

    def start_script(self, generation, rank=0):
        """A worker without the SDK, as soon as it may; None while it waits."""
        worker_id = f"{JOB}.{generation}.{rank}"
        env = {"RANK": str(rank), "SUBLET_GENERATION": str(generation)}
        facts = {"job_id": JOB, "argv": ("train",), "env": env, "watch": True, "travel": Travel(carries=True)}
        self.scene.generation = max(self.scene.generation, generation)
        self.order = self.keeping.adopt(StartWorker(worker_id=worker_id, **facts))
        self.keeping.is_here(self.order)
        self.scene.run()
        assert self.keeping.is_here(self.order)
        self.order = self.keeping.with_resume(self.order)
        return worker_id

    @property
    def place(self):
        """Where its scripts save."""
        return self.folder / "checkpoints" / JOB

    def write(self, name, data):
        """As scripts do."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        at_ns = int(self.scene.now_s * 1e9)  # by the clock of this scene
        os.utime(path, ns=(at_ns, at_ns))

    def found(self):
        """What lies there."""
        files = (path for path in self.place.rglob("*") if path.is_file())
        return {str(path.relative_to(self.place)): path.read_bytes() for path in files}

    @property
    def directory(self):
        """As a worker here has it."""
        return Directory(self.folder / "checkpoints" / JOB)

    def save(self, worker_id, step, generation, data=b"weights"):
        """By the code that ships."""
        contents = {"data-0000.bin": memoryview(data), TREE: memoryview(f"step {step}".encode())}
        directory = self.directory
        directory.announce(generation)
        with directory.open_staging(step) as staging:
            facts = {"step": step, "generation": generation, "writer": worker_id, "meta": {"samples_done": step * 8}}
            write_files(staging, contents, **facts)
            directory.commit(staging, step, generation)
        said = Saved(
            worker_id=worker_id, step=step, done=step * 8.0, seconds=0.1, blocked_s=0.0, size_bytes=1, tier=ON_DISK
        )
        self.keeping.note(FromWorker(message=said))

    def load(self, worker_id, generation):
        """The newest step as a worker finds it, after it was brought; None if there is none."""
        self.answers.clear()
        self.keeping.bring(Wants(worker_id=worker_id, generation=generation))
        self.scene.run()
        (answer,) = self.answers
        assert answer.why == ""
        return self.newest()

    def newest(self):
        """The highest that is whole; those above it must be, too."""
        steps = self.directory.steps()
        for step in steps:
            verify(self.directory.folder(step), step)
        return steps[0] if steps else None


class Scene:
    """A controller and its hosts."""

    def __init__(self, folder, keep=3):
        self.folder, self.keep, self.generation, self.now_s = folder, keep, 0, 100.0
        self.hosts, self.saved, self.alarms, self.sent = {}, [], [], []
        self.down = deque()  # (host, message)
        self.files = MemoryFiles()  # of the controller
        self.begin()

    def begin(self):
        """A controller, on what is on its disk; what was on its lines is gone."""
        self.down.clear()
        self.pulling = Pulling(
            Path("/state/checkpoints"),
            self.files,
            SimpleNamespace(send=lambda node_id, message: self.down.append((node_id, message))),
            SimpleNamespace(monotonic=lambda: self.now_s),
            PulledJobs(
                terms=lambda _: (self.keep, self.generation),
                saved=lambda saved, _: self.saved.append(saved),
                alarm=lambda _, text: self.alarms.append(text),
            ),
        )

    def host(self, name):
        """A new one."""
        self.hosts[name] = Host(self, name)
        return self.hosts[name]

    def lose(self, name):
        """A host is gone with its disk."""
        del self.hosts[name]
        self.down = deque(each for each in self.down if each[0] != name)
        self.pulling.forget_node(name)

    def new_lines(self):
        """All were cut: what was on them is lost."""
        self.down.clear()
        for host in self.hosts.values():
            host.out.clear()
            host.keeping.line_is_new()

    @property
    def head(self):
        """As it is on the disk."""
        return self.pulling.anchor(JOB).head

    def turn(self):
        """One message, or one piece of work; False when there is neither."""
        for name, host in self.hosts.items():
            if host.out:
                self._up(name, from_line(to_line(host.out.popleft())))
                return True
        if self.down:
            name, message = self.down.popleft()
            self.sent.append((name, from_line(to_line(message))))
            self.hosts[name].keeping.hear(message)
            return True
        for host in self.hosts.values():
            if host.keeping.due_s() <= self.now_s:
                host.keeping.keep_time(self.now_s)
                return True
        return False

    def run(self, turns=10_000):
        """Until nothing is left to do, or for so many turns; how many there were."""
        for turn in range(turns):
            if not self.turn():
                return turn
        return turns

    def wait(self, seconds):
        """Time passes."""
        self.now_s += seconds
        self.run()

    def _up(self, name, message):
        if isinstance(message, Lacks):
            for digest in self.pulling.send_parts(name, message.digests, message.doubted):
                self.down.append((name, Part(digest=digest)))
        elif isinstance(message, Part):
            self.pulling.take(name, message)
        elif hasattr(message, "generation") or hasattr(message, "why"):
            self.pulling.receive(name, message)

    def parts_sent(self, kind=Part):
        """Parts that went to hosts, since the last look."""
        found, self.sent = [message for _, message in self.sent if isinstance(message, kind)], []
        return found
