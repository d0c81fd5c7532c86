"""Whatever is done to a journal, reading it ends in one of our errors or in the same life."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.errors import SubletError
from sublet.kernel.journal import replay
from tests.rigs.life import a_life
from tests.rigs.sizes import examples

LIFE = a_life()
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.sampled_from([-1.0, 0.5, float("inf"), float("nan"), 1e300]),
    st.sampled_from(["", "x", "o", "p", "n1", "a", "nan", "inf", "JobFinished", "NodeLost", "RentRefused", "Plan"]),
    st.just([]),
    st.just({}),
    st.just([["n1", 4]]),
    st.just({"a": {"pool": "p", "gpus": 1}}),
)


def places(value, path=()):
    """Every place in a piece of JSON, from the root on."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def changed(value, path, new, how):
    if not path:
        return new
    value = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and how == "drop":
        del value[path[0]]
    elif len(path) == 1 and how == "rename" and isinstance(value, dict):
        value[str(new)] = value.pop(path[0])
    else:
        value[path[0]] = changed(value[path[0]], path[1:], new, how)
    return value


@st.composite
def mutated(draw):
    lines = list(LIFE)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        verb = draw(st.sampled_from(["value", "value", "value", "drop", "rename", "cut", "swap", "repeat", "remove"]))
        if verb in {"value", "drop", "rename"}:
            try:
                facts = json.loads(lines[at])
            except ValueError:  # cut in the first round
                continue
            path = draw(st.sampled_from(list(places(facts))))
            lines[at] = json.dumps(changed(facts, path, draw(junk), verb))
        elif verb == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        elif verb == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif verb == "repeat":
            lines.insert(at, lines[at])
        elif len(lines) > 1:
            del lines[at]
    return lines


def test_the_life_itself_can_be_lived_again():
    assert replay(LIFE).now_s == 40.0


@settings(max_examples=examples(600))
@given(mutated())
def test_a_journal_that_was_tampered_with_ends_in_one_of_our_errors_or_in_the_same_life(lines):
    with suppress(SubletError):
        replay(lines)  # insists on the recorded orders, line by line
