"""The shell that SkyPilot runs a job's texts in: it reads ~/.bashrc, and goes on after a command that fails."""

from __future__ import annotations

from typing import Final

__all__ = ["as_skypilot"]

# A .bashrc ends early in a shell that is not interactive; SkyPilot's is interactive. A shell of that kind ignores
# SIGTERM, which a job must not, so that only the lines that ask for it are passed over.
ASKS: Final = (r"/^case \$- in/,/^esac/d", r"/\$- *!= *\*i\*/d", r'/^\[ -z "*\$PS1"* \] && return/d')
PASSED: Final = " ".join(f"-e '{each}'" for each in ASKS)
BEGIN: Final = f"""\
set +eu +o pipefail  # as SkyPilot runs it: on after a command that fails
. <(sed {PASSED} ~/.bashrc 2>/dev/null) >/dev/null 2>&1
[ -z "${{SUBLET_BIN:-}}" ] || PATH="$SUBLET_BIN:$PATH"  # the environment that was asked for, before that of ~/.bashrc
"""


def as_skypilot(text: str) -> str:
    """The text, for `bash -c`."""
    return f"{BEGIN}{text}"
