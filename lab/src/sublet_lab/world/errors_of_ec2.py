"""Errors of a client of EC2, as far as they are looked at: the answer of botocore's errors, or their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Code = tuple[str, str, float, Callable[[], None]]  # of which call, the answer, until when, the listener
NO_CODE: Code = ("", "", 0.0, lambda: None)


class Ec2Error(Exception):
    """As botocore's ClientError: its answer is all that is looked at."""

    def __init__(self, code: str, status: int = 400, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        metadata = {"HTTPStatusCode": status, "HTTPHeaders": dict(headers or {})}
        self.response = {"Error": {"Code": code, "Message": "as the story wants it"}, "ResponseMetadata": metadata}


class ReadTimeoutError(Exception):
    """As botocore's: without an answer."""


class NoCredentialsError(Exception):
    """As botocore's: there is nothing to sign a call with."""
