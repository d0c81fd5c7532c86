"""How checkpoints come from nodes' own disks to the controller, and which one a node is told to go on from.

A node offers a checkpoint by the name of its manifest; what is lacking of it is asked for, a little at a time, and when
all of it is here it is committed (`anchor`): that, and not the word of a worker, makes it saved. The controller keeps
nothing of a pull but the parts: a node offers again what was not answered. So nothing is answered while the disk is
full: there may be room a moment later, and until then the node keeps what nobody else has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import BadInput
from sublet.machine.files import Files
from sublet.machine.wall import Wall
from sublet.runtime.controller.anchor import Anchor, Commit
from sublet.runtime.controller.vouching import job_of
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.file_sync.fetching import GONE, Fetch, Fetching
from sublet.runtime.file_sync.manifest import is_below
from sublet.wire.saves import ANCHOR, Carried, Newest, Offered, Saved, Uncarried, Wants
from sublet.wire.travel import Lacks, Part

__all__ = ["MOST_BYTES", "Pulling"]

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


class Pulling:
    """Of all jobs. `terms` are how many a job keeps and its newest generation, None for one that is not known.

    `saved` hears of every commit and how long ago (wall) it was written, `alarm` (job, text) of what cannot be kept.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: Files,
        engine: Engine,
        wall: Wall,
        terms: Callable[[str], tuple[int, int] | None],
        saved: Callable[[Saved, float], None],
        alarm: Callable[[str, str], None],
        insist: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._files, self._engine, self._wall = folder, files, engine, wall
        self._terms, self.saved, self.alarm, self._insist = terms, saved, alarm, insist
        self._anchors: dict[str, Anchor] = {}
        self._pulls: dict[str, _Pull] = {}  # by job: one at a time

    def anchor(self, job_id: str) -> Anchor:
        """What is kept of a job."""
        if job_id not in self._anchors:
            self._anchors[job_id] = Anchor(self._folder / job_id, self._files, self._insist)
        return self._anchors[job_id]

    def forget_node(self, node_id: str) -> None:
        """It is gone: nothing more comes from there."""
        self._pulls = {job_id: pull for job_id, pull in self._pulls.items() if pull.node_id != node_id}

    def forget_job(self, job_id: str) -> None:
        """What is kept of it was changed by others: look again."""
        self._anchors.pop(job_id, None)

    def drop(self, job_id: str, steps: Collection[int]) -> None:
        """They are of no use: who loaded them says so."""
        try:
            self.anchor(job_id).drop(steps)
        except (OSError, BadInput) as error:
            self.alarm(job_id, f"its checkpoints at the controller cannot be read or written: {error}")

    def hear(self, node_id: str, message: Offered | Wants | Uncarried) -> None:
        """A node offers a checkpoint, or keeps one that goes with it; or a worker there is to go on from one."""
        job_id = job_of(message.worker_id)
        if isinstance(message, Uncarried):
            self.alarm(job_id, f"what {message.worker_id} saved stays on {node_id}, and is lost with it: {message.why}")
            return
        if (terms := self._terms(job_id)) is None or message.generation > terms[1]:
            return  # nobody has ordered that yet
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
