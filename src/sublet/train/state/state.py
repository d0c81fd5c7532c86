"""The state of a training, how it is written down and how it is handed to another worker."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from sublet.errors import BadInput
from sublet.train.checkpoint.snapshot import HostCopy, Snapshot, Tree, segment_sizes
from sublet.train.data.samples import mixed
from sublet.train.numerics.noise import Noise
from sublet.train.numerics.seeds import own_rng, random_state, restore_python_and_numpy, restore_rng
from sublet.train.shards.moments import Moments

TRAINED_S = "trained_s"  # beside a state that is handed over
BESIDE = ("schedulers", "frozen", "extra", "scaler", "stream", "progress", "random")  # what `beside` gives


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far training is: `steps` in all, `offset` samples into `epoch`."""

    samples: int  # in an epoch
    batch: int
    steps: int = 0
    epoch: int = 0
    offset: int = 0
    before: int = 0  # steps before this epoch
    scheduled: int = 0  # steps of the schedulers
    turn: int = 0  # updates of the step under way that are applied: of several optimizers each has its turn
    begun: bool = False  # the script's lines before the batches of this epoch have run, and are in the state
    halved: int = 0  # how often sums are halved before their backward, for half precision
    ended: str = ""  # the length of the training whose loop the script has left for good (`Extent.name`)
    noise: Noise = field(default_factory=Noise)

    @property
    def done(self) -> int:
        """Samples behind us."""
        return self.epoch * self.samples + self.offset

    @property
    def size(self) -> int:
        """Samples of the next step: the last of an epoch may be smaller."""
        return min(self.batch, self.samples - self.offset)

    @property
    def sums_share(self) -> float:
        """The factor of sums for their backward, divided out after it: a power of two.

        Where losses are scaled for half precision, a sum over thousands of tokens would overflow. So it counts as about
        a mean, over as many as the last step had (before the first: samples), which all members know.
        """
        return 0.5**self.halved

    def advance(self) -> None:
        """A step has been applied."""
        self.offset += self.size
        self.steps += 1
        if self.offset >= self.samples:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Its samples are through, or the script has left them."""
        self.epoch, self.offset, self.begun, self.before = self.epoch + 1, 0, False, self.steps


class State:
    """The content of a checkpoint, and what a newcomer receives."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        schedulers: Sequence[Any],
        extra: Any,
        seed: int,
        scaler: torch.amp.GradScaler | None = None,
        stream: Any = None,  # samples that know more than a number of where they are
    ) -> None:
        self.model, self.optimizer, self.schedulers, self.extra, self.seed = model, optimizer, schedulers, extra, seed
        self.scaler, self.stream = scaler, stream
        self.moments: Moments | None = None  # in ranges; None = the optimizer has all of it
        self.rng: torch.Tensor | None = None  # of each rank: of a checkpoint that is made, or was just loaded

    def tree(self, progress: Progress, *, bare: bool = False) -> dict[str, Any]:
        """References, not copies; `bare` without moments."""
        kept = self.moments or self.optimizer
        return {
            "model": self.model.state_dict(),
            "optimizer": self.moments.groups() if bare and self.moments is not None else kept.state_dict(),
            **self.beside(progress),
            "rng": self.rng,
        }

    def saved(self, progress: Progress) -> dict[str, Any]:
        """The tree of a checkpoint: that of a worker alone has its RNG as that of rank 0."""
        tree = self.tree(progress)
        return tree if self.rng is not None else {**tree, "rng": own_rng().unsqueeze(0)}

    def beside(self, progress: Progress) -> dict[str, Any]:
        """All but weights and what the optimizer keeps: alike at all workers."""
        return {
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "frozen": [name for name, each in self.model.named_parameters() if not each.requires_grad],
            "extra": None if self.extra is None else self.extra.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "stream": None if self.stream is None else self.stream.state_dict(),
            "progress": asdict(progress),
            "random": random_state(),
        }

    def restore(self, tree: Mapping[str, Any], progress: Progress, *, rank: int = 0) -> None:
        """Take over a state, with torch's RNG of this rank where it has one: else it is seeded, each rank otherwise."""
        self.check(tree, progress)
        self.model.load_state_dict(tree["model"])
        (self.moments or self.optimizer).load_state_dict(tree["optimizer"])
        self.take_beside(tree, progress)
        rng = tree["rng"]
        if rng is not None and rank < len(rng):
            restore_rng(rng[rank])
        else:
            torch.manual_seed(mixed(self.seed, progress.steps, rank))

    def take_beside(self, tree: Mapping[str, Any], progress: Progress) -> None:
        """Counterpart of `beside`."""
        facts = dict(tree["progress"])
        progress.noise = Noise(**facts.pop("noise"))
        for name, value in facts.items():
            setattr(progress, name, value)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name not in tree["frozen"])
        for scheduler, saved in zip(self.schedulers, tree["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))
        if self.extra is not None:
            self.extra.load_state_dict(tree["extra"])
        if self.scaler is not None and tree["scaler"]:  # or it was saved without one
            self.scaler.load_state_dict(tree["scaler"])
        if self.stream is not None:
            self.stream.load_state_dict(tree["stream"])
        restore_python_and_numpy(tree["random"])

    def check(self, tree: Mapping[str, Any], progress: Progress) -> None:
        """BadInput if this training cannot go on from there."""
        counts = (tree["progress"]["samples"], progress.samples), (len(tree["schedulers"]), len(self.schedulers))
        for what, (saved, ours) in zip(("samples", "schedulers"), counts, strict=True):
            if saved != ours:
                hint = f"train with the {what} of the checkpoint, or give a new checkpoint directory"
                raise BadInput("checkpoint", f"of {saved} {what}, this training has {ours}", hint=hint)
        if self.stream is not None:
            self.stream.check(tree["stream"])

    def buffers(self) -> dict[str, torch.Tensor]:
        """Running means and the like, in which ranks drift apart."""
        return dict(self.model.named_buffers())


class Speaks(Protocol):
    """A group with a broadcast."""

    rank: int

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The tensor of `source`, at all members."""


def broadcast(group: Speaks, source: int, state: Mapping[str, Any] | None) -> Any:
    """The state of `source`, at all members; ours is not touched before all of it is here."""
    if group.rank == source:
        assert state is not None  # noqa: S101 - by contract
        snapshot = HostCopy().take(state)
        text = torch.frombuffer(bytearray(snapshot.tree.to_json()), dtype=torch.uint8)
        group.broadcast(torch.tensor([len(text)]), source)
        group.broadcast(text, source)
        for ours in snapshot.segments:
            if len(ours):
                group.broadcast(torch.frombuffer(ours, dtype=torch.uint8), source)
        return state
    length = torch.zeros(1, dtype=torch.int64)
    group.broadcast(length, source)
    text = torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(text, source)
    tree = Tree.from_json(text.numpy().tobytes())
    segments = [torch.empty(size, dtype=torch.uint8) for size in segment_sizes(tree.places)]
    for segment in segments:
        if len(segment):
            group.broadcast(segment, source)
    return Snapshot(tree=tree, segments=tuple(segment.numpy().data for segment in segments)).state()
