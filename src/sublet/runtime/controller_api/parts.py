"""Files that the submitting machine has and the controller lacks: their parts are brought before the job is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sublet.errors import BadInput
from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.fetching import Fetch

__all__ = ["Parts"]


class Parts:
    """Over the store from which nodes get theirs. Both wait for the disk, in a thread."""

    def __init__(self, content: Content) -> None:
        self._content = content

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Those that are not here."""
        return await asyncio.to_thread(self._content.lacks, digests)

    async def whole(self, root: str) -> bool:
        """Whether all that a job is made of is here: its manifest, and every part that is named there."""
        return await asyncio.to_thread(lambda: Fetch(self._content, root).here)

    async def take(self, parts: Mapping[str, bytes]) -> None:
        """Kept when it returns; BadInput for one that is not what its name says."""
        for digest, packed in parts.items():
            try:
                if not await asyncio.to_thread(self._content.take, digest, packed):
                    raise BadInput(f"part {digest}", "is something else than its name says", hint="send it again")
            except OSError as error:
                raise BadInput(
                    self._content.folder, f"cannot be written ({error.strerror})", hint="make room"
                ) from error
