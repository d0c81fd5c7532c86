"""Settings of a controller, and its place on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import BadInput, InvalidValue
from sublet.market.spot import Polarity

PRICED_LIKE, PRICED_GPU = "aws:g4dn.xlarge", "T4"  # what a node of the cloud in a box costs: one T4, 4 vCPU
LOOPBACK = ("127.0.0.1", "::1", "localhost")
HIGHEST_PORT = 65_535
SHORTEST_SILENCE_S, LONGEST_SILENCE_S = 20.0, 50.0  # a line is known to be lost before, a group to hang after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One controller. Everything it keeps is under `state_dir`, so two of them never meet."""

    state_dir: str
    provider: str = "local"
    engine: str = "local"
    policy: str = "price"
    hurry: bool = False  # the quickest within the limits, whatever it costs; else money is saved where it can be
    burn_usd_per_h: float | None = None  # a cap on the rent of every moment
    average_usd_per_h: float | None = None  # an aim in the long run
    purse_usd: float | None = None  # in all; None = no limit
    besides_usd_per_h: float = 0.0  # what is paid besides nodes, out of the same budget: the machine of the controller
    speedup: float = 1.0  # cloud seconds per wall second
    market: tuple[str, ...] = ()  # spot traces to replay, by name or path; () = a steady market
    polarity: Polarity | None = None  # the meaning of the numbers of a trace file, if stated
    market_start_s: float = 0.0  # where in the trace to begin
    market_share: float = 1.0  # of the trace's nodes, how many can be had here; others have the rest
    notice_s: float = 120.0  # warning before a spot node is taken, cloud time; 0 = none
    strikes: tuple[str, ...] = ()  # scripted losses, "AT_S|SHARE%:notice|kill|restore:NODES", on top of the market
    boot_s: float = 0.0  # cloud: from the order of a node to its first use, simulated
    most_nodes: int | None = None  # of each offer, at once; None = as many as the provider has
    slots_per_node: int = 1  # workers on one node
    mix_markets: bool = False  # one job may have nodes of both markets: a pool is a kind, not a kind on a market
    decide_limit_s: float = 60.0  # wall: a policy that has not answered by then is asked anew
    lease_s: float = 30.0  # wall: an agent whose controller is silent for so long ends itself
    silence_s: float = 25.0  # wall: a job that stands goes on without a node that is silent for so long
    hosts: str = ""  # where the list of one's own machines is, for the provider ssh; "" = hosts.toml in state_dir
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 0  # 0 = any free one

    def __post_init__(self) -> None:
        if not self.state_dir or not Path(self.state_dir).is_absolute():
            raise InvalidValue("state_dir", self.state_dir, "an absolute path")
        for name in ("burn_usd_per_h", "average_usd_per_h", "purse_usd"):
            if (value := getattr(self, name)) is not None:
                positive(name, value)
        at_least("besides_usd_per_h", self.besides_usd_per_h, 0.0)
        positive("speedup", self.speedup)
        positive("lease_s", self.lease_s)
        positive("decide_limit_s", self.decide_limit_s)
        if not SHORTEST_SILENCE_S <= self.silence_s <= LONGEST_SILENCE_S:
            allowed = f"from {SHORTEST_SILENCE_S:g} to {LONGEST_SILENCE_S:g} seconds"
            raise InvalidValue("silence_s", self.silence_s, allowed)
        if self.polarity not in (None, "availability", "preempted"):
            raise InvalidValue("polarity", self.polarity, "availability or preempted")
        at_least("market_start_s", self.market_start_s, 0.0)
        positive("market_share", self.market_share)
        at_least("notice_s", self.notice_s, 0.0)
        at_least("boot_s", self.boot_s, 0.0)
        if self.most_nodes is not None:
            whole("most_nodes", self.most_nodes, 1)
        whole("slots_per_node", self.slots_per_node, 1)
        whole("seed", self.seed)
        if self.host not in LOOPBACK:
            raise InvalidValue("host", self.host, "the loopback address 127.0.0.1: nothing else is served")
        whole("port", self.port)
        if self.port > HIGHEST_PORT:
            raise InvalidValue("port", self.port, f"from 0 to {HIGHEST_PORT}")


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$SUBLET_STATE`, or `sublet` in the XDG state directory."""
    if own := environment.get("SUBLET_STATE"):
        return Path(own).absolute()
    if shared := environment.get("XDG_STATE_HOME"):
        return Path(shared).absolute() / "sublet"
    return Path.home() / ".local" / "state" / "sublet"


def settings_to_json(settings: Settings) -> str:
    """For the process that will be the controller."""
    return json.dumps(asdict(settings), indent=2)


def settings_from_json(text: str, *, source: object = "settings") -> Settings:
    """The inverse of `settings_to_json`."""
    try:
        facts: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(Settings)}
        given = {name: value for name, value in facts.items() if name in known}
        lists = {name: tuple(given.get(name, ())) for name in ("market", "strikes")}
        return Settings(**{**given, **lists})
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(source, f"cannot be read as settings ({error})", hint="run 'sublet up' again") from error
