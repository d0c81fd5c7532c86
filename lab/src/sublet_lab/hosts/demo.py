"""`sublet demo --hosts`: a job on hosts that share nothing, of which one is taken, one is lost and one is cut off."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sublet.errors import BadInput
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.hosts.faults import HostFault
from sublet_lab.hosts.study import PATIENCE_S, spec_of
from sublet_lab.hosts.trial import Outcome, Trial
from sublet_lab.studies.study import Tell

NODES, STEPS, ALONE_S = 3, 500, 0.36  # of a step, for one worker
NOTICE_S, CUT_OFF_S = 10.0, 35.0
HOST_FAULTS = (
    HostFault(
        f"a host is taken, with {NOTICE_S:g} s of notice",
        lambda scene: scene.box.host_of(scene.nodes[1]).notice(NOTICE_S),
        counted="preemptions_noticed",
        at=0.1,
    ),
    HostFault(
        "a host loses its power",
        lambda scene: scene.box.host_of(scene.nodes[0]).cut_off(),
        counted="preemptions_unnoticed",
        at=0.35,
    ),
    HostFault(
        f"a host is cut off from all others for {CUT_OFF_S:g} s",
        lambda scene: scene.box.host_of(scene.nodes[-1]).unplug(CUT_OFF_S),
        at=0.55,
    ),
)


@dataclass(frozen=True, slots=True)
class HostsDemo:
    """The result, in figures and for people."""

    ok: bool
    facts: dict[str, object]
    lines: Sequence[str] = ()  # no picture
    notes: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)  # no report

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """Name and figure."""
        return [[name.replace("_", " "), str(value)] for name, value in self.facts.items()]


def run(tell: Tell) -> HostsDemo:
    """About two minutes. Nothing is left of it, however it ends."""
    try:
        box = Box(Image(env={"OMP_NUM_THREADS": "1"}))
    except NoBox as error:
        hint = "Linux, root and iproute2: sudo -E $(which sublet) demo --hosts; or 'sublet demo', which needs none"
        raise BadInput("sublet demo --hosts", str(error), hint=hint) from None
    folder = Path(tempfile.mkdtemp(prefix="sublet-demo-"))
    try:
        with box:
            tell(f"{NODES} hosts with a network, a disk and processes of their own are rented; a job trains on them")
            spec = spec_of("sdk", folder / "work", f"{box.bucket('checkpoints')}/demo", STEPS, NODES)
            spec = replace(spec, name="demo", argv=(*spec.argv[:-1], str(ALONE_S), "shared"))
            trial = Trial(spec=spec, steps=STEPS, nodes=NODES, patience_s=PATIENCE_S)
            return _told(trial.run(box, folder, HOST_FAULTS, tell))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(outcome: Outcome) -> HostsDemo:
    facts: dict[str, object] = {
        "job": outcome.phase,
        **{blow.name: "yes" if outcome.struck else "not all of it" for blow in HOST_FAULTS},
        "steps": STEPS,
        "steps_lost": outcome.steps_lost,
        "seconds": round(outcome.seconds, 1),
        "usd": round(outcome.usd, 4),
        "hosts_left": outcome.left,
    }
    return HostsDemo(outcome.phase == "finished" and outcome.struck and not outcome.left, facts)
