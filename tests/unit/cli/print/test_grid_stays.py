"""Grids over time, as the report of a controller shows them."""

from __future__ import annotations

import struct

from sublet.cli.print.report import Stay, stays_of, timeline


def event(at_s, grid="", workers=0, job_id="j", kind="Moved"):
    facts = {"nodes_held": 6, "usd_total": 0.1, "at_s": at_s, "kind": kind}
    return {**facts, "job_id": job_id, "grid": grid, "workers": workers}


STORY = [
    event(0.0, kind="JobSubmitted"),
    event(10.0, "2 x 3", 7),
    event(15.0, "2 x 3", 7, kind="Note"),
    event(20.0, "1 x 4", 5, job_id="another"),
    event(30.0, "1 x 3", 5),
    event(40.0, "1 x 3", 5, kind="NodeLost"),
    event(50.0, "", 0, kind="JobStopped"),
    {**event(60.0), "job_id": "", "workers": None},
    event(70.0, "2 x 3", 6),
]


def test_a_stay_lasts_until_its_grid_or_its_workers_are_others():
    assert stays_of(STORY, "j", 100.0) == [
        Stay(10.0, 30.0, 2, 3, 7),
        Stay(30.0, 50.0, 1, 3, 5),
        Stay(50.0, 70.0, 0, 0, 0),
        Stay(70.0, 100.0, 2, 3, 6),
    ]
    assert [stay.workers - stay.seated for stay in stays_of(STORY, "j", 100.0)] == [1, 2, 0, 0]


def test_two_changes_of_one_moment_are_the_last_of_them():
    story = [event(10.0, "2 x 3", 6), event(20.0, "1 x 3", 3), event(20.0, "1 x 4", 4)]
    assert stays_of(story, "j", 30.0) == [Stay(10.0, 20.0, 2, 3, 6), Stay(20.0, 30.0, 1, 4, 4)]


def test_a_job_whose_model_is_not_cut_has_none_nor_has_one_of_an_older_log():
    plain = event(10.0, "", 4)
    assert stays_of([plain], "j", 20.0) == []
    del plain["grid"]
    assert stays_of([plain], "j", 20.0) == []


def test_the_picture_has_a_panel_for_each_job_that_is_cut():
    plain = [{**each, "grid": ""} for each in STORY]
    names = {"j": "cut", "another": "also", "third": "whole"}
    heights = [struct.unpack(">I", timeline(events, names)[20:24])[0] for events in (plain, STORY)]
    assert heights[1] - heights[0] == 2 * round(1.8 * 140)
