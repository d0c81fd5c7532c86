"""Tables that fit where they can and never cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.cli.print.tables import print_document, print_notes, print_table, screen_width, table_width

WORDS = st.text(alphabet="abcdefgh -", min_size=1, max_size=60).map(lambda text: " ".join(text.split()) or "a")


@pytest.fixture
def columns(monkeypatch):
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture(autouse=True)
def no_screen(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def test_numbers_stand_right_and_words_left(capsys):
    print_table(["name", "USD"], [["a", "1.00"], ["bcdef", "1,000.00"]], words=(0,))
    assert capsys.readouterr().out.splitlines() == [
        "name        USD",
        "─────  ────────",
        "a          1.00",
        "bcdef  1,000.00",
    ]


def test_a_narrow_screen_folds_text_between_words(capsys, columns):
    columns(40)
    print_table(["name", "n", "what"], [["x" * 20, "123456", "some words that are long enough"]], words=(0, 2))
    out = capsys.readouterr().out
    assert "x" * 20 in out
    assert "123456" in out
    assert out.splitlines()[3].strip() == "are long enough"


def test_without_a_screen_nothing_is_folded(capsys):
    print_table(["name", "what"], [["a", "word " * 100]], words=(0, 1))
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert screen_width() is None


def test_the_width_of_a_table_is_that_of_its_lines(capsys):
    titles, rows = ["name", "n"], [["a", "1"], ["longer name", "12345"]]
    print_table(titles, rows, words=(0,))
    assert max(map(len, capsys.readouterr().out.splitlines())) == table_width(titles, rows)


@given(st.lists(st.tuples(WORDS, WORDS, st.integers().map(str)), min_size=1, max_size=4), st.integers(1, 120))
def test_every_word_and_every_number_survives_any_screen(rows, width):
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("typer.echo", lambda text="": said.append(text))
        patch.setenv("COLUMNS", str(width))
        print_table(["name", "what", "n"], [list(row) for row in rows], words=(0, 1))
    shown = " ".join(said).split()
    for name, what, number in rows:
        for word in (*name.split(), *what.split(), number):
            assert word in shown


def test_notes_are_folded_with_a_hanging_indent(capsys, columns):
    columns(20)
    print_notes(["one two three four five six"])
    assert capsys.readouterr().out.splitlines() == ["- one two three four", "  five six"]


def test_a_number_that_json_has_not_is_refused_rather_than_printed():
    with pytest.raises(ValueError, match="JSON"):
        print_document({"mean_s": float("nan")})
