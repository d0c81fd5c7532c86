"""The process that lives futures: a controller's loop does not wait for it, and it ends whatever happens.

    python -m sublet.api.what_if.process

A state and a question come on standard input, one document of JSON goes out: the answer, or {"error": ...}.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from sublet.api.what_if.futures import answer
from sublet.api.what_if.question import GRACE_S, unpacked
from sublet.errors import SubletError


def main() -> None:
    """One question."""
    standing, question = unpacked(sys.stdin.buffer.read())
    os.nice(10)
    seconds = int(question.limit_s + GRACE_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        found: object = answer(standing, question)
    except SubletError as error:
        found = {"error": str(error), "exit_code": error.exit_code}
    sys.stdout.write(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main()
