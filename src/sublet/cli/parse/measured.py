"""From `--profile NAME` to what was measured: by the name of a job, or by the path of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.perf.live.stored import StoredProfile
    from sublet.runtime.profiles.store import ProfileStore

__all__ = ["measured_names", "measured_profiles"]


def measured_profiles(text: str) -> list[StoredProfile]:
    """Profiles of one job, on each kind of GPU on which it was measured."""
    from sublet.perf.profiles import PROFILES

    if text in {each.name for each in PROFILES}:
        allowed = "one that was measured here; jobs take bundled tables by their model, and 'sublet advise' by --model"
        raise InvalidValue("--profile", text, allowed)
    return _store().find(text)


def measured_names() -> list[str]:
    """Names of all jobs that were measured here."""
    return sorted({each.name for each in _store().all()})


def _store() -> ProfileStore:
    from sublet.runtime.profiles.store import ProfileStore
    from sublet.runtime.settings import default_state_dir

    return ProfileStore(default_state_dir() / "profiles")
