"""What must hold of a training after its width has changed twenty times, beside one that was left alone."""

from __future__ import annotations

import os

import torch

SEED = int(os.environ.get("TEST_SEED", "1"))


def require_same(run, place, *, comparable=True):
    """In all ranks to the bit, and as if nobody had changed anything, within rounding."""
    alone, disturbed = run["alone"], run["disturbed"]
    assert len(disturbed["kinds"]) == 20
    assert set(disturbed["codes"]) == {0}
    (expected,) = ends_of(place / "alone")
    first, *others = ends_of(place / "disturbed")
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
    assert len(disturbed["codes"]) == 1 + len(others)
    if comparable:
        assert disturbed["given"] == alone["given"]
        assert disturbed["steps"] == alone["steps"]
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)


def ends_of(place):
    """What each worker left behind that came to the end."""
    return [torch.load(path) for path in sorted(place.glob("w*.pt"))]
