"""Requests for the missing parts of a manifest over a line, a few at a time, until all came."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sublet.errors import BadInput
from sublet.machine.wall import Wall
from sublet.runtime.file_sync.content import PART_BYTES, Content, Entry, entries_from, names_in
from sublet.wire.travel import Lacks, Part

__all__ = ["GONE", "Fetch", "Fetching"]

MOST_BYTES = 256 << 10  # asked for and not here yet: by so much, unpacked, an order may be late behind them
MOST_PARTS = 64  # ... of them, where files are small
AGAIN_S = 10.0  # without one of them: ask again
GONE = "its files are no longer there"
MOST_DAMAGED = 5  # that are not what their names say, before a fetch is given up


class Fetch:
    """One manifest, level by level: its root, its parts, the parts of its files; these not yet, if it is `held`."""

    def __init__(self, content: Content, root: str, *, held: bool = False) -> None:
        self._content, self._root, self._held = content, root, held
        self.entries: list[Entry] | None = None  # None = not known yet
        self.missing: dict[str, int] = {}  # part -> its length, or the most that it can have
        self.why_not = ""  # it will never be here
        self.damaged = 0
        self.look()

    @property
    def here(self) -> bool:
        """All of it."""
        return self.entries is not None and not (self.missing or self._held or self.why_not)

    def note(self, digest: str) -> None:
        """This part has come."""
        if self.missing.pop(digest, None) is not None and not self.missing and self.entries is None:
            self.look()

    def look(self) -> None:
        """At what is here; the first level that is not all here says what is missing."""
        self.entries = None
        try:
            self.missing = self._lacking()
        except BadInput as error:
            self.give_up(str(error))

    def go_on(self, without: Collection[str]) -> None:
        """To the parts of its files, but for those that are there."""
        self._held = False
        self.look()
        self.missing = {digest: size for digest, size in self.missing.items() if digest not in without}

    def give_up(self, why: str) -> None:
        """It will never be here."""
        self.why_not, self.missing = why, {}

    def _lacking(self) -> dict[str, int]:
        content = self._content
        if (root := content.data(self._root)) is None:
            return {self._root: PART_BYTES}
        names = names_in(root)
        text = [data for name in names if (data := content.data(name)) is not None]
        if len(text) < len(names):
            return dict.fromkeys(content.lacks(names), PART_BYTES)
        self.entries = entries_from(b"".join(text))
        if self._held:
            return {}
        sizes: dict[str, int] = {}
        for entry in self.entries:
            sizes |= dict.fromkeys(entry.parts, entry.part_bytes)
            if entry.parts:
                sizes[entry.parts[-1]] = entry.size_bytes - entry.part_bytes * (len(entry.parts) - 1)
        return {digest: sizes[digest] for digest in content.lacks(sizes)}


class Fetching:
    """All fetches into `content`. `ask` passes a message on; what came to nothing is asked for again."""

    def __init__(
        self, content: Content, ask: Callable[[Lacks], None], wall: Wall, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._content, self._ask, self._wall, self._most_bytes = content, ask, wall, most_bytes
        self._fetches: dict[str, Fetch] = {}
        self._asked: dict[str, int] = {}  # part -> its length
        self._doubted: set[str] = set()  # parts as which something else came
        self._again_s = float("inf")
        self.came = 0  # parts, ever

    def of(self, root: str, *, held: bool = False) -> Fetch:
        """The one of this manifest, begun if need be."""
        if root not in self._fetches:
            self._fetches[root] = Fetch(self._content, root, held=held)
            self._ask_for_more()
        return self._fetches[root]

    def keep_only(self, roots: Collection[str]) -> None:
        """The others are not waited for any more: a later request begins anew."""
        self._fetches = {root: fetch for root, fetch in self._fetches.items() if root in roots}
        missing = {digest for fetch in self._fetches.values() for digest in fetch.missing}
        self._asked = {digest: size for digest, size in self._asked.items() if digest in missing}

    def take(self, part: Part) -> None:
        """It has come, or what came is not it. OSError where it cannot be kept."""
        self._asked.pop(part.digest, None)
        waiting = [fetch for fetch in self._fetches.values() if part.digest in fetch.missing]
        if not waiting:
            return  # it was asked for twice
        if not part.data:
            for fetch in waiting:
                fetch.give_up(GONE)
        elif self._content.take(part.digest, part.data):
            self.came += 1
            self._doubted.discard(part.digest)
            for fetch in waiting:
                fetch.note(part.digest)
        else:
            self._doubted.add(part.digest)
            for fetch in waiting:
                fetch.damaged += 1
                if fetch.damaged > MOST_DAMAGED:
                    fetch.give_up("its files come damaged, again and again")
        self._ask_for_more()

    def ask_again(self) -> None:
        """The line is a new one: what was asked for on the old one may never come."""
        self._asked.clear()
        self._ask_for_more()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return self._again_s if self._asked else float("inf")

    def keep_time(self, now_s: float) -> None:
        """Nothing came for too long."""
        if self._asked and now_s >= self._again_s:
            self.ask_again()

    def _ask_for_more(self) -> None:
        under_way = sum(self._asked.values())
        if under_way > self._most_bytes // 2 or len(self._asked) > MOST_PARTS // 2:
            return  # a little later, for more of them at once
        wanted: list[str] = []
        for fetch in self._fetches.values():
            for digest, size in fetch.missing.items():
                if self._asked and (under_way + size > self._most_bytes or len(self._asked) >= MOST_PARTS):
                    break
                if digest not in self._asked:
                    self._asked[digest] = size
                    under_way += size
                    wanted.append(digest)
        if wanted:
            self._again_s = self._wall.monotonic() + AGAIN_S
            self._ask(Lacks(digests=tuple(wanted), doubted=tuple(sorted(self._doubted.intersection(wanted)))))
