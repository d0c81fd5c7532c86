"""Rows of the study of hosts that are chosen, or seeds: `python -m sublet_lab.hosts --help`. Needs root."""

from __future__ import annotations

import argparse
import sys
import time

from sublet.errors import SubletError
from sublet_lab.box.claim import NoBox
from sublet_lab.hosts.faults import HOST_FAULTS
from sublet_lab.hosts.first_step import run_first_step
from sublet_lab.hosts.seeds import run_seeds
from sublet_lab.hosts.study import SCRIPTS, run_rows


def main(words: list[str] | None = None) -> int:
    """How much did not hold."""
    parser = argparse.ArgumentParser(prog="python -m sublet_lab.hosts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="draw so many, instead of rows")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="... the first one [default: 0]")
    parser.add_argument("--scripts", default=",".join(SCRIPTS), metavar="NAME,...", help="[default: %(default)s]")
    parser.add_argument("--only", default="", metavar="TEXT", help="blows with this in their name, as 'unplugged'")
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="hosts [default: %(default)s]")
    parser.add_argument("--steps", type=int, default=240, metavar="N", help="of a job [default: %(default)s]")
    parser.add_argument("--first-step", action="store_true", help="how long until it is made, and what is sent")
    asked = parser.parse_args(words)
    began_s = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    try:
        if asked.seeds:
            broken = 0
            for seed in range(asked.first, asked.first + asked.seeds):
                (result,) = run_seeds([seed], tell)
                broken += bool(result.broken)
                print(result.row(), flush=True)
            print(f"{asked.seeds} seeds in {time.monotonic() - began_s:.0f} s: {broken} broken")
            return broken
        blows = [blow for blow in HOST_FAULTS if asked.only in blow.name]
        found = (
            run_first_step(tell)
            if asked.first_step
            else run_rows(asked.scripts.split(","), blows, nodes=asked.nodes, steps=asked.steps, tell=tell)
        )
    except (NoBox, SubletError) as error:
        print(error, file=sys.stderr)
        return 2
    for row in (row for table in found.tables for row in table.rows):
        print(", ".join(row))
    for check in found.checks if asked.first_step else ():
        print(f"{check.name}: {check.ours:.4g} {check.unit} ({check.goal})")
    missed = [check.name for check in found.checks if not check.ok]
    print(f"{len(found.checks) - len(missed)} of {len(found.checks)} checks held", *missed, sep="\n  ")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
