"""The controller's side of what travels: working directories are packed at submit, parts sent to nodes that lack them.

Whoever knows the name of a part may have it: names are digests, and only an order to start tells one to a node. A
`witness` in the state directory tells nodes that see the controller's own disk from those that do not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sublet.errors import BadInput, InvalidValue
from sublet.machine.dice import Dice
from sublet.machine.files import Files
from sublet.machine.remote import check_uri, is_remote
from sublet.runtime.agent.setups import PYTHON
from sublet.runtime.controller.logs import JobLogs
from sublet.runtime.controller.vouching import job_of
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.travel.content import Content
from sublet.runtime.travel.packing import pack
from sublet.wire.messages import StartWorker
from sublet.wire.travel import Kept, Lacks, Part, Printed, Travel

__all__ = ["Carrier"]

MOST_PARTS = 64  # in one answer


class Carrier:
    """`elsewhere`: nodes may be on machines that do not see this one's disk, so that working directories are packed."""

    def __init__(
        self, state_dir: Path, *, files: Files, dice: Dice, engine: Engine, logs: JobLogs, elsewhere: bool
    ) -> None:
        self._state_dir, self._files, self._dice, self._engine, self._logs = state_dir, files, dice, engine, logs
        self.elsewhere = elsewhere
        self.content = Content(state_dir / "content", files)
        self._words = ""
        self.packer = pack

    async def pack(self, spec: JobSpec) -> JobSpec:
        """The job with the name of its files as they are now; refused where they cannot travel."""
        if not self.elsewhere:
            for there, source in spec.mounts.items():
                if not _is_there(there, source, spec.cwd):
                    allowed = "what is there already: nodes are processes of this machine, and its files are yours"
                    raise InvalidValue(f"file_mounts.{there}", source, allowed)
            return replace(spec, code="")
        for there, source in spec.mounts.items():
            if is_remote(source):
                check_uri(f"file_mounts.{there}", source)
        mounts = {there: Path(source) for there, source in spec.mounts.items() if not is_remote(source)}
        try:
            code = await asyncio.to_thread(self.packer, self.content, Path(spec.cwd), mounts, besides=[self._state_dir])
        except OSError as error:
            raise BadInput(self.content.folder, f"cannot be written ({error.strerror})", hint="make room") from error
        return replace(spec, code=code)

    def load(self, order: StartWorker, spec: JobSpec) -> StartWorker:
        """The order with what its node must have before; mounts are nowhere but where they are put."""
        if not self.elsewhere and not spec.setup:
            return order
        travel = Travel(code=spec.code, setup=_setup(spec) if self.elsewhere else spec.setup)
        if self.elsewhere:
            words = "" if spec.mounts else self._witness_words()
            travel = replace(travel, witness=str(self._witness), words=words)
        return replace(order, travel=travel)

    def hear(self, node_id: str, message: Lacks | Printed, may_speak: Callable[[str, str], bool]) -> None:
        """A node wants parts, or tells what a worker of its own has printed."""
        if isinstance(message, Lacks):
            self._send_parts(node_id, message)
        elif may_speak(node_id, message.worker_id):
            self._keep_log(node_id, message)

    def _send_parts(self, node_id: str, message: Lacks) -> None:
        for digest in message.digests[:MOST_PARTS]:
            packed = self.content.packed(digest) or b""
            if not self._engine.send(node_id, Part(digest=digest, data=base64.b64encode(packed).decode())):
                return

    def _keep_log(self, node_id: str, message: Printed) -> None:
        """The answer is how much of it is here now."""
        try:
            data = base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            return
        size = self._logs.of(job_of(message.worker_id)).take(message.worker_id, message.offset, data)
        if size is not None:
            self._engine.send(node_id, Kept(worker_id=message.worker_id, offset=size))

    @property
    def _witness(self) -> Path:
        return self._state_dir.absolute() / "witness"

    def _witness_words(self) -> str:
        """What only this state directory says; "" where it can say nothing, so that no node sees it."""
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
        words = self._dice.token(16)
        self._files.write(self._witness, words.encode())
        return words


def _is_there(there: str, source: str, cwd: str) -> bool:
    """Whether a worker on this machine finds it there as it is."""
    place = Path(cwd) / Path(there).expanduser()
    return source.startswith("/") and place.exists() and place.samefile(source)


def _setup(spec: JobSpec) -> str:
    """What is to run on a node, the buckets that it brings first. Its agent says which Python has Sublet."""
    pairs = [word for there, source in spec.mounts.items() if is_remote(source) for word in (source, there)]
    if not pairs:
        return spec.setup
    return f'"${PYTHON}" -P -m sublet.runtime.travel.bringing {shlex.join(pairs)}\n{spec.setup}'
