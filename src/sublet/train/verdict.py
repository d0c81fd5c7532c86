"""What has ended a training is said again, whatever the script makes of it: it must not come to a result.

`try: s.step(loss) except Exception: continue` swallows a refusal, and a bare `except:` even the order to leave. The
next call says the same once more. And a process under an agent that was told to leave ends with the code that says so,
though its script should come to an end of its own: with 0 it would count as through.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from types import TracebackType

__all__ = ["Verdict"]


class Verdict:
    """Of one training; entered around all that may end it."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    @property
    def is_said(self) -> bool:
        """Whether it has ended."""
        return self._error is not None

    def check(self) -> None:
        """Say it again, if it was said."""
        if self._error is not None:
            raise self._error

    def of(self, error: BaseException) -> BaseException:
        """It is this, if it is the first."""
        if self._error is None:
            self._error = error
            if isinstance(error, SystemExit) and isinstance(error.code, int) and "SUBLET_WORKER_ID" in os.environ:
                _insist(error.code)
        return error

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | SystemExit):
            self.of(error)


def _insist(code: int) -> None:
    """This process ends with this code, after all that is done at its end."""
    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:  # a fork is another
            return
        atexit.unregister(end)
        atexit._run_exitfuncs()  # noqa: SLF001 - what was to be done at the end before we were told to leave
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(end)
