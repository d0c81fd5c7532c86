"""The engine between machines passes the suite for engines, and who is not who they say does not come in."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

import pytest

pytest.importorskip("cryptography")

from sublet.errors import BadInput, InvalidValue, MissingExtra, NoAccess
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.engines.server import AgentServer, TlsEngine
from sublet.runtime.file_sync.own_code import own_code
from sublet.runtime.identity import certificates, enrolment
from sublet.runtime.identity.authority import Authority
from sublet.runtime.identity.names import CONTROLLER
from sublet.testing.conformance.engines import EngineSuite, opened
from sublet.testing.rigs import Ears, until
from sublet.wire.lines import to_line
from sublet.wire.messages import Hello, Welcome
from tests.rigs.boxed_lines import rig_between_machines
from tests.rigs.secure_lines import TlsRig


@pytest.fixture
def rig():
    here = TlsRig()
    yield here
    assert here.clean_up() == []


def hello_of(node_id):
    return to_line(Hello(node_id=node_id, token="", pid=1))


class TestTls(EngineSuite):
    """Agents on hosts that share nothing, where such can be made; each has a secret of its own, used once."""

    def make_rig(self):
        return rig_between_machines()

    @pytest.fixture(autouse=True)
    def _own_secrets(self, monkeypatch):
        expect = AgentServer.expect
        monkeypatch.setattr(AgentServer, "expect", lambda self, node, token: expect(self, node, f"{token} of {node}"))

    # Of strangers that the suite connects here all have the certificate of "n"; these need others.
    test_an_agent_that_falls_silent_is_hung_up_on_and_one_that_pings_is_not = None
    test_a_hearer_that_fails_does_not_cost_the_line_nor_fill_the_log = None


@pytest.mark.parametrize(
    "shows", ["nothing", "another node's", "another authority's", "one that is over", "the controller's", "no TLS"]
)
def test_whoever_shows_the_wrong_certificate_is_not_heard(rig, shows):
    other = Authority(rig.folder / "other")
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.load_verify_locations(cadata=rig.authority.certificate)
    contexts = {
        "nothing": lambda: plain,
        "another node's": lambda: rig.passport("m"),
        "another authority's": lambda: rig.passport("n", other),
        "one that is over": lambda: rig.passport("n", unix_s=0.0),
        "the controller's": lambda: plain.load_cert_chain(rig.folder / "identity" / "controller.pem") or plain,
    }

    def in_the_clear():
        with socket.create_connection(rig.place, 10.0) as line:
            line.sendall(hello_of("n"))
            return line.recv(1000)

    async def scene():
        async with opened(rig) as (engine, ears):
            engine.expect("n", "secret")
            if shows == "no TLS":
                assert Welcome.__name__.encode() not in await asyncio.to_thread(in_the_clear)
            else:
                assert await asyncio.to_thread(rig.stranger, hello_of("n"), context=contexts[shows]()) == b""
            assert ears.heard == []
            reader, writer = await rig.connect("n")
            writer.write(hello_of("n"))
            assert json.loads(await reader.readline())["type"] == Welcome.__name__  # the one that is n comes in
            writer.close()

    asyncio.run(scene())


def test_a_node_that_nobody_expects_is_not_let_in_whoever_vouched_for_it(rig):
    async def scene():
        async with opened(rig) as (engine, ears):
            engine.expect("n", "secret")
            assert await asyncio.to_thread(rig.stranger, hello_of("old"), context=rig.passport("old")) == b""
            assert ears.heard == []

    asyncio.run(scene())


def ask(rig, **facts):
    line = rig.stranger(json.dumps(facts).encode() + b"\n", context=rig.passport(""))
    return json.loads(line)["certificate"] if line else None


def test_a_secret_is_used_for_one_key_and_that_one_may_ask_again(rig):
    (_, first), (_, second) = certificates.new_request(), certificates.new_request()

    async def scene():
        async with opened(rig) as (engine, _):
            engine.expect("n", "secret")
            engine.expect("m", "other")
            asks = lambda **facts: asyncio.to_thread(ask, rig, **facts)  # noqa: E731
            for wrong in ("", "Secret", "other"):
                assert await asks(node="n", secret=wrong, request=first) is None
            assert await asks(node="x", secret="secret", request=first) is None  # noqa: S106
            assert await asks(node="n", secret="secret", request="-----BEGIN") is None  # noqa: S106
            assert await asks(node="n", secret="secret") is None  # noqa: S106
            assert await asks(node="n", secret=["secret"], request=first) is None
            assert "BEGIN CERTIFICATE" in await asks(node="n", secret="secret", request=first)  # noqa: S106
            assert await asks(node="n", secret="secret", request=second) is None  # noqa: S106
            assert "BEGIN CERTIFICATE" in await asks(node="n", secret="secret", request=first)  # noqa: S106
        async with opened(rig) as (later, _):  # which has it from the disk
            later.expect("n", "secret")
            assert await asyncio.to_thread(ask, rig, node="n", secret="secret", request=second) is None  # noqa: S106
            assert await asyncio.to_thread(ask, rig, node="n", secret="secret", request=first)  # noqa: S106

    asyncio.run(scene())


def test_whoever_shakes_no_hands_counts_as_a_stranger_and_is_in_nobodys_way(rig):
    async def scene():
        async with opened(rig) as (engine, ears):
            silent = [await asyncio.open_connection(*rig.place) for _ in range(200)]
            await until(lambda: len(engine._strangers) == 64)
            engine.expect("n", "secret of n")
            rig.agent("n", "secret of n")
            await ears.next(Hello, node_id="n")
            assert ears.heard[0][1].token == ""  # it does not travel any more
            for _, out in silent:
                out.close()

    asyncio.run(scene())


def test_who_knows_the_secret_of_a_node_gets_our_code_by_its_digest_and_the_secret_stays_unused(rig):
    good = {"node": "n", "secret": "secret", "code": own_code().digest}
    asked = [{**good, "node": "m"}, {**good, "secret": "other"}, {**good, "code": "0" * 64}, {**good, "code": 1}, good]

    def answer_to(facts):
        told = json.dumps(facts).encode() + b"\n"
        with (
            socket.create_connection(rig.place, 10.0) as plain,
            rig.passport("").wrap_socket(plain, server_hostname=CONTROLLER) as line,
        ):
            line.sendall(told)
            return b"".join(iter(lambda: line.recv(65536), b""))

    async def scene():
        async with opened(rig) as (engine, _):
            engine.expect("n", "secret")
            answers = [await asyncio.to_thread(answer_to, facts) for facts in asked]
            assert answers == [b"", b"", b"", b"", own_code().data]
            rig.authority.enrol("n", "secret", certificates.new_request()[1])

    asyncio.run(scene())


def test_an_image_without_cryptography_makes_its_key_with_openssl(rig, monkeypatch):
    def missing():
        raise MissingExtra("cryptography", "tls")

    monkeypatch.setattr(enrolment, "certificates", missing)
    key, request = enrolment.new_request()
    path = rig.folder / "node.pem"
    path.write_bytes(key + rig.authority.enrol("n", "secret", request).encode())
    rig.passport("").load_cert_chain(path)  # the certificate is of this key, or ssl refuses it
    monkeypatch.setattr(enrolment.shutil, "which", lambda _: None)
    with pytest.raises(MissingExtra, match="cryptography"):
        enrolment.new_request()


def test_an_agent_does_not_speak_with_a_controller_that_its_authority_does_not_vouch_for(rig):
    impostor = Authority(rig.folder / "impostor")

    async def scene():
        engine, ears = TlsEngine(rig.address, authority=impostor), Ears()
        await engine.open(ears.hear)
        vouched = []
        engine.vouch = lambda line: vouched.append(line) or b""
        engine.expect("n", "secret")
        rig.agent("n", "secret", lease_s=0.6)
        await until(lambda: not rig.left())
        assert (ears.heard, vouched) == ([], [])
        await engine.close()

    asyncio.run(scene())


def test_a_line_between_machines_wants_certificates_and_says_what_is_wrong_with_an_authority(tmp_path):
    own = Authority(tmp_path)
    with pytest.raises(InvalidValue, match="tls:host:port"):
        TlsEngine("tcp:127.0.0.1:1", authority=own)
    assert address_from("tls:10.0.0.1:7070")[1] == ("10.0.0.1", 7070)
    assert Authority(tmp_path).certificate == own.certificate
    assert (tmp_path / "authority.pem").stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="request of n"):
        own.enrol("n", "secret", "nonsense")
    own.enrol("n", "secret", certificates.new_request()[1])
    with pytest.raises(NoAccess, match="used before"):
        own.enrol("n", "secret", certificates.new_request()[1])
    (tmp_path / "authority.pem").write_text("x")
    with pytest.raises(BadInput, match="cannot be read"):
        Authority(tmp_path)
