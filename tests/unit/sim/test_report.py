"""Reports: figures as people read them, pages that are safe to open, pictures that match the runs."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, InvalidValue
from sublet.perf.speedup import Linear
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.sim import scenario
from sublet.sim.record import JobRow
from sublet.sim.report import plots
from sublet.sim.report.comparison import (
    Comparison,
    duration,
    json_from_comparison,
    json_from_only_run,
    ratio,
    table_from_comparison,
)
from sublet.sim.report.folder import MOST_JOBS, page_from_comparison, prepare_folder, replacing, write_report
from sublet.sim.report.html import document
from sublet.sim.simulator import simulate
from sublet.sim.workloads import Workload
from tests.rigs.browser import refused

OFFER = Offer(id="four", gpu="T4", gpus_per_node=4, market=Market.ON_DEMAND, price=Price.from_usd_per_h("4"))
SPEED = Linear()


def comparison(*, jobs=6, model="resnet", name="test", command="sublet compare test", policies=None):
    workload = Workload(
        name=name,
        jobs=tuple(
            Job(id=f"{model}-{n}", submit_s=100.0 + 300.0 * n, work=7200.0, speed=SPEED, gpus=1 + n % 4, model=model)
            for n in range(jobs)
        ),
        source="made up",
        notes=("one <note> & another",),
    )
    scene = scenario.owned(OFFER, 8)
    chosen = policies or {"fifo": Fifo(), "equal": Equal()}
    runs = {policy: simulate(workload.jobs, value, scene.cloud) for policy, value in chosen.items()}
    notes = {policy: scene.notes_on(run) for policy, run in runs.items()}
    return Comparison(command=command, workload=workload, cloud=scene.cloud, seed=3, runs=runs, notes=notes)


@pytest.fixture(scope="module")
def two():
    return comparison()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"), (59.94, "59.9s"), (59.97, "1m00s"), (125.0, "2m05s"), (3599.7, "1h00m"), (7140.0, "1h59m"),
        (172_740.0, "47h59m"), (172_799.0, "2d00h"), (1e7, "115d18h"), (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_durations_are_short_and_carry_over(seconds, text):
    assert duration(seconds) == text


@given(st.floats(0.0, 1e9))
def test_a_duration_is_never_longer_than_a_column(seconds):
    assert len(duration(seconds)) <= 9
    assert "60s" not in duration(seconds)
    assert "60m" not in duration(seconds)


def test_the_table_has_a_row_per_policy_and_ratios_to_the_first(two):
    titles, rows = table_from_comparison(two)
    assert titles[:5] == ["policy", "mean", "vs fifo", "p50", "p99"]
    assert [row[0] for row in rows] == ["fifo", "equal"]
    assert rows[0][2] == "1.00x"
    assert all(len(row) == len(titles) for row in rows)


def test_a_table_of_one_run_has_no_ratios():
    titles, _ = table_from_comparison(comparison(policies={"fifo": Fifo()}))
    assert not any(title.startswith("vs") for title in titles)


def test_a_ratio_to_nothing_is_no_number():
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(1.0, 4.0) == 0.25


def test_a_comparison_of_nothing_is_refused(two):
    with pytest.raises(InvalidValue, match="at least one run"):
        Comparison(command="", workload=two.workload, cloud=two.cloud, seed=0, runs={}, notes={})


def test_json_has_no_numbers_that_json_has_not(two):
    for facts in (json_from_comparison(two), json_from_only_run(two)):
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_notes_of_one_of_several_runs_name_it(two):
    told = Comparison(
        command="", workload=two.workload, cloud=two.cloud, seed=0, runs=two.runs, notes={"equal": ("it is odd",)}
    )
    assert told.all_notes[-1] == "equal: it is odd"


class _Reader(HTMLParser):
    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_and_refers_to_nothing_outside(two):
    page = page_from_comparison(two, {"A picture": b"png"}, version="1")
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.links == ["data:image/png;base64,cG5n", "jobs.csv"]
    assert page.count("<tr>") == 3 + 1 + 6


def test_a_page_escapes_whatever_the_user_wrote():
    wicked = '<script>alert("&")</script>'
    told = comparison(model=wicked, name=wicked, command=f"sublet compare '{wicked}'")
    page = page_from_comparison(told, {wicked: b""}, version=wicked)
    assert wicked not in page
    assert page.count("<script>") == 1  # our own
    assert "one &lt;note&gt; &amp; another" in page


def test_a_browser_runs_the_pages_own_script_and_style_and_nothing_that_came_in(two):
    page = page_from_comparison(two, {"A picture": b"png"}, version="1")
    assert refused(page) == []
    for wicked in ("<script>alert(1)</script>", '<img src="x" onerror="alert(1)">', "<style>p{}</style>", "<form>"):
        assert refused(page.replace("</main>", f"{wicked}</main>")), "even if it were not escaped"
    assert refused(document("A title", "<p>no script</p>")) == []
    assert refused(document("A title", "<script>alert(1)</script>"))


def test_a_page_of_many_jobs_shows_the_first_and_says_where_the_rest_is():
    page = page_from_comparison(comparison(jobs=MOST_JOBS + 1, policies={"fifo": Fifo()}), {}, version="1")
    assert f"The first {MOST_JOBS} of {MOST_JOBS + 1}" in page
    assert f"<td>resnet-{MOST_JOBS - 1}</td>" in page
    assert f"<td>resnet-{MOST_JOBS}</td>" not in page


def test_the_areas_of_a_picture_are_the_gpu_hours_of_the_jobs(two):
    record = two.runs["equal"].record
    drawn = dict.fromkeys(record.jobs, 0.0)
    for job_id, corners in plots._stack_stays(record, list(record.jobs)):
        x, y = np.array(corners).T
        drawn[job_id] += abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2  # the shoelace formula
    for job_id, row in record.jobs.items():
        assert drawn[job_id] == pytest.approx(row.gpu_s)


def test_bins_keep_the_area_of_a_step_function():
    changes = np.array([(0.0, 2.0), (5.0, 4.0), (10.0, -6.0)])
    edges = np.linspace(0.0, 20.0, 8)
    means = plots._means(changes, edges)
    assert np.dot(means, np.diff(edges)) == pytest.approx(2 * 5 + 6 * 5)


def test_groups_have_colours_of_their_own_until_there_are_too_many():
    def colours(groups):
        rows = [JobRow(f"{n}", f"model {n}", 0.0, 1, gpu_s=float(n)) for n in range(groups)]
        return plots._group_colours(rows)

    assert len(set(colours(10).values())) == 10
    many = colours(30)
    assert len(set(many.values())) == 10
    assert next(iter(many)) == "model 29"  # the one with most GPU time is drawn first
    assert many["model 0"] == plots.OTHER_COLOUR


def test_jobs_without_a_model_are_grouped_by_size():
    assert plots._group(JobRow("a", "", 0.0, 1)) == "1 GPU"
    assert plots._group(JobRow("a", "", 0.0, 8)) == "8 GPUs"


def test_pictures_are_png_whatever_models_are_called(monkeypatch):
    odd = comparison(model="$\\frac$ 模型", policies={"fifo": Fifo()})
    for draw in (plots.completion_times, plots.gpus_held, plots.dollars):
        assert draw(odd).startswith(b"\x89PNG")
    monkeypatch.setattr(plots, "MOST_SEGMENTS", 0)
    monkeypatch.setattr(plots, "MOST_POINTS", 4)
    assert plots.gpus_held(odd).startswith(b"\x89PNG")


def test_equal_runs_give_equal_pictures():
    first, second = (plots.dollars(comparison(policies={"fifo": Fifo()})) for _ in range(2))
    assert first == second


def test_a_report_replaces_an_old_one_and_leaves_other_files_alone(two, tmp_path):
    (tmp_path / "report.html").write_text("old", encoding="utf-8")
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    page = write_report(two, tmp_path)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_report_that_fails_leaves_the_old_one(two, tmp_path):
    (tmp_path / "report.html").mkdir()  # nothing can be renamed onto a folder
    with pytest.raises(BadInput, match="cannot be written"):
        write_report(two, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(BadInput, match="cannot be written"):
            prepare_folder(folder)


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "log"
    with replacing(path) as file:
        file.write("one")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "one"
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(f"two {1 / 0}")
    assert path.read_text(encoding="utf-8") == "one"
    assert list(path.parent.iterdir()) == [path]


def test_a_device_is_written_to_and_never_replaced():
    null = Path("/dev/null")
    with replacing(null) as file:
        file.write("gone")
    assert null.is_char_device()
