"""200 lives of an AWS account that lies, with a controller that dies: nothing leaked, nothing twice, the ledger true.

    python -m tests.rigs.aws_fault_seeds [SEEDS [FIRST]]

Each seed is about seventeen minutes of virtual time with real calls to a moto server (tests/rigs/aws_faults.py says
which faults there are). Ends with code 1 if one seed fails, and names it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.rigs.aws_faults import Story, play

SEEDS = 200
WORKERS = 2


def main() -> None:
    """Play all seeds, and tell what was met on the way."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.perf_counter()
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        stories = []
        for story in pool.map(play, range(first, first + seeds)):
            stories.append(story)
            print(f"\r{len(stories)} of {seeds}", end="", file=sys.stderr, flush=True)
    bad = [story for story in stories if not story.sound]
    _print(stories, time.perf_counter() - began_s)
    for story in bad:
        print(f"FAILED: {story}")
    sys.exit(1 if bad else 0)


def _print(stories: list[Story], seconds: float) -> None:
    faults = sum((story.faults for story in stories), Counter[str]())
    virtual_h = sum(story.virtual_s for story in stories) / 3600
    print(f"{len(stories)} seeds, {virtual_h:.1f} h of virtual time, {seconds:.0f} s")
    print(f"  calls to EC2         {sum(story.calls for story in stories):8,}")
    print(f"  lives of controllers {sum(story.lives for story in stories):8,}")
    print(f"  instances            {sum(story.instances for story in stories):8,}")
    for name, count in sorted(faults.items()):
        print(f"    {name:<25}{count:6,}")
    print(f"  leaked               {sum(len(story.leaked) for story in stories):8,}   goal 0")
    print(f"  twice                {sum(len(story.doubles) for story in stories):8,}   goal 0")
    print(f"  not in both records  {sum(len(story.unpaired) for story in stories):8,}   goal 0")
    print(f"  ledger off by        {max(story.ledger_off_s for story in stories):8.2f} s at most   goal 1 s")
    print(f"  the same, what spot took {max(story.taken_off_s for story in stories):4.2f} s at most   goal 1 s")


if __name__ == "__main__":
    main()
