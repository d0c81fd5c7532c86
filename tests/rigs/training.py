"""Scenarios of training workers, with what they train: orders, kills, resizes, late comers.

    python -m tests.rigs.training SCENARIO DIRECTORY [KEY=VALUE ...]      prints what happened as JSON
    python -m tests.rigs.training kills /tmp/kills count=50 width=4 epochs=12 seed=1      a long one

It is a process of its own, because workers are forked from one that has torch imported and has never used it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

import sublet.train.sessions.copies  # noqa: F401 - as above
from sublet import train
from sublet.train.link import agent_line
from sublet.train.sessions import report
from sublet.wire.messages import (
    Busy,
    Damaged,
    Joined,
    Left,
    Saved,
    SaveNow,
    ShortOfMemory,
    Stepped,
)
from sublet_lab import trainers


class World(trainers.World):
    """With the ranges that KEEP asks for."""

    def __init__(self, script: Callable[[Path], None], directory: Path, **env: str) -> None:
        super().__init__(script, directory, **env)
        self.keep = KEEP


# -------------------------------------------------------------------------------------- what the workers train

LIMP_S = 0.1  # that a rank which limps takes longer for a step
KEEP = int(os.environ.get("KEEP", "0"))  # workers that hold each range of the optimizer's state
SAMPLES, FEATURES, BATCH = int(os.environ.get("SAMPLES", "1000")), 8, int(os.environ.get("BATCH", "16"))


class Logged(torch.utils.data.Dataset):
    """Remembers which samples were asked for."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(samples, FEATURES, generator=generator)
        self.y = (self.x.sum(1, keepdim=True) + 0.1 * torch.randn(samples, 1, generator=generator)).tanh()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(index)
        return self.x[index], self.y[index]


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def logged_training(directory: Path) -> None:
    """Writes down each step before it is applied (which samples) and after (that it was)."""
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, os.environ.get("DTYPE", "float32")))
    epochs, pause_s = int(os.environ.get("EPOCHS", "3")), float(os.environ.get("PAUSE_S", "0"))
    limps = int(os.environ.get("LIMPS", "-1"))
    freezes = "FREEZES" in os.environ  # in every other epoch, from the first on
    micro = int(os.environ["MICRO"]) if "MICRO" in os.environ else None
    room, closed = int(os.environ.get("ROOM", "1000000")), "CLOSED" in os.environ
    model, dataset = network(), Logged()
    plain = os.environ.get("OPTIMIZER") == "sgd"  # a step of which is the gradient itself
    optimizer = (torch.optim.SGD if plain else torch.optim.Adam)(model.parameters(), lr=1.0 if plain else 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * -(-SAMPLES // BATCH))
    model[0].requires_grad_(not freezes)
    path, hold = directory / f"{os.environ.get('SUBLET_WORKER_ID', 'alone')}.log", directory / "hold"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**facts: object) -> None:
        os.write(log, json.dumps(facts).encode() + b"\n")

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(x) > room:
            raise torch.OutOfMemoryError(f"{len(x)} samples")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="AUTOCAST" in os.environ):
            return torch.nn.functional.mse_loss(model(x), y)

    with train.session(
        model, optimizer, dataset, global_batch=BATCH, scheduler=scheduler, seed=5, micro_batch=micro, probe=False
    ) as s:
        for x, y in s.batches(epochs=epochs):
            step, generation, epoch = s.steps, s.generation, s.epoch
            loss = (lambda x=x, y=y: loss_of(x, y)) if closed else loss_of(x, y)
            note(said="given", step=step, generation=generation, epoch=epoch, samples=dataset.asked)
            dataset.asked = []
            if pause_s:
                time.sleep(pause_s)
            if s.rank == limps:
                time.sleep(LIMP_S)
            while hold.exists():
                time.sleep(0.005)
            s.step(loss)
            if freezes and s.epoch > epoch:
                model[0].requires_grad_(s.epoch % 2 == 1)
            if s.steps > step:
                note(said="applied", step=step, generation=generation)
    with torch.no_grad():
        whole = torch.nn.functional.mse_loss(model(dataset.x), dataset.y).item()
    flat = torch.cat([parameter.reshape(-1) for parameter in model.parameters()]).tolist()
    note(said="end", loss=whole, parameters=flat, rank=s.rank, steps=s.steps, rate=optimizer.param_groups[0]["lr"])


def by_epoch(directory: Path) -> None:
    """A scheduler that the script steps after each epoch; LOOP says what else it does."""
    torch.set_num_threads(1)
    loop, epochs, pause_s = os.environ["LOOP"], int(os.environ["EPOCHS"]), float(os.environ.get("PAUSE_S", "0"))
    model, dataset = network(), Logged()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if loop == "lambda":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7**epoch)
    else:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    log = os.open(directory / f"{os.environ['SUBLET_WORKER_ID']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**facts: object) -> None:
        os.write(log, json.dumps(facts).encode() + b"\n")

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        time.sleep(pause_s)
        s.step(torch.nn.functional.mse_loss(model(x), y))
        if loop == "apart" and s.rank == 1 and s.steps == 25:
            optimizer.param_groups[0]["lr"] *= 0.5

    known = {"epochs": epochs} if loop in ("step", "lambda", "freezes", "one leaves", "all leave") else {}
    model[0].requires_grad_(loop != "freezes")
    loads = int(os.environ.get("LOADERS", "0"))
    data = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=loads) if loads else dataset
    with train.session(model, optimizer, data, global_batch=BATCH, micro_batch=BATCH // 2, **known) as s:
        s.keep(scheduler=scheduler)
        if loop == "old":  # what the guide once said
            for epoch in range(epochs):
                for x, y in s.batches(epochs=epoch + 1):
                    step(x, y)
                scheduler.step()
        elif not known:
            for x, y in s.batches(epochs=epochs):
                step(x, y)
                if s.steps == 25 and (loop == "all stop" or (loop == "one stops" and s.rank == 0)):
                    break
        else:
            for epoch in s.epochs():
                if loop == "freezes":
                    model[epoch % 2 * 2].requires_grad_(True)
                    model[2 - epoch % 2 * 2].requires_grad_(False)
                for x, y in s:
                    step(x, y)
                    if (
                        s.updated
                        and s.steps_in_epoch == 7
                        and (loop == "all leave" or loop + str(s.rank) == "one leaves0")
                    ):
                        break
                scheduler.step()
                note(said="tail", epoch=epoch)
        if loop == "last" and s.rank == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-6
    flat = torch.cat([parameter.reshape(-1) for parameter in model.parameters()]).tolist()
    note(said="end", parameters=flat, rank=s.rank, steps=s.steps, rate=optimizer.param_groups[0]["lr"])
    if loop == "twice":
        with train.session(model, optimizer, dataset, global_batch=BATCH) as s:
            for x, y in s.batches(epochs=2 * epochs):
                step(x, y)


def evaluating(directory: Path) -> None:
    """Rank 0 evaluates within the first epoch and after it, each until it is let go on."""
    torch.set_num_threads(1)
    model, dataset = network(), Logged(BATCH * 6)
    with train.session(model, torch.optim.SGD(model.parameters(), 0.01), dataset, global_batch=BATCH, epochs=2) as s:

        def evaluate(name: str) -> None:
            while s.rank == 0 and not (directory / name).exists():
                time.sleep(0.01)

        for epoch in s.epochs():
            for x, y in s:
                if s.steps == 3:
                    evaluate("within")
                s.step(torch.nn.functional.mse_loss(model(x), y))
            if epoch == 0:
                evaluate("after")


def read_logs(directory: Path) -> dict[str, object]:
    """Per epoch the samples of applied steps; of a step that was done again only the last time counts."""
    rows = [json.loads(line) for path in sorted(directory.glob("*.log")) for line in path.read_text().splitlines()]
    counted: dict[int, int] = {}
    for row in rows:
        if row["said"] == ("given" if KEEP else "applied"):  # with ranges a step may be finished after a loss, unseen
            counted[row["step"]] = max(row["generation"], counted.get(row["step"], -1))
    seen: dict[int, list[int]] = {}
    for row in rows:
        if row["said"] == "given" and counted.get(row["step"]) == row["generation"]:
            seen.setdefault(row["epoch"], []).extend(row["samples"])
    ends = [row for row in rows if row["said"] == "end"]
    return {"seen": {str(epoch): sorted(samples) for epoch, samples in seen.items()}, "ends": ends}


# -------------------------------------------------------------------------------------- scenarios


def fixed(directory: Path, *, width: int = 2) -> dict[str, object]:
    """One width from beginning to end."""
    world = World(logged_training, directory)
    world.start(width)
    world.until_ready(world.workers)
    world.regroup(world.workers)
    world.until_over()
    return {"codes": world.codes(), **read_logs(directory)}


def short(directory: Path, *, width: int = 2) -> dict[str, object]:
    """Steps that do not fit: whoever says so is believed by all, and started again if it ends."""
    world = World(logged_training, directory)
    world.regroup(world.start(width))
    told: list[ShortOfMemory] = []
    while not world.finished:
        count = len(told)

        def heard() -> list[ShortOfMemory]:
            return [said for _, _, said in world.messages if isinstance(said, ShortOfMemory)]

        world.until(lambda n=count: world.finished or len(heard()) > n, "short, or over", watch=False)
        told = heard()
        if len(told) == count:
            break
        world.run_for(0.3)  # all of them may be
        told = heard()
        world.micro_batch = min(said.micro_batch for said in told)
        ended = {said.worker_id for said in told if said.ends}
        world.until(lambda e=ended: all(w.code is not None for w in world.workers if w.name in e), "ends", watch=False)
        staying = [member for member in world.members if member.code is None]
        world.regroup(staying + world.start(width - len(staying)), broken=True)
    world.until_over()
    cuts = [(said.samples, said.micro_batch) for said in told]
    return {"codes": world.codes(), "cuts": cuts, **read_logs(directory)}


def resizes(directory: Path, *, count: int = 50, widest: int = 4, seed: int = 1) -> dict[str, object]:
    """Planned changes of width, as many as asked for, spread over three epochs."""
    rng = random.Random(seed)
    world = World(logged_training, directory, PAUSE_S="0.04")
    world.start(2)
    world.until_ready(world.workers)
    world.regroup(world.workers)
    world.until_joined()
    done, pauses_s, hold = 0, [], directory / "hold"
    while done < count and not world.finished:
        width = rng.choice([width for width in range(1, widest + 1) if width != len(world.members)])
        if width > len(world.members):
            hold.touch()  # a busy machine takes long to start them: the last step must not come before the last change
        new = world.start(max(0, width - len(world.members)))
        world.until_ready(new)
        hold.unlink(missing_ok=True)
        keep = rng.sample(world.members, min(width, len(world.members)))
        if world.finished:
            break
        world.regroup(keep + new)
        world.until_joined()
        done += not world.finished
        world.run_for(rng.uniform(0.0, 0.05))
    world.until_over()
    return {"resizes": done, "pauses_s": pauses_s, "codes": world.codes(), **read_logs(directory)}


def kills(directory: Path, *, count: int = 12, width: int = 3, seed: int = 1, epochs: int = 3) -> dict[str, object]:
    """A worker is killed at a random moment, again and again, and a new one takes its place."""
    rng = random.Random(seed)
    world = World(logged_training, directory, PAUSE_S="0.03", EPOCHS=str(epochs))
    world.start(width)
    world.until_ready(world.workers)
    world.regroup(world.workers)
    world.until_joined()
    killed, back_s = 0, []
    while killed < count and not world.finished:
        world.run_for(rng.uniform(0.0, 0.12))
        alive = [member for member in world.members if member.code is None]
        if world.finished:
            break
        if len(alive) < 2:  # nobody would be left who has the state
            new = world.start(width - 1)
            world.until_ready(new)
            world.regroup(alive + new)
            world.until_joined()
            continue
        victim = rng.choice(alive)
        killed_s, generation = time.monotonic(), world.generation
        world.kill(victim)
        killed += 1
        if rng.random() < 0.7:  # else the next kill may come while they regroup
            world.until(lambda g=generation: world.finished or (world.generation > g and world.joined_all()), "regroup")
            back_s.append(time.monotonic() - killed_s)
        if rng.random() < 0.7 and not world.finished:
            new = world.start(width - sum(member.code is None for member in world.members))
            world.until_ready(new)
            if new and not world.finished:
                world.regroup([member for member in world.members if member.code is None] + new)
    world.until_over()
    return {"kills": killed, "back_s": back_s, "codes": world.codes(), **read_logs(directory)}


def resumes(directory: Path, *, width: int = 3) -> dict[str, object]:
    """All leave with a checkpoint; others carry on, save and are all killed at once; others carry on from that."""
    world = World(logged_training, directory, PAUSE_S="0.01", SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"))
    starts = []
    for how in ("leave", "kill", "finish"):
        new = world.start(width)
        world.until_ready(new)
        world.regroup(new)
        world.until_joined()
        starts.append(next(said.step for _, said in new[0].heard if isinstance(said, Joined)))
        if how == "finish":
            break
        world.until_step(starts[-1] + 20)
        if how == "leave":
            world.regroup([], save=True)
            world.until(lambda new=new: all(worker.code is not None for worker in new), "all left")
        else:
            new[0].say(SaveNow(worker_id=new[0].name))
            world.until(lambda new=new: any(isinstance(said, Saved) for _, said in new[0].heard), "saved")
            world.members = []
            for worker in new:
                world.kill(worker)
    world.until_over()
    saved = [said.step for _, _, said in world.messages if isinstance(said, Saved)]
    left = [said.step for _, _, said in world.messages if isinstance(said, Left)]
    sources = [said.source for _, _, said in world.messages if isinstance(said, Joined)]
    printed = [said.printed for _, _, said in world.messages if isinstance(said, Joined)]
    told = {"starts": starts, "saved": saved, "left": left, "sources": sources, "printed": printed}
    return {"codes": world.codes(), **told, **read_logs(directory)}


def gone(directory: Path, *, saved: int = 1) -> dict[str, object]:
    """Both holders of a range are killed at once: the others go back to the checkpoint, if one is `saved`."""
    place = str(directory / "checkpoints")
    world = World(logged_training, directory, PAUSE_S="0.02", SUBLET_CHECKPOINT_DIR=place)
    first = world.start(5)  # of two ranges: 0, 2 and 4 hold one, and 1 and 3 the other
    world.until_ready(first)
    world.regroup(first)
    world.until_step(20)
    if saved:
        first[0].say(SaveNow(worker_id=first[0].name))
        world.until(lambda: any(isinstance(said, Saved) for _, said in first[0].heard), "saved")
    world.until_step(40)
    for number in (1, 3):
        world.kill(first[number])
    world.until(lambda: first[1].code is not None and first[3].code is not None, "killed", watch=False)
    world.regroup([first[0], first[2], first[4]], broken=True)
    if saved:
        world.until_over()
    else:
        world.until(lambda: all(worker.code is not None for worker in first), "all end", watch=False)
    back = [said for _, _, said in world.messages if isinstance(said, Joined) and said.generation == 2]
    kept = [said.step for _, _, said in world.messages if isinstance(said, Saved)]
    told = [(said.source, said.step, said.redone_steps) for said in back]
    return {"codes": world.codes(), "saved": kept, "joined": told, **read_logs(directory)}


def held(directory: Path, *, width: int = 2) -> dict[str, object]:
    """All leave with a checkpoint, which rots; others find it, do not begin at 0, and leave when told to."""
    world = World(logged_training, directory, PAUSE_S="0.01", SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"))
    first = world.start(width)
    world.until_ready(first)
    world.regroup(first)
    world.until_step(5)
    world.regroup([], save=True)
    world.until(lambda: all(worker.code is not None for worker in first), "all left")
    for path in (directory / "checkpoints").glob("step-*/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    new = world.start(width)
    world.until_ready(new)
    world.regroup(new)
    world.until(lambda: any(isinstance(said, Damaged) for _, said in new[0].heard), "told")
    world.regroup([], save=True)
    world.until(lambda: all(worker.code is not None for worker in new), "all left")
    joined = [said for worker in new for _, said in worker.heard if isinstance(said, Joined)]
    steps = [said.step for _, _, said in world.messages if isinstance(said, Damaged)]
    return {"codes": [worker.code for worker in new], "joined": len(joined), "steps": steps}


def orphans(directory: Path, *, width: int = 2) -> dict[str, object]:
    """The agent goes away: its workers must not stay."""
    world = World(logged_training, directory, PAUSE_S="0.05")
    world.start(width)
    world.until_ready(world.workers)
    world.regroup(world.workers)
    world.until_step(3)
    for worker in world.workers:
        world._selector.unregister(worker.connection)
        worker.connection.close()
    world.until(lambda: all(worker.code is not None for worker in world.workers), "exits", watch=False)
    return {"codes": world.codes()}


def one_two_one(directory: Path) -> dict[str, object]:
    """One worker all the time; then one, beside which another comes in the second epoch and goes in the fourth."""
    found = {}
    for name in ("alone", "resized"):
        place = directory / name
        place.mkdir()
        world = World(by_epoch, place, PAUSE_S="0" if name == "alone" else "0.02")
        first = world.start(1)
        second = world.start(1) if name == "resized" else []  # it has imported torch when it is called
        world.until_ready(first + second)
        world.regroup(first)
        if second:
            world.until_step(25)
            world.regroup(first + second)
            world.until_joined()
            world.until_step(70)
            world.regroup(first)
        world.until_over()
        work = [said.work for _, _, said in world.messages if isinstance(said, Joined)]
        rows = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in place.glob("*.log")}
        epochs = {stem: [row["epoch"] for row in rows[stem] if row["said"] == "tail"] for stem in rows}
        found[name] = {"codes": world.codes(), "work": work, "epochs": epochs, **read_logs(place)}
    return found


def together(directory: Path, *, width: int = 2) -> dict[str, object]:
    """One run after the other, for each of LOOPS, until all processes have ended by themselves; what they said last."""
    found = {}
    for loop in os.environ["LOOPS"].split(","):
        place = directory / loop
        place.mkdir()
        world = World(by_epoch, place, LOOP=loop)
        world.start(width)
        world.until_ready(world.workers)
        world.regroup(world.workers)
        with contextlib.suppress(TimeoutError):
            world.until(lambda w=world: all(worker.code is not None for worker in w.workers), "exits", watch=False)
        world._listen(0.0)
        errors = {path.stem: path.read_text()[-2000:] for path in place.glob("*.err")}
        found[loop] = {"codes": world.codes(), "finished": world.finished, "errors": errors, **read_logs(place)}
        world.end()
    return found


def late(directory: Path) -> dict[str, object]:
    """Another worker comes in the third epoch of the old loop."""
    world = World(by_epoch, directory, PAUSE_S="0.01")
    first = world.start(1)
    world.until_ready(first)
    world.regroup(first)
    world.until(lambda: max(world.heard_steps(), default=-1) >= 45 or first[0].code is not None, "step 45", watch=False)
    if first[0].code is None:
        second = world.start(1)
        world.until_ready(second)
        world.regroup(first + second)
        world.until(lambda: all(worker.code is not None for worker in world.workers), "exits", watch=False)
    world._listen(0.0)
    errors = {path.stem: path.read_text()[-2000:] for path in directory.glob("*.err")}
    return {"codes": world.codes(), "finished": world.finished, "errors": errors, **read_logs(directory)}


def evaluations(directory: Path) -> dict[str, object]:
    """Who says that it is busy: the one that evaluates, and not the one that waits for it."""
    agent_line.BEAT_S = 0.1
    world = World(evaluating, directory)
    members = world.start(2)
    world.until_ready(members)
    world.regroup(members)
    world.until_joined()
    busy = [0]

    def alone() -> bool:
        said = [name for _, name, message in world.messages[busy[-1] :] if isinstance(message, Busy)]
        return len(said) >= 5 and set(said[-5:]) == {members[0].name}

    for name in ("within", "after"):
        world.until(alone, f"it is busy {name} the epoch")
        busy.append(len(world.messages))
        (directory / name).touch()
    world.until_over()
    return {"codes": world.codes(), "finished": world.finished}


def limping(directory: Path, *, width: int = 3, rank: int = 2) -> dict[str, object]:
    """What every rank says of its own part of a step, while one of them keeps the others waiting."""
    report.OTHERS_EVERY_S = report.EVERY_S
    world = World(logged_training, directory, LIMPS=str(rank), PAUSE_S="0.02", EPOCHS="1")
    world.forgives = True  # on a busy machine
    members = world.start(width)
    world.until_ready(members)
    world.regroup(members)
    world.until_over()
    said = [message for _, _, message in world.messages if isinstance(message, Stepped)]
    own = {worker.name: [m.step_s - m.comm_s for m in said if m.worker_id == worker.name] for worker in members}
    return {
        "codes": world.codes(),
        "own_s": own,
        "step_s": [m.step_s for m in said],
        "order": [w.name for w in members],
    }


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        fixed,
        short,
        resizes,
        kills,
        resumes,
        held,
        gone,
        orphans,
        one_two_one,
        together,
        late,
        evaluations,
        limping,
    )
}


def main() -> None:
    name, directory, *pairs = sys.argv[1:]
    settings = {key: int(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    started_s = time.monotonic()
    result = SCENARIOS[name](Path(directory), **settings)
    json.dump({"seconds": time.monotonic() - started_s, **result}, sys.stdout)


if __name__ == "__main__":
    main()
