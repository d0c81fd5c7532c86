"""Faults of real clouds beyond those of all clouds; drawn only for lives that are led there."""

from __future__ import annotations

import random
from collections.abc import Callable

from sublet_lab.world.ec2 import EVERYTHING, Ec2Cloud
from sublet_lab.world.local import LocalCloud
from sublet_lab.world.stage import Kind, Stage

LONGEST_PAUSE_S = 60.0  # of a door that was closed, and of a release that is tried again
CODES = ("Unavailable", "Throttling", "AuthFailure", "AccessDenied", "NoCredentialsError", "InvalidParameterValue")
SCARCE = ("InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded", "InsufficientFreeAddressesInSubnet")
DONE_WITHIN_S = 180.0  # until a termination that was accepted and not carried out is asked for again
MOST_CALLS = 12  # until a crash
A_JUMP = "30.0"  # per hour: what a node might cost, and does not
LATE_READING_S = 180.0  # until the next price is read after all, by the next controller if need be


def _throttle(stage: Stage, rng: random.Random) -> None:
    """Too many calls, of one verb or of all."""
    for_s = rng.uniform(10.0, 90.0)
    calls = rng.choice([("rent",), ("release",), ("list",), ("rent", "release", "list")])
    stage.victim, again = ", ".join(calls), stage.not_given_back(for_s + LONGEST_PAUSE_S)
    struck, struck_again = stage.later("throttle"), stage.later("throttle", again)
    for call in calls:
        stage.cloud.lie(call, "throttled", for_s, struck if call == "rent" else struck_again)


def _credentials(stage: Stage, rng: random.Random) -> None:
    """They have expired; a user logs in again later."""
    for_s = rng.uniform(10.0, 120.0)
    again = stage.not_given_back(for_s + LONGEST_PAUSE_S)
    stage.cloud.lie(EVERYTHING, "expired", for_s, stage.later("credentials", again))


def _not_ended(stage: Stage, rng: random.Random) -> None:
    """A termination is accepted and not carried out."""
    for_s = rng.uniform(10.0, 60.0)
    again = stage.not_given_back(for_s + DONE_WITHIN_S + LONGEST_PAUSE_S)
    stage.cloud.lie("release", "accepted", for_s, stage.later("not_ended", again))


def _refused_end(stage: Stage, rng: random.Random) -> None:
    """A termination is not allowed."""
    for_s = rng.uniform(10.0, 90.0)
    again = stage.not_given_back(for_s + LONGEST_PAUSE_S)
    stage.cloud.lie("release", "refused", for_s, stage.later("refused_end", again))


def _price_garbage(stage: Stage, rng: random.Random) -> bool | None:
    """The list of prices says what no price can be."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False
    stage.victim = text = rng.choice(["0", "-1", "nan", "free", "1e9", A_JUMP, "0.0001"])
    for_s = rng.uniform(60.0, 300.0)
    charged = _charged(stage, for_s + LATE_READING_S) if text == A_JUMP else lambda: None
    stage.cloud.garble(text, for_s, stage.later("price_garbage", charged))
    return None


def _charged(stage: Stage, for_s: float) -> Callable[[], None]:
    """A jump that was read may be true: what runs is charged it, up to its cap, until it is taken back."""
    caps = sum(offer.cap.micro_usd_per_h for offer in stage.cloud.offers if offer.cap is not None) * 1e6
    left = [caps * stage.story.most_nodes * for_s]

    def forgive() -> None:
        if left:
            stage.most_over_grains += left.pop()

    return forgive


def _crash_call(stage: Stage, rng: random.Random) -> bool | None:
    """The controller is gone before or after one of its next calls has reached the cloud."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False
    stage.cloud.on_crash = stage.controllers.crash
    calls, before = rng.randrange(MOST_CALLS), rng.random() < 0.5
    stage.cloud.crash_in(calls, before=before, struck=stage.later("crash_call"))
    return None


def _ec2_code(stage: Stage, rng: random.Random) -> bool | None:
    """EC2 answers calls of one kind by one of its many codes for a while. The effect is an answer."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False
    call, for_s = rng.choice(["rent", "rent", "release", "list"]), rng.uniform(5.0, 60.0)
    stage.victim = code = rng.choice(CODES + (SCARCE if call == "rent" else ()))
    again = stage.not_given_back(for_s + LONGEST_PAUSE_S)
    struck = stage.later("ec2_code") if call == "rent" else stage.later("ec2_code", again)
    stage.cloud.answer_with(call, code, for_s, struck)
    return None


def _full_folder(stage: Stage, rng: random.Random) -> bool | None:
    """Nothing more can be written down of nodes for a while."""
    if not isinstance(stage.cloud, LocalCloud | Ec2Cloud):
        return False
    files, for_s = stage.cloud.files, rng.uniform(5.0, 60.0)
    files.full, files.refused = True, stage.later("full_folder", stage.not_given_back(for_s + LONGEST_PAUSE_S))
    stage.world.after(for_s, files.make_room)
    return None


def _damaged_record(stage: Stage, rng: random.Random) -> bool | None:
    """The record of a node cannot be read any more. The effect is a read of it."""
    if not isinstance(stage.cloud, LocalCloud | Ec2Cloud):
        return False
    files = stage.cloud.files
    records = sorted(path for path in files.contents if path.suffix == ".json" and path.parent.name == "nodes")
    if not records:
        return False
    victim = rng.choice(records)
    stage.victim = victim.name
    files.contents[victim] = rng.choice([b"", b"{", b"\xff\xfe", files.contents[victim][:20], b"[1]"])
    files.watched[victim] = stage.later("damaged_record")
    return None


CLOUD_KINDS: dict[str, dict[str, Kind]] = {
    "aws": {
        "throttle": _throttle,
        "credentials": _credentials,
        "not_ended": _not_ended,
        "refused_end": _refused_end,
        "crash_call": _crash_call,
        "price_garbage": _price_garbage,
        "full_folder": _full_folder,
        "damaged_record": _damaged_record,
        "ec2_code": _ec2_code,
    },
    "local": {
        "full_folder": _full_folder,
        "damaged_record": _damaged_record,
    },
}
