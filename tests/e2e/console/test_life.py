"""The page in a real browser, over a real controller: a job's life by clicks, what is seen at once, who is refused."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sublet.api.client import Client
from sublet.wire import messages as wire
from tests.rigs.console import a_worker, confirm, faults_of_access, fleet, submit

VIEWS = ("now", "timeline", "what-if", "logs", "events", "cost", "submit")


def phase(page, text):
    page.locator(".facts dd", has_text=re.compile(f"^{text}$")).first.wait_for()


def test_a_job_lives_its_whole_life_by_clicks(open_page, there, tmp_path):
    page = open_page()
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Job file").fill(f"name: clicked\nworkdir: {tmp_path}\nrun: 'true'\nelastic: {{workers: 1..2}}\n")
    page.get_by_text("clicked is right").wait_for()
    page.get_by_role("button", name="Submit", exact=True).click()
    assert "USD" in page.locator("#ask").inner_text()  # it says what it costs, and nothing has happened yet
    assert "clicked-1" not in str(there.client.get("/v1/jobs"))
    confirm(page, "Submit it")
    page.get_by_role("heading", name="Job clicked-1").wait_for()
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    phase(page, "paused")
    page.get_by_role("button", name="Resume").click()
    confirm(page, "Resume")
    page.get_by_role("button", name="Scale").click()
    page.get_by_label("At most").fill("3")
    confirm(page, "Scale")
    page.get_by_role("button", name="Cancel").click()
    confirm(page, "Cancel the job")
    phase(page, "cancelled")
    told = [(event["kind"], event["by"]) for event in there.client.get("/v1/events", job="clicked-1")["events"]]
    for kind in ("JobSubmitted", "Paused", "Resumed", "Scaled"):
        assert (kind, "owner") in told
    assert "owner" in [
        by for kind, by in told[told.index(("Scaled", "owner")) + 1 :] if kind in ("StopJob", "JobCancelled")
    ]


def test_a_notice_is_on_the_page_without_a_reload(open_page, there):
    job_id = submit(there, "noticed")
    page = open_page()
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()
    node_id = there.client.get(f"/v1/jobs/{job_id}")["node_ids"][0]
    page.get_by_role("link", name="Events").click()
    there.do(there.cloud.warn, node_id, 3600.0)
    page.locator("tr[data-kind=NodeNoticed]", has_text=node_id).wait_for()
    there.client.post(f"/v1/jobs/{job_id}/cancel", {"now": True})


def test_other_terms_are_tried_and_nothing_changes_until_apply(open_page, there):
    """Drag the limit of the rent; the plan is shown; Apply asks, and then it is the limit."""
    job_id = submit(there, "dragged")
    page = open_page()
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()
    page.goto(f"{there.client.address}/#job/{job_id}")
    before = there.client.get("/v1/budget")["burn_limit_usd_per_h"]
    page.get_by_label("Never rent for more than").focus()
    page.keyboard.press("End")
    page.locator("main").get_by_text(re.compile("would change")).wait_for()
    assert there.client.get("/v1/budget")["burn_limit_usd_per_h"] == before
    page.get_by_role("button", name="Apply ...").click()
    assert "/h" in page.locator("#ask").inner_text()
    assert there.client.get("/v1/budget")["burn_limit_usd_per_h"] == before
    confirm(page, "Apply")
    assert there.client.get("/v1/budget")["burn_limit_usd_per_h"] != before
    page.get_by_label("An hour of a job is worth").focus()
    page.keyboard.press("Home")
    page.locator("main").get_by_text(re.compile("would change")).wait_for()
    page.get_by_role("button", name="Apply ...").click()
    confirm(page, "Apply")
    assert "ValueOfTime" in [event["kind"] for event in there.client.get("/v1/events", limit=10_000)["events"]]
    there.client.post(f"/v1/jobs/{job_id}/cancel", {"now": True})


def test_futures_are_shown_with_and_without_more_money(open_page, there):
    job_id = submit(there, "foretold")
    there.client.post("/v1/budget", {"burn_limit_usd_per_h": 4.0})
    page = open_page()
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()
    page.get_by_role("link", name="What if").click()
    page.get_by_label("Hours to look ahead").fill("2")
    page.get_by_label("Futures").fill("2")
    page.get_by_role("button", name="Look ahead").click()
    page.get_by_role("heading", name="With USD 2/h more").wait_for(timeout=60_000)
    assert page.get_by_role("heading", name="As it is").count() == 1
    assert page.locator("main canvas").count() == 2
    assert job_id in page.inner_text("main")
    there.client.post(f"/v1/jobs/{job_id}/cancel", {"now": True})


def test_a_link_opens_once_and_leaves_nothing_in_the_address(open_page, there):
    link = there.link()
    page = open_page(link)
    page.get_by_role("heading", name="Now").wait_for()
    assert "code" not in page.url
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert "used before" in open_page(link).inner_text("body")


def test_an_address_that_is_no_name_shows_a_page_all_the_same(open_page, there):
    page = open_page()
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    for address in ("#job/%E0%A4%A", "#job/<img src=x onerror=alert(1)>", "#logs/%", "#nowhere/../.."):
        page.evaluate("address => { location.hash = address; }", address)
        page.locator("main h2").first.wait_for()
        assert page.locator("main img").count() == 0
    page.evaluate("() => { location.hash = '#now'; }")
    page.get_by_role("heading", name="Now", exact=True).wait_for()


def test_whoever_has_no_key_sees_how_to_get_one(open_page, there):
    page = open_page(f"{there.client.address}/")
    page.get_by_text("sublet dashboard").wait_for()
    assert "USD" not in page.inner_text("body")
    page.context.new_page().goto(there.link())  # the same browser is let in, and the page goes on
    page.get_by_role("heading", name="Now", exact=True).wait_for()


def test_a_reader_sees_all_and_is_offered_nothing(open_page, there):
    job_id = submit(there, "looked-at")
    facts = {"host": there.client.host, "port": there.client.port}
    reader = Client(**facts, token=there.state.reader_file.read_text())
    page = open_page(there.link(reader))
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.get_by_text("Your token may look").wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0
    status = page.evaluate(
        """async (job) => (await fetch(`/v1/jobs/${job}/cancel`, {method: "POST", body: "{}",
        headers: {"Content-Type": "application/json"}})).status""",
        job_id,
    )
    assert status == 403


def test_another_site_and_another_name_for_this_host_are_refused(open_page, there, chromium):
    """A page of another port has the cookie's site, and a name that was re-bound has our address."""
    page = open_page()
    page.get_by_role("heading", name="Now").wait_for()
    port = there.client.port
    page.route("http://127.0.0.1:1/", lambda route: route.fulfill(body="<p>elsewhere</p>", content_type="text/html"))
    page.goto("http://127.0.0.1:1/")
    before = there.client.get("/v1/budget")["purse_usd"]
    asked = """async (port) => { try { return (await fetch(`http://127.0.0.1:${port}/v1/budget/top-up`, {method: "POST",
        credentials: "include", mode: "no-cors", body: '{"usd": 5}'})).status } catch { return -1 } }"""
    assert page.evaluate(asked, port) in (0, -1)  # the browser shows nothing of the refusal
    assert there.client.get("/v1/budget")["purse_usd"] == before
    rebound = chromium.new_context()
    other = rebound.new_page()
    answer = other.goto(f"http://evil.localhost:{port}/")  # Chromium takes every name under localhost to be here
    assert answer.status == 403
    rebound.close()


def test_names_and_reasons_are_text_whatever_they_hold(open_page, there):
    evil = "<img src=x onerror=alert(1)>"
    page = open_page()
    page.get_by_role("heading", name="Now").wait_for()
    page.evaluate(
        """async (evil) => { const { hear, state } = await import("/console/state.js");
        const job = {id: evil, name: evil, phase: "running", reason: `<script>alert(2)</script>`, workers: 1,
          min_workers: 1, max_workers: 1, usd_per_h: 0, usd_total: 0, usd_useful: 0, progress: null, loss: null,
          grid: evil, global_batch: null, eta_s: null, forecast_usd: null};
        hear("change", {...state.head, jobs: [job], nodes: [], gone: [], gone_nodes: [], events: []}); }""",
        evil,
    )
    page.get_by_role("link", name=evil).wait_for()
    assert page.locator("main img, main script").count() == 0
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch { return 'refused' } }"
    )
    assert refused == "refused"  # nobody who changes the page can forget it


def test_what_a_script_prints_and_dies_of_is_text(open_page, there):
    """Kept in the log and in the history, and shown to everybody."""
    evil = "</pre><img src=x onerror=alert(1)><script>alert(2)</script>"
    job_id = submit(there, "prints", workers=(1, 1))
    page = open_page()
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()
    worker, path = a_worker(there, job_id)
    path.write_text(f"loss {evil}\n")
    page.goto(f"{there.client.address}/#logs/{job_id}")
    page.locator(".log", has_text=f"loss {evil}").wait_for()
    there.do(
        there.cloud._say, worker.node_id, wire.WorkerDown(worker_id=worker.id, code=1, error=f"ValueError: {evil}")
    )
    page.goto(f"{there.client.address}/#events")
    page.get_by_role("cell", name=evil).first.wait_for()
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.locator("main", has_text=f"ValueError: {evil}").wait_for()
    assert page.locator("main img, main script").count() == 0


def test_a_line_of_ten_megabytes_leaves_a_page_that_goes_on(open_page, there):
    job_id = submit(there, "endless-line", workers=(1, 1))
    page = open_page()
    page.locator(f"tr[data-job={job_id}].phase-running").wait_for()
    _, path = a_worker(there, job_id)
    path.write_text("before it\n")
    page.goto(f"{there.client.address}/#logs/{job_id}")
    page.locator(".log", has_text="before it").wait_for()
    with path.open("a") as file:
        file.write("x" * 10_000_000 + "\nafter it\n")
    page.locator(".log", has_text="after it").wait_for()
    shown = page.locator(".log").evaluate("(log) => log.textContent")
    assert len(shown) < 30_000
    assert "and 9,980,000 characters more" in shown


class _Framing(BaseHTTPRequestHandler):
    """A page of another port of this machine, which has the site of our cookies: it shows whatever it is asked for."""

    def do_GET(self):
        text = f'<iframe src="http://{self.path[1:]}"></iframe>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *said):
        pass


def test_no_other_page_shows_this_one_in_a_frame(chromium, there):
    """Else it could have people click there what they do not see."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Framing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = chromium.new_context()
    page = context.new_page()
    page.goto(there.link())  # it has the key
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    for path in ("", "v1/jobs"):
        with page.expect_console_message(lambda said: "frame-ancestors 'none'" in said.text):
            page.goto(f"http://127.0.0.1:{server.server_port}/{there.client.host}:{there.client.port}/{path}")
        assert page.frames[1].url.startswith("chrome-error:")
    context.close()
    server.shutdown()
    server.server_close()


def test_a_page_whose_token_is_revoked_is_told_nothing_more_and_says_why(open_page, there):
    made = there.client.post("/v1/tokens", {"name": "guest", "scope": "read"})
    guest = Client(host=there.client.host, port=there.client.port, token=made["token"])
    page = open_page(there.link(guest))
    page.get_by_text("guest (read)").wait_for()
    there.client.post("/v1/tokens/guest/revoke")
    page.locator("#word", has_text="sublet dashboard").wait_for()
    job_id = submit(there, "secret-plan")
    there.client.get(f"/v1/jobs/{job_id}")
    assert page.evaluate("async () => (await fetch('/v1/jobs')).status") == 401
    assert page.locator(f"tr[data-job={job_id}]").count() == 0


def test_a_page_left_open_over_a_restart_goes_on_with_a_new_key_and_shows_what_it_missed(open_page, tmp_path):
    with fleet(tmp_path) as first:
        page = open_page(first.link())
        page.get_by_role("link", name="Events", exact=True).click()
        submit(first, "before", workers=(1, 1))
        page.get_by_role("cell", name="before-1").first.wait_for()
    page.locator("#word", has_text="is broken").wait_for()
    with fleet(tmp_path, port=first.client.port) as second:
        submit(second, "missed", workers=(1, 1))
        page.locator("#word", has_text="sublet dashboard").wait_for()  # the owner's token is another one now
        page.context.new_page().goto(second.link())
        page.get_by_role("cell", name="missed-1").first.wait_for()
        assert page.locator("#word").inner_text() == ""
        numbers = page.locator("tbody tr th").all_inner_texts()
        assert [int(n) for n in numbers] == list(range(int(numbers[0]), int(numbers[-1]) - 1, -1))  # none is missing


def test_no_view_has_a_serious_fault_of_access_dark_or_light_and_all_fit_a_phone(open_page, there):
    job_id = submit(there, "seen")
    page = open_page(viewport={"width": 360, "height": 740}, bypass_csp=True)
    page.get_by_role("heading", name="Now").wait_for()
    for view in (*VIEWS, f"job/{job_id}"):
        page.emulate_media(color_scheme="light")
        page.goto(f"{there.client.address}/#{view}")
        page.get_by_role("heading", level=2).wait_for()
        assert faults_of_access(page) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        page.emulate_media(color_scheme="dark")
        assert faults_of_access(page, "color-contrast") == [], view


def test_the_keyboard_reaches_every_view_and_an_action(open_page, there):
    job_id = submit(there, "keys")
    page = open_page()
    page.locator(f"tr[data-job={job_id}]").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for view in VIEWS:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"#{view}"
    page.goto(f"{there.client.address}/#job/{job_id}")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    page.locator("#ask").wait_for()
    page.keyboard.press("Escape")
    page.locator("#ask").wait_for(state="hidden")
    assert there.client.get(f"/v1/jobs/{job_id}")["phase"] != "paused"


def test_the_tree_of_budgets_is_on_the_page_of_costs(open_page, there):
    body = {"level": "team", "name": "vision", "amount_usd": 500.0, "period": "month"}
    there.client.post("/v1/budgets", body)
    try:
        page = open_page()
        page.goto(f"{there.client.address}/#cost")
        row = page.get_by_role("row", name=re.compile("team vision"))
        row.get_by_text("USD 500.00 a month").wait_for()
    finally:
        there.client.post("/v1/budgets", {**body, "amount_usd": None, "period": None})
