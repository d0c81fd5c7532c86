"""`python -m sublet_lab.world`: live seeds, shrink what breaks a law, read one life.

--seeds 1000 --from 0        live a thousand, over two processes; the exit code says whether a law was broken
--seeds 1 --from 37 --look   one life, line by line
--seeds 20 --crash-points 1  die before and after every commit and every provider call of twenty lives
... --most-points 250        ... of those of them that are short: a life has up to 4,000, and dies at each of them
--shrink 3                   of every law that broke, the least that breaks it, for up to three seeds
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from sublet_lab.world.crash_points import Deaths, die_everywhere
from sublet_lab.world.look import look
from sublet_lab.world.runner import Count, Result, append_row, commit, count_seeds
from sublet_lab.world.shrink import as_code, shrink
from sublet_lab.world.story import CLOUDS, KEPT, draw_story, kinds_at

MOST_SHOWN = 5  # seeds of one law
WORD_EVERY_S = 20.0  # while points are died at: there may be thousands


def main(words: list[str] | None = None) -> int:
    """The number of laws that broke."""
    parser = argparse.ArgumentParser(prog="python -m sublet_lab.world", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="how many [default: %(default)s]")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="the first one [default: 0]")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at once [default: %(default)s]")
    parser.add_argument("--only", default="", metavar="KIND,...", help="faults of these kinds alone")
    parser.add_argument("--policy", default="", metavar="NAME", help="this one [default: drawn]")
    parser.add_argument("--cloud", default="", metavar="NAME", help="which cloud [default: by the number of the seed]")
    parser.add_argument("--grids", action="store_true", help="stories in which models are cut")
    parser.add_argument("--shrink", type=int, default=0, metavar="N", help="shrink N seeds of every law that broke")
    parser.add_argument("--look", action="store_true", help="print the life of the first seed")
    parser.add_argument("--everyday", action="store_true", help="... with pings, steps and renewals")
    parser.add_argument("--count", type=Path, metavar="FILE", help="append the counts to this file, as a line of JSON")
    parser.add_argument(
        "--crash-points", type=int, default=0, metavar="N", help="die at every N-th commit and call instead"
    )
    parser.add_argument(
        "--most-points",
        type=int,
        default=sys.maxsize,
        metavar="N",
        help="... of lives that have no more than N of these",
    )
    asked = parser.parse_args(words)
    kinds = tuple(filter(None, asked.only.split(",")))
    _refuse_unknown(parser, "--cloud", [asked.cloud], sorted(set(CLOUDS)))
    _refuse_unknown(parser, "--only", kinds, sorted({*KEPT, *(kind for cloud in CLOUDS for kind in kinds_at(cloud))}))
    if asked.look:
        story = draw_story(asked.first, kinds, cloud=asked.cloud, policy=asked.policy, grids=asked.grids)
        outcome, rows = look(story, everyday=asked.everyday)
        _say(*map(str, rows), f"seed {asked.first}: {outcome.broken or 'no law is broken'}")
        return int(outcome.broken is not None)
    return _die_everywhere(asked) if asked.crash_points else _run(asked, kinds)


def _refuse_unknown(parser: argparse.ArgumentParser, flag: str, given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name and name not in known:
            parser.error(f"{flag}: there is no {name!r}; there are {', '.join(known)}")


def _die_everywhere(asked: argparse.Namespace) -> int:
    """At every N-th commit, call and request of each seed, before and after it."""
    seeds, told = range(asked.first, asked.first + asked.seeds), 0
    of, began_s, found = commit(), time.perf_counter(), Deaths()
    next_s = began_s + WORD_EVERY_S
    for found in die_everywhere(
        seeds,
        every=asked.crash_points,
        most=asked.most_points,
        processes=asked.processes,
        cloud=asked.cloud,
        policy=asked.policy,
    ):
        if new := found.broken[told:]:
            _say(*new)
            told = len(found.broken)
        if time.perf_counter() >= next_s:
            _say(f"{found}, so far")
            next_s = time.perf_counter() + WORD_EVERY_S
    if not found.lives:
        _say(f"none of the {asked.seeds} lives from seed {asked.first} has as few as {asked.most_points} points")
        return 1
    took_s = time.perf_counter() - began_s
    _say(f"of {asked.seeds} seeds: {found}, in {took_s:.0f} s")
    if asked.count is not None:
        run = {"seeds": asked.seeds, "first": asked.first, "every": asked.crash_points, "processes": asked.processes}
        append_row(asked.count, found.row(commit=of, seconds=round(took_s, 1), **run))
    return len(found.broken)


def _run(asked: argparse.Namespace, kinds: tuple[str, ...]) -> int:
    shown: dict[str, int] = {}

    def tell(result: Result) -> None:
        if result.law:
            shown[result.law] = shown.get(result.law, 0) + 1
            if shown[result.law] <= MOST_SHOWN:
                _say(f"seed {result.seed}: {result.law}: {result.what[:600]}")

    began_s = time.perf_counter()
    seeds = range(asked.first, asked.first + asked.seeds)
    count = count_seeds(
        seeds,
        processes=asked.processes,
        kinds=kinds,
        cloud=asked.cloud,
        policy=asked.policy,
        grids=asked.grids,
        each=tell,
    )
    took_s = time.perf_counter() - began_s
    _say(*_summary(count, took_s))
    if asked.count is not None:
        append_row(
            asked.count,
            count.row(first=asked.first, cloud=asked.cloud, seconds=round(took_s, 1), processes=asked.processes),
        )
    for law, broken in count.broken.items():
        for seed in broken[: asked.shrink]:
            found = shrink(draw_story(seed, kinds, cloud=asked.cloud, policy=asked.policy, grids=asked.grids), law)
            _say(
                "", f"seed {seed}, {law}, after {found.lives} lives: {found.outcome.broken}", as_code(found.story, law)
            )
    return len(count.broken)


def _summary(count: Count, took_s: float) -> list[str]:
    rate = count.seeds / took_s
    idle = sorted(kind for kind in count.hits if not count.effects[kind])
    lived = f"{count.hours:.1f} h of the world, {count.commits} commits, {count.lives} controllers"
    return [
        f"{count.seeds} seeds in {took_s:.1f} s ({rate:.2f}/s), {lived}",
        "faults with an effect: " + ", ".join(f"{k} {count.effects[k]}/{n}" for k, n in sorted(count.hits.items())),
        "jobs: " + ", ".join(f"{how} {many}" for how, many in count.ends.most_common()),
        *([f"without any effect: {', '.join(idle)}"] if idle else []),
        "laws broken: " + (", ".join(f"{law} {len(seeds)}" for law, seeds in sorted(count.broken.items())) or "none"),
        *([f"red on {count.of or 'no commit'}: {_red(count)}"] if count.broken else []),
    ]


def _red(count: Count) -> str:
    """Every seed of every law, in one line that can be kept."""
    return "; ".join(f"{law} {' '.join(map(str, sorted(seeds)))}" for law, seeds in sorted(count.broken.items()))


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
