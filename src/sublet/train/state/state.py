"""All that training has come to, how it is written down and how it is handed to another worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import torch

from sublet.errors import BadInput
from sublet.train.checkpoint.snapshot import HostCopy, Snapshot, Tree, segment_sizes
from sublet.train.data.samples import mixed
from sublet.train.numerics.noise import Noise
from sublet.train.numerics.seeds import random_state, restore_choices, restore_dice, restore_random
from sublet.train.shards.moments import Moments

__all__ = ["TRAINED_S", "Progress", "State", "broadcast"]

TRAINED_S = "trained_s"  # beside a state that is handed over; one of an earlier version has none


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
        """By which sums are multiplied for their backward, and divided after it: a power of two.

        Where losses are scaled for half precision, a sum over thousands of tokens would be too large for it. So it
        counts as about a mean, over as many as the last step had (before the first: samples), which all members know.
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
    """What a checkpoint holds and a newcomer receives."""

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
        self.dice: torch.Tensor | None = None  # of each rank: of a checkpoint that is made, or was just loaded

    def tree(self, progress: Progress, *, bare: bool = False) -> dict[str, Any]:
        """References to everything, not copies; `bare` without moments."""
        kept = self.moments or self.optimizer
        return {
            "model": self.model.state_dict(),
            "optimizer": self.moments.groups() if bare and self.moments is not None else kept.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "frozen": [name for name, each in self.model.named_parameters() if not each.requires_grad],
            "extra": None if self.extra is None else self.extra.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "stream": None if self.stream is None else self.stream.state_dict(),
            "progress": asdict(progress),
            "random": random_state(),
            "dice": self.dice,
        }

    def restore(self, tree: Mapping[str, Any], progress: Progress, *, same_dice: bool, rank: int = 0) -> None:
        """Take over a state; torch's random numbers too if they are of our rank, and seeded ones otherwise.

        `same_dice`: this worker carries on where the one that saved was, of an earlier version or alone.
        """
        self.check(tree, progress)
        facts = {"begun": False, **tree["progress"]}  # one of an earlier version does not say it
        facts.setdefault("before", facts["steps"] - facts["offset"] // facts["batch"])  # nor this
        noise = Noise(**facts.pop("noise"))
        self.model.load_state_dict(tree["model"])
        if (frozen := tree.get("frozen")) is not None:  # one of an earlier version, or of a grid, does not say it
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name not in frozen)
        (self.moments or self.optimizer).load_state_dict(tree["optimizer"])
        for scheduler, saved in zip(self.schedulers, tree["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.extra is not None:
            self.extra.load_state_dict(tree["extra"])
        if self.scaler is not None and tree.get("scaler"):  # one of an earlier version has none
            self.scaler.load_state_dict(tree["scaler"])
        if self.stream is not None:
            self.stream.load_state_dict(tree["stream"])
        for name in facts.keys() & {each.name for each in fields(Progress)}:  # an earlier version may have said more
            setattr(progress, name, facts[name])
        progress.noise = noise
        dice = tree.get("dice")
        restore_choices(tree["random"])
        if dice is not None and rank < len(dice):
            restore_dice(dice[rank])
        elif same_dice:
            restore_random(tree["random"])
        else:
            torch.manual_seed(mixed(self.seed, progress.steps, rank))  # so that no two ranks draw the same

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
    """A group in which one speaks to all."""

    rank: int

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """What `source` has, at all members."""


def broadcast(group: Speaks, source: int, state: Mapping[str, Any] | None) -> Any:
    """The state of `source`, at all members; nothing of ours is touched before all of it is here."""
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
