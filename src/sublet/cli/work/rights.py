"""The name of a controller in the tags of what it rents, and the narrowest rights that it needs on AWS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sublet.api.state import StateDir
from sublet.runtime.controller_host.ground import anchor_statements
from sublet.runtime.providers.aws.build import server_id_from
from sublet.runtime.providers.aws.check import narrow_policy
from sublet.runtime.providers.aws.config import config_path, read_config
from sublet.runtime.store import MetaKey, Store


def narrow_policy_of(folder: Path) -> dict[str, Any]:
    """The IAM policy for this state directory and its aws.toml."""
    config = read_config(config_path(folder))
    server = server_id(folder)
    if server is None:  # a directory that no controller has had yet: it gets its name now
        StateDir(folder).prepare()
        store = Store(folder / "log.sqlite")
        try:
            server = server_id_from(store)
        finally:
            store.close()
    policy = narrow_policy(config, server)
    if config.anchor_profile or not config.controller:
        policy["Statement"] += anchor_statements(config, server)
    return policy


def server_id(folder: Path) -> str | None:
    """None where no controller has run."""
    path = folder / "log.sqlite"
    if not path.exists():
        return None
    store = Store(path)
    try:
        return store.get(MetaKey.SERVER_ID)
    finally:
        store.close()
