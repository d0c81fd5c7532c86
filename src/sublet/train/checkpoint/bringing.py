"""The newest checkpoint, for who is to go on from it: brought to this node first, where its disk is its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sublet.machine.objects import StoreFailed
from sublet.train.checkpoint.checkpoints import Loaded
from sublet.train.checkpoint.saving import Saver
from sublet.train.link.agent_line import AgentLine, Lost
from sublet.wire.saves import DISK

__all__ = ["newest"]

BRING_S = 86_400.0  # for a checkpoint that its agent brings, however large: the agent says if it cannot


async def newest(saver: Saver, line: AgentLine | None, generation: int | None) -> Loaded | None:
    """None if there is none; Lost if nobody can say whether there is one."""
    try:
        with _at_work(line):
            if line is not None and generation is not None and saver.tier == DISK:
                await line.bring(generation, BRING_S)
            return saver.newest()
    except StoreFailed as error:
        if error.lasting:
            raise
        raise Lost(str(error)) from error  # whether there is one is not known: another worker is to ask again


@contextmanager
def _at_work(line: AgentLine | None) -> Iterator[None]:
    """What takes long here is work, and no sign of a group that does not form."""
    if line is None:
        yield
        return
    before, line.script_s = line.script_s, line.wall.monotonic()
    try:
        yield
    finally:
        line.script_s = before
