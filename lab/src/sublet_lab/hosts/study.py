"""The results when hosts are lost, cut off or left alone, on hosts that share nothing but a network.

Three scripts train the same model on the same batches: one with the SDK, one for torchrun that saves to a folder of its
own, one with a trainer's loop that uploads to a bucket. That with the SDK saves to a bucket, or (`disk`) on the disk of
its host, from where it is carried to the controller, as the folder of the second is. Each runs undisturbed first; then
something happens after a quarter of its steps. The result is right if the loss over all data is that of the undisturbed
run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sublet.errors import Infeasible
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.box.sshd import service
from sublet_lab.hosts.faults import (
    AWS_LEASE_S,
    CALM,
    FIVE_MINUTES_S,
    HOST_FAULTS,
    LEASE_S,
    LONG_S,
    NOTICE_S,
    PACE_S,
    SHORT_S,
    SLOW_S,
    HostFault,
)
from sublet_lab.hosts.trial import Outcome, Trial
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_most, equals

SCRIPTS = ("sdk", "ddp", "trainer")
SCRIPT = Path(__file__).with_name("script.py")
TOLERANCE = 1e-4  # of the loss: sums over other numbers of workers round otherwise
CHECKPOINT_S = 4.0  # between two of the SDK's
CARRY_S = 3.0  # from a save on a host's disk until the controller has it: two looks, and the way
EVERY = 20  # steps between two saves of scripts without the SDK, as script.py has it
DISK = "disk"  # with the SDK, and without a bucket
PATIENCE_S = 420.0  # for one job
COLUMNS = ["script", "what happened", "ended", "steps lost", "s", "USD", "loss", "against undisturbed", "right"]


def _run(quick: bool, tell: Tell) -> Findings:
    if quick:
        return run_rows(["sdk"], [HOST_FAULTS[1], HOST_FAULTS[3]], nodes=2, steps=120, tell=tell)
    return run_rows((*SCRIPTS, DISK), HOST_FAULTS, nodes=4, steps=240, tell=tell)


def run_rows(names: Sequence[str], blows: Sequence[HostFault], *, nodes: int, steps: int, tell: Tell) -> Findings:
    """Each of these scripts undisturbed, and then once for each of these blows."""
    try:
        box = Box(Image(env={"OMP_NUM_THREADS": "1"}, files=service(), sublet=False))
    except NoBox as error:
        raise Infeasible(str(error), binding="hosts", needed=nodes, available=0) from None
    folder = Path(tempfile.mkdtemp(prefix="sublet-hosts-"))
    try:
        with box:
            rows, checks, notes = _all(box, folder, names, blows, nodes, steps, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    title = f"{nodes} hosts that share nothing"
    return Findings(checks=checks, tables=[StudyTable(title=title, columns=COLUMNS, rows=rows, texts=3)], notes=notes)


def _all(
    box: Box, folder: Path, names: Sequence[str], blows: Sequence[HostFault], nodes: int, steps: int, tell: Tell
) -> tuple[list[list[str]], list[Check], list[str]]:
    rows, checks = list[list[str]](), list[Check]()
    bucket = box.bucket("checkpoints")
    kept = False
    for name in names:
        calm: Outcome | None = None
        felt = [blow for blow in blows if name != DISK or blow.takes_rank_0]  # what else may happen, sdk shows
        felt = [blow for blow in felt if not blow.sdk_only or name == "sdk"]
        for number, blow in enumerate((CALM, *felt)):
            tell(f"{name}: {blow.name}")
            (home := folder / f"{name}-{number}").mkdir()
            spec = spec_of(name, home / "work", f"{bucket}/{name}-{number}", steps, nodes)
            spec = replace(spec, argv=slowed(spec.argv, nodes)) if blow.comes_back else spec
            patience_s = PATIENCE_S + (steps * SLOW_S if blow.comes_back else 0.0)
            trial = Trial(spec=spec, steps=steps, nodes=nodes, patience_s=patience_s)
            outcome = trial.run(box, home, [blow], tell)
            kept |= name == "sdk" and box.holds(f"{bucket}/{name}-{number}")  # by what is there, not by what was asked
            calm = calm or outcome
            right = verdict(outcome, calm)
            rows.append(_row(name, blow, outcome, calm, right=right))
            tell(", ".join(rows[-1]))
            ours = float(right)
            checks.append(Check(name=f"{name}, {blow.name}: right", ours=ours, goal="== 1", ok=right))
            if blow.comes_back:
                checks.append(equals(f"{name}, {blow.name}: taken in again", float(outcome.whole_again), 1.0))
            if (most := most_lost(name, blow)) is not None:
                checks.append(at_most(f"{name}, {blow.name}: steps lost", outcome.steps_lost, most, unit="steps"))
    return rows, checks, _notes(kept=kept)


def most_lost(name: str, blow: HostFault) -> float | None:
    """Steps; None = how many is the script's own affair, or that of the network."""
    carried = CARRY_S / PACE_S
    if name in ("sdk", DISK):
        most = CHECKPOINT_S / PACE_S + (carried if name == DISK else 0.0)
        return most if blow.takes_all else 0.0  # else the survivors have it all
    return EVERY + carried if name == "ddp" and blow.takes_rank_0 else None


def verdict(outcome: Outcome, calm: Outcome) -> bool:
    """Finished, after what was to happen to it had happened, with the loss of the undisturbed run."""
    if outcome.phase != "finished" or not outcome.struck or outcome.loss is None or calm.loss is None:
        return False
    return abs(outcome.loss - calm.loss) <= TOLERANCE * abs(calm.loss)


def _row(name: str, blow: HostFault, outcome: Outcome, calm: Outcome, *, right: bool) -> list[str]:
    apart = "" if outcome.loss is None or calm.loss is None else f"{abs(outcome.loss / calm.loss - 1.0):.1e}"
    ended = outcome.phase if outcome.phase == "finished" else f"{outcome.phase}: {outcome.why}"[:60]
    loss = "" if outcome.loss is None else f"{outcome.loss:.6f}"
    ended += ", as wide again" if outcome.whole_again else ""
    figures = [f"{outcome.steps_lost}", f"{outcome.seconds:.0f}", f"{outcome.usd:.4f}", loss, apart]
    return [
        name,
        blow.name,
        ended if outcome.struck else f"{ended}, without a fault",
        *figures,
        "yes" if right else "NO",
    ]


def spec_of(name: str, work: Path, address: str, steps: int, nodes: int) -> JobSpec:
    """Its folder travels; the trainer's bucket is its own business, that of the SDK is ours."""
    work.mkdir()
    shutil.copy(SCRIPT, work)
    return JobSpec(
        name=name,
        argv=("python", SCRIPT.name, "sdk" if name == DISK else name, str(steps), str(PACE_S)),
        cwd=str(work),
        env={"OUTPUT": address},
        sdk=name in ("sdk", DISK),
        torchrun=name not in ("sdk", DISK),
        min_workers=1,
        max_workers=nodes,
        checkpoint_dir=address if name == "sdk" else "",
        checkpoint_every_s=CHECKPOINT_S,
    )


def slowed(argv: Sequence[str], nodes: int) -> tuple[str, ...]:
    """Arguments for steps that hosts share: SLOW_S each while one of them is away, and less with it."""
    return (*argv[:-1], str(SLOW_S * (nodes - 1)), "shared")


def _notes(*, kept: bool) -> list[str]:
    where = "in a bucket" if kept else "NOT in the bucket that was asked for"
    checkpoints = (
        f"checkpoints of sdk are {where}; those of {DISK} and ddp are on the disk of rank 0's host, and carried to the "
        "controller from there; those of trainer are in a bucket of the user's, by the script"
    )
    times = (
        f"notices come {NOTICE_S:g} s ahead for EC2's 120; a lease is {LEASE_S:g} s for the default of "
        f"{AWS_LEASE_S:g}, but where {FIVE_MINUTES_S:g} s without a network are tried as they are; {SHORT_S:g} and "
        f"{LONG_S:g} s are half a lease and a lease and a half"
    )
    money = "hosts are on demand, on one kernel; dollars are what a g4dn.xlarge costs by the second"
    anchor = (
        "after the loss of the controller host, 'up --on aws' rents another, with the last copied state; "
        "its nodes are given up. Steps are counted by that copy: what was trained unseen after it is not in them"
    )
    return [checkpoints, times, money, anchor]


STUDY = Study(
    name="hosts", title="hosts that share nothing: what is lost with one, and whether the result is right", run=_run
)
