"""Wrappers of a command: a process that syncs folders with buckets, a container."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace

from sublet.runtime.agent.processes import look
from sublet.runtime.agent.watching import LIFE
from sublet.runtime.file_sync.contained import ContainerFacts
from sublet.runtime.file_sync.records import Record, folder
from sublet.wire.messages import StartWorker
from sublet.wire.travel import Travel

__all__ = ["dressed", "preparing_text"]

OURS = (sys.executable, "-P", "-m")
MOUNTED, CONTAINED = "sublet.runtime.file_sync.mounted", "sublet.runtime.file_sync.contained"


def dressed(order: StartWorker, travel: Travel) -> StartWorker:
    """As it is, where it has neither."""
    argv, env = order.argv, order.env
    if not argv:
        return order
    if travel.image:
        facts = _facts(order, travel, order.worker_id)
        argv = (*OURS, CONTAINED, facts.to_word(), "run", *argv)
        record = Record.of_container("", facts.container, facts.agent, facts.born)
        env = {**env, LIFE: str(record.beside(".pid"))}
    if travel.kept:
        pairs = [word for place, uri in travel.kept.items() for word in (uri, place)]
        argv = (*OURS, MOUNTED, *pairs, "--", *argv)
    return order if argv is order.argv else replace(order, argv=argv, env=env)


def preparing_text(order: StartWorker, travel: Travel) -> str:
    """Commands of a node before the first worker: outside of a container for files from elsewhere, else inside."""
    if not travel.image:
        return travel.setup
    facts = _facts(order, travel, f"{order.job_id}-setup")
    return f"{travel.setup}\n{shlex.join((*OURS, CONTAINED, facts.to_word(), 'prepare'))}"


def _facts(order: StartWorker, travel: Travel, name: str) -> ContainerFacts:
    me, saved = look(os.getpid()), order.env.get("SUBLET_CHECKPOINT_DIR", "")
    return ContainerFacts(
        image=travel.image,
        agent=os.getpid(),
        born=me.start if me else 0,
        name=name,
        cwd=order.cwd or "/",
        seen=(*travel.seen, *([saved] if saved.startswith("/") else [])),
        names=(*order.env, *order.defaults),
        inside=travel.inside,
        records=str(folder()),
    )
