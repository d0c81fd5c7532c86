"""How large the parts of a job may be, and of which letters: the same for a job file, the command line and the API.

A job's name is part of paths and of ids, its variables and its command go to the kernel of a node as they are, and its
numbers are divided by one another. The checks here must do for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from sublet.domain.quantity import whole, within
from sublet.errors import InvalidValue
from sublet.machine.remote import check_uri, is_remote

MOST_WORKERS: Final = 4096  # of one job: a group meets at one rank and re-forms at every loss, which no wider one does
MOST_STAGES: Final = 8
MOST_USD: Final = 1e9  # a budget beyond this is a slip of the keyboard
LEAST_KEPT, MOST_KEPT = 2, 1000  # checkpoints: the newest may be damaged
MOST_NODES: Final = 10_000  # that a file may ask for; how many workers they make is bounded beside it
MOST_STEPS: Final = 10**12  # and samples, and samples per step: beyond it a number is a slip of the keyboard
MOST_RETRIES: Final = 1_000_000
FAULTS: Final = ("preemption", "infra", "user")  # by which retries are counted
MOST_WORDS: Final = 4096  # of a command
MOST_KINDS: Final = 64
LONGEST_TEXT: Final = 131_071  # bytes: Linux takes no longer argument or variable (MAX_ARG_STRLEN, with its zero byte)
LONGEST_IN_ALL: Final = 1 << 19  # bytes of command and variables: a quarter of what Linux takes (ARG_MAX 2 MiB)
LONGEST_PATH: Final = 4095  # bytes: PATH_MAX, with its zero byte
MOST_MOUNTS: Final = 256
MOST_NOTES: Final = 100

VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
NAME: Final = (
    "1 to 63 letters, digits, hyphens, dots and underscores, a letter or digit first, and no two dots together"
)
VARIABLE: Final = "a name of letters, digits and underscores that does not begin with a digit"
_NAME = re.compile(NAME_PATTERN[1:-1], re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^/].*", re.ASCII | re.DOTALL)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/-]{0,62}", re.ASCII)
LONG_BITS: Final = 64  # beyond it a number is not worth repeating

RANGES: Final[Mapping[str, tuple[float, float]]] = {  # what a job could have; beyond it a number is something else
    "work": (1e-6, 1e18),  # samples
    "samples_per_s": (1e-9, 1e12),
    "restart_s": (0.0, 1e6),
    "grace_s": (0.0, 1e6),
    "hang_s": (1.0, 1e9),
    "replace_s": (1.0, 1e6),
    "checkpoint_every_s": (1e-3, 1e9),
    "purse_usd": (1e-6, MOST_USD),
    "deadline_s": (1e-3, 1e9),
    "weight": (1e-6, 1e6),
}


class MarketChoice(StrEnum):
    """On which market a job may run."""

    AUTO = "auto"  # on any
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class Shards(StrEnum):
    """Whether the optimizer's state is in ranges, of which each worker has one."""

    AUTO = "auto"  # where it does not fit otherwise
    ON = "on"
    OFF = "off"


class OnNodeLoss(StrEnum):
    """The reaction of a job that loses a node."""

    CONTINUE = "continue"  # the survivors go on
    REPLACE = "replace"  # they wait for another node in its place, for a while
    RESTART = "restart"  # all start again from the last checkpoint
    FAIL = "fail"  # it has failed, and can be resumed


def job_name(name: str) -> None:
    """A name that can stand in a path and in an id."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidValue("name", name, NAME)


def digest(field: str, text: str) -> None:
    """A SHA-256 in hexadecimal digits, or none."""
    if text and not _DIGEST.fullmatch(text):
        raise InvalidValue(field, text, "64 hexadecimal digits, or left out")


def number(field: str, value: float) -> None:
    """A number of a job, by the name of its field."""
    within(field, value, *RANGES[field])


def workers(low: int, high: int, sizes: Sequence[int] = ()) -> None:
    """From `low` to `high`, and only `sizes` among them."""
    allowed = f"from 1 to {MOST_WORKERS}, the smaller number first"
    if type(low) is not int or type(high) is not int or not 1 <= low <= high <= MOST_WORKERS:
        raise InvalidValue("elastic.workers", f"{_shown(low)}..{_shown(high)}", allowed)
    if len(sizes) > MOST_WORKERS:
        raise InvalidValue("elastic.sizes", f"{len(sizes)} of them", f"at most {MOST_WORKERS}")
    for size in sizes:
        if type(size) is not int or not low <= size <= high:
            raise InvalidValue("elastic.sizes", size, f"from {low} to {high}")


def copies(joins: str, low: int, high: int, *, alone: bool) -> None:
    """Checks against a script's process group (`jobs.groups`); one without any is for one worker, if it is `alone`.

    A script is that which has no session and is started once for each GPU.
    """
    if joins not in {"", "yes", "no"}:
        raise InvalidValue("joins", joins, "yes, no, or left out")
    if joins == "no" and alone and high > 1:
        allowed = (
            "1, for its script joins no process group: each worker would train a copy of the same model\n"
            "  next: --workers 1; or call torch.distributed.init_process_group() where there are several, "
            "see guides/run-jobs.md"
        )
        raise InvalidValue("elastic.workers", f"{low}..{high}" if low < high else high, allowed)


def core(on_demand: int, low: int, choice: str) -> None:
    """Workers that are always on demand, of a job that may shrink to `low`."""
    if type(on_demand) is not int or not 0 <= on_demand <= MOST_WORKERS:
        raise InvalidValue("resources.min_on_demand", on_demand, f"a whole number from 0 to {MOST_WORKERS}")
    if on_demand > low:
        allowed = f"at most {low}, to which it may shrink; or give it {on_demand} workers at least: elastic.workers"
        raise InvalidValue("resources.min_on_demand", on_demand, allowed)
    if on_demand and choice == MarketChoice.SPOT:
        raise InvalidValue("resources.min_on_demand", on_demand, "left out of a job that is on spot only")


def shards(value: str, *, sdk: bool = True, stages: int = 1) -> Shards:
    """Whether the optimizer's state is in ranges."""
    if value not in set(Shards):
        raise InvalidValue("parallel.shards", value, "auto, on or off")
    if value == Shards.ON and not sdk:
        raise InvalidValue("parallel.shards", "on", "left out where the script opens no session of the SDK")
    if value == Shards.ON and stages != 1:
        raise InvalidValue("parallel.shards", "on", "left out beside stages")
    return Shards(value)


def stages(count: int, high: int, sizes: Sequence[int] = (), *, sdk: bool = True) -> None:
    """Parts of a pipeline, of a job of at most `high` workers; 0 = the plan's choice."""
    if type(count) is not int or not 0 <= count <= MOST_STAGES:
        raise InvalidValue("parallel.stages", count, f"auto, or a whole number from 1 to {MOST_STAGES}")
    if count != 1 and not sdk:
        raise InvalidValue("parallel.stages", count or "auto", "left out where the script opens no session of the SDK")
    if count > high:
        allowed = f"at most {high}, a worker for each; or give it {count} workers: elastic.workers"
        raise InvalidValue("parallel.stages", count, allowed)
    if count and sizes and not any(size % count == 0 for size in sizes):
        allowed = (
            f"whole copies of {count} parts, the first {count}, {2 * count}, {3 * count}; or change parallel.stages"
        )
        raise InvalidValue("elastic.sizes", ", ".join(map(str, sizes)), allowed)


def retries(field: str, value: int | None) -> None:
    """A number of attempts; None = for ever."""
    if value is not None and (type(value) is not int or not 0 <= value <= MOST_RETRIES):
        raise InvalidValue(field, value, f"a whole number from 0 to {MOST_RETRIES}, or unlimited")


def market(choice: str) -> MarketChoice:
    """The choice by its name."""
    try:
        return MarketChoice(choice)
    except ValueError:
        raise InvalidValue("resources.spot", choice, "auto, spot or on-demand") from None


def node_loss(choice: str) -> OnNodeLoss:
    """The choice by its name."""
    try:
        return OnNodeLoss(choice)
    except ValueError:
        raise InvalidValue("elastic.on_node_loss", choice, "continue, replace, restart or fail") from None


def checkpoints_kept(count: int) -> None:
    """How many checkpoints stay."""
    whole("checkpoint.keep", count, LEAST_KEPT)
    within("checkpoint.keep", count, LEAST_KEPT, MOST_KEPT)


def command(argv: Sequence[str]) -> None:
    """The command of one worker."""
    if not argv or not argv[0]:
        raise InvalidValue("run", argv, "a command")
    if len(argv) > MOST_WORDS:
        raise InvalidValue("run", f"{len(argv)} words", f"at most {MOST_WORDS}")
    if sum(_text("run", word) for word in argv) > LONGEST_IN_ALL:
        raise InvalidValue("run", "its words", f"at most {LONGEST_IN_ALL} bytes together")


def path(field: str, value: str) -> None:
    """A path; "" where none is given."""
    if _text(field, value) > LONGEST_PATH:
        raise InvalidValue(field, f"{value[:60]}...", f"at most {LONGEST_PATH} bytes")


def checkpoints_at(place: str, *, sdk: bool) -> None:
    """A directory, or the URI of an object store; "" where none is given."""
    path("checkpoint.uri", place)
    if is_remote(place) and not sdk:
        allowed = "a directory, where a script without the SDK can write its own files ($SUBLET_CHECKPOINT_DIR)"
        raise InvalidValue("checkpoint.uri", place, allowed)


def checkpoint_copies_at(place: str, folder: str, *, sdk: bool) -> None:
    """The URI of an object store; "" where none is given."""
    path("checkpoint.copy", place)
    if not place:
        return
    if not is_remote(place):
        raise InvalidValue("checkpoint.copy", place, "s3://, gs:// or az://bucket/prefix")
    if is_remote(folder):
        raise InvalidValue("checkpoint.copy", place, "left out: checkpoint.uri is in an object store already")
    if not sdk:
        allowed = "left out: only checkpoints of the SDK are copied, a script's own files may not be whole"
        raise InvalidValue("checkpoint.copy", place, allowed)


def absolute(field: str, value: str) -> None:
    """A path of a job from elsewhere: the directory that a relative one is meant from is unknown here."""
    if is_remote(value):
        check_uri(field, value)
    elif value and not value.startswith("/"):
        raise InvalidValue(field, value, "an absolute path (one that begins with /)")


def script(field: str, text: str) -> None:
    """A text for bash; "" where none is given."""
    _text(field, text)


def mounts(given: Mapping[str, str], kept: Sequence[str] = (), new: Sequence[str] = ()) -> None:
    """Paths on the node, and what is brought there; `kept` are those of which something goes back."""
    if len(given) > MOST_MOUNTS:
        raise InvalidValue("file_mounts", f"{len(given)} of them", f"at most {MOST_MOUNTS}")
    for there, source in given.items():
        path("file_mounts", there)
        path(f"file_mounts.{there}", source)
        if not there.strip() or ".." in there.split("/"):
            raise InvalidValue("file_mounts", there, "a path on the node, without '..'")
        if not source.startswith("/") and not _URI.fullmatch(source):
            allowed = "an absolute path of this machine, or a URI such as s3://bucket/folder"
            raise InvalidValue(f"file_mounts.{there}", source, allowed)
    for there in (*kept, *new):
        if there not in given or given[there].startswith("/"):
            raise InvalidValue("file_mounts", there, "mounted from a URI, if what is written there is to be kept")


def image(name: str, *, sdk: bool) -> None:
    """A container's image; "" where none is given."""
    path("resources.image_id", name)
    if name and (sdk or name.startswith("-") or any(letter.isspace() for letter in name)):
        raise InvalidValue("resources.image_id", name, "docker: and an image, for a script without the SDK")


def per_node(gpus: int, low: int, high: int, *, sdk: bool, core: int) -> None:
    """GPUs of one process of a command that runs once per node; 0 for one that runs once per GPU."""
    if type(gpus) is not int or not 0 <= gpus <= MOST_WORKERS:
        raise InvalidValue("per_node", gpus, f"a whole number from 0 to {MOST_WORKERS}")
    if gpus and (sdk or low != high or high % gpus):
        raise InvalidValue("per_node", gpus, "0, but for a script without the SDK on so many whole nodes and no others")
    if gpus and core:
        raise InvalidValue("resources.min_on_demand", core, "left out where the command runs once per node")


def notes(given: Sequence[str]) -> None:
    """Notes on a job beside it."""
    if len(given) > MOST_NOTES:
        raise InvalidValue("notes", f"{len(given)} of them", f"at most {MOST_NOTES}")
    for text in given:
        _text("notes", text)


def kinds(names: Sequence[str]) -> None:
    """Kinds of GPUs."""
    if len(names) > MOST_KINDS:
        raise InvalidValue("resources.accelerators", f"{len(names)} of them", f"at most {MOST_KINDS}")
    for name in names:
        if not _KIND.fullmatch(name):
            raise InvalidValue("resources.accelerators", name, "a kind of GPU such as L4 or A100-80GB")


def variables(field: str, given: Mapping[str, str]) -> None:
    """Names and values that a process can be started with; a value is never repeated in an error."""
    size = 0
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidValue(field, name, VARIABLE)
        size += len(name) + _text(f"{field}.{name}", value, hidden=True)
    if size > LONGEST_IN_ALL:
        raise InvalidValue(field, f"{size} bytes", f"at most {LONGEST_IN_ALL} bytes together")


def _text(field: str, value: str, *, hidden: bool = False) -> int:
    """Its bytes; refused if no process can be given it."""
    shown = "***" if hidden else value
    if "\0" in value:
        raise InvalidValue(field, shown, "without a zero byte")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidValue(field, shown, "text that can be written as UTF-8") from None
    if size > LONGEST_TEXT:
        raise InvalidValue(field, shown, f"at most {LONGEST_TEXT} bytes")
    return size


def _shown(value: object) -> str:
    return repr(value) if type(value) is not int or value.bit_length() < LONG_BITS else "a number of many digits"
