"""Trackers of a script that write into a folder: where nodes see no common disk, what they wrote goes with its node.

Read off the text of the script, before anything is paid for: it says which trackers it imports, and no more.
"""

from __future__ import annotations

import re
from pathlib import Path

from sublet.machine.files import Files
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["tracker_notes"]

NAMES = {"tensorboard": "TensorBoard", "wandb": "Wandb"}  # those that keep files; MLflow's may be a server
IMPORTED = re.compile(r"^\s*(?:from|import)\s+sublet\.integrations(?:\.(\w+)|\s+import\s+([\w ,]+))", re.MULTILINE)


def tracker_notes(spec: JobSpec, files: Files) -> list[str]:
    """Notes on its trackers; nothing where a folder of the job's goes back to a bucket by itself."""
    script = next((word for word in spec.argv if word.endswith(".py")), None)
    if script is None or spec.kept_mounts:
        return []
    try:
        text = files.read(Path(spec.cwd) / script).decode(errors="replace")
    except OSError:
        return []  # it is the nodes' own
    words = {
        word for found in IMPORTED.finditer(text) for group in found.groups("") for word in re.split(r"\W+", group)
    }
    return [
        f"{NAMES[name]} of {script} writes into a folder, and these nodes share no disk: a run would end with its node."
        f" Give it a folder of a bucket (file_mounts with mode: MOUNT), or of a network disk"
        for name in sorted(NAMES.keys() & words)
    ]
