"""`python -m tests.soak`: see run.py."""

from __future__ import annotations

from tests.soak.run import main

main()
