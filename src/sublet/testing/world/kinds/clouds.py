"""What goes wrong at real clouds beyond what goes wrong at all of them; drawn only for lives that are led there."""

from __future__ import annotations

import random
from collections.abc import Callable

from sublet.testing.world.ec2 import EVERYTHING, Ec2Cloud
from sublet.testing.world.local import LocalCloud
from sublet.testing.world.stage import Stage

__all__ = ["CLOUD_KINDS"]

LONGEST_PAUSE_S = 60.0  # of a door that was closed, and of a release that is tried again
CODES = ("Unavailable", "Throttling", "AuthFailure", "AccessDenied", "NoCredentialsError", "InvalidParameterValue")
SCARCE = ("InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded", "InsufficientFreeAddressesInSubnet")
MOST_CALLS = 12  # until a crash


def _throttle(stage: Stage, dice: random.Random) -> bool:
    """Too many calls, of one verb or of all."""
    for_s = dice.uniform(10.0, 90.0)
    for call in dice.choice([("rent",), ("release",), ("list",), ("rent", "release", "list")]):
        stage.cloud.lie(call, "throttled", for_s)
        if call != "rent":
            _cannot_be_given_back(stage, for_s)
    return True


def _credentials(stage: Stage, dice: random.Random) -> bool:
    """They have expired; somebody logs in again later."""
    for_s = dice.uniform(10.0, 120.0)
    stage.cloud.lie(EVERYTHING, "expired", for_s)
    _cannot_be_given_back(stage, for_s)
    return True


def _not_ended(stage: Stage, dice: random.Random) -> bool:
    """A termination is accepted and not carried out."""
    for_s = dice.uniform(10.0, 60.0)
    stage.cloud.lie("release", "accepted", for_s)
    _cannot_be_given_back(stage, for_s + 180.0)
    return True


def _refused_end(stage: Stage, dice: random.Random) -> bool:
    """A termination is not allowed."""
    for_s = dice.uniform(10.0, 90.0)
    stage.cloud.lie("release", "refused", for_s)
    _cannot_be_given_back(stage, for_s)
    return True


def _price_garbage(stage: Stage, dice: random.Random) -> bool:
    """The list of prices says what no price can be."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False
    stage.cloud.garble(dice.choice(["0", "-1", "nan", "free", "1e9", "30.0", "0.0001"]), dice.uniform(60.0, 300.0))
    return True


def _crash_call(stage: Stage, dice: random.Random) -> bool:
    """The controller is gone before or after one of its next calls has reached the cloud."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False
    stage.cloud.on_crash = stage.controllers.crash
    stage.cloud.crash_in(dice.randrange(MOST_CALLS), before=dice.random() < 0.5)
    return stage.controllers.alive


def _ec2_code(stage: Stage, dice: random.Random) -> bool:
    """EC2 answers calls of one kind by one of its many codes for a while. The effect is an answer."""
    if not isinstance(stage.cloud, Ec2Cloud):
        return False

    told = False

    def struck() -> None:
        nonlocal told
        stage.effects["ec2_code"] += not told
        told = True

    call, for_s = dice.choice(["rent", "rent", "release", "list"]), dice.uniform(5.0, 60.0)
    stage.cloud.answer_with(call, dice.choice(CODES + (SCARCE if call == "rent" else ())), for_s, struck)
    if call != "rent":
        _cannot_be_given_back(stage, for_s)
    return False


def _full_folder(stage: Stage, dice: random.Random) -> bool:
    """Nothing more can be written down of nodes for a while."""
    if not isinstance(stage.cloud, LocalCloud | Ec2Cloud):
        return False
    files, for_s = stage.cloud.files, dice.uniform(5.0, 60.0)
    files.full = True
    stage.world.after(for_s, files.make_room)
    _cannot_be_given_back(stage, for_s)
    return True


def _damaged_record(stage: Stage, dice: random.Random) -> bool:
    """What is written down of a node cannot be read any more."""
    if not isinstance(stage.cloud, LocalCloud | Ec2Cloud):
        return False
    files = stage.cloud.files
    records = sorted(path for path in files.contents if path.suffix == ".json" and path.parent.name == "nodes")
    if not records:
        return False
    victim = dice.choice(records)
    files.contents[victim] = dice.choice([b"", b"{", b"\xff\xfe", files.contents[victim][:20], b"[1]"])
    return True


def _cannot_be_given_back(stage: Stage, for_s: float) -> None:
    stage.unpaid_until_s = max(stage.unpaid_until_s, stage.world.now_s + for_s + LONGEST_PAUSE_S)


CLOUD_KINDS: dict[str, dict[str, Callable[[Stage, random.Random], bool]]] = {
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
