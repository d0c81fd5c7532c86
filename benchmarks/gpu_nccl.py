"""Workers on NCCL: what a death, a stop and a resize cost, and what a step costs beside plain DDP.

    python -m benchmarks.gpu_nccl kills         one of three is killed, twenty times
    python -m benchmarks.gpu_nccl stops         one of three is stopped (SIGSTOP), five times
    python -m benchmarks.gpu_nccl resizes       fifty planned resizes between two and three workers
    python -m benchmarks.gpu_nccl ranges        as many, with the optimizer's state in ranges
    python -m benchmarks.gpu_nccl steps         two workers beside two of plain DDP, in turns
    python -m benchmarks.gpu_nccl grid          1.5 billion parameters as 1 x 4, beside torch's own pipeline
    python -m benchmarks.gpu_nccl --tiny kills  on a CPU, over gloo, to see that it works

All ranks share one GPU, each as a host of its own for NCCL (`sublet.train.link.devices.ONE_GPU`): the library, its
communicators and its aborts are real, and its messages go by sockets. Orders come from this process, as an agent's do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is imported

import torch

from benchmarks import gpu_grid
from benchmarks.gpt import LARGE, TINY, loss_of, made, text_of
from sublet import train
from sublet.train.link.devices import ONE_GPU
from sublet.wire.messages import EXIT_LEFT, SHARDS, Leave, Regroup
from sublet_lab.grid.control import Control, Process

PARTS = ("kills", "stops", "resizes", "ranges", "steps", "grid")
WORLD, BATCH = 3, 12
KILLS, STOPS, RESIZES = 20, 5, 50
BETWEEN = 5  # steps
GRID_STEPS = 10
PATIENCE_S = 200.0
STOP_S = 5.0  # until who is silent is ended, as a controller with that patience does
ENOUGH = 100_000  # steps: it ends when all is measured


def main() -> None:
    """The parts that are asked for, and all of their figures in one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, over gloo")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--times", type=int, help="kills, stops or resizes")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}: {', '.join(PARTS)}")
    os.environ["SUBLET_BENCH_TINY"] = "1" if asked.tiny else ""
    if not asked.tiny:
        os.environ[ONE_GPU] = "1"
    found: dict[str, Any] = {"commit": _commit(), "torch": torch.__version__, "tiny": asked.tiny}
    for part in asked.parts or PARTS:
        began_s = time.monotonic()
        found[part] = {
            "kills": lambda: losses_of("kills", asked.times or KILLS, _kill),
            "stops": lambda: losses_of("stops", asked.times or STOPS, _stop),
            "resizes": lambda: resizes("resizes", asked.times or RESIZES),
            "ranges": lambda: resizes("ranges", asked.times or RESIZES),
            "steps": steps_beside_ddp,
            "grid": grid_beside_torch,
        }[part]()
        print(f"{part} took {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


# ---------------------------------------------------------------------------------------- orders


def order(control: Control, members: Sequence[Process], *, broken: bool, ranges: bool = False) -> None:
    """These are the group, by rank."""
    control.wait(lambda: all(_is_ready(each) for each in members))
    control.generation += 1
    control.members, control._there = list(members), list(members)  # noqa: SLF001 - it orders grids alone
    cut: dict[str, Any] = {"cut": SHARDS, "parts": len(members)} if ranges else {}
    for rank, each in enumerate(members):
        each.tell(
            Regroup(
                worker_id=each.name, generation=control.generation, rank=rank, world=len(members), broken=broken, **cut
            )
        )


def _is_ready(process: Process) -> bool:
    return any(type(each).__name__ == "Ready" for each in process.said) or not process.alive


def leave(control: Control, process: Process) -> None:
    """One goes, and saves nothing."""
    process.tell(Leave(worker_id=process.name, generation=control.generation + 1, save=False))


def stepped(process: Process) -> tuple[int, float]:
    """The last step that it has applied, and when, by the clock of this machine."""
    progress = _progress(process.name).read_text().split() if _progress(process.name).exists() else []
    return (int(progress[0]), float(progress[1])) if len(progress) == 2 else (0, 0.0)


def _progress(name: str) -> Path:
    return Path(f"/tmp/sublet-nccl-{os.getpid() if not _PARENT else _PARENT[0]}-{name}")  # noqa: S108 - of this run


_PARENT: list[int] = []


# ---------------------------------------------------------------------------------------- parts


def _kill(_: Control, victim: Process) -> float:
    os.kill(victim.pid, signal.SIGKILL)
    return time.monotonic()


def _stop(control: Control, victim: Process) -> float:
    os.kill(victim.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    control.wait(lambda: time.monotonic() - began_s > STOP_S)
    os.kill(victim.pid, signal.SIGKILL)
    return began_s


def losses_of(what: str, times: int, lose: Callable[[Control, Process], float]) -> dict[str, Any]:
    """A worker is lost amid a step, again and again; the others go on at once, and another one joins them later."""
    _PARENT[:] = [os.getpid()]
    after_s, joins_s, step_s, lost, memory = [], [], [], [], []
    with Control(ENOUGH, partial(life, ENOUGH), limit_s=PATIENCE_S) as control:
        workers = [control.start(f"w{number}") for number in range(WORLD)]
        order(control, workers, broken=False)
        _until(control, workers, BETWEEN)
        for number in range(times):
            spare = control.start(f"n{number}")
            control.wait(lambda spare=spare: _is_ready(spare))
            before = stepped(workers[0])
            _until(control, workers, before[0] + BETWEEN)
            now = stepped(workers[0])
            step_s.append((now[1] - before[1]) / (now[0] - before[0]))
            victim = workers[1 + number % (WORLD - 1)] if number % WORLD else workers[0]
            time.sleep(step_s[-1] * (0.1 + 0.8 * number / times))
            died_s = lose(control, victim)
            control.wait(lambda victim=victim: not victim.alive)
            made = max(stepped(each)[0] for each in workers)
            workers = [each for each in workers if each is not victim]
            order(control, workers, broken=True)
            _until(control, workers, made + 1, after_s=died_s)
            after_s.append(max(stepped(each)[1] for each in workers) - died_s)
            lost.append(max(0, made - min(stepped(each)[0] for each in workers)))
            workers = [*workers, spare]
            began_s = time.monotonic()
            order(control, workers, broken=False)
            _until(control, [spare], made + 2)
            joins_s.append(time.monotonic() - began_s)
            memory.append(_memory(workers[0]))
            print(f"  {what} {number + 1}: {after_s[-1]:.2f} s, a newcomer {joins_s[-1]:.2f} s", flush=True)
        for each in workers:
            leave(control, each)
        control.wait(lambda: not any(each.alive for each in workers))
        equal = _equal(workers)
    found = {
        "times": times,
        "next_step_s": _spread(after_s),
        "newcomer_s": _spread(joins_s),
        "step_s": _spread(step_s),
        **_entries(control),
        "steps_lost": sum(lost),
        "ranks_equal": equal,
        "memory_mib": [memory[0], memory[-1]],
    }
    print(f"{what}: {json.dumps(found)}")
    return found


def resizes(what: str, times: int) -> dict[str, Any]:
    """Two workers, three, two, ...; one always goes and another comes."""
    _PARENT[:] = [os.getpid()]
    took_s, memory = [], []
    with Control(ENOUGH, partial(life, ENOUGH), limit_s=PATIENCE_S) as control:
        all_three = [control.start(f"w{number}") for number in range(WORLD)]
        ranges = what == "ranges"
        order(control, all_three, broken=False, ranges=ranges)
        _until(control, all_three, BETWEEN)
        for number in range(times):
            three = number % 2 == 1
            if three:
                all_three[2] = control.start(f"r{number}")
                control.wait(lambda: _is_ready(all_three[2]))
            members = all_three if three else all_three[:2]
            made, began_s = stepped(all_three[0])[0], time.monotonic()
            order(control, members, broken=False, ranges=ranges)
            if not three:
                all_three[2].tell(Leave(worker_id=all_three[2].name, generation=control.generation, save=False))
            control.wait(lambda: all(_joined(each, control.generation) for each in members))  # noqa: B023 - at once
            took_s.append(time.monotonic() - began_s)
            _until(control, members, made + 3)
            memory.append(_memory(all_three[0]))
        members = all_three[:2] if times % 2 else all_three
        for each in members:
            leave(control, each)
        control.wait(lambda: not any(each.alive for each in members))
        equal = _equal(members)
    found = {
        "times": times,
        "joined_s": _spread(took_s),
        **_entries(control),
        "ranks_equal": equal,
        "memory_mib": [memory[min(4, times - 1)], memory[-1]],
    }
    print(f"{what}: {json.dumps(found)}")
    return found


def _entries(control: Control) -> dict[str, Any]:
    """Of those who joined: how long the group took to form, and the state to come."""
    several = [each for each in control.joined if each.formed_s]
    came = [each.state_s for each in several if each.source == "peer"] or [0.0]
    return {"formed_s": _spread([each.formed_s for each in several]), "state_s": _spread(came)}


def _joined(process: Process, generation: int) -> bool:
    return any(getattr(each, "source", None) and each.generation == generation for each in process.said)  # type: ignore[union-attr]


def _until(control: Control, members: Sequence[Process], step: int, after_s: float = 0.0) -> None:
    control.wait(
        lambda: all(not each.alive or (stepped(each)[0] >= step and stepped(each)[1] > after_s) for each in members)
    )
    if gone := [each.name for each in members if not each.alive]:
        sys.exit(f"{gone} ended, and should not have")


def _equal(members: Sequence[Process]) -> bool:
    """What each says of its weights when it leaves."""
    digests = {each.facts.get("digest") for each in members}
    return len(digests) == 1 and None not in digests


def _memory(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) >> 10


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


def life(steps: int, name: str, connection: socket.socket, facts: int, _kept: object) -> None:
    """A worker: it trains until it is told to leave, and then says what its weights are."""
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    sizes = TINY if os.environ["SUBLET_BENCH_TINY"] else LARGE
    torch.set_num_threads(1)
    model, optimizer = made(sizes)
    dataset, where = text_of(sizes, BATCH * 64), _progress(name)
    try:
        with train.session(model, optimizer, dataset, global_batch=BATCH) as session:
            for batch in session.batches(epochs=steps):
                if sizes is TINY:
                    time.sleep(0.05)  # else nothing is lost amid a step
                session.step(loss_of(model, batch))
                if session.updated:
                    if sizes is not TINY:
                        torch.cuda.current_stream().synchronize()
                    text = f"{session.steps} {time.monotonic()}"
                    where.with_suffix(".new").write_text(text)
                    where.with_suffix(".new").rename(where)
    except SystemExit as error:
        if error.code != EXIT_LEFT:
            raise
    total = sum(each.detach().double().sum().item() for each in model.parameters())
    os.write(facts, json.dumps({"digest": total}).encode())


# ---------------------------------------------------------------------------------------- a step beside DDP's


def ranks_of(module: str, world: int) -> Any:
    """What the last of so many processes says in its last line, under torchrun's variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    facts = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module]
    ranks = [
        subprocess.Popen(command, env=os.environ | facts | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
        for rank in range(world)
    ]
    answers = [each.communicate(timeout=2 * PATIENCE_S)[0] for each in ranks]
    if any(each.returncode for each in ranks):
        sys.exit(f"{module} ended with {[each.returncode for each in ranks]}")
    return json.loads(answers[-1].splitlines()[-1])


def grid_beside_torch() -> dict[str, Any]:
    """The same model, stages and micro-batches by torch's own pipeline, and by ours; then a stage of ours is killed."""
    theirs = ranks_of("benchmarks.gpu_nccl_pipe", gpu_grid.STAGES)
    bare = gpu_grid.run(GRID_STEPS, kept=False)
    killed = gpu_grid.run(2 * GRID_STEPS, GRID_STEPS)
    found = {
        "parameters": bare["parameters"],
        "step_s": {"torch": round(theirs["step_s"], 3), "sublet": round(bare["step_s"], 3)},
        "over_torch": round(bare["step_s"] / theirs["step_s"], 3),
        "with_replicas_s": round(killed["step_s"], 3),
        "killed": {name: round(killed[name], 3) for name in ("joined_s", "stepped_s", "moved_bytes")},
    }
    print(f"grid 1 x {gpu_grid.STAGES}: {json.dumps(found)}")
    return found


def steps_beside_ddp() -> dict[str, Any]:
    """Two ranks have a session and plain DDP each, which take turns; seconds a step of their blocks."""
    blocks = ranks_of("benchmarks.gpu_nccl_pair", 2)
    pairs = [ours / theirs for ours, theirs in zip(blocks["session"], blocks["ddp"], strict=True)]
    found = {
        "blocks": len(pairs),
        "step_ms": {kind: round(1e3 * statistics.median(each), 2) for kind, each in blocks.items()},
        "over_ddp": {
            "median": round(statistics.median(pairs), 4),
            "quartiles": [round(each, 4) for each in statistics.quantiles(pairs, n=4)],
        },
    }
    print(f"a step of two, session over DDP: {json.dumps(found)}")
    return found


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    found = subprocess.run([git, "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True)  # noqa: S603 - of this tree
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
