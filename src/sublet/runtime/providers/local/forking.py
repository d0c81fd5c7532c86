"""Agents on this machine: forked by a template, watched through the kernel, ended with all their processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sublet.runtime.agent import processes
from sublet.runtime.providers.local import lives
from sublet.runtime.providers.local.template import Template

__all__ = ["TemplateForker"]


class TemplateForker:
    """A `Forker` over one warm process of this machine."""

    def __init__(self, template: Template) -> None:
        self.template = template

    @property
    def lives(self) -> lives.Lives:
        """Which agents live here."""
        return lives.LIVES

    def start(self) -> None:
        """Without waiting for what the template imports."""
        if not self.template.pid:
            self.template.start()

    async def warm(self) -> None:
        """Wait until the template has imported everything."""
        await self.template.warm()

    async def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """By the template; the life file is locked before it is asked."""
        await self.template.fork(request, lives.new_life(life))

    def watch(self, pid: int, start: int, died: Callable[[], None]) -> Callable[[], None] | None:
        """The kernel tells when the process ends."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if not processes.alive(pid, start):
            os.close(pidfd)
            return None
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, died)

        def unwatch() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)

        return unwatch

    async def kill(self, pid: int, start: int) -> bool:
        """In a thread: it waits until none is left."""
        return await asyncio.to_thread(processes.kill_instance, pid, start)

    async def stop(self) -> None:
        """The template ends; its agents stay."""
        await self.template.stop()
