"""The suites themselves: what they draw, what they say when something is missing, and that they catch who is wrong."""

from __future__ import annotations

import importlib
import sys

import pytest
from hypothesis import strategies as st

from sublet.errors import MissingExtra
from sublet.policies.fifo import Fifo
from sublet.runtime.providers.local.provider import Box, LocalProvider
from sublet.testing.conformance import DrawingSuite
from sublet.testing.conformance.policies import PolicySuite
from sublet.testing.conformance.providers import ProviderSuite
from sublet.testing.rigs import LocalRig
from sublet.testing.values import an_offer


class Numbers(DrawingSuite):
    """Draws, and keeps what it has drawn."""

    group = "sublet.policies"

    def drawn(self, **how):
        seen = []
        self.for_examples(lambda number: seen.append(number), st.integers(), **how)  # noqa: PLW0108 - needs a function
        return seen


class OtherNumbers(Numbers):
    """Another name, so other examples."""

    examples = 7


def test_examples_are_the_same_each_time_and_others_for_another_class():
    assert Numbers().drawn() == Numbers().drawn()
    assert Numbers().drawn(most=7) != OtherNumbers().drawn()


def test_as_many_examples_are_drawn_as_the_class_says():
    assert len(Numbers().drawn()) == 50
    assert len(OtherNumbers().drawn()) == 7
    assert len(Numbers().drawn(most=3)) == 3


def test_a_failure_is_told_at_once_unless_the_class_wants_the_smallest_example():
    class Patient(Numbers):
        shrink = True

    def smallest(suite):
        seen = []

        def law(number):
            if number > 1000:
                seen.append(number)
                raise ValueError(number)

        with pytest.raises(ValueError, match=r"\d+"):
            suite.for_examples(law, st.integers(0, 10**9))
        return min(seen)

    assert smallest(Numbers()) > smallest(Patient()) == 1001


def test_a_suite_that_is_told_nobodys_name_says_what_is_missing():
    with pytest.raises(pytest.fail.Exception, match=r"a name under sublet\.policies"):
        PolicySuite().make()
    with pytest.raises(pytest.fail.Exception, match="write make_rig"):
        ProviderSuite().make_rig()


def test_one_that_is_made_by_hand_need_not_be_registered():
    class ByHand(PolicySuite):
        examples = 3

        def make(self):
            return Fifo()

    suite = ByHand()
    suite.test_the_name_is_registered()
    suite.test_a_plan_promises_no_more_than_could_be_held_and_paid()


@pytest.mark.parametrize("module", ["sublet.testing.strategies", "sublet.testing.conformance"])
def test_without_hypothesis_the_extra_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[testing\]'"):
        importlib.import_module(module)


class KeepsAll(LocalProvider):
    """Says that it gave back what it keeps, and goes on paying."""

    async def release(self, node_id):
        return None


class WrongRig(LocalRig):
    def provider(self, **knobs):
        offers = [an_offer(self.offer_id, gpus=1)]
        return KeepsAll(
            state_dir=self.folder,
            clock=self.clock,
            offers=offers,
            market=[],
            box=Box(preload=(), lease_s=30.0),
            **knobs,
        )


def test_a_provider_that_keeps_what_it_should_give_back_is_caught():
    rig = WrongRig()
    try:
        with pytest.raises(AssertionError):
            ProviderSuite().test_a_released_node_is_gone_when_release_returns_and_may_be_released_again(rig)
    finally:
        assert rig.clean_up() == ["a"]
