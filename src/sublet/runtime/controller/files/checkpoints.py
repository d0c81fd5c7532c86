"""Checkpoints that the controller keeps for jobs, and how they come to it from the disks of nodes.

    checkpoints/JOB/parts/DIGEST    as they came from nodes, each whole and checked
    checkpoints/JOB/HEAD            the generation that may commit, and the commits: step, generation, root, size
    checkpoints/JOB/HEAD.copy       the same, for a disk that loses something

`HEAD` is replaced in one go and for good, so a commit is seen whole or not at all, and so is its end. What it does not
name is not there for a reader. No generation below the one that was announced commits: a host that was away and comes
back replaces nothing.

A node offers a checkpoint by the name of its manifest; what is lacking of it is asked for, a little at a time. When all
of it is here it is committed: that, and not the word of a worker, makes it saved. The controller keeps nothing of a
pull but the parts: a node offers again what was not answered. So nothing is answered while the disk is full: there may
be room a moment later, and until then the node keeps the only copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.errors import BadInput
from sublet.machine.files import Files
from sublet.machine.wall import Wall
from sublet.runtime.controller.memory import job_of
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.file_sync.content import (
    GONE,
    Content,
    Entry,
    Fetch,
    Fetching,
    Keep,
    entries_from,
    is_below,
    names_in,
)
from sublet.wire.files import ANCHOR, Carried, Lacks, Newest, Offered, Part, Saved, Uncarried, Wants

NAMES = ("HEAD", "HEAD.copy")  # the second is written first, and read where the first is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One checkpoint. `step` counts what a script without the SDK has saved, which has no step of its own."""

    step: int
    generation: int  # of its writer
    root: str
    size_bytes: int
    done: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Commits, the newest last; the generation that may commit, and the one that might before it was announced."""

    generation: int = 0
    before: int = 0
    commits: tuple[Commit, ...] = ()

    @property
    def newest(self) -> Commit | None:
        """The one to go on from."""
        return self.commits[-1] if self.commits else None


class Anchor:
    """In `folder`. Errors are OSError; BadInput for a register that cannot be read: beside parts it is no empty one.

    `insist` raises where the directory has become another controller's: it is asked before every change.
    """

    def __init__(self, folder: Path, files: Files, insist: Callable[[], None] = lambda: None) -> None:
        self.folder, self._files, self._insist = folder, files, insist
        self.content = Content(folder / "parts", files, Keep.RAW)
        self._head: Head | None = None  # None = not read yet

    @property
    def head(self) -> Head:
        """As it is written."""
        if self._head is None:
            self._head = self._read()
        return self._head

    def announce(self, generation: int) -> Head:
        """From now on no lower generation commits. Said again, it changes nothing."""
        if generation > self.head.generation:
            self._write(replace(self.head, generation=generation, before=self.head.generation))
        return self.head

    def commit(self, commit: Commit, *, keep: int) -> list[int]:
        """All its parts are here: from now on it counts. The oldest beyond `keep` go, with what only they need.

        Earlier ones that cannot be read, since what names their files has rotted, go as well: their steps.
        """
        head, rotten = self.head, list[int]()
        self.content.settle()
        wanted = {commit: self._wanted(commit)}
        for each in head.commits:
            if each.step != commit.step:
                try:
                    wanted[each] = self._wanted(each)
                except BadInput:
                    rotten.append(each.step)
        commits = sorted(wanted, key=lambda each: each.step)[-keep:]
        self._write(replace(head, commits=tuple(commits)))
        self.content.keep_only(set[str]().union(*(wanted[each] for each in commits)))
        return rotten

    def adopt(self, head: Head) -> None:
        """A copy of the register has come back, and all its parts before it; BadInput if they are not all here."""
        wanted = set[str]().union(*(self._wanted(commit) for commit in head.commits))
        if lacking := self.content.lacks(wanted):
            raise BadInput(self.folder, f"{len(lacking)} parts of a checkpoint are not there")
        self.content.settle()
        self._write(head)
        self.content.keep_only(wanted)

    def drop(self, steps: Collection[int]) -> None:
        """They are of no use: a worker that loaded them says so."""
        if any(commit.step in steps for commit in self.head.commits):
            self._write(replace(self.head, commits=tuple(c for c in self.head.commits if c.step not in steps)))

    def is_whole(self, commit: Commit) -> bool:
        """No part of it is missing: one is read, and removed if it is damaged, when a node asks for it."""
        try:
            return not self.content.lacks(digest for entry in self.entries(commit) for digest in entry.parts)
        except BadInput:
            return False

    def entries(self, commit: Commit) -> list[Entry]:
        """Its files; BadInput if some of what names them is gone."""
        return entries_from(b"".join(self._manifest(commit)[1]))

    def names(self, commit: Commit) -> list[str]:
        """The parts that name its files; BadInput as above."""
        return [commit.root, *self._manifest(commit)[0]]

    def read(self, entry: Entry) -> Iterator[bytes]:
        """A file, part by part; BadInput where one is gone."""
        return (self._part(digest) for digest in entry.parts)

    def _wanted(self, commit: Commit) -> set[str]:
        """All parts of it; BadInput if some of what names them is gone."""
        names, text = self._manifest(commit)
        return {commit.root, *names, *(digest for entry in entries_from(b"".join(text)) for digest in entry.parts)}

    def _manifest(self, commit: Commit) -> tuple[list[str], list[bytes]]:
        names = names_in(self._part(commit.root))
        return names, [self._part(name) for name in names]

    def _part(self, digest: str) -> bytes:
        if (data := self.content.data(digest)) is None:
            raise BadInput(self.folder, f"part {digest[:12]} of a checkpoint is gone or damaged")
        return data

    def _read(self) -> Head:
        damaged: BadInput | None = None
        for name in NAMES:
            try:
                facts = json.loads(self._files.read(self.folder / name))
                commits = tuple(Commit(**commit) for commit in facts.pop("commits"))
                return Head(**facts, commits=commits)
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                damaged = BadInput(self.folder / name, f"cannot be read ({error})")
        if damaged is not None and not self.content.is_empty:
            raise damaged
        return Head()  # of no parts no register could name a checkpoint: the first that was written was cut short

    def _write(self, head: Head) -> None:
        self._insist()
        self._files.make_folder(self.folder)
        for name in reversed(NAMES):
            self._files.write(self.folder / name, json.dumps(asdict(head)).encode())
        self._head = head


MOST_BYTES = 64 << 30  # of one checkpoint
UNDER_WAY_BYTES = 4 << 20  # asked for and not here yet, of one job: what else a node says goes before them
STALE = "a later start of the job has gone on from an older one"


@dataclass(slots=True)
class _Pull:
    node_id: str
    offer: Offered
    fetching: Fetching
    fetch: Fetch
    began_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledJobs:
    """The jobs, as far as pulling asks and tells of them."""

    terms: Callable[[str], tuple[int, int] | None]  # checkpoints kept, newest generation; None = not known
    saved: Callable[[Saved, float], None]  # told of every commit, and how long ago (wall) it was written
    alarm: Callable[[str, str], None]  # told, by job, of what cannot be kept
    insist: Callable[[], None] = lambda: None  # raises where the directory has become another controller's


class Pulling:
    """Of all jobs."""

    def __init__(self, folder: Path, files: Files, engine: Engine, wall: Wall, jobs: PulledJobs) -> None:
        self._folder, self._files, self._engine, self._wall = folder, files, engine, wall
        self._terms, self.saved, self.alarm, self._insist = jobs.terms, jobs.saved, jobs.alarm, jobs.insist
        self._anchors: dict[str, Anchor] = {}
        self._pulls: dict[str, _Pull] = {}  # by job: one at a time

    def anchor(self, job_id: str) -> Anchor:
        """The register of a job."""
        if job_id not in self._anchors:
            self._anchors[job_id] = Anchor(self._folder / job_id, self._files, self._insist)
        return self._anchors[job_id]

    def forget_node(self, node_id: str) -> None:
        """It is gone: nothing more comes from there."""
        self._pulls = {job_id: pull for job_id, pull in self._pulls.items() if pull.node_id != node_id}

    def forget_job(self, job_id: str) -> None:
        """Its register was changed by others: look again."""
        self._anchors.pop(job_id, None)

    def drop(self, job_id: str, steps: Collection[int]) -> None:
        """They are of no use: a worker that loaded them says so."""
        try:
            self.anchor(job_id).drop(steps)
        except (OSError, BadInput) as error:
            self.alarm(job_id, f"its checkpoints at the controller cannot be read or written: {error}")

    def receive(self, node_id: str, message: Offered | Wants | Uncarried) -> None:
        """A node offers a checkpoint, or keeps one that goes with it; or a worker there is to go on from one."""
        job_id = job_of(message.worker_id)
        if isinstance(message, Uncarried):
            self.alarm(job_id, f"what {message.worker_id} saved stays on {node_id}, and is lost with it: {message.why}")
            return
        if (terms := self._terms(job_id)) is None or message.generation > terms[1]:
            return  # that was not ordered yet
        try:
            if isinstance(message, Wants):
                self._tell_newest(node_id, self.anchor(job_id), message)
            else:
                self._consider(node_id, self.anchor(job_id), message)
        except (OSError, BadInput) as error:
            self._pulls.pop(job_id, None)
            self.alarm(job_id, f"its checkpoints at the controller cannot be read or written: {error}")

    def take(self, node_id: str, part: Part) -> None:
        """A part has come, for whichever job it was asked."""
        for job_id, pull in list(self._pulls.items()):
            if pull.node_id == node_id:
                try:
                    pull.fetching.take(part)
                    self._proceed(job_id, pull)
                except OSError as error:
                    self._pulls.pop(job_id, None)  # and no answer: it is offered again
                    why = error.strerror or str(error)
                    self.alarm(job_id, f"what {pull.offer.worker_id} saved cannot be kept here as yet: {why}")
                except BadInput as error:
                    self._refuse(pull, f"it cannot be kept: {error}")

    def send_parts(self, node_id: str, digests: Iterable[str], doubted: Collection[str] = ()) -> list[str]:
        """Send what a node lacks and some job's checkpoints have; the others. The node checks what it gets."""
        rest = []
        for digest in digests:
            if packed := self._find(digest, sure=digest in doubted):
                self._engine.send(node_id, Part(digest=digest, data=packed))
            else:
                rest.append(digest)
        return rest

    def _find(self, digest: str, *, sure: bool) -> bytes:
        found = (packed for anchor in self._anchors.values() if (packed := anchor.content.packed(digest, sure=sure)))
        if packed := next(found, b""):
            return packed
        for job_id in self._files.names(self._folder):  # of an earlier controller
            if job_id not in self._anchors and (packed := self.anchor(job_id).content.packed(digest, sure=sure) or b""):
                return packed
        return b""

    def _tell_newest(self, node_id: str, anchor: Anchor, message: Wants) -> None:
        head = anchor.announce(message.generation)
        while head.newest is not None and not anchor.is_whole(head.newest):
            text = f"its checkpoint {head.newest.step} at the controller is damaged, and passed over"
            self.alarm(job_of(message.worker_id), text)
            anchor.drop([head.newest.step])
            head = anchor.head
        root, step = ("", -1) if head.newest is None else (head.newest.root, head.newest.step)
        fence = head.before if head.generation == message.generation else head.generation
        self._engine.send(node_id, Newest(worker_id=message.worker_id, root=root, step=step, fence=fence))

    def _consider(self, node_id: str, anchor: Anchor, offer: Offered) -> None:
        job_id, head = job_of(offer.worker_id), anchor.head
        pull, newest = self._pulls.get(job_id), head.newest
        if offer.generation < head.generation:
            self._answer(node_id, offer, STALE)
        elif newest is not None and (newest.root == offer.root or -1 < offer.step <= newest.step):
            self._answer(node_id, offer)
        elif offer.size_bytes > MOST_BYTES:
            most = f"at most {MOST_BYTES >> 30} GiB are carried"
            self._turn_down(node_id, offer, f"it has {offer.size_bytes >> 30} GiB, and {most}")
        elif pull is not None and (pull.node_id, pull.offer.root) == (node_id, offer.root):
            pull.fetching.ask_again()
            self._proceed(job_id, pull)
        elif pull is None or pull.offer.generation <= offer.generation:
            fetching = Fetching(
                anchor.content, lambda lacks: self._ask(node_id, lacks), self._wall, most_bytes=UNDER_WAY_BYTES
            )
            fetch = fetching.of(offer.root)
            pull = self._pulls[job_id] = _Pull(node_id, offer, fetching, fetch, self._wall.monotonic())
            self._proceed(job_id, pull)

    def _proceed(self, job_id: str, pull: _Pull) -> None:
        fetch, offer, anchor = pull.fetch, pull.offer, self.anchor(job_id)
        if fetch.why_not:
            self._refuse(pull, fetch.why_not)
            return
        if not fetch.here or fetch.entries is None:
            return
        if not all(is_below(entry.path) for entry in fetch.entries):
            self._refuse(pull, "it names files outside of its folder")
            return
        newest, terms = anchor.head.newest, self._terms(job_id)
        step = offer.step if offer.step >= 0 else 1 if newest is None else newest.step + 1
        if terms is None or offer.generation < anchor.head.generation:
            self._refuse(pull, STALE)
            return
        size_bytes = sum(entry.size_bytes for entry in fetch.entries)
        commit = Commit(step=step, generation=offer.generation, root=offer.root, size_bytes=size_bytes, done=offer.done)
        for rotten in anchor.commit(commit, keep=terms[0]):
            self.alarm(job_id, f"its checkpoint {rotten} at the controller is damaged, and was removed")
        del self._pulls[job_id]
        self._answer(pull.node_id, offer)
        seconds = self._wall.monotonic() - pull.began_s
        saved = Saved(
            worker_id=offer.worker_id,
            step=offer.step,
            done=offer.done,
            seconds=offer.read_s + seconds,
            blocked_s=0.0,
            size_bytes=size_bytes,
            tier=ANCHOR,
        )
        self.saved(saved, offer.ago_s + seconds)

    def _ask(self, node_id: str, lacks: Lacks) -> None:
        self._engine.send(node_id, lacks)

    def _refuse(self, pull: _Pull, why: str) -> None:
        self._pulls.pop(job_of(pull.offer.worker_id), None)
        self._turn_down(pull.node_id, pull.offer, why)

    def _turn_down(self, node_id: str, offer: Offered, why: str) -> None:
        """It is not offered again. People are told, unless something newer is there or comes."""
        if why not in (STALE, GONE):
            text = f"what {offer.worker_id} saved stays on {node_id}, and is lost with it: {why}"
            self.alarm(job_of(offer.worker_id), text)
        self._answer(node_id, offer, why)

    def _answer(self, node_id: str, offer: Offered, why: str = "") -> None:
        self._engine.send(node_id, Carried(worker_id=offer.worker_id, root=offer.root, why=why))
