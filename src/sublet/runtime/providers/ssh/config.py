"""The user's facts of machines of their own: `sublet up --hosts FILE`, SUBLET_HOSTS, or hosts.toml by the log."""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import at_least, named, positive, whole
from sublet.errors import BadInput, InvalidValue, MissingData
from sublet.runtime.agent.dialing import address_from, is_secure
from sublet.runtime.agent.nursery import PRELOAD

GUIDE = "docs/guides/your-own-machines.md has one to copy"
LOWEST_PORT = 1024  # below it only root may listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. Fields left out are as ~/.ssh/config and the machine itself say."""

    name: str
    host: str = ""  # where ssh finds it; "" = under its name
    port: int = 0  # of ssh; 0 = as ~/.ssh/config says, or 22
    user: str = ""
    key: str = ""  # a file with the private key; "" = those of the ssh agent and of ~/.ssh
    host_key: str = ""  # as in known_hosts: "ssh-ed25519 AAAA..."; "" = that of ~/.ssh/known_hosts
    python: str = ""  # over there; "" = as for all
    gpu: str = ""  # what the GPUs are called; "" = asked for
    slots: int = 0  # workers at once: its GPUs, or what its CPUs are shared among; 0 = asked for
    usd_per_h: float = 0.0  # the cost of an hour: power, or a bill

    def __post_init__(self) -> None:
        named("hosts.name", self.name)
        whole("hosts.port", self.port)
        whole("hosts.slots", self.slots)
        at_least("hosts.usd_per_h", self.usd_per_h, 0.0)

    @property
    def offer_id(self) -> str:
        """Machines that are alike are one offer."""
        price = "" if not self.usd_per_h else f"-{self.usd_per_h:g}usd"
        return f"ssh:{self.gpu or 'cpu'}x{self.slots}{price}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsConfig:
    """All of them, and how their agents reach us."""

    hosts: tuple[Host, ...]
    controller: str = ""  # tls:host:port that machines reach us at; "" = by way of ssh, back to here
    agents_port: int = 7070  # where we listen for them
    tunnel_port: int = 0  # on each machine's own loopback, where the way back by ssh begins; 0 = the same number
    python: str = "python3"  # over there: with torch, numpy and cryptography
    lease_s: float = 300.0  # an agent that hears nothing for so long ends itself
    gone_s: float = 120.0  # a machine that cannot be reached for so long is lost, until it comes back
    preload: tuple[str, ...] = PRELOAD

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidValue("hosts", [], "at least one")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise InvalidValue("hosts.name", names, "different for each machine")
        if self.controller:
            address_from(self.controller)
            if not is_secure(self.controller):
                raise InvalidValue("controller", self.controller, "tls:host:port, or left out: by way of ssh")
        whole("agents_port", self.agents_port, LOWEST_PORT)
        whole("tunnel_port", self.tunnel_port)
        positive("lease_s", self.lease_s)
        positive("gone_s", self.gone_s)


def config_path(state_dir: Path, named: str = "", environment: Mapping[str, str] = os.environ) -> Path:
    """The path of the file, unless it was named."""
    return Path(named or environment.get("SUBLET_HOSTS") or state_dir / "hosts.toml")


def read_config(path: Path) -> HostsConfig:
    """The file, or what is wrong with it."""
    try:
        facts: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(path, hint=f"write it ({GUIDE}), or say where it is: sublet up --hosts FILE") from None
    except (OSError, ValueError) as error:
        raise BadInput(path, f"cannot be read ({error})", hint=GUIDE) from error
    _refuse_unknown(path, facts, HostsConfig, "")
    hosts = facts.get("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts):
        raise BadInput(path, "hosts is not a list of tables", hint="write [[hosts]] above each machine")
    try:
        for host in hosts:
            _refuse_unknown(path, host, Host, "hosts.")
        preload = tuple(facts.get("preload", PRELOAD))
        return HostsConfig(**{**facts, "hosts": tuple(Host(**host) for host in hosts), "preload": preload})
    except (TypeError, InvalidValue) as error:
        raise BadInput(path, str(error), hint=GUIDE) from error


def offers_from(hosts: Sequence[Host], wind_down_s: float = 0.0) -> dict[str, Offer]:
    """Offers of machines that have been looked at, for the kernel, by offer."""
    alike: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        alike[host.offer_id].append(host)
    return {offer_id: _offer(offer_id, found[0], wind_down_s) for offer_id, found in alike.items()}


def _offer(offer_id: str, host: Host, wind_down_s: float) -> Offer:
    price = Price.from_usd_per_h(host.usd_per_h)
    return Offer(
        id=offer_id,
        gpu=host.gpu or "cpu",
        gpus_per_node=host.slots,
        market=Market.ON_DEMAND,
        price=price,
        cap=price,  # it is never raised
        cloud="ssh",
        instance_type=offer_id.removeprefix("ssh:"),
        minimum_billing_s=0.0,
        wind_down_s=wind_down_s,
    )


def _refuse_unknown(path: Path, facts: Mapping[str, Any], kind: type, where: str) -> None:
    known = sorted(each.name for each in fields(kind))
    if unknown := sorted(facts.keys() - set(known)):
        raise BadInput(path, f"there is no setting {where}{unknown[0]}", hint="known: " + ", ".join(known))
