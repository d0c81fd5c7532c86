"""All that training has come to, how it is written down and how it is handed to another worker."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch

from sublet.errors import BadInput
from sublet.train.attributes import Attributes
from sublet.train.checkpoint.snapshot import HostCopy, Tree, state_from
from sublet.train.in_place import load_optimizer
from sublet.train.noise import Noise
from sublet.train.samples import mixed
from sublet.train.shards.moments import Moments

__all__ = [
    "TRAINED_S",
    "Progress",
    "State",
    "broadcast",
    "host_dice_kept",
    "host_draw",
    "lay_numpy_dice",
    "lay_python_dice",
    "numpy_dice",
    "python_dice",
    "random_state",
    "reseed",
    "reseed_host",
    "restore_random",
    "throw_numpy_dice",
    "throw_python_dice",
]

DIE = torch.empty((), dtype=torch.float64)  # thrown for each micro-batch: to make one takes longer than to throw it
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


class KeepsPlace(Protocol):
    """Samples that know more than a number of where they are."""

    def state_dict(self) -> dict[str, Any]:
        """Where they are."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go on from there."""

    def check(self, state: Mapping[str, Any] | None, /) -> None:
        """BadInput if that cannot be."""


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
        stream: KeepsPlace | None = None,
    ) -> None:
        self.model, self.optimizer, self.schedulers, self.extra, self.seed = model, optimizer, schedulers, extra, seed
        self.scaler, self.stream = scaler, stream
        self.moments: Moments | None = None  # in ranges; None = the optimizer has all of it
        self.attributes: Attributes | None = None  # since the session began

    def begin(self, schedulers: Sequence[Any], called: Mapping[str, Any] | None = None) -> None:
        """The script is at its loop, and has these: what it changes from now on it changes while it trains.

        `called`: what else is called for steps, by name, such as a dataset.
        """
        self.schedulers = schedulers
        self.attributes = Attributes(self.model, getattr(self.optimizer, "named", {"": self.optimizer}), called)

    def require_same(self) -> None:
        """InvalidValue if something was replaced that no state can make again."""
        if self.attributes is not None:
            self.attributes.check()

    def tree(self, progress: Progress, *, bare: bool = False) -> dict[str, Any]:
        """References to everything, not copies; `bare` without moments."""
        kept = self.moments or self.optimizer
        return {
            "model": self.model.state_dict(),
            "optimizer": self.moments.groups() if bare and self.moments is not None else kept.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "attributes": None if self.attributes is None else self.attributes.state_dict(),
            "extra": None if self.extra is None else self.extra.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "stream": None if self.stream is None else self.stream.state_dict(),
            "progress": asdict(progress),
            "random": random_state(),
        }

    def restore(self, tree: Mapping[str, Any], progress: Progress, *, same_dice: bool, rank: int = 0) -> None:
        """Take over a state; the random numbers too if this worker carries on where the one that saved was."""
        self.check(tree, progress)
        facts = {"begun": False, **tree["progress"]}  # one of an earlier version does not say it
        facts.setdefault("before", facts["steps"] - facts["offset"] // facts["batch"])  # nor this
        noise = Noise(**facts.pop("noise"))
        if self.attributes is not None and tree.get("attributes"):  # one of an earlier version, or of a grid, has none
            self.attributes.prepare(tree["attributes"])
        self.model.load_state_dict(tree["model"])
        if isinstance(self.optimizer, torch.optim.Optimizer) and self.moments is None:
            load_optimizer(self.optimizer, tree["optimizer"])
        else:
            (self.moments or self.optimizer).load_state_dict(tree["optimizer"])
        for scheduler, saved in zip(self.schedulers, tree["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.attributes is not None and tree.get("attributes"):
            self.attributes.load_state_dict(tree["attributes"])
        if self.extra is not None:
            self.extra.load_state_dict(tree["extra"])
        if self.scaler is not None and tree.get("scaler"):  # one of an earlier version has none
            self.scaler.load_state_dict(tree["scaler"])
        if self.stream is not None:
            self.stream.load_state_dict(tree["stream"])
        for name in facts.keys() & {each.name for each in fields(Progress)}:  # an earlier version may have said more
            setattr(progress, name, facts[name])
        progress.noise = noise
        if same_dice:
            restore_random(tree["random"])
        else:
            lay_choices(tree["random"])
            self.reseed(progress.steps, rank)

    def check(self, tree: Mapping[str, Any], progress: Progress) -> None:
        """BadInput if this training cannot go on from there."""
        facts = tree["progress"]
        if facts["samples"] != progress.samples:
            hint = "train with the dataset of the checkpoint, or give a new checkpoint directory"
            raise BadInput(
                "checkpoint", f"of {facts['samples']} samples, the dataset has {progress.samples}", hint=hint
            )
        if self.stream is not None:
            self.stream.check(tree["stream"])
        if len(tree["schedulers"]) != len(self.schedulers):
            hint = "train with the schedulers of the checkpoint, or give a new checkpoint directory"
            raise BadInput(
                "checkpoint", f"of {len(tree['schedulers'])} schedulers, this has {len(self.schedulers)}", hint=hint
            )

    def reseed(self, steps: int, rank: int) -> None:
        """Torch's random numbers of a newcomer: from (seed, steps, rank), so that no two ranks draw the same."""
        torch.manual_seed(mixed(self.seed, steps, rank))

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
        for segment in snapshot.segments:
            if len(segment):
                group.broadcast(torch.frombuffer(segment, dtype=torch.uint8), source)
        return state
    length = torch.zeros(1, dtype=torch.int64)
    group.broadcast(length, source)
    text = torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(text, source)
    tree = Tree.from_json(text.numpy().tobytes())
    sizes: dict[int, int] = {}
    for place in tree.places:
        sizes[place.segment] = max(sizes.get(place.segment, 0), place.start + place.size)
    memory = {}
    for segment_number in sorted(sizes):
        memory[segment_number] = torch.empty(sizes[segment_number], dtype=torch.uint8)
        if sizes[segment_number]:
            group.broadcast(memory[segment_number], source)
    tensors = [place.seen_in(memory[place.segment][place.start : place.start + place.size]) for place in tree.places]
    return state_from(tree.root, tensors)


def reseed(*numbers: int) -> None:
    """All that users' code may draw from, by these numbers."""
    seed = mixed(*numbers)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one, because users' code may draw from it


def reseed_host(*numbers: int) -> None:
    """As `reseed`, but for what draws on a GPU: for every sample, and torch takes a millisecond for all devices."""
    seed = mixed(*numbers)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - as in reseed


def host_draw() -> tuple[float, float, float]:
    """The next of each that `reseed_host` seeds."""
    python, numpy = random.random(), np.random.random()  # noqa: NPY002, S311 - as in reseed: the user's dice
    return DIE.uniform_().item(), python, numpy


@contextmanager
def host_dice_kept() -> Iterator[None]:
    """Whatever is drawn within, and not on a GPU, was not drawn."""
    was = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - as in reseed
    try:
        yield
    finally:
        torch.set_rng_state(was[0])
        random.setstate(was[1])
        np.random.set_state(was[2])  # noqa: NPY002 - as in reseed


def random_state() -> dict[str, Any]:
    """Of all generators of this process."""
    (version, words, gauss), (_, keys, position, has_gauss, cached) = python_dice(), numpy_dice()
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no type
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore_random(found: Mapping[str, Any]) -> None:
    """What `random_state` gave."""
    torch.set_rng_state(found["torch"].cpu().clone())  # torch 2.13 crashes over a part of a tensor
    lay_choices(found)
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"].cpu().clone())


def python_dice() -> Any:
    """Their state."""
    return random.getstate()


def lay_python_dice(state: Any) -> None:
    """What `python_dice` gave."""
    random.setstate(state)


def throw_python_dice(*numbers: int) -> None:
    """By these numbers."""
    random.seed(mixed(*numbers))


def numpy_dice() -> Any:
    """Their state, for which numpy takes about six times as long as Python does."""
    return np.random.get_state(legacy=True)  # noqa: NPY002 - as in reseed


def lay_numpy_dice(state: Any) -> None:
    """What `numpy_dice` gave."""
    np.random.set_state(state)  # noqa: NPY002 - the user's global generator, as it was


def throw_numpy_dice(*numbers: int) -> None:
    """By these numbers."""
    np.random.seed(mixed(*numbers) % 2**32)  # noqa: NPY002 - as in reseed


def lay_choices(found: Mapping[str, Any]) -> None:
    """Of what `random_state` gave, Python's and numpy's."""
    version, words, gauss = found["python"]
    lay_python_dice((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = found["numpy"]
    lay_numpy_dice(("MT19937", keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
