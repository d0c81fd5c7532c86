"""The warm process of a Ray node: as on one machine, but it and all agents end at once when the steward ends.

When Ray's own processes on a machine die, Ray counts the machine as lost and may give it to others. Nothing of ours may
train on there, so every process of ours is tied to the one that started it, up to the steward, which is Ray's.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sublet.runtime.agent import processes
from sublet.runtime.agent.template import serve
from sublet.runtime.providers.local.template import Template

__all__ = ["TiedTemplate"]

STEWARD = "SUBLET_STEWARD_PID"


class TiedTemplate(Template):
    """A template that dies with this process, together with its agents."""

    module = "sublet.runtime.providers.ray.template"

    def __init__(self, preload: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        super().__init__(preload, log)
        self.env = {**env, STEWARD: str(os.getpid())}


def main() -> None:
    """`python -m sublet.runtime.providers.ray.template DESCRIPTOR MODULE...`, started by the steward."""
    processes.rename("sublet-template")
    processes.die_with_parent()
    if os.getppid() != int(os.environ.pop(STEWARD)):
        return  # it died before we could ask for that
    me = os.getpid()

    def tie() -> None:
        if os.getppid() == me:  # an agent; what agents start sees to it by itself
            processes.die_with_parent()

    os.register_at_fork(after_in_child=tie)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests, sys.argv[2:])


if __name__ == "__main__":
    main()
