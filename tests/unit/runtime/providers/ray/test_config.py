"""Kinds of nodes in a Ray cluster, from a file or from what is seen, and what is refused."""

from __future__ import annotations

import builtins

import pytest

from sublet.domain.offer import Market
from sublet.errors import BadInput, InvalidValue, MissingExtra
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.engines.ray import RayEngine
from sublet.runtime.providers.ray.cluster import RayClaim
from sublet.runtime.providers.ray.config import (
    NodeKind,
    RayConfig,
    RayNode,
    config_path,
    kind_from_json,
    kind_to_json,
    kinds_from,
    offer_from,
    read_config,
)
from sublet.runtime.providers.written import WrittenClaims
from sublet.runtime.settings import Settings


def node(name="n", labels=None, free=None, **total):
    plain = {key.replace("accelerator", "accelerator_type:"): float(value) for key, value in total.items()}
    return RayNode(id=name, host="h", total=plain, free=plain if free is None else free, labels=labels or {})


BIG = node("big", CPU=96, GPU=8, acceleratorA100=1)
SPOT = node("spot", {"ray.io/market-type": "spot"}, CPU=96, GPU=8, acceleratorA100=1)
LITTLE = node("little", CPU=4)
HEAD = node("head", CPU=0)


def test_a_cluster_has_as_many_kinds_as_differ_and_a_head_without_cpus_is_none():
    kinds = kinds_from([BIG, LITTLE, HEAD, SPOT, node("twin", CPU=4)])
    assert {kind.name: (kind.slots, kind.market) for kind in kinds} == {
        "A100x8-96cpu-spot": (8, Market.SPOT),
        "A100x8-96cpu": (8, Market.ON_DEMAND),
        "cpux4": (4, Market.ON_DEMAND),
    }


def test_every_node_that_can_train_belongs_to_the_kind_that_it_gave_rise_to():
    nodes = [BIG, SPOT, LITTLE, node("other", CPU=8), node("v", CPU=8, GPU=2)]
    kinds = kinds_from(nodes)
    for one in nodes:
        first = next(kind for kind in kinds if kind.fits(one))
        assert kinds_from([one]) == (first,)


def test_a_kind_reserves_what_it_says_and_is_free_only_where_all_of_it_is():
    kind = NodeKind(name="a", slots=8, cpus=90.5, gpus=8, resources={"disk": 2})
    assert kind.reserves == {"CPU": 90.5, "GPU": 8.0, "disk": 2}
    whole = node(CPU=96, GPU=8, disk=2)
    assert kind.fits(whole)
    assert kind.is_free(whole)
    assert not kind.is_free(node(CPU=96, GPU=8, disk=2, free={"CPU": 96.0, "GPU": 7.0, "disk": 2.0}))
    assert not kind.fits(node(CPU=96, GPU=4, disk=2))
    assert not kind.fits(node(CPU=64, GPU=8, disk=2))


def test_a_cpu_kind_takes_no_node_with_gpus():
    assert not NodeKind(name="c", slots=1, cpus=1.0).fits(BIG)


@pytest.mark.parametrize(
    "facts",
    [
        {"slots": 0, "cpus": 1.0},
        {"slots": 1},  # nothing to reserve
        {"slots": 4, "gpus": 2},
        {"slots": 1, "cpus": -1.0},
        {"slots": 1, "cpus": 1.0, "usd_per_h": -1.0},
        {"slots": 1, "cpus": 1.0, "autoscaled": True},  # up to how many?
        {"slots": 1, "cpus": 1.0, "most": 0},
    ],
)
def test_kinds_that_cannot_be_are_refused(facts):
    with pytest.raises(InvalidValue):
        NodeKind(name="k", **facts)


def test_a_file_says_kinds_prices_and_the_address(tmp_path):
    path = tmp_path / "ray.toml"
    path.write_text(
        'address = "head:6379"\n[[nodes]]\nname = "a100"\ngpus = 8\ncpus = 90\nusd_per_h = 32.77\nmarket = "spot"\n'
        'most = 10\nautoscaled = true\n[[nodes]]\nname = "cpu"\ncpus = 16\nslots = 4\n'
    )
    config = read_config(path, {})
    assert config.address == "head:6379"
    a100, cpu = config.kinds
    assert (a100.slots, cpu.slots) == (8, 4)
    offer = offer_from(a100)
    assert (offer.id, offer.gpus_per_node, offer.market) == ("ray:a100", 8, Market.SPOT)
    assert offer.price.usd_per_h == offer.cap.usd_per_h == 32.77


def test_without_a_file_all_is_as_seen_but_a_file_that_was_named_must_exist(tmp_path):
    assert read_config(tmp_path / "ray.toml", {}) == RayConfig()
    missing = tmp_path / "other.toml"
    with pytest.raises(BadInput, match="does not exist"):
        read_config(config_path(tmp_path, {"SUBLET_RAY": str(missing)}), {"SUBLET_RAY": str(missing)})


@pytest.mark.parametrize(
    "text",
    [
        "address = ",
        "colour = 1",
        "[[nodes]]\nname = 'a'\ncpus = 1\ncolour = 'red'",
        "[[nodes]]\ncpus = 1",
        "[[nodes]]\nname = 'a'\ncpus = 1\nmarket = 'flea'",
        "address = 'ray://head:10001'",
        "[[nodes]]\nname = 'a'\ncpus = 1\n[[nodes]]\nname = 'a'\ncpus = 2",
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "ray.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"ray\.toml"):
        read_config(path, {})


def test_kinds_come_back_from_the_state_directory_as_they_were():
    for kind in kinds_from([BIG, SPOT, LITTLE]):
        assert kind_from_json(kind_to_json(kind)) == kind


def test_claims_are_found_again_and_damaged_ones_stand_in_nobodys_way(tmp_path):
    claims = WrittenClaims(tmp_path, RayClaim)
    facts = {"offer_id": "o", "token": "t", "ray_node": "r"}
    later, first = RayClaim(node_id="b", began_s=2.0, **facts), RayClaim(node_id="a", began_s=1.0, pid=7, **facts)
    for claim in (later, first):
        claims.write(claim)
    (tmp_path / "c.json").write_text("{")
    assert WrittenClaims(tmp_path, RayClaim).read() == [first, later]
    claims.remove("a")
    claims.remove("a")
    assert WrittenClaims(tmp_path, RayClaim).read() == [later]


@pytest.mark.parametrize("address", ["unix:/tmp/x", "tcp:0.0.0.0:1", "tcp:*:5", "nonsense"])
def test_the_engine_listens_on_one_address_of_the_cluster_and_nowhere_else(address):
    with pytest.raises(InvalidValue):
        RayEngine(address)


def test_ray_as_engine_needs_ray_as_provider(tmp_path):
    with pytest.raises(InvalidValue, match="engine"):
        controller_from(Settings(state_dir=str(tmp_path), engine="ray"))


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch):
    imported = builtins.__import__

    def without_ray(name, *rest, **more):
        if name == "ray" or name.startswith("ray."):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(MissingExtra, match=r"\[ray\]"):
        controller_from(Settings(state_dir=str(tmp_path), provider="ray", engine="ray"))
