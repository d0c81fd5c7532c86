"""From submission to the first step on hosts that did not exist, and what is sent for files that have not changed.

The controller is on a controller host of the box, as for a user with an account and a laptop: files travel from here to
there, and from there to the hosts, with Sublet itself. The time of a boot is a cloud's affair; a host has booted when
its user data begin to run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sublet.errors import Infeasible
from sublet.runtime.controller_api.views import ENDED
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box, Host
from sublet_lab.box.image import Image
from sublet_lab.box.sshd import service
from sublet_lab.hosts.controller_host import HostedServer
from sublet_lab.hosts.split import cpu_s_of, marks_of_events, marks_of_host, marks_of_words, rows_of
from sublet_lab.hosts.study import DISK, spec_of
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most

HOSTS, STEPS = 2, 4
FILES, WORDS = 50, 5000  # of the workdir
LEASE_S = 60.0
MOST_S = 10.0  # besides the boot
MOST_BYTES = 1000.0
PATIENCE_S = 240.0
LOOK_S = 0.05
COLUMNS = ["hosts", "s until both are on", "s of that in the boot", "s from there to the first step"]
COLUMNS += ["bytes, at first", "CPU s of the hosts"]
SPLIT = ["until", "s", "s since the submission"]


def run_first_step(tell: Tell) -> Findings:
    """Infeasible where no hosts can be made."""
    try:
        box = Box(Image(env={"OMP_NUM_THREADS": "1"}, files=service(), sublet=False))
    except NoBox as error:
        raise Infeasible(str(error), binding="hosts", needed=HOSTS, available=0) from None
    folder = Path(tempfile.mkdtemp(prefix="sublet-first-"))
    try:
        with box:
            return _measured(box, folder, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(box: Box, folder: Path, tell: Tell) -> Findings:
    work = folder / "work"
    spec = replace(spec_of(DISK, work, "", STEPS, HOSTS), min_workers=HOSTS)
    for number in range(FILES):
        (work / f"{number}.txt").write_text(f"{number} " * WORDS, encoding="utf-8")
    server = HostedServer(folder / "state", box, nodes=HOSTS, lease_s=LEASE_S)
    try:
        tell("the controller host is rented")
        server.start()
        tell("a job is submitted")
        began_s = time.time()
        job_id = server.submit(spec)
        first_bytes = server.sent_bytes
        seen_s, on_s = _booted(box)
        tell(f"{HOSTS} hosts are on after {on_s - began_s:.1f} s")
        end_s = time.time() + PATIENCE_S
        marks, cpu_s = {"rented": seen_s, "on": on_s}, 0.0
        while (stepped_s := first_of_all(server.printed(job_id), HOSTS)) is None:
            for host in (hosts := [each for each in box.hosts() if each.node_id not in ("", "anchor")]):
                for mark, at_s in marks_of_host(host).items():
                    marks[mark] = max(marks.get(mark, 0.0), at_s)
            cpu_s = sum(map(cpu_s_of, hosts))
            if time.time() > end_s or server.job(job_id).get("phase") in ENDED:
                why = f"no step within {PATIENCE_S:g} s, {server.job(job_id).get('reason')}"
                raise Infeasible(why, binding="hosts", needed=HOSTS, available=0)
            time.sleep(0.2)
        marks |= marks_of_words(server.printed(job_id)) | {"stepped": stepped_s}
        marks |= marks_of_events((server.ask("events") or {}).get("events", ()), HOSTS)
        tell(f"first step {stepped_s - began_s:.1f} s after the submission")
        server.submit(spec)
        again_bytes = server.sent_bytes
    finally:
        server.down()
    boot_s = on_s - seen_s
    seconds = [on_s - began_s, boot_s, stepped_s - on_s]
    row = [str(HOSTS), *(f"{each:.1f}" for each in seconds), f"{first_bytes:,}", f"{cpu_s:.1f}"]
    return Findings(
        checks=[
            at_most("submission to the first step, less the boot", stepped_s - began_s - boot_s, MOST_S, unit="s"),
            at_most("bytes sent for files that have not changed", again_bytes, MOST_BYTES, unit="bytes"),
        ],
        tables=[
            StudyTable(title="from submission to the first step", columns=COLUMNS, rows=[row]),
            StudyTable(title="where it goes", columns=SPLIT, rows=rows_of(marks, began_s), texts=1),
        ],
    )


def _booted(box: Box) -> tuple[float, float]:
    """When the last host was begun, and when user data ran on all."""
    end_s = time.time() + PATIENCE_S
    nodes: list[Host] = []
    while len(nodes) < HOSTS:
        if time.time() > end_s:
            raise Infeasible(f"not on within {PATIENCE_S:g} s", binding="hosts", needed=HOSTS, available=len(nodes))
        time.sleep(LOOK_S)
        nodes = [host for host in box.hosts() if host.node_id and host.node_id != "anchor"]
    seen_s = time.time()
    for host in nodes:
        host.machine.wait_until_up()
    return seen_s, time.time()


def first_of_all(printed: dict[str, list[str]], workers: int) -> float | None:
    """When the last of so many workers had made its first step; None while one has not."""
    words = [[line.split() for line in lines if line.startswith("AT ")] for lines in printed.values()]
    firsts = [float(each[0][3]) for each in words if each]
    return max(firsts) if len(firsts) >= workers else None
