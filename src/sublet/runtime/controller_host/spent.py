"""Whether the budget of a controller host is spent and nothing is rented any more: then the machine ends, too."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["is_over", "is_spent"]

ANSWER_S = 10.0


def is_over(budget: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Nothing may be rented, and nothing is."""
    return bool(budget["exhausted"]) and all(node["phase"] == "gone" for node in nodes)


def is_spent(state_dir: Path) -> bool:
    """As the controller of this directory says; OSError or ValueError where it says nothing."""
    address = json.loads((state_dir / "controller.json").read_text(encoding="utf-8"))
    token = (state_dir / "token.read").read_text(encoding="ascii").strip()
    return is_over(_ask(address, token, "/v1/budget"), _ask(address, token, "/v1/nodes")["nodes"])


def _ask(address: Mapping[str, Any], token: str, path: str) -> Any:
    connection = http.client.HTTPConnection(address["host"], address["port"], timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
