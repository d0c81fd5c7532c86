"""Seeds on hosts that share nothing: what is drawn happens, and what must hold is looked at from outside.

loss     it ends, and its loss over all data is that of the same script alone on this machine
torn     no checkpoint was found damaged, and no start of it failed by an error of its own
stale    the register of its bucket never goes back to an older generation (the SDK's)
double   no step is made by an older generation after one of a newer
left     nothing is rented after `sublet down`, and no host is on
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.hosts.draws import Draw, draw
from sublet_lab.hosts.server import Server
from sublet_lab.hosts.study import PATIENCE_S, SCRIPT, TOLERANCE, spec_of
from sublet_lab.hosts.trial import Outcome, Trial, result_of
from sublet_lab.studies.study import Tell

ALONE_S = 120.0


@dataclass(slots=True)
class Result:
    """The result of one seed; `broken` are the names of broken laws."""

    draw: Draw
    outcome: Outcome
    broken: list[str] = field(default_factory=list)

    def row(self) -> str:
        """For people."""
        drawn, ended = self.draw, self.outcome
        what = "; ".join(f"{blow.name} at {blow.at:.0%}" for blow in drawn.blows)
        how = f"{ended.phase}, {ended.steps_lost} steps lost, {ended.seconds:.0f} s, USD {ended.usd:.4f}"
        seen = "" if ended.struck else ", not all of it happened"
        verdict = f"BROKEN: {', '.join(self.broken)} {ended.why[:100]}" if self.broken else "all held"
        who = f"seed {drawn.seed}: {drawn.script}, {drawn.nodes} hosts, {drawn.steps} steps"
        return f"{who}, {what}: {how}{seen}; {verdict}"


def run_seeds(seeds: Iterable[int], tell: Tell) -> list[Result]:
    """Each in a box of its own; NoBox where none can be made."""
    return [_run(draw(seed), tell) for seed in seeds]


def _run(drawn: Draw, tell: Tell) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="sublet-seed-"))
    try:
        with Box(Image(env={"OMP_NUM_THREADS": "1"})) as box:
            address = f"{box.bucket('checkpoints')}/job"
            watched = _Watched(box, address)
            spec = spec_of(drawn.script, folder / "work", address, drawn.steps, drawn.nodes)
            trial = Trial(spec=spec, steps=drawn.steps, nodes=drawn.nodes, patience_s=PATIENCE_S, look=watched.look)
            outcome = trial.run(box, folder, drawn.blows, tell)
            return Result(drawn, outcome, [*watched.broken(), *_wrong(drawn, outcome)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Watched:
    """The view of a job while it runs."""

    def __init__(self, box: Box, address: str) -> None:
        self._box, self._generations = box, list[int]()
        self._bucket, _, self._prefix = address.removeprefix("s3://").partition("/")
        self._printed: Mapping[str, Sequence[str]] = {}
        self._damaged = self._failed = 0

    def look(self, server: Server, job_id: str) -> None:
        """Now."""
        client = self._box.cloud.client("s3")
        with contextlib.suppress(client.exceptions.NoSuchKey):
            text = client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/HEAD")["Body"].read()
            self._generations.append(json.loads(text)["head"]["generation"])
        self._printed = server.printed(job_id)
        self._failed = int(server.job(job_id).get("failures_user") or self._failed)
        rows = (server.ask("events") or {}).get("events", [])
        self._damaged = max(self._damaged, sum("damaged" in str(row.get("text", "")) for row in rows))

    def broken(self) -> list[str]:
        """Names of what did not hold."""
        found = {
            "torn": self._damaged + self._failed > 0,
            "stale": went_back(self._generations),
            "double": made_twice(self._printed),
        }
        return [name for name, broke in found.items() if broke]


def went_back(generations: Sequence[int]) -> bool:
    """Whether one is below the one before it."""
    return any(later < earlier for earlier, later in pairwise(generations))


def made_twice(printed: Mapping[str, Sequence[str]]) -> bool:
    """Whether a step was made by a generation after one of a newer had made its first."""
    words = [line.split() for lines in printed.values() for line in lines if line.startswith("AT ")]
    steps = [(int(word[2]), float(word[3])) for word in words if len(word) == 4]  # AT, step, generation, time
    first_s: dict[int, float] = {}
    for generation, made_s in steps:
        first_s[generation] = min(made_s, first_s.get(generation, made_s))
    newer_s = {old: min((at_s for new, at_s in first_s.items() if new > old), default=math.inf) for old in first_s}
    return any(made_s > newer_s[generation] for generation, made_s in steps)


def _wrong(drawn: Draw, outcome: Outcome) -> list[str]:
    alone = _loss_alone("sdk" if drawn.script == "sdk" else "ddp", drawn.steps)
    right = outcome.loss is not None and abs(outcome.loss - alone) <= TOLERANCE * abs(alone)
    found = {"loss": outcome.phase != "finished" or not right, "left": outcome.left > 0}
    return [name for name, broke in found.items() if broke]


@cache
def _loss_alone(way: str, steps: int) -> float:
    """The loss of the same script, undisturbed and without a controller."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SUBLET_")}
        meeting = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**ours, **({} if way == "sdk" else meeting), "SUBLET_CHECKPOINT_DIR": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), way, str(steps), "0"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=ALONE_S, check=True)  # noqa: S603 - ours
    found = result_of({"": done.stdout.splitlines()})
    assert found is not None, done.stdout
    return found
