"""Files of a job that the controller does not see: packed here, and those parts sent that it lacks.

It is asked for all of them by one name first: a job whose files have not changed costs one short question.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sublet.api import limits
from sublet.api.client import Client
from sublet.machine.files import FILES
from sublet.runtime.controller_host.record import folder_of
from sublet.runtime.file_sync.content import Content, digest_of, entries_from, names_in
from sublet.runtime.file_sync.packing import file_notes, local_among, pack, packed_names, tracker_notes, travelling
from sublet.runtime.jobs.spec import JobSpec

NOT_SENT = digest_of(b"")


def check_files(spec: JobSpec, state_dir: Path) -> JobSpec:
    """BadInput where `send_files` would refuse them; nothing is sent.

    The job is for a dry run alone: it names no files, so that they are not looked for where they are not.
    """
    besides = [state_dir, *map(Path, spec.unsent)]
    found = travelling(Path(spec.cwd), local_among(spec.mounts), besides=besides)
    return replace(spec, code=NOT_SENT, notes=(*spec.notes, *tracker_notes(spec, FILES), *file_notes(spec, found)))


def send_files(client: Client, spec: JobSpec, state_dir: Path) -> tuple[JobSpec, int]:
    """The job with the name of its files, which are there when it returns; bytes sent for them, questions too."""
    before = client.meter.sent
    content = Content(folder_of(state_dir) / "content")
    code = pack(content, Path(spec.cwd), local_among(spec.mounts), besides=[state_dir, *map(Path, spec.unsent)])
    if code and not client.post("/v1/parts/whole", {"digest": code})["whole"]:
        for batch in _batches(client, content, _names(content, code)):
            texts = {digest: base64.b64encode(packed).decode() for digest, packed in batch.items()}
            client.post("/v1/parts", {"parts": texts})
    notes = [*tracker_notes(spec, FILES), *file_notes(spec, packed_names(content, code))]  # none of them are over there
    return replace(spec, code=code, notes=(*spec.notes, *notes)), client.meter.sent - before


def _names(content: Content, root: str) -> list[str]:
    """Names of all parts of a job, the root last: it is there only once all others are."""
    of_manifest = names_in(content.data(root) or b"")
    entries = entries_from(b"".join(content.data(name) or b"" for name in of_manifest))
    return [*dict.fromkeys(part for entry in entries for part in entry.parts), *of_manifest, root]


def _batches(client: Client, content: Content, names: list[str]) -> Iterator[dict[str, bytes]]:
    batch: dict[str, bytes] = {}
    for at in range(0, len(names), limits.MOST_ASKED):
        asked = names[at : at + limits.MOST_ASKED]
        for digest in client.post("/v1/parts/lacking", {"digests": asked})["lacking"]:
            packed = content.packed(digest) or b""
            if batch and sum(map(len, batch.values())) + len(packed) > limits.MOST_BYTES:
                yield batch
                batch = {}
            batch[digest] = packed
    if batch:
        yield batch
