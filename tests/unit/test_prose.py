"""Prose is in short sentences and plain words: all documentation outside the archive, and all docstrings."""

from __future__ import annotations

import pytest

from tests.figures import HERE
from tests.prose import AVOIDED, MOST_WHO, MOST_WORDS, RIDDLE, WHO, Area, areas_of, sentences_of

AREAS = areas_of(HERE)
HALVES = {
    half: Area([text for area, found in AREAS.items() if area.startswith(roots) for text in found.texts])
    for half, roots in {"pages": (".", "docs"), "docstrings": ("src", "lab")}.items()
}


def test_sentences_are_told_apart():
    assert sentences_of("# Title\n\nOne `a. b` here. Two!\n\n| cell | other cell |\n|---|---|\n- point") == [
        *("One code here.", "Two!", "| cell", "other cell", "- point"),
    ]


@pytest.mark.parametrize("area", AREAS)
def test_no_sentence_has_more_than_forty_words(area):
    assert [(place, each) for place, each in AREAS[area].sentences if len(each.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("area", AREAS)
def test_words_that_are_not_used_do_not_stand(area):
    assert AREAS[area].found(AVOIDED) == []


@pytest.mark.parametrize("half", HALVES)
def test_sentences_are_about_things(half):
    """At most three of who, whoever, whom and nobody in 10,000 words; the mean sentence is short."""
    words, mean, _, who, _, _ = HALVES[half].figures()
    assert words > 20_000
    assert mean < 18
    assert who <= MOST_WHO, HALVES[half].found(WHO)


@pytest.mark.parametrize("area", AREAS)
def test_no_docstring_begins_as_a_riddle(area):
    assert [place for place, text in AREAS[area].texts if ".py:" in place and RIDDLE.match(text)] == []
