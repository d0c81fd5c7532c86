"""One real agent that does not see the controller's disk, and of a controller what sends files and keeps logs."""

from __future__ import annotations

from contextlib import asynccontextmanager

from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.logs import JobLogs
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.rigs import Ears, until
from sublet.wire.files import Lacks, Printed
from sublet.wire.lines import to_line
from sublet.wire.messages import Dismiss, EndWorker, Hello, StartWorker

JOBS = tuple(f"job-{number}" for number in range(1, 5))


def job_of(worker_id):
    return worker_id.partition(".")[0]


class Sender(Ears):
    """The controller, as far as files and logs go; it remembers what it says, and holds it back if it is told to."""

    def __init__(self, folder, engine):
        super().__init__()
        self.engine, self.sent, self.silent = engine, [], False
        for job_id in JOBS:
            (folder / "state" / "jobs" / job_id / "logs").mkdir(parents=True)
        self.logs = JobLogs(folder / "state")
        facts = {"files": FILES, "rng": RNG, "engine": self, "logs": self.logs, "elsewhere": True}
        self.carrier = FileSync(folder / "state", **facts)

    def send(self, node_id, message):
        self.sent.append(message)
        return self.engine.send(node_id, message)

    def hear(self, node_id, message):
        super().hear(node_id, message)
        if isinstance(message, Lacks | Printed) and not self.silent:
            self.carrier.receive(node_id, message, lambda *_: True)

    def bytes_of(self, *kinds):
        return sum(len(to_line(message)) for message in self.sent if isinstance(message, kinds))

    async def start(self, worker_id, argv, **facts):
        spec = JobSpec(name="job", argv=argv, cwd=facts.pop("cwd"), **facts)
        spec = await self.carrier.pack(spec)
        log = str(self.logs.of(job_of(worker_id)).path(worker_id))
        order = StartWorker(
            worker_id=worker_id, job_id=job_of(worker_id), argv=argv, cwd=spec.cwd, log=log, env=dict(spec.env)
        )
        self.send("n", self.carrier.load(order, spec))

    def end(self, worker_id):
        self.send("n", EndWorker(worker_id=worker_id))

    def log(self, worker_id):
        path = self.logs.of(job_of(worker_id)).path(worker_id)
        return path.read_text(encoding="utf-8") if path.exists() else ""


@asynccontextmanager
async def scene(rig, *, blind=True):
    """An agent, and whoever answers it; `blind`: the node cannot read the witness, as on a disk of its own."""
    engine = rig.engine()
    sender = Sender(rig.folder, engine)
    await engine.open(sender.hear)
    engine.expect("n", "token")
    rig.agent("n", "token")
    await sender.next(Hello)
    if blind:
        sender.carrier._witness_words()
        (rig.folder / "state" / "witness").write_text("of another disk")
    try:
        yield sender
    finally:
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()
