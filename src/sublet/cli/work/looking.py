"""The process that looks into a bucket for a job's checkpoints: a store that does not answer delays nothing.

    python -m sublet.cli.work.looking URI

It prints one line of JSON: {"step": 400}, the highest step that is committed and of which all objects are there in
their sizes; -1 where there is none. Its errors are on standard error, and it ends with 1.
"""

from __future__ import annotations

import json
import sys

from sublet.errors import SubletError
from sublet.machine.remote import open_uri
from sublet.train.checkpoint.bucket import Bucket


def newest_whole(bucket: Bucket) -> int:
    """As a reader would find it, but for what is in the objects: that is read when it is loaded."""
    return next((step for step in bucket.steps() if bucket.is_all_there(step)), -1)


def main(uri: str) -> int:
    """The exit code."""
    try:
        step = newest_whole(Bucket(open_uri(uri)))
    except (SubletError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps({"step": step}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
