"""The cost of a restart: published seconds per application, and a model from the bytes that have to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sublet.domain.quantity import at_least
from sublet.errors import InvalidValue, UnknownName
from sublet.perf.tables import read_profile

RESTART_S: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        # siasosp23/artifacts: seconds without progress at every start and change of shape, in its simulator
        "sia": MappingProxyType(
            {"cifar10": 50.0, "ncf": 15.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0}
        ),
        # Li-Zhouzi/adaptdl: what BOA Constrictor assumes on AWS g4dn.12xlarge, checkpoint and container included
        "boa-aws": MappingProxyType({"cifar10": 120.0, "deepspeech2": 150.0, "bert": 300.0}),
        # petuum/adaptdl, branch osdi21-artifact: the same for all
        "pollux": MappingProxyType(
            dict.fromkeys(("cifar10", "ncf", "deepspeech2", "bert", "yolov3", "imagenet"), 30.0)
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A pause of `fixed_s` (process, libraries, building the model) plus the state over the bandwidth, twice.

    A job that keeps a checkpoint pays `load_s` only; one that is moved on purpose saves first.
    """

    fixed_s: float
    state_bytes: float = 0.0
    write_bytes_per_s: float = float("inf")
    read_bytes_per_s: float = float("inf")

    def __post_init__(self) -> None:
        at_least("fixed_s", self.fixed_s, 0.0)
        at_least("state_bytes", self.state_bytes, 0.0)
        for name, value in (("write", self.write_bytes_per_s), ("read", self.read_bytes_per_s)):
            if not value > 0:
                raise InvalidValue(f"{name}_bytes_per_s", value, "above 0 (infinite is allowed)")

    @property
    def save_s(self) -> float:
        """Time to write the state: a preemption notice longer than this loses nothing."""
        return self.state_bytes / self.write_bytes_per_s

    @property
    def load_s(self) -> float:
        """Time from nothing to training again, the state being saved."""
        return self.fixed_s + self.state_bytes / self.read_bytes_per_s


def published_restart_s(application: str, source: str = "sia") -> float:
    """Seconds that `source` charges for a restart of `application`."""
    if source not in RESTART_S:
        raise UnknownName("source of restart costs", source, RESTART_S)
    if application not in RESTART_S[source]:
        raise UnknownName(f"application with a restart cost from {source}", application, RESTART_S[source])
    return RESTART_S[source][application]


def h200_restart(model: str) -> Restart:
    """The restart measured on one H200: a fresh process, a rebuilt model, the state in a memory-backed file."""
    start, states = read_profile("h200-start"), read_profile("h200-state")
    known = states.texts("model")
    if model not in known:
        raise UnknownName("model measured on the H200", model, known)
    at = known.index(model)
    state_bytes, build_s, save_s, load_s = (
        float(states.floats(name)[at]) for name in ("state_bytes", "build_s", "save_shm_s", "load_shm_s")
    )
    process_s = float(start.floats("import_torch_s")[0] + start.floats("cuda_init_s")[0])
    return Restart(
        fixed_s=process_s + build_s,
        state_bytes=state_bytes,
        write_bytes_per_s=state_bytes / save_s,
        read_bytes_per_s=state_bytes / load_s,
    )
