"""Suites that every plug-in must pass, ours and yours: inherit one in a file that pytest collects, and name yours.

    from sublet.testing.conformance.policies import PolicySuite

    class TestLargestFirst(PolicySuite):
        registered_as = "largest-first"

That is all for a policy. A provider or an engine needs a rig too: a small class that starts your cloud
and looks at it from outside, see `sublet.testing.rigs`.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

from sublet import plugins
from sublet.errors import MissingExtra

try:
    import hypothesis
    import pytest
    from hypothesis import Phase
    from hypothesis import strategies as st
except ModuleNotFoundError as missing:
    raise MissingExtra("pytest or hypothesis", "testing") from missing

__all__ = ["DrawingSuite", "Suite", "check_value"]

# So that a failed assertion shows its values, as in a test file.
PARTS = ("engines", "live", "policies", "providers", "stores")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))


class Suite:
    """The base of all suites, with the plug-in under test."""

    group: ClassVar[str]  # of entry points
    registered_as: ClassVar[str] = ""

    def plugin(self) -> Any:
        """The plug-in registered under the name that the suite was given."""
        if not self.registered_as:
            kind = self.group.rpartition(".")[2]
            pytest.fail(
                f"{type(self).__name__}: say `registered_as = ...`, a name under {self.group}, or make the {kind}"
            )
        return plugins.load(self.group, self.registered_as)

    def test_the_name_is_registered(self) -> None:
        """As an entry point, so that `--policy NAME` and the like find it."""
        if self.registered_as:
            assert self.registered_as in plugins.names(self.group), (
                f"no entry point {self.registered_as!r} in the group {self.group}: "
                "add it to pyproject.toml and install the package again"
            )


class DrawingSuite(Suite):
    """A suite that draws examples: the same ones each time, and others for each class that inherits it."""

    examples: ClassVar[int] = 50  # of each law
    shrink: ClassVar[bool] = False  # look for the smallest example that breaks a law; that may take minutes

    def for_examples(self, law: Callable[..., None], *drawn: st.SearchStrategy[Any], most: int | None = None) -> None:
        """The law holds for everything that can be drawn: tried on so many examples."""
        trials = hypothesis.settings(
            max_examples=most or self.examples,
            deadline=None,  # a busy machine is no fault
            database=None,  # the seed already makes it repeat itself
            phases=[Phase.generate, *[Phase.shrink] * self.shrink],
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
        seed = zlib.crc32(type(self).__name__.encode())
        hypothesis.seed(seed)(trials(hypothesis.given(*drawn)(law)))()


def check_value(one: object, *, verb: str) -> None:
    """It is a frozen dataclass whose only public method is `verb`."""
    kind = type(one)
    facts = getattr(kind, "__dataclass_params__", None)
    assert facts is not None, f"{kind.__name__} is no dataclass"
    assert facts.frozen, f"{kind.__name__} can be changed: say @dataclass(frozen=True)"
    verbs = [name for name, value in vars(kind).items() if not name.startswith("_") and inspect.isfunction(value)]
    assert verbs == [verb], f"{kind.__name__} has the public methods {verbs}: `{verb}` is all it may have"
