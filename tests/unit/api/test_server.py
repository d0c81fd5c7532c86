"""The server over real HTTP on loopback: who may ask, what a retry does, how errors look."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
import time

import pytest

from sublet.api.client import Client, connect
from sublet.api.server import bind
from sublet.errors import BadInput, InvalidValue, NoController, Refused, StaleController, StoreFailed
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from sublet.runtime.settings import Settings, settings_from_json, settings_to_json
from tests.rigs.in_memory_api import RUNNING, served

POSTS = ("/v1/jobs", "/v1/dry-run", "/v1/budget", "/v1/budget/top-up", "/v1/shutdown", "/v1/jobs/x/cancel")
GETS = ("/v1/jobs", "/v1/events", "/v1/cost", "/v1/budget", "/v1/nodes", "/v1/health", "/metrics", "/v1/openapi.json")


@pytest.fixture
def there(tmp_path):
    with served(tmp_path) as found:
        yield found


def body_of(name="echo", **facts):
    spec = job_from_command(["true"], name=name)
    return {"job": {**spec_to_json(spec, secrets=True), **facts}}


def raw(there, method, path, body=b"", *, token=None, **headers):
    """One request exactly as told: status, headers, JSON."""
    connection = http.client.HTTPConnection(there.client.host, there.client.port, timeout=120)
    sent = {"Authorization": f"Bearer {there.client.token if token is None else token}"}
    sent |= {"Content-Type": "application/json"} if method == "POST" else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    kind = response.getheader("content-type", "")
    return response.status, response.headers, json.loads(text) if "json" in kind else text.decode()


def test_nothing_but_health_is_told_without_the_token(there):
    for path in GETS:
        assert raw(there, "GET", path, token="0" * 64)[0] == 401
        assert raw(there, "GET", path, Authorization=None)[0] == 401
        assert raw(there, "GET", path, Authorization=f"Basic {there.client.token}")[0] == 401
        assert raw(there, "GET", path)[0] == 200
    for path in POSTS:
        status, headers, facts = raw(there, "POST", path, b"{}", token="")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert facts["schema_version"] == 1
        assert "token" in facts["next"]
    assert not there.api.rows
    assert not there.api.stopping
    for path in ("/healthz", "/readyz"):
        assert raw(there, "GET", path, token="")[0] == 200


def test_whoever_has_the_token_of_readers_may_ask_everything_and_change_nothing(there):
    token = there.state.reader_file.read_text()
    assert token != there.client.token
    for path in GETS:
        assert raw(there, "GET", path, token=token)[0] == 200
    for path in POSTS:
        status, _, facts = raw(there, "POST", path, b"{}", token=token)
        assert (status, facts["error"]) == (403, "this token may only read")
    assert not there.api.rows
    assert not there.api.stopping


def test_the_token_is_long_and_for_the_owner_alone(there):
    for file in (there.state.token_file, there.state.reader_file, there.state.address_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(there.state.path.stat().st_mode) == 0o700
    assert len(bytes.fromhex(there.state.token())) == 32
    assert there.client.token not in repr(there.client)


def test_another_host_or_origin_is_refused_even_with_the_token(there):
    port = there.client.port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1:{port + 1}", "", f"127.0.0.1.evil.example:{port}"):
        assert raw(there, "GET", "/v1/jobs", Host=host)[0] in (400, 403)
        assert raw(there, "GET", "/healthz", Host=host)[0] in (400, 403)
    assert raw(there, "GET", "/v1/jobs", Host=f"localhost:{port}")[0] == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}.evil.example"):
        assert raw(there, "POST", "/v1/budget/top-up", b'{"usd": 5}', Origin=origin)[0] == 403
    assert there.api.purse == 5.0
    assert raw(there, "POST", "/v1/budget/top-up", b'{"usd": 5}', Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert there.api.purse == 10.0


def test_a_form_of_a_web_page_cannot_post(there):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None):
        assert raw(there, "POST", "/v1/budget/top-up", b'{"usd": 5}', Content_Type=kind)[0] == 415
    assert there.api.purse == 5.0


def test_a_body_is_bounded(there):
    status, _, facts = raw(there, "POST", "/v1/jobs", b" " * (1 << 20) + b"{}")
    assert status == 413
    assert "bytes" in facts["error"]
    assert raw(there, "POST", "/v1/jobs", Content_Length=None, Transfer_Encoding="chunked")[0] == 411


def test_the_same_key_and_body_is_one_job_and_another_body_is_a_conflict(there):
    first = there.client.post("/v1/jobs", body_of(), key="k")
    assert there.client.post("/v1/jobs", body_of(), key="k") == first
    assert len(there.api.rows) == 1
    with pytest.raises(Refused, match="another body") as caught:
        there.client.post("/v1/jobs", body_of("other"), key="k")
    assert caught.value.status == 409
    assert there.client.post("/v1/jobs", body_of(), key="l") != first
    assert len(there.api.rows) == 2


def test_retries_at_the_same_moment_are_one_top_up(there):
    threads = [
        threading.Thread(target=there.client.post, args=("/v1/budget/top-up", {"usd": 1.0}), kwargs={"key": "once"})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there.api.purse == 6.0


@pytest.mark.parametrize(
    ("error", "status", "exit_code"),
    [
        (StoreFailed("sublet.db", "cannot be written (database or disk is full)", hint="make room"), 503, 74),
        (StaleController("sublet.db", life=1, now=2), 503, 75),
        (BadInput("job.yaml", "is no job"), 422, 2),
    ],
)
def test_whose_fault_it_is_that_nothing_was_done_is_said_by_the_status(there, monkeypatch, error, status, exit_code):
    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(there.api, "submit", fail)
    with pytest.raises(Refused) as caught:
        there.client.post("/v1/jobs", body_of(), key="k")
    assert (caught.value.status, caught.value.exit_code) == (status, exit_code)
    said, _, advice = str(caught.value).partition("\n  next: ")
    own, _, own_advice = str(error).partition("\n  next: ")
    assert said == own
    assert advice == own_advice if own_advice else advice


def test_a_fault_is_no_answer_so_a_retry_may_succeed(there):
    sound, there.api.top_up = there.api.top_up, None
    status, _, facts = raw(there, "POST", "/v1/budget/top-up", b'{"usd": 1}', Idempotency_Key="a")
    assert (status, facts["schema_version"]) == (500, 1)
    assert "internal error" in facts["error"]
    there.api.top_up = sound
    assert raw(there, "POST", "/v1/budget/top-up", b'{"usd": 1}', Idempotency_Key="a")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/jobs", {"job": {"name": "x", "argv": ["true"], "cwd": "/", "oops": 1}}, 422, "oops"),
        ("/v1/jobs", {"job": {"name": "x", "argv": "true", "cwd": "/"}}, 422, "argv"),
        ("/v1/jobs", {"job": {"name": "x", "argv": [], "cwd": "/"}}, 422, "run"),
        ("/v1/jobs", {"job": {"name": "x"}}, 422, ""),
        ("/v1/jobs", {"job": 3}, 422, "job"),
        ("/v1/jobs", {}, 422, "job"),
        ("/v1/budget/top-up", {"usd": -1}, 422, "usd"),
        ("/v1/budget/top-up", {"usd": "many"}, 422, "usd"),
        ("/v1/budget/top-up", {"usd": "3"}, 422, "usd"),
        ("/v1/budget/top-up", {"usd": True}, 422, "usd"),
        ("/v1/jobs/nosuch/top-up", {"usd": True}, 422, "usd"),
        ("/v1/jobs/nosuch/cancel", {"now": 1}, 422, "now"),
        ("/v1/jobs/nosuch/resume", {"start_over": "yes"}, 422, "start_over"),
        ("/v1/jobs/nosuch/scale", {"low": True, "high": 2}, 422, "low"),
        ("/v1/jobs/nosuch/scale", {"low": 1, "high": "2"}, 422, "high"),
        ("/v1/budget", {"purse_usd": True}, 422, "purse_usd"),
        ("/v1/budget", {"burn_limit_usd_per_h": "2"}, 422, "burn_limit_usd_per_h"),
        ("/v1/shutdown", {"end_jobs": "no"}, 422, "end_jobs"),
        ("/v1/budget", {"purse": 3}, 422, "purse"),
        ("/v1/jobs/nosuch/cancel", {}, 404, ""),
        ("/v1/nosuch", {}, 404, ""),
        ("/v1/nodes", {}, 405, ""),
    ],
)
def test_every_error_has_the_same_shape(there, path, body, status, field):
    code, _, facts = raw(there, "POST", path, json.dumps(body).encode())
    assert (code, facts["field"]) == (status, field)
    assert set(facts) == {"schema_version", "error", "field", "next", "exit_code"}
    assert facts["error"]
    assert facts["next"]


@pytest.mark.parametrize(
    ("path", "body", "advice"),
    [
        ("/v1/jobs", body_of(max_workers=0), "sublet submit FILE --dry-run"),
        ("/v1/dry-run", body_of(max_workers=0), "sublet submit FILE --dry-run"),
        ("/v1/budget", {"purse_usd": -1}, "sublet budget set"),
        ("/v1/budget/top-up", {"usd": 0}, "sublet budget top-up"),
        ("/v1/jobs/nosuch/scale", {"low": 3, "high": 0}, "sublet scale --help"),
    ],
)
def test_a_refusal_names_the_next_step_by_the_command_that_asked(there, path, body, advice):
    code, _, facts = raw(there, "POST", path, json.dumps(body).encode())
    assert code == 422
    assert advice in facts["next"]


def test_broken_json_and_secrets_that_do_not_fit_are_errors_without_echo(there):
    assert raw(there, "POST", "/v1/jobs", b"{nope")[0] == 422
    facts = raw(there, "POST", "/v1/jobs", json.dumps(body_of(secrets=["hush"])).encode())[2]
    assert facts["field"] == "secrets"
    assert "hush" not in str(facts)


def test_every_answer_has_a_schema_version(there):
    there.client.post("/v1/jobs", body_of())
    paths = ("/v1/jobs", "/v1/jobs/echo", "/v1/events", "/v1/cost", "/v1/budget", "/v1/nodes", "/v1/jobs/echo/explain")
    for path in (*paths, "/v1/health", "/healthz", "/readyz"):
        assert there.client.get(path)["schema_version"] == 1


def test_readiness_is_another_question_than_life(there):
    there.api.stopping = True
    assert raw(there, "GET", "/readyz")[0] == 503
    assert raw(there, "GET", "/healthz")[0] == 200


def until(condition):
    end_s = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.01)


def test_a_log_is_streamed_as_it_grows_and_without_secrets(there, tmp_path):
    job_id = there.client.post("/v1/jobs", body_of(secrets={"TOKEN": "hush-hush"}))["job_id"]
    there.api.change(job_id, **RUNNING)
    path = tmp_path / f"{job_id}-0.log"
    got = []

    def read():
        got.extend(there.client.stream(f"/v1/jobs/{job_id}/log", follow=True))

    reader = threading.Thread(target=read)
    reader.start()
    with path.open("wb", buffering=0) as file:
        file.write(b"one hush-")
        until(lambda: got)
        assert b"".join(got) == b"one "  # what could be the beginning of a secret waits
        file.write(b"hush two\n")
        until(lambda: b"".join(got).endswith(b"\n"))
        assert b"".join(got) == b"one *** two\n"
        there.api.change(job_id, phase="finished")
        file.write(b"end\n")
    reader.join(120)
    assert b"".join(got) == b"one *** two\nend\n"
    assert b"".join(there.client.stream(f"/v1/jobs/{job_id}/log", tail=1)) == b"end\n"
    assert b"".join(there.client.stream(f"/v1/jobs/{job_id}/log", rank=7)) == b""


def test_metrics_have_base_units_and_no_label_without_bound(there):
    job_id = there.client.post("/v1/jobs", body_of())["job_id"]
    there.api.change(job_id, **RUNNING)
    text = b"".join(there.client.stream("/metrics")).decode()
    who = f'job="{job_id}",name="echo"'
    for line in (
        f'sublet_job_cost_dollars_total{{{who},purpose="useful"}} 0.6',
        f'sublet_job_preemptions_total{{{who},notice="unnoticed"}} 0.0',
        f"sublet_job_goodput_ratio{{{who}}} 0.6",
        f"sublet_job_workers_desired{{{who}}} 1.0",
        f"sublet_job_workers_actual{{{who}}} 2.0",
        f'sublet_job_forecast_cost_dollars{{{who},quantile="p90"}} 2.0',
        f'sublet_job_forecast_finish_seconds{{{who},quantile="p50"}} 120.0',
        f"sublet_job_steps_total{{{who}}} 40.0",
        "sublet_burn_rate_dollars_per_hour 0.6",
        "sublet_budget_remaining_dollars 3.9",
        'sublet_recovery_seconds_bucket{le="0.5"} 3.0',
        'sublet_recovery_seconds_bucket{le="2"} 4.0',
        'sublet_recovery_seconds_bucket{le="+Inf"} 5.0',
        "sublet_recovery_seconds_sum 7.25",
        'sublet_resizes_total{reason="loss"} 1.0',
        'sublet_provider_calls_total{call="rent",outcome="refused"} 1.0',
        "sublet_orphans_found_total 0.0",
        "sublet_price_age_seconds 3.0",
    ):
        assert f"\n{line}\n" in text
    assert "rank=" not in text


def test_a_job_answers_to_its_id_its_name_and_a_prefix_that_is_its_own(there):
    ids = [there.client.post("/v1/jobs", body_of(name))["job_id"] for name in ("alpha", "beta", "beta")]
    get = there.client.get
    assert get(f"/v1/jobs/{ids[0]}")["id"] == get("/v1/jobs/alpha")["id"] == get("/v1/jobs/alp")["id"] == ids[0]
    with pytest.raises(Refused, match="2 jobs are called 'beta'") as caught:
        get("/v1/jobs/beta")
    assert caught.value.exit_code == 102
    there.api.change(ids[1], phase="finished")
    assert get("/v1/jobs/beta")["id"] == ids[2]  # the one that lives
    there.api.change(ids[2], phase="failed")
    assert get("/v1/jobs/beta")["id"] == ids[2]  # the last
    with pytest.raises(Refused, match="did you mean alpha"):
        get("/v1/jobs/alhpa")
    with pytest.raises(Refused):
        get("/v1/jobs/j")


def test_a_shutdown_answers_first_and_then_lets_everybody_go(tmp_path):
    with served(tmp_path) as there:
        assert there.client.post("/v1/shutdown", {"end_jobs": True})["stopping"]
        there.thread.join(120)
        assert there.api.ended_jobs
        assert not there.state.address_file.exists()
        assert not there.state.token_file.exists()
        with pytest.raises(NoController, match="sublet up"):
            there.client.get("/v1/jobs")
        with pytest.raises(NoController, match="none was started"):
            connect(there.state.path)


def test_only_loopback_is_served():
    for host in ("0.0.0.0", "192.168.1.2", "example.org"):  # noqa: S104 - what must be refused
        with pytest.raises(InvalidValue, match=r"127\.0\.0\.1"):
            bind(host, 0)
        with pytest.raises(InvalidValue, match=r"127\.0\.0\.1"):
            Settings(state_dir="/x", host=host)
        with pytest.raises(BadInput, match="loopback"):
            connect(environment={"SUBLET_SERVER": f"http://{host}:80"})


def test_who_is_let_in_is_known_to_come_by_tcp_and_is_answered_at_once():
    """asyncio sets TCP_NODELAY where it knows the protocol: else an answer waits 40 ms for the last to be confirmed."""
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        arrived, _ = listening.accept()
        with arrived:
            assert arrived.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_named():
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port}: another program uses it") as caught:
            bind("127.0.0.1", port)
    assert "--port" in caught.value.hint


def test_the_environment_may_name_the_controller(there):
    server = f"http://127.0.0.1:{there.client.port}"
    client = connect(environment={"SUBLET_SERVER": server, "SUBLET_TOKEN": there.client.token})
    assert client.get("/v1/jobs")["jobs"] == []
    with pytest.raises(Refused, match="token"):
        connect(environment={"SUBLET_SERVER": server}).get("/v1/jobs")


def test_a_stranger_at_the_address_is_no_controller():
    with bind("127.0.0.1", 0) as sock:

        def answer():
            peer, _ = sock.accept()
            peer.recv(1000)
            peer.sendall(b"SSH-2.0-hello\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoController):
            Client(host="127.0.0.1", port=sock.getsockname()[1], token="x", timeout_s=5).get("/v1/jobs")  # noqa: S106
        thread.join()


def test_settings_survive_the_file_and_refuse_nonsense():
    settings = Settings(state_dir="/x", purse_usd=5.0, market=("a", "b"), speedup=60.0)
    assert settings_from_json(settings_to_json(settings)) == settings
    for broken in ("", "[]", "{}", '{"state_dir": "/x", "speedup": "fast"}'):
        with pytest.raises(BadInput, match="settings"):
            settings_from_json(broken)


def test_lines_on_which_nothing_comes_are_few_and_cut_nobody_who_is_being_answered(there):
    job_id = there.client.post("/v1/jobs", body_of())["job_id"]
    there.api.change(job_id, **RUNNING)
    log = there.api.folder / f"{job_id}-0.log"
    log.write_bytes(b"first\n")
    stream = there.client.stream(f"/v1/jobs/{job_id}/log", follow=True)
    assert next(stream) == b"first\n"
    lines = []
    for number in range(300):
        line = socket.create_connection((there.client.host, there.client.port), timeout=120)
        line.sendall(b"" if number % 2 else b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        lines.append(line)
    assert raw(there, "GET", "/v1/jobs")[0] == 200
    held = 0
    for line in lines:
        line.settimeout(0.005)
        try:
            held += line.recv(1) != b""
        except TimeoutError:
            held += 1
        except ConnectionError:
            pass
        line.close()
    assert held <= 128
    with log.open("ab") as file:
        file.write(b"second\n")
    assert next(stream) == b"second\n"
    stream.close()
