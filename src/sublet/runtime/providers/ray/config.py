"""The user's facts of the Ray cluster: the file `ray.toml` in the state directory, or where SUBLET_RAY points.

Nothing has to be said: without a file the kinds of nodes are those that the cluster has when the controller first
starts, at no price.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import at_least, named, whole
from sublet.errors import BadInput, InvalidValue

CPU, GPU = "CPU", "GPU"  # what Ray calls them
ACCELERATOR = "accelerator_type:"  # Ray adds a resource of this name to nodes with a known one
MARKET_LABEL = "ray.io/market-type"
SPARE = 1e-6  # Ray counts resources in ten-thousandths
NOTICE_S = 120.0  # until the end of a node that is drained without a deadline; what AWS gives


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node as Ray shows it."""

    id: str
    host: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    ends_unix_s: float | None = None  # it is being drained, and will be gone then

    @property
    def gpu(self) -> str:
        """The kind of its GPUs, as Ray names it; "" = it has none, or one that Ray does not know."""
        return next((name.removeprefix(ACCELERATOR) for name in self.total if name.startswith(ACCELERATOR)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that are alike. One that we hold is reserved at Ray with `cpus`, `gpus` and `resources`."""

    name: str
    slots: int  # workers on a node: its GPUs, or what its CPUs are shared among
    cpus: float = 0.0
    gpus: int = 0  # all that a node has: whose device is whose would not be known otherwise
    gpu: str = ""  # as Ray names it; "" = any
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # that a node must have
    usd_per_h: float = 0.0
    market: Market = Market.ON_DEMAND
    most: int | None = None  # held at once
    autoscaled: bool = False  # Ray gets more of them when we ask
    hazard_per_h: float = 0.0

    def __post_init__(self) -> None:
        named("name", self.name)
        whole("slots", self.slots, 1)
        at_least("cpus", self.cpus, 0.0)
        whole("gpus", self.gpus)
        at_least("usd_per_h", self.usd_per_h, 0.0)
        at_least("hazard_per_h", self.hazard_per_h, 0.0)
        if self.slots > self.gpus > 0:
            raise InvalidValue("slots", self.slots, f"at most the GPUs of the node, {self.gpus}")
        if self.most is not None:
            whole("most", self.most, 1)
        elif self.autoscaled:
            raise InvalidValue("most", self.most, "given where nodes are autoscaled: how many Ray may get")
        if not self.reserves:
            raise InvalidValue("cpus", self.cpus, "above 0 where there are no gpus and no resources to reserve")

    @property
    def reserves(self) -> dict[str, float]:
        """The resources taken from other users of the cluster."""
        asked = {CPU: self.cpus, GPU: float(self.gpus), **self.resources}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def fits(self, node: RayNode) -> bool:
        """Whether the node is of this kind."""
        if int(node.total.get(GPU, 0.0)) != self.gpus or (self.gpu and node.gpu != self.gpu):
            return False
        if any(node.labels.get(name) != value for name, value in self.labels.items()):
            return False
        return all(node.total.get(name, 0.0) + SPARE >= amount for name, amount in self.reserves.items())

    def is_free(self, node: RayNode) -> bool:
        """Whether no other user has what we would reserve."""
        return all(node.free.get(name, 0.0) + SPARE >= amount for name, amount in self.reserves.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """The address of the cluster, and its nodes."""

    address: str = ""  # of its head, host:port; "" = RAY_ADDRESS, or the cluster that runs on this machine
    kinds: tuple[NodeKind, ...] = ()  # () = as seen

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise InvalidValue("address", self.address, "host:port of the head; run the controller inside the cluster")
        names = [kind.name for kind in self.kinds]
        if len(set(names)) < len(names):
            raise InvalidValue("nodes.name", names, "different for each kind")


def config_path(state_dir: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The path of the file."""
    return Path(environment.get("SUBLET_RAY") or state_dir / "ray.toml")


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> RayConfig:
    """The file, or what is wrong with it; without a file all is as seen."""
    try:
        facts: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if "SUBLET_RAY" in environment:
            raise BadInput(path, "does not exist", hint="unset SUBLET_RAY, or write the file") from None
        return RayConfig()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(path, f"is no TOML ({error})") from error
    if unknown := facts.keys() - {"address", "nodes"}:
        raise BadInput(path, f"has an unknown key {min(unknown)!r}", hint="known: address, nodes")
    try:
        kinds = tuple(kind_from_json(given) for given in facts.get("nodes", []))
        return RayConfig(address=facts.get("address", ""), kinds=kinds)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(path, str(error)) from error


def kind_from_json(given: Mapping[str, Any]) -> NodeKind:
    """A kind from plain values, as in the file; workers per node are its GPUs, or its CPUs, unless it says more."""
    if unknown := given.keys() - {field.name for field in fields(NodeKind)}:
        raise InvalidValue("nodes", min(unknown), ", ".join(field.name for field in fields(NodeKind)))
    market = Market(given.get("market", Market.ON_DEMAND))
    slots = given.get("slots", given.get("gpus") or int(given.get("cpus", 0)) or 1)
    return NodeKind(**{**given, "market": market, "slots": slots})


def kind_to_json(kind: NodeKind) -> dict[str, Any]:
    """The inverse of `kind_from_json`."""
    return asdict(kind)


def kinds_from(nodes: Iterable[RayNode]) -> tuple[NodeKind, ...]:
    """The kinds that a cluster has; nodes without CPUs and GPUs (often the head) are not for training."""
    found: dict[str, NodeKind] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        cpus, gpus = node.total.get(CPU, 0.0), int(node.total.get(GPU, 0.0))
        slots = gpus or int(cpus)
        if slots < 1:
            continue
        spot = node.labels.get(MARKET_LABEL) == Market.SPOT
        what = (node.gpu or "gpu") if gpus else "cpu"
        name = f"{what}x{slots}" + ("" if not gpus or not cpus else f"-{cpus:g}cpu") + ("-spot" if spot else "")
        found[name] = NodeKind(
            name=name,
            slots=slots,
            cpus=cpus,
            gpus=gpus,
            gpu=node.gpu,
            labels={MARKET_LABEL: Market.SPOT.value} if spot else {},
            market=Market.SPOT if spot else Market.ON_DEMAND,
        )
    # What asks for more comes first: a node belongs to the first kind that it fits.
    return tuple(sorted(found.values(), key=lambda kind: (-len(kind.labels), -kind.gpus, -kind.cpus, kind.name)))


def offer_from(kind: NodeKind, wind_down_s: float = 0.0) -> Offer:
    """The offer for the kernel."""
    return Offer(
        id=f"ray:{kind.name}",
        gpu=kind.gpu or ("gpu" if kind.gpus else "cpu"),
        gpus_per_node=kind.slots,
        market=kind.market,
        price=Price.from_usd_per_h(kind.usd_per_h),
        cap=Price.from_usd_per_h(kind.usd_per_h),  # it is never raised
        cloud="ray",
        instance_type=kind.name,
        minimum_billing_s=0.0,
        hazard_per_h=kind.hazard_per_h,
        notice_s=NOTICE_S if kind.market is Market.SPOT else 0.0,
        wind_down_s=wind_down_s,
    )
