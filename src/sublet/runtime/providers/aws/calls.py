"""Calls to EC2: in threads, with time-outs and retries of our own, and every failure as one of our errors.

Only the meaning of an error for the caller matters: nothing was done and why (`Refusal`), we ask too often
(TooManyCalls), we are not let in (NoAccess), or the outcome is unknown (NoAnswer).

Codes: "Error codes for the Amazon EC2 API" in the EC2 API reference.

The time at the cloud, by the dates of its own answers: people set the clock of our machine as they like. EC2 says when
an instance began and ended by its own clock. A bill that compares this with ours is wrong by the error of ours: an
hour, if it is set back by one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sublet.errors import MissingExtra, NoAccess, NoAnswer, SubletError, TooManyCalls
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall

AGREES_S = 3.0  # answers have whole seconds, and take one or two to come
BELIEVED_S = 600.0  # that an answer counts for: our monotonic clock may run a little faster than EC2's
CONNECT_S = 5.0
READ_S = 20.0
TRIES = 6  # of a call that is throttled: about 15 s in all, and the time-outs
FIRST_PAUSE_S = 0.5
IN_DOUBT = (
    *("InternalError", "InternalFailure", "ServerInternal", "ServiceUnavailable", "Unavailable", "RequestTimeout"),
    "IdempotentParameterMismatch",  # the token was used, with other words: something exists
)
THROTTLED = (
    *("RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException"),
    *("EC2ThrottledException", "SlowDown", "RequestThrottled", "BandwidthLimitExceeded"),
)
NO_ENTRY = {
    "AuthFailure": "the credentials are wrong or not for this region: 'sublet check' tells which",
    "ExpiredToken": "the credentials have expired: log in again (aws sso login), then go on; nothing is lost",
    "ExpiredTokenException": "the credentials have expired: log in again (aws sso login), then go on; nothing is lost",
    "InvalidClientTokenId": "the access key does not exist: 'aws configure', or another AWS_PROFILE",
    "OptInRequired": "open the region, or accept the terms of the image, in the AWS console",
    "RequestExpired": "the clock of this machine is wrong, or the credentials have expired: 'sublet check' tells",
    "SignatureDoesNotMatch": "the secret key is wrong: 'aws configure'",
    "UnauthorizedOperation": "give the role the rights in src/sublet/data/aws/iam-policy.json",
    "AccessDenied": "give the role the rights in src/sublet/data/aws/iam-policy.json",
    "AccessDeniedException": "give the role the rights in src/sublet/data/aws/iam-policy.json",
    "UnrecognizedClientException": "the access key does not exist: 'aws configure', or another AWS_PROFILE",
}
SCARCE = {  # what it means, and how long to leave the pool alone at first
    "InsufficientCapacity": ("no capacity", 60.0),
    "InsufficientCapacityOnHost": ("no capacity", 60.0),
    "InsufficientHostCapacity": ("no capacity", 60.0),
    "InsufficientInstanceCapacity": ("no capacity", 60.0),
    "InsufficientReservedInstanceCapacity": ("no capacity", 60.0),
    "SpotMaxPriceTooLow": ("the spot price is above our cap", 60.0),
    "InstanceLimitExceeded": ("the quota of the account is used up; ask for more in Service Quotas", 300.0),
    "MaxSpotInstanceCountExceeded": ("the spot quota of the account is used up; ask for more in Service Quotas", 300.0),
    "VcpuLimitExceeded": ("the vCPU quota of the account is used up; ask for more in Service Quotas", 300.0),
    "InsufficientAddressCapacity": ("no public address is left", 300.0),
    "InsufficientFreeAddressesInSubnet": ("no address is left in the subnet", 300.0),
    "Unsupported": ("this zone does not have this type", 3600.0),
}
UNLOCKS = (
    "'sublet check' tells which right or setting is in the way (rights: src/sublet/data/aws/iam-policy.json; settings: "
    "aws.toml); mend it, then 'sublet up': no job is lost, and what is rented ends with its lease meanwhile"
)
# By botocore's names: these fetch new credentials by themselves. Those of the environment end with it.
RENEWED = (
    "assume-role",
    "assume-role-with-web-identity",
    "container-role",
    "custom-process",
    "iam-role",
    "login",
    "sso",
)
TOO_MANY = 429  # HTTP
LONGEST_WAIT_S = 600.0  # that we let a cloud keep us waiting by a header: one digit too many must not stop everything
OTHER_REFUSAL_S = 600.0  # a parameter that AWS does not like: its user must change something


class ServerTime:
    """An answer was made before it came, so that the one which is ahead of all others is the nearest to the truth."""

    def __init__(self, wall: Wall = WALL) -> None:
        self._wall = wall
        self._ahead_s = -math.inf  # of EC2's clock before our monotonic one
        self._heard_s = -math.inf

    def unix(self) -> float:
        """Seconds since 1970 at EC2; by our own clock, which is finer, unless the answers say that it is wrong."""
        ours_s, theirs_s = self._wall.unix(), self._wall.monotonic() + self._ahead_s
        return theirs_s if math.isfinite(theirs_s) and abs(ours_s - theirs_s) > AGREES_S else ours_s

    def hear(self, answer: Any) -> None:
        """An answer of boto3, or the one in an error of it; one without a date says nothing."""
        metadata = answer.get("ResponseMetadata") if isinstance(answer, Mapping) else None
        headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
        date = headers.get("date") if isinstance(headers, Mapping) else None
        if not date:
            return
        try:
            found = parsedate_to_datetime(date)
        except (TypeError, ValueError):
            return
        now_s = self._wall.monotonic()
        ahead_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - now_s
        if ahead_s > self._ahead_s or now_s - self._heard_s > BELIEVED_S:
            self._ahead_s, self._heard_s = ahead_s, now_s


class Refusal(SubletError):
    """AWS said no, and did nothing. Inside these modules only: it becomes RentFailed where an offer is known."""

    def __init__(self, code: str, why: str, wait_s: float, *, what: str = "") -> None:
        self.code, self.why, self.wait_s, self.what = code, why, wait_s, what
        super().__init__(f"{why} ({code})")


def meaning(what: str, error: Exception) -> SubletError:
    """The meaning of a failed call."""
    answer = getattr(error, "response", None)
    facts = answer.get("Error", {}) if isinstance(answer, Mapping) else {}
    code, text = str(facts.get("Code", "")), str(facts.get("Message", "")) or str(error)
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, Mapping) else 0
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoAuthTokenError"):
        return NoAccess(what, text, hint="log in (aws configure, aws sso login) or set AWS_PROFILE")
    if name in ("TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"):
        return NoAccess(what, text, hint="log in again: aws sso login")
    if code in NO_ENTRY:
        return NoAccess(what, text, hint=NO_ENTRY[code])
    if code in THROTTLED or int(status) == TOO_MANY:
        return TooManyCalls(what, code or text, wait_s=_retry_after_s(answer))
    if code in SCARCE:
        why, wait_s = SCARCE[code]
        return Refusal(code, why, wait_s, what=what)
    if not code or code in IN_DOUBT or int(status) >= 500:  # noqa: PLR2004 - the server's own fault
        return NoAnswer(what, f"{code or name}: {text}"[:500])
    return Refusal(code, text, OTHER_REFUSAL_S, what=what)


@contextmanager
def while_it_opens() -> Iterator[None]:
    """A refusal then is for people: the controller ends of it, and its user must change something."""
    try:
        yield
    except Refusal as error:
        what = error.what or "a question to EC2"
        raise NoAccess(what, f"EC2 refuses it: {error.why} ({error.code})", hint=UNLOCKS) from error


def _retry_after_s(answer: Any) -> float | None:
    """How long the cloud asks us to wait, if it says so in seconds."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders") or {} if isinstance(answer, Mapping) else {}
    try:
        wait_s = float(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return min(max(0.0, wait_s), LONGEST_WAIT_S) if math.isfinite(wait_s) else None


def client_maker(endpoint_url: str = "") -> Callable[[str, str], Any]:
    """`make(service, region)`; MissingExtra without boto3."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    session = boto3.session.Session()
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"total_max_attempts": 1, "mode": "standard"},  # ours are below
        max_pool_connections=32,
        user_agent_extra="sublet",
    )

    def make(service: str, region: str) -> Any:
        return session.client(service, region_name=region, endpoint_url=endpoint_url or None, config=config)

    return make


def expiry_of(client: Any) -> datetime | None:
    """When its credentials end. None of those that never do, and of those that are renewed before that."""
    credentials = getattr(getattr(client, "_request_signer", None), "_credentials", None)
    ends = getattr(credentials, "_expiry_time", None)
    return ends if isinstance(ends, datetime) and getattr(credentials, "method", "") not in RENEWED else None


class Calls:
    """EC2 by region. Clients are made once each; boto3's are safe to share between threads, making them is not."""

    def __init__(
        self, make: Callable[[str, str], Any], *, rng: Rng = RNG, wall: Wall = WALL, order_tries: int = TRIES
    ) -> None:
        self._make, self._rng, self._order_tries = make, rng, order_tries
        self.server_time = ServerTime(wall)
        self._clients: dict[str, Any] = {}
        self._making = asyncio.Lock()

    def access_ends(self) -> datetime | None:
        """When the credentials that are in use end, as far as that is known."""
        return next((ends for client in self._clients.values() if (ends := expiry_of(client)) is not None), None)

    async def call(self, region: str, verb: str, **request: Any) -> dict[str, Any]:
        """One answer.

        A call that was too much is asked again after growing pauses, and so is a question without an answer.

        An order without an answer is the caller's: it may have been carried out. With `order_tries` 1, an order that
        was too much fails at once: its caller then makes it wait for its turn.
        """
        pause_s, question = FIRST_PAUSE_S, verb.startswith("describe_")
        tries = TRIES if question else self._order_tries
        for attempt in range(tries):
            failure = await self._once(region, verb, request)
            if isinstance(failure, dict):
                return failure
            again = isinstance(failure, TooManyCalls) or (question and isinstance(failure, NoAnswer))
            if not again or attempt == tries - 1:
                raise failure
            told_s = failure.wait_s if isinstance(failure, TooManyCalls) else None
            await asyncio.sleep((told_s or 0.0) + pause_s * (0.5 + self._rng.random()))  # not all at the same moment
            pause_s *= 2
        raise NoAnswer(verb, "never asked")  # pragma: no cover - the loop ends in a return or a raise

    async def pages(self, region: str, verb: str, key: str, **request: Any) -> list[dict[str, Any]]:
        """All rows of an answer that comes in pages."""
        rows: list[dict[str, Any]] = []
        while True:
            answer = await self.call(region, verb, **request)
            rows += answer.get(key, ())
            if not answer.get("NextToken"):
                return rows
            request["NextToken"] = answer["NextToken"]

    async def _once(self, region: str, verb: str, request: Mapping[str, Any]) -> dict[str, Any] | SubletError:
        try:
            client = await self._client(region)
            answer: dict[str, Any] = await asyncio.to_thread(getattr(client, verb), **request)
            self.server_time.hear(answer)
            return answer
        except SubletError:
            raise
        except Exception as error:  # noqa: BLE001 - botocore has a hundred kinds; `meaning` sorts them
            self.server_time.hear(getattr(error, "response", None))
            return meaning(f"{verb} in {region}", error)

    async def _client(self, region: str) -> Any:
        async with self._making:
            if region not in self._clients:
                self._clients[region] = await asyncio.to_thread(self._make, "ec2", region)
            return self._clients[region]
