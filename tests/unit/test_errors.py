"""One tree of errors; each carries its facts and says what to do next."""

from __future__ import annotations

import inspect

import pytest

from sublet import errors
from sublet.errors import (
    BadInput,
    Infeasible,
    InvalidValue,
    InvariantBroken,
    MissingData,
    MissingExtra,
    NoController,
    NoSuchJob,
    NotNow,
    OutOfBudget,
    PlanRefused,
    Refused,
    SubletError,
    UnexpectedEvent,
    UnknownName,
)


def defined():
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in members if kind.__module__ == errors.__name__}


def test_every_error_is_exported_and_grows_from_the_root():
    assert sorted(defined()) == sorted(errors.__all__)
    assert all(issubclass(kind, SubletError) for kind in defined().values())


def test_the_drawing_at_the_top_shows_every_error():
    drawing = inspect.getdoc(errors)
    for name in defined():
        assert name in drawing


def test_the_drawing_at_the_top_shows_who_descends_from_whom():
    parents = {
        "InvalidValue": "SubletError",
        "KernelError": "SubletError",
        "UnexpectedEvent": "KernelError",
        "InvariantBroken": "KernelError",
    }
    for child, parent in parents.items():
        assert defined()[child].__mro__[1] is defined()[parent]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (SubletError("x"), 1),
        (InvalidValue("f", 1, "2"), 2),
        (BadInput("s", "w"), 2),
        (UnknownName("k", "n", []), 2),
        (Infeasible("w", binding="b", needed=2, available=1), 112),
        (PlanRefused("b", needed=2, available=1, now_s=0.0), 1),
        (NoController("w", "y"), 75),
        (NoSuchJob("a", []), 102),
        (OutOfBudget("w", spent_usd=2.0, limit_usd=2.0), 110),
        (NotNow("j", "failed", "pause"), 1),
        (Refused("no", exit_code=112), 112),
    ],
)
def test_errors_of_the_user_exit_otherwise_than_faults_of_ours(error, exit_code):
    assert error.exit_code == exit_code


def test_an_invalid_value_is_a_value_error_with_field_value_and_range():
    error = InvalidValue("gpus", 0, "at least 1")
    assert isinstance(error, ValueError)
    assert (error.field, error.value, error.allowed) == ("gpus", 0, "at least 1")
    assert str(error) == "gpus = 0 is not allowed; it must be at least 1"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "jobs.csv: no header"),
        ({"line": 7}, "jobs.csv, line 7: no header"),
        ({"line": 0, "hint": "add one"}, "jobs.csv, line 0: no header\n  next: add one"),
    ],
)
def test_bad_input_says_where_and_what_next(fields, text):
    error = BadInput("jobs.csv", "no header", **fields)
    assert str(error) == text
    assert (error.source, error.why, error.line) == ("jobs.csv", "no header", fields.get("line"))


def test_a_near_miss_gets_a_suggestion():
    error = UnknownName("policy", "fiffo", ["srtf", "fifo", "equal"])
    assert error.known == ["equal", "fifo", "srtf"]
    assert "did you mean fifo?" in str(error)
    assert "srtf" not in str(error)


def test_a_far_miss_gets_the_whole_list_if_it_is_short_and_its_length_if_it_is_long():
    assert str(UnknownName("x", "zzz", ["b", "a"])).endswith("known: a, b")
    assert str(UnknownName("x", "zzz", [])).endswith("known: none")
    assert str(UnknownName("x", "zzz", [f"name{n}" for n in range(21)])).endswith("21 are known")


def test_missing_things_say_how_to_get_them():
    assert str(MissingData("a.csv", hint="make data")) == "a.csv does not exist\n  next: make data"
    assert "pip install '.[ray]' in your clone" in str(MissingExtra("ray", "ray"))


def test_a_job_that_is_not_there_gets_a_suggestion_and_an_unclear_one_the_choice():
    assert "did you mean train?" in str(NoSuchJob("trian", ["train", "other"]))
    assert str(NoSuchJob("x", [], several=["x-1", "x-2"])).startswith("2 jobs are called 'x': x-1, x-2")


def test_an_empty_purse_says_how_to_fill_it():
    error = OutOfBudget("job a cannot go on", spent_usd=4.9, limit_usd=5.0)
    assert str(error).startswith("job a cannot go on: USD 4.90 of USD 5.00")
    assert str(error).endswith("next: sublet budget top-up USD")


def test_infeasible_names_the_binding_limit_and_both_numbers():
    error = Infeasible("job a cannot run", binding="GPUs", needed=8, available=4, hint="rent more")
    assert (error.binding, error.needed, error.available) == ("GPUs", 8, 4)
    assert str(error) == "job a cannot run: GPUs is 4, 8 is needed\n  next: rent more"


def test_a_refused_plan_names_the_limit_the_numbers_and_the_time():
    error = PlanRefused("USD/h of budget", needed=11.9, available=6.0, now_s=3.0)
    assert (error.binding, error.needed, error.available, error.now_s) == ("USD/h of budget", 11.9, 6.0, 3.0)
    for fact in ("3.000 s", "11.9", "USD/h of budget", "only 6 "):
        assert fact in str(error)


@pytest.mark.parametrize("kind", [UnexpectedEvent, InvariantBroken])
def test_kernel_errors_tell_the_story_of_the_job_in_order(kind):
    error = kind("first", "second", ["it came", "it went"])
    assert error.story == ("it came", "it went")
    assert str(error).endswith("its story so far:\n    it came\n    it went")
    assert "story" not in str(kind("first", "second"))
