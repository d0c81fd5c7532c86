"""Names in certificates, and how the two ends of a line check them."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import unquote

CONTROLLER = "controller.sublet"  # every controller, to its nodes: they know it by its authority
NODE = "sublet://node/"


def node_of(line: ssl.SSLObject | ssl.SSLSocket) -> str:
    """The node in the certificate of the other end; "" = it has none."""
    names: Any = (line.getpeercert() or {}).get("subjectAltName", ())
    found = [name.removeprefix(NODE) for kind, name in names if kind == "URI" and name.startswith(NODE)]
    return unquote(found[0]) if found else ""
