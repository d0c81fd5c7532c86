"""Which of its addresses a machine tells the others, and what is said when that cannot be right."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections import Counter
from types import SimpleNamespace

import pytest

from sublet.errors import InvalidValue
from sublet.runtime.agent import host
from sublet.runtime.agent.agent import Agent, AgentFacts
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.agent.host import own_address
from sublet.runtime.agent.machine import Machine
from sublet.wire.messages import Hello
from tests.rigs.story import Story, a_spec, phase, until

TUNNEL = "127.0.0.1"
TOKEN = "t" * 8
MACHINES = ("one", "one", "two")


class Interfaces:
    """The interfaces that the kernel describes, in the order of their numbers; no way out."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.found = folder / "net", [("lo", "127.0.0.1")]
        self.folder.mkdir()
        monkeypatch.setattr(host, "NETWORK", self.folder, raising=False)
        monkeypatch.setattr(host, "_interfaces", lambda: self.found)
        monkeypatch.setattr(host, "_by_the_way_out", lambda: "")
        self.ipv6 = folder / "if_inet6"
        self.ipv6.write_text("", encoding="ascii")
        monkeypatch.setattr(host, "ADDRESSES_6", self.ipv6, raising=False)

    def add(self, name, address="", *, state="up", parts=(), **files):
        place = self.folder / name
        for part in parts:
            (place / part).mkdir(parents=True)
        place.mkdir(exist_ok=True)
        own = str(len(self.found) + 1)
        for file, text in {"operstate": state, "ifindex": own, "iflink": own, "uevent": "", **files}.items():
            (place / file).write_text(f"{text}\n", encoding="ascii")
        if address:
            self.found.append((name, address))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Interfaces(tmp_path, monkeypatch)


def test_a_bridge_to_containers_is_not_where_others_reach_a_machine(machine):
    machine.add("docker0", "172.17.0.1", parts=["bridge", "brif/veth1"])
    machine.add("veth1", iflink="99")
    machine.add("eth0", "10.0.0.5", parts=["device"])
    assert own_address(TUNNEL) == "10.0.0.5"


def test_what_a_device_is_tells_and_not_its_name(machine):
    machine.add("eth7", "172.18.0.1", parts=["bridge"])  # a bridge of somebody who likes that name
    machine.add("vpn", "100.64.0.3", tun_flags="0x1")
    machine.add("over", "10.244.1.0", uevent="DEVTYPE=vxlan", iflink="2")
    machine.add("nothing", "10.9.9.9", flags="0xc3")  # a dummy: it leads to itself
    machine.add("old", "10.0.0.4", state="down", parts=["device"])
    machine.add("docker-uplink", "10.0.0.5", flags="0x1003")  # the end of a pair, as a container has
    assert own_address(TUNNEL) == "10.0.0.5"


def test_a_bridge_over_a_device_is_where_others_reach_a_machine(machine):
    machine.add("virbr0", "192.168.122.1", parts=["bridge"])
    machine.add("br0", "10.0.0.6", parts=["bridge", "brif/eth0"])
    machine.add("eth0", parts=["device"])
    assert own_address(TUNNEL) == "10.0.0.6"


def test_a_machine_that_has_only_a_bridge_to_containers_is_alone(machine):
    machine.add("docker0", "172.17.0.1", parts=["bridge"])
    machine.ipv6.write_text("fe800000000000000000000000000001 02 40 20 80  docker0\n", encoding="ascii")
    assert own_address(TUNNEL) == "127.0.0.1"


def test_a_machine_with_addresses_of_ipv6_alone_does_not_say_loopback(machine):
    machine.ipv6.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000000000000000001 02 40 20 80     eth0\n"
        "20010db8000000000000000000000005 02 40 00 80     eth0\n",
        encoding="ascii",
    )
    with pytest.raises(host.NoAddress, match=r"IPv6 only.*--host or SUBLET_HOST"):
        own_address(TUNNEL)


def test_an_agent_without_an_address_says_why_and_goes(machine, tmp_path):
    machine.ipv6.write_text("20010db8000000000000000000000005 02 40 00 80     eth0\n", encoding="ascii")
    told = []
    with socket.create_server((TUNNEL, 0)) as controller, selectors.DefaultSelector() as selector:
        address = f"tcp:{TUNNEL}:{controller.getsockname()[1]}"
        facts = AgentFacts(node_id="n", token=TOKEN, address=address, notice_file=str(tmp_path / "n"))
        nobody = SimpleNamespace(ended=lambda: iter(()))  # children of this process are not its workers
        agent = Agent(facts, Machine(selector=selector, processes=nobody, log=told.append))
        patience_s = 0.0
        while patience_s is not None:  # it would train where nobody meets it
            patience_s = agent.turn(selector.select(patience_s))
        line, _ = controller.accept()
        with line:
            assert b"IPv6" in line.recv(1 << 16)
        for key in selector.get_map().values():
            key.fileobj.close()  # as the end of its process would
    assert "--host" in told[0]


def test_a_controller_at_an_address_of_ipv6_is_refused_in_words():
    with pytest.raises(InvalidValue, match="IPv6 is not supported yet"):
        address_from("tcp:[fd00::2]:7070")


def test_two_machines_that_claim_one_address_are_told_and_two_agents_of_one_machine_are_not(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=3))
            await phase(api, "j-1", "running")

            async def nodes():
                found = (await api.job("j-1"))["node_ids"]
                return found if len(found) == len(MACHINES) else None

            first, *_, third = held = await until(nodes, "it never had three nodes")
            hear = api._controller.nodes.agents.receive
            for node_id, machine in zip(held, MACHINES, strict=True):
                workers = {w.id: "j-1" for w in api.record("j-1").group.workers.values() if w.node_id == node_id}
                about = {"host": "172.17.0.1", "workers": workers, "machine": machine}
                hear(node_id, Hello(node_id=node_id, token=TOKEN, pid=1, **about))

            async def alarms():
                return [event for event in await api.events() if event["kind"] == "Alarm"]

            told = await until(alarms, "nobody was told")
            assert [event["node_id"] for event in told] == [third]
            assert f"at 172.17.0.1, it says, and so is {first} on another machine" in told[0]["text"]
            assert "--host" in told[0]["text"]
            assert "SUBLET_HOST" in told[0]["text"]
            assert Counter((await api.metrics())["alarms"])["address"] == 1

    asyncio.run(live())
