"""The next step after a refusal that does not name one itself: every refusal comes with a next step."""

from __future__ import annotations

__all__ = ["OTHERWISE", "advice_for"]

SUBMIT = "change it in the job file ('sublet schema' has what may be there), and try it: sublet submit FILE --dry-run"
BY_PATH = (  # the end of the path that was asked -> what helps there
    ("/v1/jobs", SUBMIT),
    ("/v1/dry-run", SUBMIT),
    ("/resume", "sublet resume --help"),
    ("/scale", "sublet scale --help"),
    ("/v1/budget/top-up", "sublet budget top-up --help"),
    ("/top-up", "sublet budget top-up --help; sublet cost JOB"),
    ("/v1/budget", "sublet budget set --help; sublet budget show"),
    ("/v1/parts", "submit the job again: it sends its files once more"),
)
OTHERWISE = "/v1/openapi.json lists what can be asked, and how"


def advice_for(path: str) -> str:
    """By what was asked of the controller."""
    return next((advice for end, advice in BY_PATH if path.endswith(end)), OTHERWISE)
