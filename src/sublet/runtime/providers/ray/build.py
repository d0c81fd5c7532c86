"""From settings and `ray.toml` to a provider on a Ray cluster: what is chosen once stays for every later start."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sublet.domain.budget import Limit
from sublet.errors import BadInput
from sublet.machine.rng import RNG
from sublet.runtime.clock import Clock
from sublet.runtime.identity.authority import Authority
from sublet.runtime.private import private_file
from sublet.runtime.providers.ray.cluster import Cluster
from sublet.runtime.providers.ray.config import (
    NodeKind,
    config_path,
    kind_from_json,
    kind_to_json,
    kinds_from,
    read_config,
)
from sublet.runtime.providers.ray.provider import RayProvider, RayTerms
from sublet.runtime.providers.setup import ProviderSetup, require_engine, wind_down_s
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store


def build(settings: Settings, clock: Clock, store: Store) -> ProviderSetup:
    """Join the cluster; kinds of nodes, our name there and our port are those of the first start."""
    del store  # what was chosen is in a file of its own
    require_engine(settings, "ray")
    state_dir = Path(settings.state_dir)
    config = read_config(config_path(state_dir))
    cluster = Cluster(config.address)
    cluster.connect()
    path = state_dir / "ray.json"
    facts = _read_choice(path) if path.exists() else _choose(path, cluster, config.kinds)
    kinds = config.kinds or tuple(kind_from_json(kind) for kind in facts["kinds"])
    # Agents of before were told of a line in the clear, and look for us there; so it stays for their state directory.
    authority = Authority(state_dir / "identity", wall=clock.wall) if facts.get("certificates") else None
    address = f"{'tcp' if authority is None else 'tls'}:{cluster.host}:{facts['port']}"
    provider = RayProvider(
        state_dir=state_dir,
        clock=clock,
        cluster=cluster,
        kinds=kinds,
        terms=RayTerms(
            address=address,
            namespace=facts["namespace"],
            wind_down_s=wind_down_s(settings),
            lease_s=settings.lease_s,
            authority="" if authority is None else authority.certificate,
        ),
    )
    return ProviderSetup(
        provider=provider,
        address=address,
        authority=authority,
        lease_s=settings.lease_s,
        limits={f"ray:{kind.name}": Limit(max_nodes=settings.most_nodes or kind.most) for kind in kinds},
        warm=provider.warm,
        elsewhere=True,  # each node says whether it sees our disk; where it does not, files travel
    )


def _choose(path: Path, cluster: Cluster, kinds: Sequence[NodeKind]) -> dict[str, Any]:
    kinds = kinds or kinds_from(cluster.look())
    if not kinds:
        hint = "start nodes with CPUs or GPUs, or name the kinds that Ray's autoscaler can get in ray.toml"
        raise BadInput("the Ray cluster", "has no node that could train", hint=hint)
    with socket.socket() as probe:
        probe.bind((cluster.host, 0))
        port = probe.getsockname()[1]  # agents look for us there after a restart, too
    namespace = f"sublet-{RNG.token(8)}"
    kept = [kind_to_json(kind) for kind in kinds]
    facts = {"namespace": namespace, "port": port, "kinds": kept, "certificates": True}
    private_file(path)
    path.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def _read_choice(path: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(path, f"cannot be read ({error})", hint="use another state directory (SUBLET_STATE)") from error
    return facts
