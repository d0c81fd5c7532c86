"""Progress where nobody can see a bar: silence, and a line now and then."""

from __future__ import annotations

from sublet.cli.print import comparison


def test_a_short_run_says_nothing(capsys):
    with comparison.show_progress(["fifo"], 10, quiet=False) as tell:
        tell("fifo", 5)
    assert capsys.readouterr() == ("", "")


def test_a_long_run_says_a_line_now_and_then_on_standard_error(capsys, monkeypatch):
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(comparison.time, "monotonic", lambda: float(next(clock)))
    with comparison.show_progress(["fifo"], 2000, quiet=False) as tell:
        for done in (0, 500, 1000):
            tell("fifo", done)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fifo: 500 of 2,000 jobs" in captured.err


def test_quiet_is_quiet(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "LINE_EVERY_S", 0.0)
    with comparison.show_progress(["fifo"], 10, quiet=True) as tell:
        tell("fifo", 5)
    assert capsys.readouterr() == ("", "")
