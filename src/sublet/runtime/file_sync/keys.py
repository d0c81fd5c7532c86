"""Files that never travel with a folder, wherever they lie in it: the keys of its owner, and those of a controller.

A job file that lies in a home directory would send all of that home to every node. A file or folder that is named in
`file_mounts` travels all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from sublet.errors import BadInput

__all__ = ["may_be_key", "refuse_home", "refuse_keys"]

KEYS = frozenset({".ssh", ".aws", ".gnupg", ".netrc", ".azure", ".kube", ".git-credentials", ".pgpass", ".pypirc"})
KEYS_IN = frozenset({(".config", "gcloud"), (".config", "gh"), (".config", "rclone"), (".docker", "config.json")})
STATE = frozenset({"log.sqlite", "identity"})  # what a state directory has: the second is its authority's key
MAYBE = (".env", ".env.*", "*.env", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx")
MAYBE_ALSO = ("credentials", "credentials.json", "client_secret*.json", "*service*account*.json", ".npmrc", ".htpasswd")
FORMS = (".env.example", ".env.sample", ".env.template", ".env.dist")  # to be filled in
HINT = "leave it out by .subletignore; a job that needs a key has 'secrets', or 'file_mounts' that name it"


def refuse_home(folder: Path, *, decided: bool) -> None:
    """BadInput for the home of the present user, and for the folders around it, unless it is `decided` what goes."""
    if not decided and Path.home().resolve().is_relative_to(folder):
        hint = (
            f"put the job's files into a folder of their own and name it in 'workdir', or write {folder}/.subletignore"
        )
        raise BadInput(folder, "has your home in it, and all of that would be sent to nodes", hint=hint)


def refuse_keys(folder: Path, found: Collection[Path]) -> None:
    """BadInput if one of those that would travel from this folder has keys."""
    for path in found:
        if path.name in KEYS or (folder.name, path.name) in KEYS_IN:
            raise BadInput(path, "is never sent: it has keys of yours", hint=HINT)
    if {path.name for path in found} >= STATE:
        raise BadInput(folder, "is never sent: it is a state directory, with the keys of its controller", hint=HINT)


def may_be_key(path: str) -> bool:
    """By its name alone: such a file may as well be what a job needs, so that it is told, and sent."""
    name = PurePosixPath(path).name.lower()
    return name not in FORMS and any(fnmatchcase(name, pattern) for pattern in (*MAYBE, *MAYBE_ALSO))
