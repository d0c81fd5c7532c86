"""What the modules of a model remember beside its weights, where each worker runs a part of it.

`if s.steps == 2: block.scale = 0.5` is known to every worker, as every one runs the script. But `self.calls += 1` in
the forward of a block is known to those alone who run the block. So values of a block, and of what comes before or
after all of them, are those of somebody who runs it; of all else, such as the model itself, what the first part has
changed counts, and then what the last has.

They go with the state of training (`course`): to newcomers and into checkpoints, which have them as a session without
parts has them (`train/attributes.py`). A worker that takes over a block that it has not run gets the values of that.
Beside them a state has what was another when the batch of its last step began, and right after that step (`noting`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from sublet.train.attributes import Attributes
from sublet.train.checkpoint.snapshot import HostCopy, Snapshot, Tree
from sublet.train.grid.absent import plainly
from sublet.train.grid.cutting import AFTER, BEFORE, Cut
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.noting import BEGAN, STEPPED, Noted, Noting
from sublet.train.reach import Place
from sublet.train.remembered import GONE, HELD, PLAIN, Remembered

__all__ = ["Remembering", "gathered", "handed_to_first"]

TELLS = 8 << 20  # tags of messages, far from all others
LENGTH = struct.Struct(">q")
BY_NAME = ("trained", "buffers", "made", "written")  # of a state: by names of parameters and buffers; all else by place
Ran = tuple[int, int]  # blocks from the first up to, not including, the second; (0, 0): none


class Remembering:
    """Of one worker, since now: the script is at its loop."""

    def __init__(self, cut: Cut, optimizer: torch.optim.Optimizer, called: Mapping[str, Any]) -> None:
        self._cut, self.blocks = cut, len(cut.blocks)
        self._model, self._paths = cut.model, [f"{cut.name}.{number}" for number in range(self.blocks)]
        with plainly():
            self._attributes = Attributes(cut.model, {"": optimizer}, called)
            self._buffers = {name: Remembered(buffer) for name, buffer in self._persistent()}
        self._begins: Noted | None = None
        self._noted: dict[str, Noted | None] = {BEGAN: None, STEPPED: None}
        self._noting = Noting(self._attributes.places)

    def note_batch(self) -> None:
        """One begins."""
        self._begins = self._noting.now()

    def note_step(self) -> None:
        """That of the batch that began last is made."""
        self._noted = {BEGAN: self._begins, STEPPED: self._noting.now()}

    def also(self, called: Mapping[str, Any]) -> list[Place]:
        """What else is called, or may be; where all is that a state knows from now on."""
        with self._cut.whole(), plainly():
            self._attributes.also(called)
        self._noting = Noting(self._attributes.places)
        return self._attributes.places

    def state(self, blocks: Collection[int]) -> dict[str, Any]:
        """What has changed, of these blocks; with the first or the last of all of them also what is of none."""
        with self._cut.whole(), plainly():
            found = self._attributes.state_dict()
            now = dict(self._persistent())
            found["written"] = {
                name: now[name] for name, was in self._buffers.items() if name in now and not was.is_still(now[name])
            }
            self._tell_moments(found)
        self._noting = Noting(self._attributes.places)
        ends = bool({0, self.blocks - 1} & {*blocks})
        return self._only(found, lambda home: ends if home is None else home in blocks)

    def _tell_moments(self, found: dict[str, Any]) -> None:
        """What was another then; what was there then and is not now is said to be gone, of now."""

        def comes_back(place: str, name: str) -> bool:
            return any(name in found[kind].get(place, {}) for kind in (PLAIN, HELD)) or self._attributes.had(
                place, name
            )

        for moment, noted in self._noted.items():
            found[moment] = {} if noted is None else noted.since(comes_back, self._attributes.places)
        for noted in filter(None, self._noted.values()):
            for place, name in noted.gone(self._attributes.places):
                found[PLAIN].setdefault(place, {})[name] = GONE

    def lay(self, state: Mapping[str, Any], blocks: Collection[int] | None = None, moment: str = "") -> None:
        """What others have, all of it or of these blocks; what it does not name is as it was at first.

        Or all of it as it was at a moment: BEGAN or STEPPED.
        """
        with self._cut.whole(), plainly():
            if blocks is None:
                self._attributes.prepare(state)
                self._attributes.load_state_dict(state)
                self._attributes.lay(state.get(moment, {}))
                self._write(state.get("written"))  # of another kind of session: they are with the weights
            elif blocks:
                among = self._only(state, lambda home: home in blocks)
                self._attributes.load_state_dict(among, lambda name: self.home(name) in blocks)
        if moment:
            self._noting = Noting(self._attributes.places)
            self._noted[moment] = self._noting.now()

    def _write(self, written: Mapping[str, torch.Tensor] | None) -> None:
        """What a script has written, it has written at all workers."""
        if written is None:
            return
        with torch.no_grad():
            for name, buffer in self._persistent():
                if name in written:
                    buffer.copy_(written[name])
                elif (was := self._buffers.get(name)) is not None:
                    was.again(buffer)

    def _persistent(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers of its `state_dict`, which no forward may change; a script may write into them between two steps."""
        weights = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        found = self._model.state_dict(keep_vars=True)
        return ((name, value) for name, value in found.items() if name not in weights and torch.is_tensor(value))

    def _only(self, state: Mapping[str, Any], wanted: Callable[[int | None], bool]) -> dict[str, Any]:
        return {
            what: {name: value for name, value in by_name.items() if wanted(self.home(name))}
            for what, by_name in state.items()
        }

    def home(self, name: str) -> int | None:
        """The block that a module is in, or the one that it runs before or after; None: of none, or of several.

        Of a place, a parameter or a buffer.
        """
        path = name.removeprefix("module ").split(" ", 1)[0]
        for number, block in enumerate(self._paths):
            if path == block or path.startswith(f"{block}."):
                return number
        return {BEFORE: 0, AFTER: self.blocks - 1}.get(self._cut.side_of(path))


def owners(ran: Sequence[Ran], among: Sequence[int], blocks: int) -> dict[int, int]:
    """Of each block, the first among these who runs it; if nobody does, one who knows what the script has set."""
    return {block: next((rank for rank in among if block in range(*ran[rank])), among[0]) for block in range(blocks)}


def gathered(
    mesh: Mesh, remembering: Remembering, ran: Sequence[Ran], among: Sequence[int], late: Collection[int] = ()
) -> dict[str, Any]:
    """What all of these remember, at all who meet. Broken.

    Those who are `late` have yet to hear what the last step came to, and what the script has set since: of that the
    first of the others tells, of all blocks, and of theirs remains what forwards have changed.
    """
    among = sorted(among, key=lambda each: each in late)
    told = _told(mesh, remembering, ran, among, late)
    table = torch.zeros(mesh.world, dtype=torch.int64)
    table[mesh.rank] = len(told)
    mesh.sum(table, range(mesh.world))
    sizes = table.tolist()
    starts = [0, *accumulate(sizes)]
    said = torch.zeros(starts[-1], dtype=torch.uint8)
    said[starts[mesh.rank] : starts[mesh.rank + 1]] = told
    if len(said):  # one sum for all of them: each waits for everybody
        mesh.sum(said, range(mesh.world))
    states = [(rank, unpacked(said[starts[rank] : starts[rank + 1]])) for rank, size in enumerate(sizes) if size]
    return merged(states, owners(ran, among, remembering.blocks), late)


def handed_to_first(
    mesh: Mesh, remembering: Remembering, ran: Ran, everyone: Sequence[int], late: Collection[int] = ()
) -> dict[str, Any] | None:
    """What all of these remember, at the first of them alone; None at the others. Broken. `late` as in `gathered`."""
    among = sorted(everyone, key=lambda each: each in late)
    table = torch.zeros(mesh.world, 2, dtype=torch.int64)
    table[mesh.rank] = torch.tensor(ran)
    mesh.sum(table, everyone)
    rans: list[Ran] = [(low, high) for low, high in table.tolist()]
    told = _told(mesh, remembering, rans, among, late)
    sizes = torch.zeros(mesh.world, dtype=torch.int64)
    sizes[mesh.rank] = len(told)
    mesh.sum(sizes, everyone)
    first, states = everyone[0], []
    for rank, size in enumerate(sizes.tolist()):
        if rank == mesh.rank == first and size:
            states.append((rank, unpacked(told)))
        elif mesh.rank == first and size:
            said = torch.zeros(size, dtype=torch.uint8)
            mesh.receive(said, rank, TELLS)
            states.append((rank, unpacked(said)))
        elif rank == mesh.rank and size:
            mesh.send(told, first, TELLS)
    mesh.settle()
    return merged(states, owners(rans, among, remembering.blocks), late) if mesh.rank == first else None


def merged(
    states: Sequence[tuple[int, Mapping[str, Any]]], who: Mapping[int, int], late: Collection[int] = ()
) -> dict[str, Any]:
    """One state of those of several. Of what is of no block, that of who has the first block counts.

    What those say who are `late` counts least, and nothing of how it was a step ago.
    """
    found: dict[str, Any] = {what: {} for what in ("plain", "held", "others", "shared", BEGAN, STEPPED, *BY_NAME)}
    for rank, state in sorted(states, key=lambda each: (each[0] not in late, each[0] == who.get(0))):
        for what, by_name in state.items():
            if rank in late and what in (BEGAN, STEPPED):
                continue
            for name, values in by_name.items():
                if isinstance(values, Mapping) and what not in BY_NAME:
                    found[what].setdefault(name, {}).update(values)
                else:
                    found[what][name] = values
    return found


def packed(state: Mapping[str, Any]) -> torch.Tensor:
    """As bytes; none if nothing has changed."""
    if not any(state.values()):
        return torch.zeros(0, dtype=torch.uint8)
    snapshot = HostCopy().take(state)
    said = bytearray()
    for each in (snapshot.tree.to_json(), *snapshot.segments):
        said += LENGTH.pack(len(each)) + bytes(each)
    return torch.frombuffer(said, dtype=torch.uint8)


def unpacked(said: torch.Tensor) -> dict[str, Any]:
    """What `packed` was given."""
    text, parts, at = said.numpy().tobytes(), list[bytes](), 0
    while at < len(text):
        [length] = LENGTH.unpack_from(text, at)
        parts.append(text[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    segments = tuple(memoryview(bytearray(each)) for each in parts[1:])
    found: dict[str, Any] = Snapshot(tree=Tree.from_json(parts[0]), segments=segments).state()
    return found


def _told(
    mesh: Mesh, remembering: Remembering, ran: Sequence[Ran], among: Sequence[int], late: Collection[int] = ()
) -> torch.Tensor:
    """Ours, if there is a block of which it is we who tell."""
    mine = {block for block, rank in owners(ran, among, remembering.blocks).items() if rank == mesh.rank}
    if late and mesh.rank == among[0]:
        mine = {*range(remembering.blocks)}
    return packed(remembering.state(mine)) if mine else torch.zeros(0, dtype=torch.uint8)
