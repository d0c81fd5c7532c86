"""What changes of a grid take on this machine, beside what their bytes take over its loopback, measured in between.

    python -m benchmarks.grid                     a GPT of 10.9 million parameters, eight processes, three rounds
    python -m benchmarks.grid --rounds 1 --small  the same of a model of nothing, to see that it works
    python -m benchmarks.grid --json FILE         everything that was measured

Each round leads real processes through 2 x 3, 1 x 3, 2 x 3 with another member, 1 x 6, 1 x 4, 3 x 2, and two kills.
Seconds of a planned change are those of the hand-over: from when all have met until all have joined. Until they have
met they form meshes, which has a goal of its own, and is in what the column `with forming` says; the step under way is
no part of either. After a kill they are from the signal on, and everything is in them. A goal is so many seconds and
what the bytes take: all of them together, since all share a machine. Printed are the middle of the rounds and the
least: eight processes on a machine that others use wait for a core many times in each change, and the round that had
to wait least is nearest to what a change takes by itself. An agreement counts from when the last worker has come to it
until half of them have heard (`benchmarks.grid_watch`).

Last, three workers in 1 x 3 train with each part on one worker alone, and then with a second one that keeps it by the
gradients it is sent: CPU of all of them, and bytes that they send, over those without, for each parameter.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpt import TINY, Gpt, Sizes, score, text_of
from benchmarks.grid_watch import Watch, cpu_s
from sublet import train
from sublet.domain.shape import Grid
from sublet.wire.messages import EXIT_LEFT
from sublet_lab.grid.control import Control, Process

MEDIUM = Sizes(512, 16, 384, 6, 6, used=64, next=4, rate=1e-3, device="cpu")
BATCH, MICRO, STEPS, APART = 6, 1, 100_000, 3
CHUNK, TOTAL = 1 << 20, 1 << 28  # bytes over the loopback
PATIENCE_S = 240.0
KEPT_STEPS = 20  # with keepers, and without
KEEPER_NS, KEEPER_BYTES = 6.0, 4.0  # a parameter, at most
FORMING, AGREEING = "forming meshes of 6, the last to come", "agreement, over the slowest"
GOALS_S = {  # beside what the bytes take
    FORMING: 0.030,
    AGREEING: 0.002,
    "kill -9 to all joined, 2 x 3 to 1 x 3": 0.100,
    "kill -9, a spare seated in 2 x 3": 0.300,
    "hand-over within parts, 2 x 3 to 1 x 3": 0.020,
    "between parts: one place of 2 x 3": 0.050,
    "a pipeline joins: 1 x 3 to 2 x 3": 0.050,
    "depth: 2 x 3 to 1 x 6": 0.050,
    "depth in a tree: 1 x 4 to 3 x 2": 0.050,
}
KILLED, SPARE, WITHIN, BETWEEN, JOINS, DEPTH, TREE = list(GOALS_S)[2:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One of a round."""

    what: str
    seconds: float
    size_bytes: int = 0
    bytes_per_s: float = 1.0  # of the loopback, right before
    whole_s: float = 0.0  # with the forming of meshes, or until all have heard; 0 = there is no more of it

    @property
    def sent_s(self) -> float:
        """What its bytes take."""
        return self.size_bytes / self.bytes_per_s

    @property
    def goal_s(self) -> float:
        """At most."""
        return GOALS_S[self.what] + self.sent_s


def main() -> None:
    """All rounds, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["changes", "keepers"], help="not all of it")
    parser.add_argument("--small", action="store_true", help="a model of nothing")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args()
    sizes = replace(TINY, depth=6) if asked.small else MEDIUM
    model = Gpt(sizes)
    torch.optim.AdamW(model.parameters())  # the first of a process imports for seconds: once, before it is forked
    parameters = sum(each.numel() for each in model.parameters())
    load = os.getloadavg()[0]
    rounds = [run(sizes) for _ in range(asked.rounds)] if asked.only != "keepers" else []
    kept = [keep(sizes, parameters) for _ in range(asked.rounds)] if asked.only != "changes" else []
    print(f"{parameters / 1e6:.1f} M parameters, {os.cpu_count()} cores, load {load:.1f} when it began")
    rows = table([each for found in rounds for each in found]) if rounds else []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]))
    if kept:
        ns, size = (statistics.median(each) for each in zip(*kept, strict=True))
        print(
            f"keeper by gradients: {ns:.1f} ns of CPU (goal {KEEPER_NS:g}; least {min(kept)[0]:.1f}) "
            f"and {size:.2f} bytes (goal {KEEPER_BYTES:g}) a parameter and step"
        )
    if asked.json:
        seen = [[{**asdict(each), "goal_s": each.goal_s} for each in found] for found in rounds]
        facts = {"parameters": parameters, "load": load, "rounds": seen, "kept": kept}
        asked.json.write_text(json.dumps(facts, indent=1) + "\n")


def table(seen: Sequence[Seen]) -> list[list[str]]:
    """A title and a row for each goal."""
    titles = ["what", "middle, ms", "goal, ms", "met", "least, ms", "goal then, ms", "met", "MB", "with forming, ms"]
    rows = [titles]
    for what in GOALS_S:
        of_it = sorted((each for each in seen if each.what == what), key=lambda each: each.seconds)
        middle = of_it[(len(of_it) - 1) // 2]
        row = [what]
        for each in (middle, of_it[0]):
            met = "yes" if each.seconds <= each.goal_s else "no"
            row += [f"{1e3 * each.seconds:.1f}", f"{1e3 * each.goal_s:.1f}", met]
        whole = f"{1e3 * middle.whole_s:.1f}" if middle.whole_s else "-"
        rows.append([*row, f"{middle.size_bytes / 1e6:.1f}", whole])
    return rows


def run(sizes: Sizes) -> list[Seen]:
    """One round."""
    watch = Watch()
    with Control(STEPS, partial(life, sizes, watch), limit_s=PATIENCE_S) as control:
        workers = [control.start(f"w{number}") for number in range(8)]
        course = Course(control)
        six = workers[:6]
        course.go(six, Grid(2, 3))
        found = [course.change(WITHIN, six[:3], Grid(1, 3), givers=six[3:])]
        found.append(course.change(JOINS, six, Grid(2, 3)))
        found.append(Seen(what=FORMING, seconds=course.met_s))
        other = [*six[:5], workers[6]]
        found.append(course.change(BETWEEN, other, Grid(2, 3), givers=[six[5]]))
        course.train()
        half_s, whole_s = watch.agreed_s([int(each.name[1:]) for each in other], 3 * APART)
        found.append(Seen(what=AGREEING, seconds=half_s, whole_s=whole_s))
        found.append(course.change(DEPTH, other, Grid(1, 6)))
        course.go(other[:4], Grid(1, 4), givers=other[4:])
        found.append(course.change(TREE, other, Grid(3, 2)))
        course.go(other, Grid(2, 3))
        found.append(course.kill(KILLED, other[4], other[:3], Grid(1, 3), givers=[other[3], other[5]]))
        whole = [*other[:4], six[5], other[5]]
        course.go(whole, Grid(2, 3))
        found.append(course.kill(SPARE, whole[4], [*whole[:4], workers[7], whole[5]], Grid(2, 3)))
    return found


def keep(sizes: Sizes, parameters: int) -> tuple[float, float]:
    """Nanoseconds of CPU, and bytes, for each parameter and step."""
    watch, seen = Watch(), []
    with Control(STEPS, partial(life, sizes, watch), limit_s=PATIENCE_S) as control:
        workers = [control.start(f"w{number}") for number in range(3)]
        pids, course = [each.pid for each in workers], Course(control)
        for keeps in ((), ((2,), (0,), (1,))):
            course.go(workers, Grid(1, 3), keeps=keeps)
            course.train()  # what is kept comes a little at a time, after the first step
            course.train()
            before = watch.steps(0), cpu_s(pids), watch.sent_bytes(range(3))
            while watch.steps(0) < before[0] + KEPT_STEPS:
                time.sleep(0.01)
            after = watch.steps(0), cpu_s(pids), watch.sent_bytes(range(3))
            steps, used_s, sent = (b - a for a, b in zip(before, after, strict=True))
            seen.append((1e9 * used_s / steps / parameters, sent / steps / parameters))
    (ns, sent), (ns_kept, sent_kept) = seen
    return ns_kept - ns, sent_kept - sent


class Course:
    """Of one round."""

    def __init__(self, control: Control) -> None:
        self._control, self.met_s = control, 0.0

    def go(
        self,
        members: Sequence[Process],
        grid: Grid,
        givers: Sequence[Process] = (),
        *,
        keeps: Sequence[tuple[int, ...]] = (),
        broken: bool = False,
    ) -> int:
        """Into a grid; bytes that moved, all together."""
        control = self._control
        control.order(members, grid, givers=givers, keeps=keeps, broken=broken)
        control.until_joined()
        joined = [each for each in control.joined if each.generation == control.generation]
        self.met_s = min(each.met_s for each in joined)
        self._after_s = max(each.state_s + each.formed_s for each in joined)
        self._step = max(each.step for each in joined)
        return sum(each.moved_bytes for each in joined)

    def change(self, what: str, members: Sequence[Process], grid: Grid, givers: Sequence[Process] = ()) -> Seen:
        """A planned one, after a few steps."""
        self.train()
        pace = bandwidth()
        moved = self.go(members, grid, givers)
        after_s, whole_s = self._after_s, self.met_s + self._after_s
        return Seen(what=what, seconds=after_s, size_bytes=moved, bytes_per_s=pace, whole_s=whole_s)

    def kill(
        self, what: str, victim: Process, members: Sequence[Process], grid: Grid, givers: Sequence[Process] = ()
    ) -> Seen:
        """One is gone without a word."""
        self.train()
        pace, control = bandwidth(), self._control
        died_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        control.until_death()
        moved = self.go(members, grid, givers, broken=True)
        took_s = control.joined_s[control.generation] - died_s
        return Seen(what=what, seconds=took_s, size_bytes=moved, bytes_per_s=pace)

    def train(self) -> None:
        """A few steps."""
        self._control.until_steps(self._step + APART)


def bandwidth() -> float:
    """Bytes a second through one connection over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        into, _ = server.accept()
        with into:
            sender = threading.Thread(target=_send, args=(out,))
            memory, left = memoryview(bytearray(CHUNK)), TOTAL
            began_s = time.monotonic()
            sender.start()
            while left > 0:
                left -= into.recv_into(memory)
            took_s = time.monotonic() - began_s
            sender.join()
    return TOTAL / took_s


def _send(out: socket.socket) -> None:
    data = bytes(CHUNK)
    for _ in range(TOTAL // CHUNK):
        out.sendall(data)


def life(sizes: Sizes, watch: Watch, name: str, connection: socket.socket, _facts: int, _kept: object) -> None:
    """A worker."""
    watch.begin(int(name[1:]))
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate)
    dataset = text_of(sizes, BATCH * 100)
    try:
        with train.session(
            model, optimizer, dataset, global_batch=BATCH, micro_batch=MICRO, epochs=STEPS, loss=score
        ) as session:
            for batch in session.batches():
                with torch.autocast(sizes.device, dtype=torch.bfloat16):
                    session.step(batch)
    except SystemExit as error:
        if error.code != EXIT_LEFT:
            raise


if __name__ == "__main__":
    main()
