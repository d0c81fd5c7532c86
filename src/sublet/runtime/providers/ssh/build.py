"""From settings and `hosts.toml` to a provider on machines of one's own; what was found out about them is kept."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sublet.domain.budget import Limit
from sublet.errors import BadInput, NoAccess
from sublet.runtime.clock import Clock
from sublet.runtime.identity.authority import Authority
from sublet.runtime.private import private_file
from sublet.runtime.providers.aws.build import server_id_from
from sublet.runtime.providers.setup import ProviderSetup, require_engine, wind_down_s
from sublet.runtime.providers.ssh.config import Host, config_path, read_config
from sublet.runtime.providers.ssh.hostline import HostLine, Way, import_asyncssh
from sublet.runtime.providers.ssh.provider import SshProvider
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store

LOOK_S = 60.0  # to reach a machine for the first time, and to send our code there


def build(settings: Settings, clock: Clock, store: Store) -> ProviderSetup:
    """As `hosts.toml` says; machines that it says nothing of are looked at once. MissingExtra without asyncssh."""
    require_engine(settings, "local")
    import_asyncssh()
    state_dir = Path(settings.state_dir)
    config = read_config(config_path(state_dir, settings.hosts))
    authority = Authority(state_dir / "identity", wall=clock.wall)
    port, there = config.agents_port, config.tunnel_port or config.agents_port
    to_look = Way(
        server=server_id_from(store), python=config.python, preload=config.preload, back=None, gone_s=config.gone_s
    )
    provider = SshProvider(
        state_dir=state_dir,
        clock=clock,
        hosts=_as_found(config.hosts, to_look, state_dir / "ssh.json"),
        way=to_look if config.controller else replace(to_look, back=(there, port)),
        request={
            "address": config.controller or f"tls:127.0.0.1:{there}",
            "lease_s": config.lease_s,
            "authority": authority.certificate,
        },
        most=settings.most_nodes,
        wind_down_s=wind_down_s(settings),
    )
    return ProviderSetup(
        provider=provider,
        address=f"tls:{'0.0.0.0' if config.controller else '127.0.0.1'}:{port}",  # noqa: S104 - certificates on both ends
        authority=authority,
        lease_s=config.lease_s,
        port_field="hosts.toml: agents_port",
        elsewhere=True,
        limits={offer.id: Limit(max_nodes=settings.most_nodes) for offer in provider.offers},
    )


def look_at(hosts: Sequence[Host], way: Way) -> dict[str, dict[str, Any] | str]:
    """The hardware of each machine, or why it does not say."""

    async def look() -> dict[str, dict[str, Any] | str]:
        lines = [HostLine(host, way, up=_nothing, down=_nothing, gone=_nothing) for host in hosts]
        for line in lines:
            line.open()
        tried = [asyncio.ensure_future(line.tried.wait()) for line in lines]
        await asyncio.wait(tried, timeout=LOOK_S)
        found: dict[str, dict[str, Any] | str] = {
            line.host.name: line.why if line.found is None else dict(line.found) for line in lines
        }
        await asyncio.gather(*(line.close() for line in lines))
        for task in tried:
            task.cancel()
        return found

    answer: dict[str, dict[str, Any] | str] = {}
    thread = threading.Thread(target=lambda: answer.update(asyncio.run(look())))  # we may be within a loop
    thread.start()
    thread.join()
    return answer


def _as_found(hosts: Sequence[Host], way: Way, kept: Path) -> list[Host]:
    """With GPUs and workers filled in: as the file says, as was found before, or as they say now."""
    known = _read_found(kept)
    unseen = [host for host in hosts if not host.slots and host.name not in known]
    for name, facts in (look_at(unseen, way) if unseen else {}).items():
        if isinstance(facts, str):
            hint = f"mend it, or say in hosts.toml what {name} has: slots, and gpu where it has GPUs"
            raise NoAccess(f"the machine {name}", facts, hint=hint)
        known[name] = _from_look(facts)
    if unseen:
        private_file(kept)
        kept.write_text(json.dumps(known), encoding="utf-8")
    return [host if host.slots else replace(host, **known[host.name] | _given(host)) for host in hosts]


def _read_found(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(path, f"cannot be read ({error})", hint="remove it: the machines are looked at again") from None
    return found


def _given(host: Host) -> dict[str, Any]:
    return {"gpu": host.gpu} if host.gpu else {}


def _from_look(facts: dict[str, Any]) -> dict[str, Any]:
    """GPUs of a machine are of one kind; where they are not, it is the first one's that counts."""
    names = facts["gpus"]
    return {"slots": len(names), "gpu": _short(names[0])} if names else {"slots": facts["cpus"], "gpu": ""}


def _short(name: str) -> str:
    """NVIDIA GeForce RTX 4090 -> RTX-4090; as users write it in a job file."""
    words = [word for word in name.split() if word.lower() not in {"nvidia", "geforce", "tesla", "graphics", "device"}]
    return "-".join(words) or name


def _nothing(*_: object) -> None:
    """A listener that does nothing."""
