"""From settings to a controller: whatever is registered under a name is all that is asked."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, InvalidValue, RentFailed, UnknownName
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.engines.ray import RayEngine
from sublet.runtime.engines.server import TlsEngine
from sublet.runtime.identity.authority import Authority
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.providers.setup import ProviderSetup
from sublet.runtime.settings import Settings, settings_from_json
from sublet.runtime.store import MetaKey, Store

OFFER = Offer(
    id="attic:bed",
    gpu="T4",
    gpus_per_node=1,
    market=Market.ON_DEMAND,
    price=Price.from_usd_per_h(0.5),
    cap=Price.from_usd_per_h(0.5),
    cloud="attic",
    hazard_per_h=0.0,
    boot_s=0.0,
    wind_down_s=0.0,
)


class Attic:
    """A provider of somebody else's: it has one offer, writes down what is asked of it, and rents nothing."""

    def __init__(self):
        self.asked, self.rented = [], asyncio.Event()

    offers = (OFFER,)

    def price_age_s(self):
        return 0.0

    async def open(self, tell):
        self.asked.append("open")

    async def rent(self, node_id, offer_id, token):
        self.asked.append(f"rent {offer_id}")
        self.rented.set()
        raise RentFailed(offer_id, "the bed is taken", wait_s=1000.0)

    async def release(self, node_id):
        return None

    async def list(self):
        return []

    async def close(self):
        self.asked.append("close")


@pytest.fixture
def attic(monkeypatch, tmp_path):
    """Registered here and nowhere else, as an entry point of an installed package is."""
    provider, given, known = Attic(), [], plugins._entry_points

    async def warm():
        provider.asked.append("warm")

    def build(settings, clock, store):
        given.append((settings, clock.speedup, store.path))
        address = f"unix:{tmp_path / 'beds.sock'}"
        limits = {OFFER.id: Limit(max_nodes=3)}
        return ProviderSetup(provider=provider, address=address, lease_s=7.0, limits=limits, warm=warm)

    points = {"attic": SimpleNamespace(load=lambda: build), "class": SimpleNamespace(load=lambda: Attic)}
    monkeypatch.setattr(
        plugins, "_entry_points", lambda group: known(group) | (points if group == "sublet.providers" else {})
    )
    return SimpleNamespace(provider=provider, given=given)


def test_a_provider_of_somebody_elses_works_by_its_entry_point_alone(attic, tmp_path):
    settings = Settings(state_dir=str(tmp_path / "state"), provider="attic", speedup=60.0)

    async def live():
        api = controller_from(settings)
        running = asyncio.create_task(api.run())
        await api.started()
        await api.submit(job_from_command(["true"], name="a"))
        await asyncio.wait_for(attic.provider.rented.wait(), 120)
        await api.shutdown(end_jobs=True)
        await running

    asyncio.run(live())
    assert attic.given == [(settings, 60.0, tmp_path / "state" / "log.sqlite")]
    assert attic.provider.asked[:3] == ["warm", "open", "rent attic:bed"]
    assert attic.provider.asked[-1] == "close"
    store = Store(tmp_path / "state" / "log.sqlite")
    assert settings_from_json(store.get(MetaKey.SETTINGS)) == settings  # whoever has the log alone knows them
    store.close()


def test_the_engine_is_the_one_that_is_named_and_listens_where_the_provider_says(attic, tmp_path):
    controller = controller_from(Settings(state_dir=str(tmp_path), provider="attic"))._controller
    assert isinstance(controller.engine, LocalEngine)
    assert (controller.engine.address, controller.engine.lease_s) == (f"unix:{tmp_path / 'beds.sock'}", 7.0)
    assert controller.options.limits == {OFFER.id: Limit(max_nodes=3)}


def test_a_class_in_place_of_a_function_is_refused_with_what_to_register(attic, tmp_path):
    with pytest.raises(BadInput, match=r"entry point class: is the class Attic.*\n.*build\(settings, clock, store\)"):
        controller_from(Settings(state_dir=str(tmp_path / "state"), provider="class"))


@pytest.mark.parametrize("field", ["provider", "engine"])
def test_a_name_that_nobody_registered_is_refused_before_anything_is_written(field, tmp_path):
    settings = replace(Settings(state_dir=str(tmp_path / "state")), **{field: "lcoal"})
    with pytest.raises(UnknownName, match=f"no {field} is called 'lcoal'; did you mean local"):
        controller_from(settings)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("provider", "engine"), [("local", "ray"), ("aws", "ray"), ("ray", "local")])
def test_agents_of_a_provider_talk_to_its_own_engine_alone(provider, engine, tmp_path):
    with pytest.raises(InvalidValue, match="ray where the provider is ray, and only there"):
        controller_from(Settings(state_dir=str(tmp_path), provider=provider, engine=engine))


def test_every_engine_has_its_own_guard_and_no_other():
    assert LocalEngine("tcp:127.0.0.1:7171").address == "tcp:127.0.0.1:7171"
    assert RayEngine("tcp:10.1.2.3:7171").address == "tcp:10.1.2.3:7171"
    assert not issubclass(RayEngine, LocalEngine)
    with pytest.raises(InvalidValue, match="loopback"):
        LocalEngine("tcp:10.1.2.3:7171")
    with pytest.raises(InvalidValue, match="one address of this machine"):
        RayEngine("unix:/tmp/agents.sock")


@pytest.mark.parametrize(("controller", "kind"), [("tls:10.0.0.5:7070", TlsEngine), ("tcp:10.0.0.5:7070", LocalEngine)])
def test_nodes_that_come_over_tls_meet_an_engine_that_asks_for_certificates(controller, kind, tmp_path):
    pytest.importorskip("boto3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    facts = f'regions = ["us-east-1"]\ninstance_types = ["g5.xlarge"]\nimage = "ami-1"\ncontroller = "{controller}"\n'
    (tmp_path / "aws.toml").write_text(f"{facts}agents_port = {port}\n")
    here = controller_from(Settings(state_dir=str(tmp_path), provider="aws"))._controller
    assert type(here.engine) is kind
    assert here.engine.address.startswith(controller[:4])
    assert here.provider._provider._authority == (
        Authority(tmp_path / "identity").certificate if kind is TlsEngine else ""
    )
