"""Job files of SkyPilot, run as they are on hosts of the box: `python -m sublet_lab.hosts.skypilot CLONE [FILE]`.

Of the files that `sublet_lab.studies.skypilot` judges, those that need nothing that hosts here lack: no GPU,
nothing from outside, no program that is not in their image, and an end. Each is submitted to one controller that rents
two hosts, when the one before it has ended; nothing in the files is changed. Buckets are those of the box's S3.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from sublet.errors import SubletError
from sublet.machine.remote import is_remote
from sublet.runtime.controller_api.views import ENDED
from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.build import MountPlaces
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.hosts.server import Server
from sublet_lab.studies.skypilot import task_files

HOSTS: Final = 2
LEASE_S: Final = 30.0
PATIENCE_S: Final = 240.0  # for one file
LOOK_S: Final = 0.25
# What the text of a job needs that no host of the box has, by what it says.
NEEDS: Final[Mapping[str, re.Pattern[str]]] = {
    "packages from an index": re.compile(r"\b(pip3?|uv|npm|conda) +(install|create|sync|pip)|\bapt(-get)?\b|\buvx?\b"),
    "something from the network": re.compile(r"git clone|\bcurl\b|\bwget\b|https?://|gsutil|aws s3|\bhf\b|huggingface"),
    "conda": re.compile(r"\bconda\b"),
    "docker, mpirun or Ray of its own": re.compile(r"\bdocker\b|\bmpirun\b|sky_templates|\bray +start\b"),
    "SkyPilot's ~/sky_workdir": re.compile(r"sky_workdir"),
    "files that another job leaves on the node": re.compile(r"cd JetStream"),
}


def why_not(spec: JobSpec) -> str:
    """Why this one cannot run here; "" if it can."""
    if spec.accelerators:
        return "a GPU"
    if spec.image:
        return "a container"
    if spec.market is MarketChoice.SPOT:
        return "a spot market, of which moto has none"
    if any(is_remote(uri) and not uri.startswith("s3:") for uri in spec.mounts.values()):
        return "a store that is not s3"
    if any(is_remote(uri) and there not in spec.new_mounts for there, uri in spec.mounts.items()):
        return "a bucket of somebody's"
    text = "\n".join((spec.setup, *spec.argv))
    needed = [name for name, pattern in NEEDS.items() if pattern.search(text)]
    if "server.py" in text:
        needed.append("an end: it serves")
    return needed[0] if needed else ""


def _read(path: Path, clone: Path) -> JobSpec | str:
    """The job, or why there is none; as `sublet submit` reads it in the clone."""
    try:
        return job_from_file(path, environment=os.environ, places=MountPlaces((path.parent, clone)))
    except SubletError:
        return "what submit refuses, here"


def _follow(server: Server, spec: JobSpec) -> tuple[dict[str, Any], float]:
    """To its end, or to that of our patience."""
    began_s = time.monotonic()
    job_id = server.submit(spec)
    view: dict[str, Any] = {}
    while time.monotonic() - began_s < PATIENCE_S and view.get("phase") not in ENDED:
        time.sleep(LOOK_S)
        view = server.job(job_id) or view
    return view, time.monotonic() - began_s


def _row(box: Box, server: Server, name: str, spec: JobSpec) -> list[str]:
    nodes = spec.max_workers // max(1, spec.per_node)
    try:
        view, took_s = _follow(server, spec)
    except SubletError as error:
        return [name, str(nodes), f"refused: {str(error).splitlines()[0]}", "", ""]
    how = str(view.get("phase"))
    if how != "finished":
        how = f"{how}: {(view.get('error') or view.get('reason') or 'it took too long').splitlines()[-1]}"
    kept = {uri for there, uri in spec.mounts.items() if there in spec.kept_mounts}
    objects = ", ".join(f"{_count(box, uri)} in {uri}" for uri in sorted(kept))
    return [name, str(nodes), how, f"{took_s:.0f}", objects]


def _count(box: Box, uri: str) -> str:
    rows = box.cloud.client("s3").list_objects_v2(Bucket=uri.removeprefix("s3://").partition("/")[0])
    sizes = [row["Size"] for row in rows.get("Contents", ())]
    return f"{len(sizes)} objects of {sum(sizes) / (1 << 20):.1f} MiB"


def run(clone: Path, wanted: Sequence[str] = ()) -> int:
    """The table, of all or of those that are wanted; 0 if all that can run here did."""
    files = [path for path in task_files(clone) if not wanted or str(path.relative_to(clone)) in wanted]
    read = {path: _read(path, clone) for path in files}
    reasons = {path: found if isinstance(found, str) else why_not(found) for path, found in read.items()}
    chosen = {path: found for path, found in read.items() if isinstance(found, JobSpec) and not reasons[path]}
    try:
        box = Box(Image())
    except NoBox as error:
        _say(f"no hosts can be made here: {error}", to=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="sublet-skypilot-"))
    finished = 0
    _say(f"{'file':55} hosts  {'ended':30} {'s':>4}  written to buckets")
    with box:
        os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_REGION"] = box.endpoint, "us-east-1"
        server = Server(folder / "state", box, nodes=HOSTS, lease_s=LEASE_S)
        try:
            server.start()
            for path, spec in chosen.items():
                row = _row(box, server, str(path.relative_to(clone)), spec)
                finished += row[2] == "finished"
                _say(f"{row[0]:55} {row[1]:>5}  {row[2]:30} {row[3]:>4}  {row[4]}")
        finally:
            server.down()
            shutil.rmtree(folder, ignore_errors=True)
    _say(f"\n{finished} of {len(chosen)} finished. Others need what hosts here have not:")
    for why, count in Counter(why for why in reasons.values() if why).most_common():
        _say(f"{count:5} {why}")
    return 0 if finished == len(chosen) else 1


def _say(text: str, to: TextIO = sys.stdout) -> None:
    print(text, file=to, flush=True)


def main(words: Sequence[str]) -> int:
    """CLONE, and files in it where not all are wanted."""
    if not words:
        _say("usage: python -m sublet_lab.hosts.skypilot CLONE [FILE ...]", to=sys.stderr)
        return 2
    return run(Path(words[0]).expanduser().resolve(), words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
