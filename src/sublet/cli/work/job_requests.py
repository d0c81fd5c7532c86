"""Requests about one job of the controller."""

from __future__ import annotations

from typing import Any


def post_to_job(job: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask for it; the job as it is then."""
    from sublet.api.client import connect, segment

    return connect().post(f"/v1/jobs/{segment(job)}/{verb}", body)
