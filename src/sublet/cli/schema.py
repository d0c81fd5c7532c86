"""`sublet schema`: the JSON schema of job files, for editors."""

from __future__ import annotations

from sublet.cli.show import print_json

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON schema of job files."""
    from sublet.runtime.jobfile import json_schema

    print_json(json_schema())
