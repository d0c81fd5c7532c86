"""A worker of nothing but steps and checkpoints: `python -m sublet_lab.tiers.worker FACTS`, killed as nodes are.

It goes on from its node's disk, else from what is farther away, and says in lines of JSON what it did:
{"resumed": step, "from": place, "read_s": s}, {"step": n}, {"saved": n, "write_s": s, "blocked_s": s, "far_s": s}.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.train.checkpoint.checkpoints import Checkpoints, Pending
from sublet.train.checkpoint.store import copy_newest, open_store, place_from
from sublet_lab.tiers.places import state_of

TELL_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts for a worker."""

    node: str  # its own disk
    far: str  # where a copy of each checkpoint goes; a directory or a bucket
    direct: bool  # it writes there itself, and to no disk of its own
    steps: int
    step_s: float
    size_bytes: int
    every_s: float
    generation: int


def main(text: str) -> None:
    """Until all steps are made."""
    facts = Facts(**json.loads(text))
    state = state_of(facts.size_bytes)
    home = place_from(facts.far) if facts.direct else Path(facts.node)
    began_s = time.perf_counter()
    source = "node"
    empty = not facts.direct and not open_store(home).steps()
    if empty and copy_newest(open_store(facts.far), open_store(home), keep=2) is not None:
        source = "far"
    with Checkpoints(home, writer="study", generation=facts.generation) as checkpoints:
        loaded = checkpoints.newest()
        step = 0 if loaded is None else loaded.step
        _tell(resumed=step, source=source if loaded else "nothing", read_s=time.perf_counter() - began_s)
        checkpoints.reserve(state)
        _train(facts, checkpoints, state, step)
    _tell(finished=facts.steps)


def _train(facts: Facts, checkpoints: Checkpoints, state: Any, step: int) -> None:
    saved_s, pending, carrying = time.perf_counter(), None, None
    while step < facts.steps:
        time.sleep(facts.step_s)  # the GPU's work: the host waits for it
        step += 1
        if step % TELL_STEPS == 0:
            _tell(step=step)
        now_s = time.perf_counter()
        if pending is None and carrying is None and now_s - saved_s >= facts.every_s:
            saved_s, pending = now_s, checkpoints.save(step, state, {})
        if pending is not None and pending.done:
            carrying, pending = threading.Thread(target=_carry, args=(facts, pending)), None
            carrying.start()
        if carrying is not None and not carrying.is_alive():
            carrying = None
    if carrying is not None:
        carrying.join()
    if pending is not None:
        _carry(facts, pending)


def _carry(facts: Facts, pending: Pending) -> None:
    pending.wait()
    began_s = time.perf_counter()
    if not facts.direct:
        copy_newest(open_store(facts.node), open_store(facts.far), keep=2)
    far_s = time.perf_counter() - began_s
    _tell(saved=pending.step, write_s=pending.seconds, blocked_s=pending.blocked_s, far_s=far_s)


def _tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
