"""Register of a controller host on the laptop, `anchor/record.json`: which of the two may run the controller.

`home` is the one word that decides: the controller of this state may run here, or on the controller host. It changes by
one rename; the other side is fenced before (the file `fenced` in its state directory), so that no crash leaves two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from sublet.errors import BadInput
from sublet.machine.files import FILES, Files

FENCED = "fenced"  # on the controller host: its controller may not run, until the laptop says so


class Home(StrEnum):
    """The side on which the controller of a state directory may run."""

    HERE = "here"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One controller host, from the intent to rent it to its end."""

    region: str
    token: str  # of the launch: asked again, it is the same one
    nonce: str  # by which the machine proves its host key to us, once
    expires_unix: int  # as the tag of the launch says
    kind: str
    user: str
    python: str
    instance: str = ""  # "" = EC2 has not named it yet
    address: str = ""  # where we reach it
    port: int = 22
    inner: str = ""  # where nodes reach it
    host_key: str = ""  # as in known_hosts; "" = not met yet
    state_dir: str = ""  # over there
    code: str = ""  # over there: where Sublet is
    home: Home = Home.HERE


def folder_of(state_dir: Path) -> Path:
    """Files of the controller host that stay on the laptop: the record, and the key that opens it."""
    return state_dir / "anchor"


def read_record(state_dir: Path, *, files: Files = FILES) -> HostRecord | None:
    """None where there is no controller host."""
    path = folder_of(state_dir) / "record.json"
    try:
        facts = json.loads(files.read(path))
        return HostRecord(**{**facts, "home": Home(facts["home"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        hint = "'sublet gc' shows the host; put a backup of the file back, or end the host and remove the folder"
        raise BadInput(path, f"cannot be read ({error})", hint=hint) from None


def keep(state_dir: Path, record: HostRecord, *, files: Files = FILES) -> HostRecord:
    """On disk when it returns."""
    files.make_folder(folder_of(state_dir))
    files.write(folder_of(state_dir) / "record.json", json.dumps(asdict(record), indent=1).encode())
    return record


def forget(state_dir: Path, *, files: Files = FILES) -> None:
    """It has ended; the record goes first, the key that opened it after."""
    for name in ("record.json", "id_ed25519"):
        files.remove(folder_of(state_dir) / name)


def on_host(state_dir: Path) -> HostRecord | None:
    """The controller host that has the controller of this directory; None where the controller is here."""
    record = read_record(state_dir)
    return record if record is not None and record.home is Home.ANCHOR else None


def refuse_if_away(state_dir: Path) -> None:
    """BadInput where the controller of this state may not run here: it is elsewhere, or on its way."""
    if (record := on_host(state_dir)) is not None:
        why = f"its controller lives on the controller host {record.instance} ({record.address})"
        hint = "all commands work through it; 'sublet up --on aws' mends it, 'sublet move --to local' brings it back"
        raise BadInput(state_dir, why, hint=hint)
    if (state_dir / FENCED).exists():
        why = "it was handed over: its controller runs, or will run, elsewhere"
        raise BadInput(state_dir, why, hint="'sublet up --on aws' on the laptop lets it go on here")
