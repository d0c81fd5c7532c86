"""A state from the memory of another worker: `python -m sublet_lab.tiers.peers PORT` is the one that has nothing.

Both are in one group over gloo, as workers on two hosts are, and hand over as a session does when one comes new
(`train.state.state.broadcast`). The newcomer says how long it took, in lines of JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any, Self

import torch.distributed as dist

from sublet.train.link.peers import PeerGroup
from sublet.train.state.state import broadcast

WORLD = 2
END_S = 10.0


class Peers:
    """The one that has the state is this process."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "sublet_lab.tiers.peers", str(port)]
        self._other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
        self._group = _met(port, rank=0)

    def hand_over(self, state: dict[str, Any]) -> float:
        """Seconds, by the newcomer's clock, until it has all of it."""
        assert self._other.stdout is not None
        self._group.broadcast(_word(go_on=True), 0)
        broadcast(self._group, 0, state)
        return float(json.loads(self._other.stdout.readline())["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.broadcast(_word(go_on=False), 0)
        try:
            self._other.wait(END_S)
        except subprocess.TimeoutExpired:
            self._other.kill()
            self._other.wait()
        if self._other.stdout is not None:
            self._other.stdout.close()
        dist.destroy_process_group()


def _met(port: int, rank: int) -> PeerGroup:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    return PeerGroup(rank=rank, world=WORLD)


def _word(*, go_on: bool) -> Any:
    import torch

    return torch.tensor([int(go_on)])


def main(port: int) -> None:
    """Take what comes until no more does."""
    group = _met(port, rank=1)
    while True:
        word = _word(go_on=False)
        group.broadcast(word, 0)
        if not int(word):
            break
        began_s = time.perf_counter()
        broadcast(group, 0, None)
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - began_s}) + "\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
