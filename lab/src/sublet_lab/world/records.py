"""All that the controllers of a life wrote: its history, a digest, and whether something was put away."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sublet.runtime.archive import Kept
from sublet.runtime.controller.host import PACES
from sublet_lab.world.stage import Stage
from sublet_lab.world.written import archives, shelved, written


def history_of(stage: Stage) -> list[tuple[float, str, str]]:
    """(cloud time, kind and whose, text) of each line."""
    rows = written(stage.disk, stage.controllers.files.contents, Kept.HISTORY).values()
    return [(row["at_s"], f"{row['kind']} {row['job_id'] or row['node_id']}".strip(), row["text"]) for row in rows]


def digest_of(stage: Stage, folder: Path) -> str:
    """Of all events and lines, without the name of its folder, which is another one in every life."""
    found, files = hashlib.sha256(), stage.controllers.files.contents
    for line in written(stage.disk, files, Kept.EVENTS).values():
        found.update(repr(line).replace(str(folder), "").encode())
    for row in written(stage.disk, files, Kept.HISTORY).values():
        found.update(repr((row["at"], row["kind"], row["text"].replace(str(folder), ""))).encode())
    return found.hexdigest()[:16]


def count_kept(stage: Stage) -> None:
    """A store that keeps next to nothing is like a fault: it has an effect where something was put away."""
    files, paces = stage.controllers.files.contents, stage.story.paces
    if paces.events_a_file < PACES.events_a_file:
        stage.hits["short_log"] += 1
        stage.effects["short_log"] += bool(archives(files, Kept.EVENTS))
    if paces.history_kept < PACES.history_kept:
        stage.hits["short_history"] += 1
        stage.effects["short_history"] += bool(archives(files, Kept.HISTORY))
    if paces.jobs_kept < PACES.jobs_kept:
        stage.hits["shelf"] += 1
        stage.effects["shelf"] += bool(shelved(stage.disk))
