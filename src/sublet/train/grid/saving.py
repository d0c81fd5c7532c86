"""Checkpoints of a grid: each unit is written by its first holder, and all are committed once, by member 0.

    step s     member 0: one is due, and a folder is open; its token goes into the agreement of s
    applied    writers copy their units, and write them in the background
    later      each says in an agreement that it has written; after the last one: digests to member 0, which commits

So a checkpoint is of one step, and no step waits for a disk. If the grid changes meanwhile, it is given up and begun
again with new writers. If a node's disk is its own, units go to member 0 first.

It is one of the plain session whose segments are the units, each as in memory (`Whole`). So any grid, and a worker
alone, loads what any other has saved.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch

from sublet.errors import BadInput, CheckpointFailed
from sublet.machine.wall import WALL
from sublet.train.checkpoint.checkpoints import Joint, Share
from sublet.train.checkpoint.manifest import NamedFile
from sublet.train.checkpoint.saving import LAST_TRIES, Saver, find
from sublet.train.checkpoint.snapshot import DTYPES, Elsewhere, HostCopy, TensorPlace, data_name
from sublet.train.grid.gloo import GlooMesh, spread
from sublet.train.grid.holdings import Field, Holdings
from sublet.train.grid.stages import Staged
from sublet.train.link.agent_line import ControllerLink
from sublet.train.link.following import at_once
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import own_rng
from sublet.train.state.state import BESIDE, TRAINED_S, Progress, State
from sublet.wire.files import DISK, Saved, SaveFailed

Key = str | tuple[int, str]  # of a weight its name; of a moment the number of its parameter, and its name
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HINT = "train with the model and the optimizer of the checkpoint, or give a new checkpoint directory"
WORDS = 3  # that are agreed on
TOKEN, WRITTEN, FAILED = range(WORDS)
THERE = -1.0  # in place of a token: this step is committed already
READS, GATHERS = 6 << 20, 7 << 20  # tags of messages, far from all others
DIGEST = struct.Struct(">4q")


class Course:
    """The state beside units, alike at all members: progress, schedules, the script's own.

    Buffers are the same in all parts, since no forward changes them.
    """

    def __init__(self, state: State, progress: Progress, schedules: Schedules, saver: Saver) -> None:
        self._state, self._progress, self._schedules, self._saver = state, progress, schedules, saver

    def tree(self) -> dict[str, Any]:
        """The state of now."""
        return {
            **self._state.beside(self._progress),
            "settings": settings_of(self._state.optimizer.param_groups),
            "buffers": _buffers_of(self._state.model),
            TRAINED_S: self._saver.trained_s,
        }

    def take(self, tree: Mapping[str, Any]) -> None:
        """Another member's, or that of a checkpoint, which does not say how long training took."""
        self._state.take_beside(tree, self._progress)
        for group, settings in zip(self._state.optimizer.param_groups, tree["settings"], strict=True):
            group.update(copy.deepcopy(settings))
        with torch.no_grad():
            for name, buffer in _buffers_of(self._state.model).items():
                buffer.copy_(tree["buffers"][name])
        if tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])
        self._schedules.note()

    def stepped(self) -> None:
        """A step has been applied: progress and schedules follow."""
        self._progress.advance()
        self._schedules.end_step(self._progress, self._progress.steps)


def settings_of(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Optimizer groups without their parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def _buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of the model's state_dict."""
    stored = model.state_dict().keys()
    return {name: each for name, each in model.named_buffers(remove_duplicate=False) if name in stored}


class Whole:
    """The checkpoint format of one worker, which holds some of the units."""

    def __init__(
        self, state: State, progress: Progress, staged: Staged, holdings: Holdings, loss: Callable[[], float]
    ) -> None:
        self._state, self._progress, self._staged, self._holdings, self._loss = state, progress, staged, holdings, loss

    def places(self, *, stepped: bool) -> tuple[TensorPlace, ...]:
        """The places of all tensors, unit by unit."""
        return tuple(place for _, place in self._laid(stepped=stepped))

    def tree(self, counted: Sequence[torch.Tensor], *, stepped: bool) -> dict[str, Any]:
        """As the plain session's, with `Elsewhere` in place of tensors in units, by their number in `places`.

        `counted`, of each unit: flags and counters from its holder.
        """
        at = {key: number for number, (key, _) in enumerate(self._laid(stepped=stepped))}
        tree, model = self._state.tree(self._progress), self._staged.model
        own = {id(each): name for name, each in model.named_parameters()}
        named = {name: own[id(each)] for name, each in model.named_parameters(remove_duplicate=False)}
        tree["model"] = {
            name: Elsewhere(at[named[name]]) if name in named else tensor for name, tensor in tree["model"].items()
        }
        tree["optimizer"] = self._optimizer(at, counted, stepped=stepped)
        return {**tree, "loss": self._loss()}

    def beside(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a saved tree that all members need; BadInput if this training cannot go on from it."""
        self._state.check(tree, self._progress)
        model = self._staged.model
        wanted = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        buffers = {name for name in model.state_dict() if name not in wanted}
        if {*tree["model"]} != wanted | buffers:
            differs = sorted({*tree["model"]} ^ (wanted | buffers))
            raise BadInput("checkpoint", f"of another model: {', '.join(differs[:5])}", hint=HINT)
        groups = tree["optimizer"].get("param_groups", [])  # of several optimizers there are none
        if [len(each["params"]) for each in groups] != [len(each) for each in self._holdings.groups]:
            raise BadInput("checkpoint", f"of another optimizer: {len(groups)} groups of parameters", hint=HINT)
        return {
            **{name: tree[name] for name in BESIDE},
            "settings": settings_of(groups),
            "rng": tree["rng"],
            "buffers": {name: tree["model"][name] for name in sorted(buffers)},
            "loss": tree.get("loss", math.nan),  # a session without parts says none
        }

    def fill(self, memory: torch.Tensor, unit: int, tree: Mapping[str, Any], *, stepped: bool) -> None:
        """A unit of a saved tree, as its message; BadInput if it is of another shape."""
        layout = self._holdings.layout(unit, stepped=stepped)
        names, parameters = self._staged.units[unit].names, self._holdings.parameters[unit]
        state, indices = tree["optimizer"]["state"], self._holdings.indices
        memory.zero_()
        for name, field in zip(names, layout.weights, strict=True):
            _copy(tree["model"][name], field, memory, name)
        for owner, (moment, field) in zip(layout.owners, layout.moments, strict=True):
            saved = state.get(indices[id(parameters[owner])], {}).get(moment)
            if saved is not None:  # one that never had a gradient has none yet
                _copy(saved, field, memory, f"{moment} of {names[owner]}")
        states = [state.get(indices.get(id(each)), {}) for each in parameters]
        layout.counted.seen_in(memory).copy_(layout.counted_of(states))

    def _laid(self, *, stepped: bool) -> Iterator[tuple[Key, TensorPlace]]:
        for unit, each in enumerate(self._staged.units):
            layout, parameters = self._holdings.layout(unit, stepped=stepped), self._holdings.parameters[unit]
            for name, field in zip(each.names, layout.weights, strict=True):
                yield name, _place(unit, field)
            for owner, (moment, field) in zip(layout.owners, layout.moments, strict=True):
                yield (self._holdings.indices[id(parameters[owner])], moment), _place(unit, field)

    def _optimizer(self, at: Mapping[Key, int], counted: Sequence[torch.Tensor], *, stepped: bool) -> dict[str, Any]:
        """As its state_dict would be with all units here: without parameters that never had a gradient."""
        groups, indices = settings_of(self._holdings.optimizer.param_groups), count()
        state = dict[int, dict[str, Any]]()
        for group, everything in zip(groups, self._holdings.groups, strict=True):
            group["params"] = list(islice(indices, len(everything)))
        for unit, rows in enumerate(counted):
            parameters = self._holdings.parameters[unit]
            for number, counters in self._holdings.layout(unit, stepped=stepped).counters_in(rows).items():
                state[self._holdings.indices[id(parameters[number])]] = counters
        for key, index in at.items():
            if isinstance(key, tuple) and key[0] in state:
                state[key[0]][key[1]] = Elsewhere(index)
        return {"state": dict(sorted(state.items())), "param_groups": groups}


def _place(unit: int, field: Field) -> TensorPlace:
    return TensorPlace(dtype=NAMES[field.dtype], shape=tuple(field.shape), segment=unit, start=field.start)


def _copy(saved: torch.Tensor, field: Field, memory: torch.Tensor, name: str) -> None:
    if saved.shape != field.shape or saved.dtype != field.dtype:
        why = f"of another model: {name} is {tuple(saved.shape)} of {saved.dtype}, not {tuple(field.shape)}"
        raise BadInput("checkpoint", why, hint=HINT)
    field.seen_in(memory).copy_(saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """One worker's part of a checkpoint: its units as messages, and the state beside units."""

    step: int
    units: dict[int, torch.Tensor]
    beside: dict[str, Any]


class Vault:
    """The checkpoints of one member; `point` is called at each stage."""

    def __init__(
        self,
        saver: Saver,
        whole: Whole,
        holdings: Holdings,
        progress: Progress,
        link: ControllerLink,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.saver, self.whole = saver, whole
        self._holdings, self._progress, self._link, self._point = holdings, progress, link, point
        self._gathers = saver.tier == DISK
        self._share: Share | None = None
        self._generation: int | None = None
        self._is_open = False  # for this generation, at member 0
        self._holders: tuple[int, ...] = ()  # the writer of each unit
        self._joint: Joint | None = None  # at member 0, while not all have written
        self._files: Future[list[NamedFile]] | None = None  # of ours
        self._hosts: dict[int, HostCopy] = {}
        self._under_way: int | None = None  # step of what not all have written yet
        self._asked = False  # for one, and none has begun since
        self._begun_s = self._blocked_s = 0.0

    # ------------------------------------------------------------------------------------------ where grids change

    def enter(self, generation: int | None) -> None:
        """Another grid is to be formed: pending checkpoints are given up."""
        self._give_up(None)
        self._generation, self._is_open, self._holders = generation, False, ()

    def open(self, mesh: GlooMesh, holders: Sequence[int]) -> None:
        """In the new grid: these workers write units; member 0 commits, and fences off earlier writers."""
        self._holders = tuple(holders)
        if mesh.rank == 0 and not self._is_open:
            self._is_open = True
            self.saver.opened(self._generation)

    def restore(self, mesh: GlooMesh, wanted: Sequence[AbstractSet[int]]) -> Restored | None:
        """The newest checkpoint: wanted units at each of the mesh; None if there is none.

        Member 0 reads it, so that one decides which can be trusted, and the disk of one node serves all. Present units
        are not touched: it may break at any point.
        """
        loaded = None
        if mesh.rank == 0:
            self.open(mesh, ())
            loaded = at_once(find(self.saver, self._link.line, self._generation))
        found = None if loaded is None else {"step": loaded.step, "beside": self.whole.beside(loaded.state)}
        head = spread(mesh, 0, {"found": found} if mesh.rank == 0 else None)["found"]
        if head is None:
            return None
        holdings, step, came = self._holdings, int(head["step"]), dict[int, torch.Tensor]()
        for unit in sorted({each for units in wanted for each in units}):
            takers = [rank for rank, units in enumerate(wanted) if unit in units]
            if mesh.rank in takers:
                came[unit] = holdings.expect(unit, stepped=step > 0)
            if loaded is not None:
                memory = torch.empty(holdings.size_bytes(unit, stepped=step > 0), dtype=torch.uint8)
                self.whole.fill(memory, unit, loaded.state, stepped=step > 0)
                for taker in takers:
                    if taker == mesh.rank:
                        came[unit].copy_(memory)
                    else:
                        mesh.send(memory, taker, READS + unit)
                mesh.settle()  # one at a time: the memory of one
            elif mesh.rank in takers:
                mesh.receive(came[unit], 0, READS + unit)
        mesh.sum(torch.zeros(1), range(mesh.world))
        return Restored(step=step, units=came, beside=head["beside"])

    def close(self) -> None:
        """No write is pending when this returns."""
        self._give_up(None)
        self.saver.close()
        if self._share is not None:
            self._share.close()

    # ------------------------------------------------------------------------------------------ beside the steps

    def say(self, mesh: GlooMesh, step: int) -> list[float]:
        """Words for the agreement after which `step` steps are applied."""
        words, asked = [0.0] * WORDS, self._link.take_save_request()
        self._asked = mesh.rank == 0 and (self._asked or asked)
        # Not while all have yet to hear what became of the last one: by that word, its folder is closed.
        if mesh.rank == 0 and self._under_way is None and self.saver.is_due(WALL.monotonic(), asked=self._asked):
            self._asked, self._joint = False, self.saver.open_joint(step)
            words[TOKEN] = 0.0 if self._joint is None else float(int(self._joint.token, 16))
        if self._files is not None and self._files.done():
            words[WRITTEN if self._files.exception() is None else FAILED] = 1.0
        return words

    def hear(self, mesh: GlooMesh, among: Sequence[int], words: Sequence[float]) -> None:
        """The agreed words; the step has been applied. Broken."""
        if self._under_way is not None and words[FAILED]:
            self._fail()
        elif self._under_way is not None and int(words[WRITTEN]) == len(set(self._writers)):
            self._point("written")
            self._count(mesh, among)
        if words[TOKEN]:
            self._begin(mesh, among, int(words[TOKEN]))

    def until_written(self) -> None:
        """Wait for our pending writes."""
        if self._files is not None:
            self._files.exception()
        elif self._joint is None:
            self.saver.settle()

    def save(self, mesh: GlooMesh, among: Sequence[int]) -> bool:
        """Save now with all of these, and wait for the commit; whether it is committed. Broken."""
        self._give_up(None)
        if len(self._holders) < len(self._holdings.parameters):
            return False  # a unit is lost
        word = torch.zeros(1, dtype=torch.float64)
        step = self._progress.steps
        if mesh.rank == 0:
            self.saver.settle()
            if self.saver.has(step):
                word[0] = THERE
            else:
                self._joint = self.saver.open_joint(step)
                word[0] = 0.0 if self._joint is None else float(int(self._joint.token, 16))
        mesh.sum(word, among)
        if float(word) <= 0.0:
            return float(word) == THERE
        self._begin(mesh, among, int(word))
        words = torch.zeros(WORDS, dtype=torch.float64)
        if self._files is not None:
            words[WRITTEN if self._files.exception() is None else FAILED] = 1.0  # waits
        mesh.sum(words, among)
        if words[FAILED]:
            self._fail()
        else:
            self._point("written")
            self._count(mesh, among)
        there = torch.zeros(1)
        if mesh.rank == 0:
            self.saver.settle()
            there[0] = float(self.saver.has(step))
        mesh.sum(there, among)
        return bool(there)

    def save_last(self, mesh: GlooMesh, among: Sequence[int]) -> None:
        """Save the end of training: member 0 tries again for a while, and the others with it."""
        if mesh.rank == 0:
            self.saver.insist(lambda: self.save(mesh, among), self._progress)
            return
        for _ in range(LAST_TRIES):
            if self.save(mesh, among):
                return

    # ------------------------------------------------------------------------------------------ one checkpoint

    @property
    def _writers(self) -> tuple[int, ...]:
        return tuple(0 for _ in self._holders) if self._gathers else self._holders

    def _begin(self, mesh: GlooMesh, among: Sequence[int], token: int) -> None:
        """Copy our part, and write it in the background."""
        step, stepped = self._progress.steps, self._progress.steps > 0
        self._under_way, self._begun_s = step, WALL.monotonic()
        segments, counted, rng = self._copied(mesh), self._counted(mesh, among), own_rng()
        table = torch.zeros(mesh.world, len(rng), dtype=rng.dtype)
        table[mesh.rank] = rng
        mesh.sum(table, among)
        if self._joint is not None:
            joint = self._joint
            joint.begin(segments, self.whole.places(stepped=stepped))
            self._files = joint.own
            tree = {**self.whole.tree(counted, stepped=stepped), "rng": table}
            if not self.saver.begin(tree, self._progress, mesh.world, joint):
                failed = CheckpointFailed(self.saver.directory, "it cannot be written", hint="see above")
                joint.own.set_exception(failed)
        elif segments:
            self._share = self._share or Share(self.saver.store)
            name = f"{token:012x}"
            self._files = self._share.begin(step, name, self._generation or 0, segments)
        self._blocked_s = WALL.monotonic() - self._begun_s
        self._point("saving")

    def _copied(self, mesh: GlooMesh) -> dict[int, memoryview]:
        found: dict[int, memoryview] = {}
        for unit, holder in enumerate(self._holders):
            if mesh.rank == holder and self._writers[unit] == holder:
                host = self._hosts.setdefault(unit, HostCopy())
                [found[unit]] = host.take({"unit": self._holdings.sent(unit)}).segments
            elif mesh.rank == holder:
                mesh.send(self._holdings.sent(unit), 0, GATHERS + unit)
            elif mesh.rank == self._writers[unit]:
                size = self._holdings.size_bytes(unit, stepped=self._progress.steps > 0)
                memory = torch.empty(size, dtype=torch.uint8)
                mesh.receive(memory, holder, GATHERS + unit)
                found[unit] = memory.numpy().data
        mesh.settle()
        return found

    def _counted(self, mesh: GlooMesh, among: Sequence[int]) -> list[torch.Tensor]:
        """Flags and counters of each unit, at all: member 0 may hold none of them."""
        stepped, found, end = self._progress.steps > 0, list[torch.Tensor](), 0
        places = [self._holdings.layout(unit, stepped=stepped).counted for unit in range(len(self._holders))]
        said = torch.zeros(sum(each.shape.numel() for each in places), dtype=torch.float64)
        for unit, (place, holder) in enumerate(zip(places, self._holders, strict=True)):
            start, end = end, end + place.shape.numel()
            found.append(said[start:end].view(place.shape))
            if holder == mesh.rank:
                found[unit].copy_(self._holdings.counted(unit))
        if end:
            mesh.sum(said, among)
        return found

    def _count(self, mesh: GlooMesh, among: Sequence[int]) -> None:
        """All have written: send sizes and digests to member 0, which commits."""
        table = torch.zeros(len(self._holders), 1 + 4, dtype=torch.int64)
        files = [] if self._files is None else self._files.result()
        numbers = {data_name(unit): unit for unit in range(len(self._holders))}
        for file in files:
            row = table[numbers[file.name]]
            row[0], row[1:] = file.size, torch.tensor(DIGEST.unpack(bytes.fromhex(file.sha256)))
        mesh.sum(table, among)
        if self._joint is not None:
            rows = enumerate(table.tolist())
            self._joint.count(
                [NamedFile(name=data_name(unit), size=row[0], sha256=DIGEST.pack(*row[1:]).hex()) for unit, row in rows]
            )
        elif files:
            self._tell_written(mesh, files)
        self._joint = self._files = self._under_way = None

    def _tell_written(self, mesh: GlooMesh, files: Sequence[NamedFile]) -> None:
        self._link.say(
            Saved(
                worker_id=self._link.worker_id,
                step=self._under_way or 0,
                done=float(self._progress.done),
                seconds=WALL.monotonic() - self._begun_s,
                blocked_s=self._blocked_s,
                size_bytes=sum(file.size for file in files),
                tier=self.saver.tier,
                part=mesh.rank,
            )
        )

    def _fail(self) -> None:
        """A write has failed, and its worker reports it; member 0 reports its own.

        A missing folder is not reported: member 0 has closed it, and says why.
        """
        error = None if self._files is None or not self._files.done() else self._files.exception()
        if error is not None and self._joint is None and not isinstance(error, FileNotFoundError):
            self._link.say(SaveFailed(worker_id=self._link.worker_id, step=self._under_way or 0, why=str(error)))
        hint = "see what the worker that has it says; the next save tries again"
        self._give_up(CheckpointFailed(self.saver.directory, "a part of it was not written", hint=hint))

    def _give_up(self, error: CheckpointFailed | None) -> None:
        if self._joint is not None:
            self._joint.abandon(error)
        if self._files is not None and not self._files.done():
            self._hosts = {}  # what is being written is left its memory
        self._joint = self._files = self._under_way = None
