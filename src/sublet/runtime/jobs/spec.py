"""A job file as the controller keeps it, checked and with every default filled in."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.bounds import MarketChoice, OnNodeLoss, Shards
from sublet.wire.messages import STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a job may fail before it is given up, by whose fault it was; None = for ever."""

    preemption: int | None = None
    infra: int | None = 10
    user: int | None = 1  # one attempt, one retry


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job."""

    name: str
    argv: tuple[str, ...]  # of one worker; every worker runs the same
    cwd: str
    python: str = ""  # the interpreter that was active where it was submitted; "" = that of its nodes
    setup: str = ""  # a text for bash that every node runs once, in `cwd`, before the first worker there
    mounts: Mapping[str, str] = field(default_factory=dict)  # path on the node: a local file or folder, or a URI
    kept_mounts: tuple[str, ...] = ()  # of these paths what the job writes there has to go back to the URI
    new_mounts: tuple[str, ...] = ()  # ... and of these the bucket is made, where there is none
    image: str = ""  # of a container, in which `setup` and `argv` are; "" = the node's own system
    per_node: int = 0  # GPUs of one process of `run`, all on one node; 0 = every process has one GPU
    notes: tuple[str, ...] = ()  # what the file says and the job has otherwise, or need not have
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # as env, but never shown or logged
    sdk: bool = True  # the script opens a `sublet.train` session; False = an unmodified script, restarted to resize
    torchrun: bool = False  # submitted as one for torchrun, or it had more workers: one alone gets its variables too
    joins: str = ""  # yes | no: a script without the SDK joins a process group, or cannot; "" = that cannot be said
    min_workers: int = 1
    max_workers: int = 1
    sizes: tuple[int, ...] = ()  # allowed numbers of workers; () = all from min to max
    on_node_loss: OnNodeLoss = OnNodeLoss.CONTINUE
    replace_s: float = 600.0  # cloud time: how long to wait for another node, where that is what it does
    accelerators: tuple[str, ...] = ()  # GPU kinds that will do; () = any
    market: MarketChoice = MarketChoice.AUTO
    min_on_demand: int = 0  # workers that are always on demand: a core that no market takes
    work: float | None = None  # samples over the whole job, if the user knows; the session tells otherwise
    samples_per_s: float | None = None  # of one worker, if the user knows; measured while it runs otherwise
    restart_s: float = 1.0  # pause at a resize, first guess; measured while it runs
    checkpoint_dir: str = ""  # or a URI of an object store; "" = under the controller's state directory
    checkpoint_copy: str = ""  # URI of an object store that the controller copies them to; "" = nowhere
    checkpoint_every_s: float | None = None  # None = from hazard and write time
    checkpoint_keep: int = 3
    grace_s: float = 30.0  # for an unmodified script, between SIGTERM and SIGKILL
    hang_s: float = 1800.0  # wall: no step (without the SDK: no output, no processor used) for so long is a hang
    retries: Retries = Retries()
    purse_usd: float | None = None  # what this job may spend in all
    deadline_s: float | None = None  # cloud time from submission
    weight: float = 1.0
    hurry: bool = False  # the quickest within the limits, where no budget weighs time against money
    stages: int = 1  # parts of its model, a pipeline; 0 = as many as the plan finds best
    shards: Shards = Shards.AUTO  # ranges of the optimizer's state
    unsent: tuple[str, ...] = ()  # paths that do not travel: its own file, where secrets are written in it
    user: str = ""  # who submitted it, and of which team that is; the controller sets both
    team: str = ""
    code: str = ""  # what names its files at submit, for nodes that do not see them; the controller sets it

    @property
    def cut(self) -> str:
        """How its model is cut into parts, as the wire has it; "" = every worker has all of it."""
        return "" if self.stages == 1 else STAGES

    @property
    def least_workers(self) -> int:
        """With fewer it never trains: so many its owner allows, and each part of its model has one."""
        whole = [size for size in self.sizes if size % max(1, self.stages) == 0]
        return min(whole, default=max(self.min_workers, self.stages))

    def __post_init__(self) -> None:
        bounds.job_name(self.name)
        bounds.command(self.argv)
        bounds.path("workdir", self.cwd)
        bounds.path("python", self.python)
        bounds.checkpoints_at(self.checkpoint_dir, sdk=self.sdk)
        bounds.checkpoint_copies_at(self.checkpoint_copy, self.checkpoint_dir, sdk=self.sdk)
        bounds.script("setup", self.setup)
        bounds.mounts(self.mounts, self.kept_mounts, self.new_mounts)
        bounds.notes(self.notes)
        bounds.variables("envs", self.env)
        bounds.variables("secrets", self.secrets)
        bounds.workers(self.min_workers, self.max_workers, self.sizes)
        bounds.copies(self.joins, self.min_workers, self.max_workers, alone=not self.sdk and not self.per_node)
        bounds.per_node(self.per_node, self.min_workers, self.max_workers, sdk=self.sdk, core=self.min_on_demand)
        bounds.image(self.image, sdk=self.sdk)
        bounds.kinds(self.accelerators)
        for name in bounds.RANGES:
            if (value := getattr(self, name)) is not None:
                bounds.number(name, value)
        for name in bounds.FAULTS:
            bounds.retries(f"retry.{name}", getattr(self.retries, name))
        bounds.checkpoints_kept(self.checkpoint_keep)
        bounds.market(self.market)
        bounds.core(self.min_on_demand, min(self.sizes, default=self.min_workers), self.market)
        bounds.node_loss(self.on_node_loss)
        bounds.stages(self.stages, self.max_workers, self.sizes, sdk=self.sdk)
        bounds.shards(self.shards, sdk=self.sdk, stages=self.stages)
        for path in self.unsent:
            bounds.path("unsent", path)
        bounds.digest("code", self.code)


HIDDEN = "***"  # what is shown instead of a secret


def spec_to_json(spec: JobSpec, *, secrets: bool) -> dict[str, Any]:
    """Every field; the values of secrets only where they must travel, stars for every other reader."""
    facts = dataclasses.asdict(spec)
    hidden = facts["secrets"] if secrets else dict.fromkeys(spec.secrets, HIDDEN)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
    words = {name: str(facts[name]) for name in ("market", "on_node_loss", "shards")}
    return {**plain, "secrets": hidden, **words}


def spec_from_json(facts: object) -> JobSpec:
    """The inverse of `spec_to_json`. A missing field has its default; an unknown or ill-typed one is refused."""
    if not isinstance(facts, Mapping):
        raise BadInput("job", "it must be an object with the fields of a job")
    return typing.cast(JobSpec, _build(JobSpec, facts, ""))


@cache
def _hints(kind: type) -> dict[str, Any]:
    """A start reads every job: to work them out is what costs most of it."""
    return typing.get_type_hints(kind)


def _build(kind: type, facts: Mapping[str, Any], place: str) -> object:
    hints = _hints(kind)
    given = {}
    for name, value in facts.items():
        if name not in hints:
            raise InvalidValue(f"{place}{name}", _shown(name, value), f"left out; known are {', '.join(hints)}")
        given[name] = _restore(hints[name], f"{place}{name}", value)
    try:
        return kind(**given)
    except TypeError as error:  # a field without default is missing
        raise BadInput("job", str(error).rpartition("() ")[2]) from None


def _restore(kind: Any, name: str, value: Any) -> Any:
    if kind is Retries and isinstance(value, Mapping):
        return _build(Retries, value, f"{name}.")
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None:
            return None
        kind = next(part for part in inner if part is not types.NoneType)
    if origin is tuple:
        if isinstance(value, list | tuple) and all(type(item) is inner[0] for item in value):
            return tuple(value)
        raise InvalidValue(name, _shown(name, value), f"a list of {inner[0].__name__}")
    if origin is not None and origin is not types.UnionType:  # the only other one: a map of strings
        if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return dict(value)
        raise InvalidValue(name, _shown(name, value), "an object of strings")
    if kind is bounds.MarketChoice:
        return bounds.market(_restore(str, name, value))
    if kind is bounds.OnNodeLoss:
        return bounds.node_loss(_restore(str, name, value))
    if kind is bounds.Shards:
        return bounds.shards(_restore(str, name, value))
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise InvalidValue(name, value, "a number that can be") from None
    if type(value) is not kind:
        raise InvalidValue(name, _shown(name, value), getattr(kind, "__name__", str(kind)))
    return value


def _shown(name: str, value: object) -> object:
    return HIDDEN if name == "secrets" else value
