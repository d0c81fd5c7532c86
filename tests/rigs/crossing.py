"""Checkpoints that groups of another width, with ranges of the optimizer's state or without, go on from."""

from __future__ import annotations

import os
from pathlib import Path

from sublet.wire.messages import Joined, Left
from tests.rigs.training import World, logged_training, read_logs


def crosses(directory: Path) -> dict[str, object]:
    """CHAIN has width:keep of one group after the other; each but the last leaves with a checkpoint."""
    world = World(logged_training, directory, PAUSE_S="0.01", SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"))
    chain = [tuple(map(int, each.split(":"))) for each in os.environ["CHAIN"].split()]
    entries = []
    for number, (width, keep) in enumerate(chain, 1):
        world.keep = keep
        new = world.start(width)
        world.until_ready(new)
        world.regroup(new)
        world.until_joined()
        (entry,) = {(said.source, said.step) for worker in new for _, said in worker.heard if isinstance(said, Joined)}
        entries.append(entry)
        if number < len(chain):
            world.until_step(entry[1] + 20)
            world.regroup([], save=True)
            world.until(lambda new=new: all(worker.code is not None for worker in new), "all left")
    world.until_over()
    left = sorted({said.step for _, _, said in world.messages if isinstance(said, Left)})
    return {"codes": world.codes(), "entries": entries, "left": left, **read_logs(directory)}


SCENARIOS = {"crosses": crosses}
