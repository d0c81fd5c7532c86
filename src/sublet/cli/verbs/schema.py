"""`sublet schema`: the JSON schema of job files, for editors."""

from __future__ import annotations

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

__all__ = ["schema"]


def schema(output: opt.OutputOption = opt.Output.JSON, json: opt.Json = False) -> None:
    """Print the JSON schema of job files."""
    from sublet.errors import InvalidValue
    from sublet.runtime.jobs.file import json_schema

    if not opt.wants_document(output, json):
        raise InvalidValue("-o", output.value, "json or yaml: a schema is no table")
    print_document(json_schema())
