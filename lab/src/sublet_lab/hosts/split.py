"""The time from submission to the first step, by part: marks that hosts, controller and workers leave on the way.

Hosts of a box have one clock, and it is ours. Of each mark the last host's counts: all wait for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sublet_lab.box.hypervisor import Host

PARTS = {  # mark -> what ends with it
    "rented": "the plan, and two orders to EC2",
    "on": "the boot: a host until its user data run",
    "code": "Sublet's own code comes",
    "enrolled": "the agent starts, asks for its certificate",
    "ready": "it dials and says hello",
    "ordered": "the controller orders the start",
    "files": "the job's files come and are put together",
    "begun": "until torch is imported (since the agent's start) and the process is forked",
    "imported": "the script's own imports",
    "formed": "workers meet and agree",
    "stepped": "the first step",
}
RUN, OPT = "run/sublet", "opt/sublet"


def marks_of_host(host: Host) -> dict[str, float]:
    """By what is on its disk: when its code came, when it had its certificate, when the job's files were there."""
    found = {}
    places = {"code": [OPT], "enrolled": [f"{RUN}/{host.node_id}.pem"]}
    work = Path(f"/proc/{host.machine.first_pid()}/root/{RUN}/{host.node_id}.notice.files/work")
    with contextlib.suppress(OSError):
        places["files"] = [f"{RUN}/{host.node_id}.notice.files/work/{each.name}" for each in work.iterdir()]
    for mark, paths in places.items():
        for path in paths:
            with contextlib.suppress(OSError):
                found[mark] = Path(f"/proc/{host.machine.first_pid()}/root", path).stat().st_mtime
    return found


def marks_of_events(events: Iterable[Mapping[str, Any]], workers: int) -> dict[str, float]:
    """By the controller's history: the last of so many nodes that was ready, and the order to start."""
    found = {}
    ready = [_unix_s(each["at"]) for each in events if each["kind"] == "NodeReady"][:workers]
    started = [_unix_s(each["at"]) for each in events if each["kind"] == "StartJob"][:1]
    if len(ready) == workers and started:
        found = {"ready": ready[-1], "ordered": started[0]}
    return found


def marks_of_words(printed: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """By what workers print, see `when` of the script."""
    found = dict[str, float]()
    for lines in printed.values():
        for words in (line.split() for line in lines if line.startswith("WHEN ")):
            found[words[1]] = max(found.get(words[1], 0.0), float(words[2]))
    return found


def cpu_s_of(host: Host) -> float:
    """That all its processes have used, with those that have ended."""
    own, total, tick = _namespace(host.machine.first_pid()), 0, os.sysconf("SC_CLK_TCK")
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit() and own and _namespace(int(each.name)) == own:
                total += sum(map(int, (each / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:15]))
    return total / tick


def rows_of(marks: Mapping[str, float], submitted_s: float) -> list[list[str]]:
    """The time of each part after the one before it had ended; none where it was over by then."""
    rows, at_s = [], submitted_s
    for mark, what in PARTS.items():
        if mark not in marks:
            rows.append([what, "not seen", ""])
            continue
        rows.append([what, f"{max(0.0, marks[mark] - at_s):.2f}", f"{marks[mark] - submitted_s:.2f}"])
        at_s = max(at_s, marks[mark])
    return rows


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""
