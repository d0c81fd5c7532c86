"""The controller's side of what travels: working directories are packed at submit, parts sent to nodes that lack them.

Knowing the name of a part is the right to have it: names are digests, and only an order to start tells one to a node. A
`witness` in the state directory tells nodes that see the controller's own disk from those that do not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sublet.errors import BadInput, InvalidValue
from sublet.machine.files import Files
from sublet.machine.remote import check_uri, is_remote
from sublet.machine.rng import Rng
from sublet.runtime.agent.setups import PYTHON
from sublet.runtime.controller.files.buckets import Claims
from sublet.runtime.controller.files.checkpoints import Pulling
from sublet.runtime.controller.files.logs import JobLogs
from sublet.runtime.controller.memory import JobRecord, job_of
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.file_sync.buckets import check_buckets
from sublet.runtime.file_sync.content import Content, Fetch, digest_of
from sublet.runtime.file_sync.packing import file_notes, local_among, pack, packed_names, tracker_notes, travelling
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.files import DISK, Damaged, Kept, Lacks, Part, Printed, Saved, Travel
from sublet.wire.messages import FromWorkerMessage, StartWorker, ToController, Travelling

MOST_PARTS = 64  # in one answer
BRINGING, MOUNTED = "sublet.runtime.file_sync.bringing", "sublet.runtime.file_sync.mounted"


class FileSync:
    """`elsewhere`: nodes may be on machines that do not see this one's disk, so that working directories are packed."""

    def __init__(
        self, state_dir: Path, *, files: Files, rng: Rng, engine: Engine, logs: JobLogs, elsewhere: bool
    ) -> None:
        self._state_dir, self._files, self._rng, self._engine, self.logs = state_dir, files, rng, engine, logs
        self.elsewhere = elsewhere
        self.is_owners = True  # this machine is that of the submitter; on a controller host their paths mean nothing
        self.content = Content(state_dir / "content", files)
        self._words = ""
        self.packer, self.looker = pack, travelling
        self.pulling: Pulling | None = None  # None = no checkpoints are carried here
        self._asked: dict[str, str] = {}  # jobs whose nodes are to say whether they see this directory
        self._apart: set[str] = set()  # ... and do not
        self.claims: Claims | None = None  # None = what workers say of buckets is believed
        self.buckets = check_buckets
        self.no_containers: Callable[[], str] = str  # why no node can run one, as far as the provider knows

    async def pack(self, spec: JobSpec) -> JobSpec:
        """The job with the name of its files as they are now; refused where they cannot travel.

        One that came with that name has had its files brought, from a machine whose paths mean nothing here.
        """
        notes = await self.check(spec, make=True)
        if spec.code and self.elsewhere:
            if not await asyncio.to_thread(lambda: Fetch(self.content, spec.code).here):
                raise BadInput(f"the files of {spec.name}", "have not come, or not all of them", hint="submit it again")
            return replace(spec, notes=(*spec.notes, *notes))
        if not self.elsewhere:
            return replace(spec, code="")
        if not self.is_owners:
            _refuse_unsent(spec)
            return replace(spec, notes=(*spec.notes, *notes))
        try:
            code, names = await asyncio.to_thread(self._packed, spec)
        except OSError as error:
            raise BadInput(self.content.folder, f"cannot be written ({error.strerror})", hint="make room") from error
        return replace(spec, code=code, notes=(*spec.notes, *notes, *file_notes(spec, names)))

    def _packed(self, spec: JobSpec) -> tuple[str, list[str]]:
        besides = [self._state_dir, *map(Path, spec.unsent)]
        code = self.packer(self.content, Path(spec.cwd), local_among(spec.mounts), besides=besides)
        return code, packed_names(self.content, code)

    async def look(self, spec: JobSpec) -> list[str]:
        """As `pack` would refuse it, and what it would note; nothing is kept."""
        notes = await self.check(spec)
        if self.elsewhere and not spec.code and not self.is_owners:
            _refuse_unsent(spec)
        elif self.elsewhere and not spec.code:
            besides = [self._state_dir, *map(Path, spec.unsent)]
            names = await asyncio.to_thread(self.looker, Path(spec.cwd), local_among(spec.mounts), besides=besides)
            notes += file_notes(spec, names)
        return notes

    async def check(self, spec: JobSpec, *, make: bool = False) -> list[str]:
        """Notes on its files; refused where no node could have them. `make`: buckets that are to be."""
        if self.elsewhere:
            for there, source in spec.mounts.items():
                if is_remote(source):
                    check_uri(f"file_mounts.{there}", source)
            if spec.image and (why := self.no_containers()):
                raise InvalidValue("resources.image_id", spec.image, f"left out: {why}")
            ours = self.is_owners and not spec.code  # else they were made where its files are
            notes = tracker_notes(spec, self._files) if ours else []
            return [*notes, *_place_notes(spec), *await self.buckets(spec, make=make)]
        for there, source in spec.mounts.items():
            if not _is_there(there, source, spec.cwd):
                allowed = "what is there already: nodes are processes of this machine, and its files are yours"
                raise InvalidValue(f"file_mounts.{there}", source, allowed)
        if spec.image:
            allowed = "left out where nodes are processes of this machine: containers are for nodes of their own"
            raise InvalidValue("resources.image_id", spec.image, allowed)
        return []

    def load(self, order: StartWorker, spec: JobSpec) -> StartWorker:
        """The order with what its node must have before; mounts are nowhere but where they are put."""
        if not self.elsewhere and not spec.setup:
            return order
        if not self.elsewhere:
            return replace(order, travel=Travel(code=spec.code, setup=spec.setup))
        kept = {there: spec.mounts[there] for there in spec.kept_mounts}
        words = "" if spec.mounts or spec.image else self._witness_words()
        travel = Travel(code=spec.code, setup=_setup(spec), kept=kept, witness=str(self._witness), words=words)
        seen = tuple(there for there in spec.mounts if there.startswith(("/", "~")))
        travel = replace(travel, carries=self.carries(spec), shared=self._shared(order.job_id, spec), seen=seen)
        if spec.image:
            travel = replace(travel, image=spec.image, inside=spec.setup)
        return replace(order, travel=travel)

    def carries(self, spec: JobSpec, job_id: str = "") -> bool:
        """Its checkpoints lie on its nodes' own disks, from where they are carried here; without an id, they may.

        Its owner may have named a bucket; or a directory that all nodes see, until one says that it does not.
        """
        if not self.elsewhere or self.pulling is None or is_remote(spec.checkpoint_dir):
            return False
        return not (spec.checkpoint_dir and job_id) or self._is_apart(job_id, self.pulling)

    def judge(self, records: Mapping[str, JobRecord], message: FromWorkerMessage) -> FromWorkerMessage:
        """The word of a worker on checkpoints that are carried here: at most that they are on its node's disk.

        Nor of a bucket: its job has named none that could be looked at, or gone on from.
        """
        job_id = job_of(message.worker_id)
        if self.pulling is None or not self.carries(records[job_id].spec, job_id):
            return message
        if isinstance(message, Damaged):
            names = (Path(path).name.removeprefix("step-") for path in message.paths)
            self.pulling.drop(job_id, [int(name) for name in names if name.isdecimal()])
        return replace(message, tier=DISK) if isinstance(message, Saved) else message

    def holds(self, node_id: str, message: ToController, wall_s: float) -> bool:
        """Whether it is heard later, when a bucket was looked at."""
        return self.claims is not None and self.claims.holds(node_id, message, wall_s)

    def receive(self, node_id: str, message: Travelling, may_speak: Callable[[str, str], bool]) -> None:
        """A node wants parts or has some, tells what a worker of its own has printed, or has or wants a checkpoint."""
        if isinstance(message, Lacks):
            self._send_parts(node_id, message)
        elif isinstance(message, Part):
            if self.pulling is not None:
                self.pulling.take(node_id, message)
        elif not may_speak(node_id, message.worker_id):
            return
        elif isinstance(message, Printed):
            self._keep_log(node_id, message)
        elif self.pulling is not None:
            self._note_apart(node_id, job_of(message.worker_id), self.pulling)
            self.pulling.receive(node_id, message)

    def forget_node(self, node_id: str) -> None:
        """It is gone."""
        if self.pulling is not None:
            self.pulling.forget_node(node_id)

    def _send_parts(self, node_id: str, message: Lacks) -> None:
        lacking = [digest for digest in message.digests[:MOST_PARTS] if not self._send_part(node_id, digest)]
        if self.pulling is not None and lacking:
            lacking = self.pulling.send_parts(node_id, lacking, message.doubted)
        for digest in lacking:
            self._engine.send(node_id, Part(digest=digest))

    def _send_part(self, node_id: str, digest: str) -> bool:
        if not (packed := self.content.packed(digest)):
            return False
        self._engine.send(node_id, Part(digest=digest, data=packed))
        return True

    def _keep_log(self, node_id: str, message: Printed) -> None:
        """The answer is how much of it is here now."""
        try:
            data = base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            return
        size = self.logs.of(job_of(message.worker_id)).take(message.worker_id, message.offset, data)
        if size is not None:
            self._engine.send(node_id, Kept(worker_id=message.worker_id, offset=size))

    def _shared(self, job_id: str, spec: JobSpec) -> str:
        """A folder in the directory that its owner has named, by which nodes know it; "" where they need not look.

        A folder, since files there would be taken for what a script has saved.
        """
        if not spec.checkpoint_dir or self.pulling is None or not self.carries(spec) or self.carries(spec, job_id):
            return ""
        self._asked[job_id] = spec.checkpoint_dir
        if not (words := self._witness_words()):
            return ""
        place = Path(spec.checkpoint_dir) / f".sublet-{digest_of(words.encode())[:16]}"
        try:
            self._files.make_folder(place)
        except OSError:
            return ""
        return str(place)

    def _is_apart(self, job_id: str, pulling: Pulling) -> bool:
        """A node of it does not see the directory that it has named.

        What was carried once is carried from then on: a job has one place to go on from.
        """
        if job_id not in self._apart:
            try:
                head = pulling.anchor(job_id).head
            except (OSError, BadInput):
                return True  # there is one
            if not head.generation and not head.commits:
                return False
            self._apart.add(job_id)
        return True

    def _note_apart(self, node_id: str, job_id: str, pulling: Pulling) -> None:
        """Only whose checkpoints are carried has something to say of them."""
        self._apart.add(job_id)
        if folder := self._asked.pop(job_id, ""):
            then = (
                "checkpoints are carried here, and none is read from there; leave it out, or name a bucket (s3://...)"
            )
            pulling.alarm(job_id, f"checkpoint.uri = {folder!r} is not shared by {node_id}: {then}")

    @property
    def _witness(self) -> Path:
        return self._state_dir.absolute() / "witness"

    def _witness_words(self) -> str:
        """The secret of this state directory; "" where it can say nothing, so that no node sees it."""
        if not self._words:
            try:
                self._words = self._read_witness() or self._write_witness()
            except OSError:
                return ""
        return self._words

    def _read_witness(self) -> str:
        try:
            return self._files.read(self._witness).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _write_witness(self) -> str:
        words = self._rng.token(16)
        self._files.write(self._witness, words.encode())
        return words


def _refuse_unsent(spec: JobSpec) -> None:
    """Without files that came with it, a job has what is on its nodes; what is here is not its owner's."""
    for there, source in local_among(spec.mounts).items():
        allowed = "of the machine that submits the job, which sends it: sublet submit FILE"
        raise InvalidValue(f"file_mounts.{there}", str(source), allowed)


def _is_there(there: str, source: str, cwd: str) -> bool:
    """Whether a worker on this machine finds it there as it is."""
    place = Path(cwd) / Path(there).expanduser()
    return source.startswith("/") and place.exists() and place.samefile(source)


def _place_notes(spec: JobSpec) -> list[str]:
    if not spec.checkpoint_dir or is_remote(spec.checkpoint_dir):
        return []
    then = "where a node does not, its checkpoints are carried to the controller instead, as without checkpoint.uri"
    return [
        f"checkpoint.uri = {spec.checkpoint_dir!r} is for a directory that the controller and all nodes see: {then}"
    ]


def _setup(spec: JobSpec) -> str:
    """The setup of a node, the buckets that it brings first. Its agent says which Python has Sublet."""
    found = {there: source for there, source in spec.mounts.items() if is_remote(source)}
    copied = [word for there, source in found.items() if there not in spec.kept_mounts for word in (source, there)]
    kept = [word for there in spec.kept_mounts for word in (found[there], there)]
    lines = [
        f'"${PYTHON}" -P -m {module} {shlex.join(pairs)}'
        for module, pairs in ((BRINGING, copied), (MOUNTED, kept))
        if pairs
    ]
    own = [] if spec.image else [spec.setup]  # which is run inside
    return "\n".join([*lines, *own])
