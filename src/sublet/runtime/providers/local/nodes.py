"""The machines of the box: agents forked, watched and ended, with a record of each that outlives the controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from sublet.errors import RentFailed
from sublet.runtime.agent import processes
from sublet.runtime.providers.local.records import NodeRecord, Records
from sublet.runtime.providers.local.template import Template, TemplateEnded

__all__ = ["Nodes"]

BIRTH_S = 10.0  # for an agent to say which process it is, after a crash in the middle of a rent
BIRTH_LOOK_S = 0.002

_log = logging.getLogger(__name__)


class Nodes:
    """Those in `held` exist, in the order of their rent. When an agent ends, `on_death` is called with its name."""

    def __init__(self, records: Records, template: Template, on_death: Callable[[str], None]) -> None:
        self.held: dict[str, NodeRecord] = {}
        self.gone: set[str] = set()  # tokens of nodes that existed and do no more
        self.records = records
        self._template, self._on_death = template, on_death
        self._pidfds: dict[str, int] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}

    def of(self, offer_id: str) -> list[str]:
        """The names of those that were rented by this offer."""
        return [node_id for node_id, record in self.held.items() if record.offer_id == offer_id]

    async def find_again(self) -> AsyncIterator[NodeRecord]:
        """Every node in the records of an earlier controller: held again if it lives, else cleared away."""
        for written in self.records.read():
            record = await self._with_process(written)
            if not record.pid:
                self._forget(record)
                continue
            if record.boot == self.records.boot and processes.alive(record.pid, record.start):
                self.records.write(record)
                self.keep(record)
            else:
                self.end(record)
            yield record

    async def fork(self, record: NodeRecord, request: Mapping[str, Any]) -> NodeRecord:
        """Intent, fork, fact. Whatever goes wrong, either the node exists and is recorded or neither is."""
        try:
            self.records.write(record)
            with contextlib.suppress(TemplateEnded):  # whether it forked before it died stands in the life file
                await self._template.fork(request, self.records.new_life(record.node_id))
            born = await self._with_process(record)
            if born.pid:
                self.records.write(born)
        except OSError as error:
            born = await self._with_process(record)
            await self._kill_all(born)
            raise RentFailed(record.offer_id, f"it cannot be started: {error}") from error
        if not born.pid:
            self._forget(record)
            raise RentFailed(record.offer_id, "the template ended before it had forked", wait_s=1.0)
        return born

    def keep(self, record: NodeRecord) -> None:
        """It is ours from now on. The kernel tells when its agent ends; that it has ended already is told at once."""
        self.held[record.node_id] = record
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(record.pid)
        except ProcessLookupError:
            loop.call_soon(self._on_death, record.node_id)
            return
        if not processes.alive(record.pid, record.start):
            os.close(pidfd)
            loop.call_soon(self._on_death, record.node_id)
            return
        self._pidfds[record.node_id] = pidfd
        loop.add_reader(pidfd, self._on_death, record.node_id)

    def doom(self, node_id: str, lost_s: float) -> None:
        """Write down when it will be taken, so that a later controller knows."""
        self.held[node_id] = replace(self.held[node_id], lost_s=lost_s)
        self.records.write(self.held[node_id])

    def end(self, record: NodeRecord) -> None:
        """Take all its processes, in the background; its record goes last."""
        self.held.pop(record.node_id, None)
        self._unwatch(record.node_id)
        self.gone.add(record.token)
        task = asyncio.get_running_loop().create_task(self._kill_all(record))
        self._endings[record.node_id] = task
        task.add_done_callback(lambda _: self._endings.pop(record.node_id, None))

    async def wait_for_end(self, node_id: str) -> None:
        """Returns when no process of it is left."""
        if (ending := self._endings.get(node_id)) is not None:
            await asyncio.shield(ending)

    async def close(self) -> None:
        """Stop watching; what is held stays."""
        for node_id in [*self._pidfds]:
            self._unwatch(node_id)
        await asyncio.gather(*self._endings.values())

    # ------------------------------------------------------------------

    async def _with_process(self, record: NodeRecord) -> NodeRecord:
        """The record with its process, as soon as the agent has written it down; without one if there is no agent."""
        for _ in range(round(BIRTH_S / BIRTH_LOOK_S)):
            held = self.records.is_held(record.node_id)
            if (found := self.records.with_process(record)).pid or not held:
                return found
            await asyncio.sleep(BIRTH_LOOK_S)
        return record

    def _forget(self, record: NodeRecord) -> None:
        """It never was; unless somebody still holds its life file, whom a later look will find."""
        if not self.records.is_held(record.node_id):
            self.records.remove(record.node_id)

    def _unwatch(self, node_id: str) -> None:
        if (pidfd := self._pidfds.pop(node_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    async def _kill_all(self, record: NodeRecord) -> None:
        if record.pid and record.boot == self.records.boot:
            while not await asyncio.to_thread(processes.kill_instance, record.pid, record.start):
                _log.warning("processes of %s do not die; it is still held", record.node_id)
        self._forget(record)
