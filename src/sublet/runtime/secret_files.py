"""The secrets of jobs on disk: in a file of their own beside the store, and gone when their job has ended for good.

A job that finished or was cancelled never runs again, so its file is deleted. Before that, any of them in the output of
its workers is starred out, since afterwards they are unknown. One that failed keeps its file: it can be resumed, until
`sublet cancel` of it, or `sublet down --end-jobs`, ends it for good, too.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

from sublet.runtime.jobs.spec import HIDDEN

UNSEEN = b"\0"  # of a log: it stands for a letter that was there
LEAST_LINE = 8  # letters; a shorter line of a secret says nothing, and would hide half of the log


class SecretFiles:
    """One file per job, readable by its owner alone."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def keep(self, job_id: str, secrets: Mapping[str, str]) -> None:
        """Durable enough for a restart; nothing is written for a job without secrets."""
        if not secrets:
            return
        path = self._path(job_id)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(dict(secrets)), encoding="utf-8")

    def read(self, job_id: str) -> dict[str, str] | None:
        """The kept secrets; None where nothing is."""
        try:
            return dict(json.loads(self._path(job_id).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def has(self, job_id: str) -> bool:
        """Whether they are still there."""
        return self._path(job_id).exists()

    def forget(self, job_id: str, secrets: Mapping[str, str]) -> None:
        """Star them out of the job's logs, then delete the file."""
        for log in sorted((self._state_dir / "jobs" / job_id / "logs").glob("*.log")):
            _star_out(log, list(secrets.values()))
        self._path(job_id).unlink(missing_ok=True)

    def _path(self, job_id: str) -> Path:
        return self._state_dir / "secrets" / f"{job_id}.json"


def hidden(text: str, secrets: Sequence[str]) -> str:
    """Without them, and without any line of them."""
    for each in _texts(secrets):
        text = text.replace(each, HIDDEN)
    return text


def what_to_hide(secrets: Sequence[str]) -> list[bytes]:
    """The forms of them that may stand in a log, the longest first."""
    return [text.encode(errors="surrogatepass") for text in _texts(secrets)]


def _texts(secrets: Sequence[str]) -> list[str]:
    """Whole, and line by line, as keys of many lines are printed; the longest first."""
    lines = [line.strip() for text in secrets for line in text.splitlines()]
    whole = [text for text in (*secrets, *(line for line in lines if len(line) >= LEAST_LINE)) if text]
    return sorted(set(whole), key=lambda text: (-len(text), text))


def _star_out(log: Path, secrets: Sequence[str]) -> None:
    """In place, so that readers and writers of the file keep it: stars, and filler for the rest of it.

    As many stars as it had letters would tell how long it was.
    """
    with log.open("r+b") as file:
        if file.seek(0, 2) == 0:
            return  # nothing can be mapped
        with mmap.mmap(file.fileno(), 0) as text:
            for secret in what_to_hide(secrets):
                at = text.find(secret)
                while at >= 0:
                    text[at : at + len(secret)] = HIDDEN.encode().ljust(len(secret), UNSEEN)[: len(secret)]
                    at = text.find(secret, at + len(secret))
