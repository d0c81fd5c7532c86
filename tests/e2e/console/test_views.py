"""What the views show, in a real browser: as it happens, as the API has it, and under the hand of whoever reads."""

from __future__ import annotations

import re

import pytest

from sublet.client import connect
from tests.rigs.console import a_worker, confirm, submit

WORK = {"work": 3.6e6, "samples_per_s": 1000.0}  # an hour on one worker


def running(page, job_id):
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()


def until_running(there, job_id):
    connect(there.state.path).wait(job_id, until={"running"})


def end(there, job_id):
    there.client.post(f"/v1/jobs/{job_id}/cancel", {"now": True})


def test_a_notice_waits_for_no_clock_of_the_page(open_page, there):
    """It is pushed, and drawn as it is heard: all timers of the page stand still, and it is there. How soon the
    controller sends it is held by tests/unit/api/test_feed.py, and measured by benchmarks/pages.py."""
    job_id = submit(there, "noticed-at-once")
    page = open_page()
    running(page, job_id)
    page.get_by_role("link", name="Events").click()
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    node_id = there.client.get(f"/v1/jobs/{job_id}")["node_ids"][0]
    there.do(there.cloud.warn, node_id, 3600.0)
    page.locator("tr[data-kind=NodeNoticed]", has_text=node_id).wait_for()
    end(there, job_id)


def test_whoever_points_at_the_timeline_is_told_what_happened_there_and_why(open_page, there):
    beneath, job_id = submit(there, "beneath", workers=(1, 1)), submit(there, "pointed")
    page = open_page()
    running(page, beneath)
    running(page, job_id)
    first, *_ = there.client.get(f"/v1/jobs/{job_id}")["node_ids"]
    there.do(there.cloud.warn, first, 3600.0)
    page.goto(f"{there.client.address}/#timeline")
    page.locator("tr[data-kind=NodeNoticed]", has_text=first).wait_for()
    events = there.client.get("/v1/events", limit=10_000)["events"]
    told = next(event for event in events if (event["kind"], event["node_id"]) == ("NodeNoticed", first))
    box = page.locator(".u-over").first.bounding_box()
    for at in range(int(box["width"]) - 1, 0, -4):
        page.mouse.move(box["x"] + at, box["y"] + 20)
        if f"NodeNoticed at {first}" in page.locator("#pointed-at").inner_text():
            break
    assert told["text"] in page.locator("#pointed-at").inner_text()
    legend = page.locator(".u-legend").first.locator("tr", has_text=re.compile(r"-1"))
    held = [int(each.locator(".u-value").inner_text()) for each in legend.all()]
    assert sum(held) <= 2 + 1  # of each job its own, not the sum that is drawn
    assert max(held) >= 1
    chart = page.locator(".chart").first
    whole = chart.get_attribute("data-shown")
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 25)
    page.mouse.up()
    page.mouse.move(0, 0)
    closer = chart.get_attribute("data-shown")
    assert closer != whole
    page.wait_for_function(
        "() => new Set([...document.querySelectorAll('.chart')].map((c) => c.dataset.shown)).size === 1"
    )
    submit(there, "later-pointed")
    page.locator(".u-legend", has_text="later-pointed-1").wait_for()  # without a reload
    assert chart.get_attribute("data-shown") == closer  # and who looks closer still does
    page.get_by_role("button", name="Earlier").press("Enter")
    page.wait_for_function("(was) => document.querySelector('.chart').dataset.shown !== was", arg=closer)
    from_h, until_h = map(float, chart.get_attribute("data-shown").split(" to "))
    began_h, ended_h = map(float, closer.split(" to "))
    assert from_h < began_h
    assert until_h - from_h == pytest.approx(ended_h - began_h)
    page.get_by_role("button", name="All of it").press("Enter")
    page.wait_for_function("() => document.querySelector('.chart').dataset.shown.startsWith('0 to ')")
    for job in (beneath, job_id, "later-pointed-1"):
        end(there, job)


def test_the_areas_of_the_timeline_are_all_gpus_however_many_jobs_there_are(open_page):
    page = open_page()
    told = [{"job_id": f"j{number}", "workers": 1, "at_s": 60 * number} for number in range(30)]
    told += [{"job_id": "j0", "workers": 5, "at_s": 3600}, {"job_id": "", "workers": None, "at_s": 3700}]
    found = page.evaluate("async (told) => (await import('/console/timeline.js')).stacked(told)", told)
    assert found["jobs"] == [*[f"j{number}" for number in range(9)], "21 others"]
    assert found["lines"][-1] == [*range(1, 31), 34]
    assert [line[-1] for line in found["lines"]] == [5, 6, 7, 8, 9, 10, 11, 12, 13, 34]


def test_the_end_of_all_is_foreseen_with_how_sure_that_is(open_page, there):
    job_id = submit(there, "foreseen", **WORK)
    page = open_page()
    running(page, job_id)
    page.locator("#ends", has_text=re.compile(r"\(.+ to .+\)")).wait_for()
    page.locator("#to-come", has_text=re.compile(r"USD [\d.]+ \([\d.]+ to [\d.]+\)")).wait_for()
    page.locator(f"tr[data-job={job_id}]", has_text=re.compile(r"[\d,]+ samples")).wait_for()
    page.locator(f"tr[data-job={job_id}] canvas.spark").wait_for()
    told = there.client.get("/v1/forecast")
    assert told["jobs"] >= 1
    assert told["end_s"]["p10"] <= told["end_s"]["p50"] <= told["end_s"]["p90"]
    assert page.evaluate("async () => Object.keys((await import('/console/state.js')).state.head.forecast)") == [
        name for name in told if name != "schema_version"
    ]
    end(there, job_id)


def test_what_was_refused_is_asked_again_otherwise_and_says_what_it_costs_then(open_page, there):
    job_id = submit(there, "refused", workers=(1, 1), purse_usd=50.0)
    page = open_page()
    running(page, job_id)
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.get_by_role("button", name="Scale").click()
    box = page.locator("#ask")
    page.get_by_label("At least").fill("7")
    page.get_by_label("At most").fill("4")
    assert "with 4 workers, about USD" in box.inner_text()
    box.get_by_role("button", name="Scale").click()
    page.locator("#ask .fault", has_text=re.compile(".")).wait_for()
    page.get_by_label("At least").fill("1")
    confirm(page, "Scale")
    assert there.client.get(f"/v1/jobs/{job_id}")["max_workers"] == 4
    for purse in ("USD 50.00", "USD 53.00"):
        page.get_by_role("button", name="Top up").click()
        page.get_by_label("Dollars more").fill("3")
        assert f"It may spend {purse}" in box.inner_text()
        confirm(page, "Top up")
        page.locator(".facts dd", has_text=re.compile(f"^USD {float(purse[4:]) + 3:.2f}$")).wait_for()
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    page.get_by_role("button", name="Resume").click()
    assert "/h" in box.inner_text()  # it says what it will cost
    box.get_by_role("button", name="Leave it").click()
    end(there, job_id)


def test_why_it_has_its_shape_is_asked_again_when_something_happened_to_it(open_page, there):
    job_id = submit(there, "why-again", workers=(1, 1))
    page = open_page()
    running(page, job_id)
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.get_by_text("after the start").first.wait_for()
    with page.expect_request(re.compile(f"/v1/jobs/{job_id}/explain")):
        there.client.post(f"/v1/jobs/{job_id}/scale", {"low": 1, "high": 2})
    end(there, job_id)


def test_whoever_reads_or_stands_in_a_table_goes_on_there_when_it_is_drawn_anew(open_page, there):
    job_id = submit(there, "read", workers=(1, 1))
    page = open_page(viewport={"width": 360, "height": 740})
    running(page, job_id)
    page.goto(f"{there.client.address}/#events")
    link = page.locator("tr", has_text="JobSubmitted").get_by_role("link", name=job_id)
    link.focus()
    page.locator(".wide").evaluate("(box) => { box.scrollLeft = 120; }")
    there.client.post(f"/v1/jobs/{job_id}/scale", {"low": 1, "high": 2})
    page.locator("tr[data-kind=Scaled]", has_text=job_id).wait_for()
    assert page.evaluate("document.activeElement.closest('tr').dataset.kind") == "JobSubmitted"
    assert page.locator(".wide").evaluate("(box) => box.scrollLeft") == 120
    end(there, job_id)


def test_bills_add_up_and_no_cell_of_the_csv_is_a_formula(open_page, there):
    job_id = submit(there, "billed")
    page = open_page()
    running(page, job_id)
    page.goto(f"{there.client.address}/#cost")
    page.get_by_role("row", name=re.compile("^no job")).wait_for()
    cost = there.client.get("/v1/cost")
    sums = page.evaluate(
        """async (cost) => { const { bills, csv } = await import("/console/cost.js");
        const all = bills(cost), odd = {...all[0], name: "=1+1", job_id: "@x"};
        return [all.reduce((sum, job) => sum + job.usd_total, 0), csv([odd])]; }""",
        cost,
    )
    assert abs(sums[0] - cost["usd_total"]) < 1e-9
    assert '"\'=1+1"' in sums[1]
    assert '"\'@x"' in sums[1]
    today = cost["days"][-1]["day"]
    page.get_by_role("row", name=re.compile(f"^{today} USD")).wait_for()
    end(there, job_id)


def test_a_log_whose_line_breaks_is_read_on(open_page, there):
    job_id = submit(there, "broken-line", workers=(1, 1))
    page = open_page()
    running(page, job_id)
    page.route("**/log?**", lambda route: route.abort(), times=1)
    page.clock.install()
    page.goto(f"{there.client.address}/#logs/{job_id}")
    page.get_by_text("it is tried again").wait_for()
    page.clock.fast_forward(60_000)
    page.get_by_text("Nothing is printed yet").wait_for()
    _, path = a_worker(there, job_id)
    path.write_text("heard after all\n")
    page.locator(".log", has_text="heard after all").wait_for()
    end(there, job_id)


def test_what_each_rank_printed_can_be_read_alone(open_page, there):
    job_id = submit(there, "ranked", workers=(2, 2))
    page = open_page()
    running(page, job_id)
    workers = [
        each for node in list(there.cloud.nodes.values()) for each in node.workers.values() if each.job_id == job_id
    ]
    folder = there.state.path / "jobs" / job_id / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for worker in workers:
        (folder / f"{worker.id}.log").write_text(f"said by {worker.id}\n")
    page.goto(f"{there.client.address}/#logs/{job_id}")
    for worker in workers:
        page.locator(".log", has_text=f"said by {worker.id}").wait_for()
    page.get_by_label("by", exact=True).select_option("1")
    page.get_by_text("1 lines; the last 2,000").wait_for()
    end(there, job_id)


def test_words_are_looked_for_in_all_that_was_printed(open_page, there):
    job_id = submit(there, "talks", workers=(1, 1))
    page = open_page()
    running(page, job_id)
    _, path = a_worker(there, job_id)
    path.write_text("".join(f"Needle {n}\n" if n == 7 else f"line {n}\n" for n in range(5000)))
    page.goto(f"{there.client.address}/#logs/{job_id}")
    page.locator(".log", has_text="line 4999").wait_for()
    assert "Needle" not in page.locator(".log").inner_text()  # the last lines are read
    page.get_by_label("with the words").fill("needle")
    page.locator(".log", has_text=re.compile("^Needle 7$")).wait_for()
    with path.open("a") as file:
        file.write("a line more\nanother NEEDLE\n")
    page.locator(".log", has_text="another NEEDLE").wait_for()
    page.get_by_text("2 lines with these words").wait_for()
    end(there, job_id)


def test_a_page_that_nobody_looks_at_holds_no_line_and_shows_later_what_it_missed(open_page, there):
    page = open_page()
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    page.goto(f"{there.client.address}/#events")
    turn = """(hidden) => { Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange")); }"""
    page.evaluate(turn, True)
    job_id = submit(there, "unseen", workers=(1, 1))
    until_running(there, job_id)
    assert page.get_by_role("cell", name=job_id).count() == 0
    page.evaluate(turn, False)
    page.get_by_role("cell", name=job_id).first.wait_for()
    end(there, job_id)


def test_a_bill_on_the_page_of_a_job_adds_up(open_page, there):
    job_id = submit(there, "unsaid", workers=(1, 1), sdk=False)
    page = open_page()
    running(page, job_id)
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.locator(".facts dt", has_text="Not known yet").wait_for()
    parts = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".facts div")].map((each) =>
        [each.querySelector("dt").textContent, Number(each.querySelector("dd").textContent.replace("USD ", ""))]))"""
    )
    names = ("Useful", "Not known yet", "Redone", "Restarts", "Checkpoints", "Idle")
    assert abs(sum(parts[name] for name in names) - parts["Spent"]) <= 0.005 * len(names)
    end(there, job_id)


def test_a_job_that_would_have_to_wait_is_not_said_to_cost_nothing(open_page, there, tmp_path):
    wide = [submit(there, f"wide-{number}", workers=(4, 4)) for number in range(3)]
    page = open_page()
    running(page, wide[0])
    page.goto(f"{there.client.address}/#submit")
    page.get_by_label("Job file").fill(f"name: waits\nworkdir: {tmp_path}\nrun: 'true'\nelastic: {{workers: 4}}\n")
    page.get_by_text("waits is right").wait_for()
    page.get_by_text("nothing now: it would wait").wait_for()
    page.get_by_role("button", name="Submit", exact=True).click()
    told = page.locator("#ask").inner_text()
    assert "USD 0.00" not in told
    assert re.search(r"USD [\d.]+/h", told)
    for job_id in wide:
        end(there, job_id)
