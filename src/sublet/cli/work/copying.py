"""The process that copies checkpoints between the controller's disk and a bucket: digests of gigabytes hold nobody up.

    python -m sublet.cli.work.copying SOURCE TARGET KEEP

prints one line of JSON: {"step": 400, "size_bytes": 123, "seconds": 1.5}, step -1 where there is nothing to copy. What
went wrong is on its standard error, and it ends with 1.
"""

from __future__ import annotations

import json
import sys

from sublet.errors import SubletError
from sublet.machine.wall import WALL
from sublet.train.checkpoint.copying import copy_newest
from sublet.train.checkpoint.store import open_store

__all__ = ["main"]


def main(source: str, target: str, keep: str) -> int:
    """The exit code."""
    began_s = WALL.monotonic()
    try:
        done = copy_newest(open_store(source), open_store(target), keep=int(keep))
    except (SubletError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    step, size = (-1, 0) if done is None else (done.step, done.size_bytes)
    facts = {"step": step, "size_bytes": size, "seconds": WALL.monotonic() - began_s}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
