"""A controller outside the box that rents in it: its `aws.toml`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sublet_lab.box.cloud import REGION
from sublet_lab.box.hypervisor import Box

KIND = "g4dn.xlarge"  # one GPU: a worker
IMAGE = "ami-03cf127a"  # one that moto knows


def write_config(state_dir: Path, box: Box, port: int, facts: Mapping[str, Any] | None = None) -> Path:
    """The file, in a state directory that is there then; `facts` go before ours."""
    settings = {
        "regions": [REGION],
        "instance_types": [KIND],
        "markets": ["on-demand"],  # moto's spot prices cannot be believed
        "image": IMAGE,
        "controller": f"tls:{box.address}:{port}",
        "agents_port": port,
        "python": sys.executable,
        "boot_s": 10,
        "lease_s": 30,
        "endpoint_url": box.endpoint,
        **(facts or {}),
    }
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = state_dir / "aws.toml"
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in settings.items()), encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'
