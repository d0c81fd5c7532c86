"""Times to write to and resume from each tier of checkpoints, their cost to training, and savings by servers.

Everything is measured in this run, on this machine, with real bytes. The disks of a node and of a controller host are
folders, the bucket is an S3 server of its own over HTTP, nodes are processes that are killed. Beside it stands the
model.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sublet.domain.saving import MOST_SLOWDOWN, cost_of_write
from sublet.domain.units import GB
from sublet.perf.preemption.tiers import Ladder, copy_s, tiering
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_most, within
from sublet_lab.tiers.arms import Arm, Life, expected_s, interval_s, live, rents
from sublet_lab.tiers.carried import measure_carried, turned
from sublet_lab.tiers.deepvm import modelled
from sublet_lab.tiers.peers import Peers
from sublet_lab.tiers.places import Tiers, Took, bucket_server, state_of
from sublet_lab.tiers.slowdown import Slowdown, measure_slowdown, median_interval

NEAR = 0.20  # of the model's prediction
MEASURED = ("disk", "anchor", "bucket")
CARRIED, PEERS = "carried", "peers"  # to the controller host, by agents; from another worker's memory
OF_PEERS = 4  # times as large: a state that fits into a processor's cache comes sooner than any that matters
STEP_S = 0.02  # of a step in a life with losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is tried."""

    known: int  # bytes of the state by which the bandwidth of each tier is known
    asked: tuple[int, ...]  # of those that are foretold by it
    rounds: int
    beside: int  # bytes of a state that is saved beside training
    beside_s: float  # how long
    steps: int  # of a life with losses
    losses_s: tuple[float, ...]
    size: int  # bytes of its state: few, since intervals must be shorter than what is between two losses


QUICK = Sizes(
    known=32_000_000,
    asked=(16_000_000, 64_000_000),
    rounds=9,
    beside=4_000_000,
    beside_s=100.0,
    steps=400,
    losses_s=(5.0, 10.0),
    size=8_000_000,
)
FULL = Sizes(
    known=64_000_000,
    asked=(32_000_000, 192_000_000),
    rounds=15,
    beside=8_000_000,
    beside_s=400.0,
    steps=2500,
    losses_s=(6.0, 12.0, 18.0, 24.0),
    size=24_000_000,
)


def foretold(known: Mapping[str, Took], known_bytes: int, size_bytes: int) -> Mapping[str, Took]:
    """By the model that the adviser and live jobs follow, with the bandwidth of each tier as one size has shown it.

    Of each tier it is asked what a loss costs that only this one survives: the copy that was under way, and one back.
    """
    tiers = list(known)
    write_K, read_K = (
        copy_s(size_bytes, known_bytes / np.maximum([getattr(known[tier], name) for tier in tiers], 1e-9))
        for name in ("write_s", "read_s")
    )
    ladder = Ladder(hits_per_s=np.eye(len(tiers)), cost_s=0.0, lag_s=write_K[:, None], read_s=read_K[:, None])
    found = tiering(ladder, every := 1.0)
    return {
        tier: Took(write_s=float(found.redone_C[at] - every / 2.0), read_s=float(found.resuming_C[at]))
        for at, tier in enumerate(tiers)
    }


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile: whatever else a machine does only adds to what something takes.

    >>> typical([1.0, 9.0, 2.0, 3.0, 50.0])
    2.0
    """
    return float(np.quantile(seconds, 0.25))


def _run(quick: bool, tell: Tell) -> Findings:
    sizes = QUICK if quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="sublet-tiers-"))
    before = dict(os.environ)
    try:
        with bucket_server() as (bucket, access):
            os.environ.update(access)  # the stores are opened in this process, too
            tell("writes and resumes of each tier")
            took = _measured(folder / "times", bucket, sizes)
            tell("training beside checkpoints, and without")
            slowed = measure_slowdown(folder / "beside", sizes.beside, seconds=sizes.beside_s)
            lives = _lives(folder / "lives", bucket, access, sizes, tell)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
    tables, checks = list[StudyTable](), list[Check]()
    for part in (_of_times(took, sizes), _of_slowdown(slowed), _of_lives(lives), modelled()):
        tables.append(part[0])
        checks += part[1]
    return Findings(checks=checks, tables=tables, notes=_notes())


# ---------------------------------------------------------------------- writes and resumes

_Times = Mapping[tuple[str, int], Sequence[Took]]


def _measured(folder: Path, bucket: str, sizes: Sizes) -> _Times:
    """All sizes in turn, round by round: what else the machine does befalls each alike."""
    tiers = Tiers(folder / "here", bucket)
    every = (sizes.known, *sizes.asked)
    found: dict[tuple[str, int], list[Took]] = {}
    with Peers() as peers:
        for number in range(sizes.rounds + 1):
            for size in turned(every, number):
                given_s = peers.hand_over(state_of(OF_PEERS * size))
                took = {**tiers.measure(size, state_of(size)), PEERS: Took(write_s=0.0, read_s=given_s)}
                for tier, seconds in took.items():
                    if number:  # the first opens files and lines that the others find open
                        found.setdefault((tier, size), []).append(seconds)
                shutil.rmtree(tiers.folder, ignore_errors=True)
    for size, carried in measure_carried(folder / "carried", every, sizes.rounds).items():
        found[CARRIED, size] = list(carried)
    return found


def _of_times(took: _Times, sizes: Sizes) -> tuple[StudyTable, list[Check]]:
    """Each round is foretold by what it has shown of the known size: how busy the machine is is in both."""
    rows, checks = [], []
    tiers = list(dict.fromkeys(tier for tier, _ in took))
    for size in sizes.asked:
        rounds = range(len(took[tiers[0], size]))
        model = [foretold({tier: took[tier, sizes.known][at] for tier in tiers}, sizes.known, size) for at in rounds]
        for tier in tiers:
            megabytes = f"{1e3 * size * (OF_PEERS if tier == PEERS else 1) / GB:.0f}"
            for what, name in (("write", "write_s"), ("resume", "read_s")):
                ours = [getattr(each, name) for each in took[tier, size]]
                if not any(ours):
                    continue  # to have the state in memory costs nothing
                expected = [getattr(each[tier], name) for each in model]
                shares = [mine / theirs for mine, theirs in zip(ours, expected, strict=True)]
                share, (low, high) = statistics.median(shares), median_interval(shares)
                seconds = [f"{statistics.median(expected):.3f}", f"{statistics.median(ours):.3f}"]
                rows.append([tier, what, megabytes, *seconds, f"{share:.2f}", f"{low:.2f} to {high:.2f}"])
                checks.append(within(f"{tier}: {what} of {megabytes} MB, by what was foretold", share, 1.0, NEAR))
    columns = ["tier", "what", "MB", "foretold, s", "measured, s", "ratio", "between"]
    return StudyTable(title="Writes and resumes", columns=columns, rows=rows, texts=2), checks


# ---------------------------------------------------------------------- training beside it


def _of_slowdown(slowed: Slowdown) -> tuple[StudyTable, list[Check]]:
    low, high = median_interval(slowed.shares)
    rows = [
        [
            "shortest interval of the model",
            f"{slowed.every_s:.3f}",
            f"{1e3 * slowed.write_s:.1f}",
            f"{1e3 * slowed.blocked_s:.2f}",
            f"{slowed.saves}",
            f"{100 * slowed.median:.2f}",
            f"{100 * low:.2f} to {100 * high:.2f}",
            f"{100 * slowed.of_cpu:.2f}",
            f"{slowed.drag:.2f}",
        ]
    ]
    columns = ["at", "every, s", "write, ms", "blocked, ms", "saves", "slower, %", "between, %", "CPU, %", "drag"]
    table = StudyTable(title="Training beside checkpoints", columns=columns, rows=rows)
    most = 100 * MOST_SLOWDOWN
    return table, [at_most("training is slower by", 100 * slowed.median, most, unit="%")]


# ---------------------------------------------------------------------- lives with losses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lived:
    arm: Arm
    life: Life
    foretold_s: float


def _lives(folder: Path, bucket: str, access: Mapping[str, str], sizes: Sizes, tell: Tell) -> list[_Lived]:
    """Each way through the same losses; intervals and what is expected by the model, from what was measured here."""
    tiers, state = Tiers(folder / "times", bucket), state_of(sizes.size)
    took = [tiers.measure(sizes.size, state) for _ in range(4)][1:]
    typical = {tier: _typical([each[tier] for each in took]) for tier in MEASURED}
    blocked_s = typical["disk"].blocked_s
    per_s = len(sizes.losses_s) / sizes.losses_s[-1]
    usd = rents()
    tell("on demand: nothing is lost")
    calm = Arm(name="on demand", far=str(folder / "calm"), direct=False, usd_per_h=usd["on demand"], every_s=math.inf)
    begins = live(calm, folder / "start", **_life(sizes, access, steps=1), losses_s=())
    whole = live(calm, folder / "whole", **_life(sizes, access), losses_s=())
    start_s = begins.seconds - STEP_S
    lived = [_Lived(arm=calm, life=whole, foretold_s=start_s + sizes.steps * STEP_S)]
    for name, far in (("tiering", str(folder / "anchor")), ("bucket", f"{bucket}/life")):
        tell(f"{name}: all nodes are lost {len(sizes.losses_s)} times")
        direct = name == "bucket"
        near, far_s = (typical["bucket"], 0.0) if direct else (typical["disk"], typical["anchor"].write_s)
        near = replace(near, blocked_s=blocked_s)
        arm = Arm(name=name, far=far, direct=direct, usd_per_h=usd[name], every_s=interval_s(near, far_s, per_s))
        life = live(arm, folder / name, **_life(sizes, access), losses_s=sizes.losses_s)
        expected = expected_s(
            start_s + sizes.steps * STEP_S,
            arm.every_s,
            cost_s=cost_of_write(near.blocked_s, near.write_s) + cost_of_write(0.0, far_s),
            lag_s=near.write_s + far_s,
            resume_s=start_s + typical["bucket" if direct else "anchor"].read_s,
            losses=life.losses,
        )
        lived.append(_Lived(arm=arm, life=life, foretold_s=expected))
        if name == "tiering":
            single = replace(arm, name="single anchor", usd_per_h=usd["single anchor"])
            dearer = replace(life, usd=life.usd * single.usd_per_h / arm.usd_per_h)
            lived.append(_Lived(arm=single, life=dearer, foretold_s=expected))
    return lived


def _typical(took: Sequence[Took]) -> Took:
    return Took(
        write_s=typical([each.write_s for each in took]),
        read_s=typical([each.read_s for each in took]),
        blocked_s=typical([each.blocked_s for each in took]),
    )


def _life(sizes: Sizes, access: Mapping[str, str], steps: int | None = None) -> dict[str, Any]:
    return {"steps": steps or sizes.steps, "step_s": STEP_S, "size_bytes": sizes.size, "env": access}


def _of_lives(lives: Sequence[_Lived]) -> tuple[StudyTable, list[Check]]:
    rows, checks = [], []
    for each in lives:
        arm, life = each.arm, each.life
        rows.append(
            [
                arm.name,
                f"{arm.every_s:.2f}" if math.isfinite(arm.every_s) else "never",
                f"{life.losses}",
                f"{life.steps_redone}",
                f"{statistics.median(life.resumes_s):.2f}" if life.resumes_s else "-",
                f"{life.seconds:.1f}",
                f"{each.foretold_s:.1f}",
                f"{arm.usd_per_h:.4f}",
                f"{life.usd:.4f}",
            ]
        )
        if arm.name != "single anchor":  # which is the run of tiering
            checks.append(within(f"live, {arm.name}: seconds", life.seconds, each.foretold_s, NEAR, unit="s"))
    usd = {each.arm.name: each.life.usd for each in lives}
    checks += [
        at_most(f"live: tiering by {other}, USD of the same work", usd["tiering"] / usd[other], 1.0)
        for other in ("single anchor", "on demand")
    ]
    columns = [
        "way",
        "every, s",
        "losses",
        "redone",
        "to resume, s",
        "seconds",
        "foretold, s",
        "USD/h",
        "USD/h of work",
    ]
    return StudyTable(title="All spot nodes lost, live", columns=columns, rows=rows), checks


def _notes() -> list[str]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return [
        f"load {load:.1f} on {cores} cores: where it is above them, checks may be missed for what others do",
        "node and controller host are folders of one disk, with only digests between them: a network would add its own",
        "writes and resumes are foretold by bytes over bandwidth, which one other size of this run has shown",
        "carried: over TLS on this machine, from a node's disk to the controller and to another node that loads it",
        "peers: over gloo on this machine, into the memory of a worker that has nothing",
        "the bucket is moto's S3 over HTTP on this machine, in a process that needs a core of its own",
        "losses come every few seconds here, so that some happen within a minute: real ones are rarer",
        "with a single server the same happens as with tiering, and only the rent is another: it is one run",
        "small states are cheapest straight in a bucket, without any server: see the model's table",
        "times and ratios are medians of all rounds, each foretold by itself; 19 times in 20 a median is between",
        "each checkpoint that is carried is another one: what the controller has already is not sent",
        "those from peers are larger, so that no cache of a processor holds them",
    ]


STUDY = Study(name="tiers", title="Tiers of checkpoints: writes, resumes and slowdown beside the model", run=_run)
