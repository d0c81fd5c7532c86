"""The live benchmark's runs outside of its own process: torchrun, and a controller that is asked over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.live_stage import SCRIPT, Step, job_spec, read_steps
from sublet.api.client import Client, connect
from sublet.errors import Infeasible
from sublet.runtime.agent import processes
from sublet.runtime.controller_api.views import ENDED
from sublet.runtime.jobs.spec import spec_to_json

__all__ = ["submitted", "torchrun_restarts"]

LOOK_S = 0.01
GIVE_UP_S = 120.0
TRAINED = 60  # steps before a kill: past the first checkpoint


# ---------------------------------------------------------------------- torchrun


def torchrun_restarts(workers: int, kills: int) -> tuple[list[float], int]:
    """Seconds from the SIGKILL of one worker to the next step, for each kill; and the steps made again, of all."""
    taken, redone = [], 0
    with tempfile.TemporaryDirectory(prefix="sublet-bench-") as name:
        folder = Path(name) / "diaries"
        folder.mkdir()
        with _torchrun(folder, workers, kills):
            for restart in range(kills):
                victim = _first(folder, restart, TRAINED)
                killed_s = time.monotonic()
                os.kill(victim.pid, signal.SIGKILL)
                after = _first(folder, restart + 1)
                reached = max(step.number for step in read_steps(folder) if step.generation == restart)
                taken.append(after.at_s - killed_s)
                redone += reached + 1 - after.number
    return taken, redone


@contextmanager
def _torchrun(folder: Path, workers: int, restarts: int) -> Iterator[None]:
    """With one store for the agent and another for the workers: with gloo the shared one does not survive a restart."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(workers), "--max-restarts", str(restarts)),
        *(str(SCRIPT), "restarting", str(folder)),
    ]
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with (folder.with_suffix(".log")).open("wb") as log:
        torchrun = subprocess.Popen(command, env=env, stdout=log, stderr=log)  # noqa: S603 - torch's own
    agent = processes.look(torchrun.pid)
    try:
        yield
    except Infeasible:
        print(folder.with_suffix(".log").read_text(encoding="utf-8")[-3000:], file=sys.stderr)
        raise
    finally:
        if agent is not None and torchrun.poll() is None:
            processes.kill_instance(agent.pid, agent.start)
        torchrun.wait()


def _first(folder: Path, generation: int = 0, trained: int = 1) -> Step:
    """The first step of a generation, or a later one: as soon as there is one."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_s:
        made = [step for step in read_steps(folder) if step.generation >= generation]
        for step in made:
            if step.number >= made[0].number + trained - 1:
                return step
        time.sleep(LOOK_S)
    raise Infeasible("no such step came", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)


# ---------------------------------------------------------------------- a controller of its own


def submitted(widths: Sequence[int], count: int) -> tuple[float, float, dict[int, list[float]]]:
    """Seconds until `sublet up` answers; from the first submission to its first step; and of later ones, by width."""
    with tempfile.TemporaryDirectory(prefix="sublet-bench-") as name:
        home = Path(name)
        env = {**os.environ, "SUBLET_STATE": str(home / "state")}
        began_s = time.monotonic()
        _sublet(env, "up", "--no-budget", "--nodes", str(max(widths)))
        up_s = time.monotonic() - began_s
        try:
            client = connect(home / "state")
            first_s = _to_first_step(client, home / "first", workers=1)
            taken = {
                workers: [_to_first_step(client, home / f"{workers}-{run}", workers=workers) for run in range(count)]
                for workers in widths
            }
        finally:
            _sublet(env, "down", "--end-jobs")
    return up_s, first_s, taken


def _to_first_step(client: Client, home: Path, *, workers: int) -> float:
    (home / "diaries").mkdir(parents=True)
    spec = job_spec(home, "elastic", low=workers, high=workers, more=("--ms-per-sample", "0"))
    body = {"job": spec_to_json(spec, secrets=True)}
    asked_s = time.monotonic()
    job_id = client.post("/v1/jobs", body)["job_id"]
    first = _first(home / "diaries")
    client.post(f"/v1/jobs/{job_id}/cancel", {"now": True})
    _wait(lambda: client.get(f"/v1/jobs/{job_id}")["phase"] in ENDED)
    _wait(lambda: all(node["phase"] == "gone" for node in client.get("/v1/nodes")["nodes"]))  # the next one rents anew
    return first.at_s - asked_s


def _sublet(env: dict[str, str], *words: str) -> None:
    subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "sublet", *words], env=env, check=True, stdout=subprocess.DEVNULL, timeout=GIVE_UP_S
    )


def _wait(happened: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + GIVE_UP_S
    while not happened():
        if time.monotonic() > give_up_s:
            raise Infeasible("a job did not end", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)
        time.sleep(5 * LOOK_S)
