from __future__ import annotations

import csv
import os
from datetime import date

import pytest

from sublet import data
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.catalogue import CATALOGUES, load_catalogue, read_catalogue
from sublet.market.hygiene import ON_BOARDS

HEAD = "cloud,region,zone,instance_type,gpu,gpu_count,gpu_mem_gib,vcpus,mem_gib,price_ondemand,price_spot,as_of"
USUAL = [  # three clouds that ask about a dollar for an X1
    "alpha,east,e-1,a.large,X1,1,16,8,64,1.00,0.30,2026-08-22",
    "alpha,west,*,a.large,X1,1,16,8,64,1.10,0.35,2026-08-22",
    "alpha,west,*,a.huge,X1,4,16,32,256,4.00,1.20,2026-08-22",
    "beta,*,,b1,X1,1,16,8,64,0.90,0.25,2026-08-20",
    "gamma,north,,c1,X1,1,16,8,64,1.20,,2025-09-11",
]


def catalogue_of(tmp_path, *rows):
    path = tmp_path / "offers.csv"
    path.write_text("\n".join([HEAD, *USUAL, *rows]) + "\n")
    return read_catalogue(path)


@pytest.fixture(scope="module")
def current():
    return load_catalogue()


def test_a_catalogue_is_read_once_and_again_when_its_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "offers.csv"
    monkeypatch.setattr(data, "locate", lambda _: path)
    path.write_text("\n".join([HEAD, *USUAL]) + "\n")
    os.utime(path, (1, 1))
    first = load_catalogue()
    assert load_catalogue() is first
    path.write_text("\n".join([HEAD, *USUAL[:3]]) + "\n")
    os.utime(path, (2, 2))
    assert len(load_catalogue()) == 6 < len(first)


def test_offers_come_cheapest_per_gpu_first(tmp_path):
    offers = catalogue_of(tmp_path).select(gpu="X1", market="on-demand")
    assert [offer.id for offer in offers] == [
        "beta:b1:on-demand",
        "alpha:east:e-1:a.large:on-demand",
        "alpha:west:a.huge:on-demand",
        "alpha:west:a.large:on-demand",
        "gamma:north:c1:on-demand",
    ]


def test_a_price_is_exact_and_its_age_is_known(tmp_path):
    quote = catalogue_of(tmp_path).quote("gamma:north:c1:on-demand")
    assert quote.offer.price == Price.from_usd_per_h("1.2")
    assert quote.age_days(date(2025, 9, 13)) == 2


def test_every_filter_narrows(tmp_path):
    catalogue = catalogue_of(tmp_path)
    everything = catalogue.select()
    for wanted in (
        {"cloud": "alpha"},
        {"region": "west"},
        {"instance_type": "a.huge"},
        {"market": Market.SPOT},
        {"max_usd_per_h": 1.0},
        {"max_usd_per_gpu_h": 0.5},
    ):
        some = catalogue.select(**wanted)
        assert 0 < len(some) < len(everything)
        assert {offer.id for offer in some} <= {offer.id for offer in everything}


def test_a_price_for_every_region_fits_any_region_of_its_cloud_only(tmp_path):
    catalogue = catalogue_of(tmp_path)
    assert [offer.cloud for offer in catalogue.select(region="north")] == ["gamma"]
    assert catalogue.select(cloud="beta", region="north", market="spot")[0].id == "beta:b1:spot"


def test_a_typo_in_a_filter_gets_help(tmp_path):
    catalogue = catalogue_of(tmp_path)
    with pytest.raises(UnknownName, match="did you mean X1"):
        catalogue.select(gpu="X11")
    with pytest.raises(UnknownName, match="did you mean alpha"):
        catalogue.select(cloud="alhpa")
    with pytest.raises(InvalidValue, match="on-demand or spot"):
        catalogue.select(market="sopt")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("alpha:a.large", "alpha:east:e-1:a.large:on-demand"),
        ("alpha:a.large:west", "alpha:west:a.large:on-demand"),
        ("alpha:a.large:spot", "alpha:east:e-1:a.large:spot"),
        ("alpha:a.large:west:spot", "alpha:west:a.large:spot"),
        ("alpha:a.large:east:e-1", "alpha:east:e-1:a.large:on-demand"),
        ("alpha:east:e-1:a.large:spot", "alpha:east:e-1:a.large:spot"),
        ("a.huge", "alpha:west:a.huge:on-demand"),
        ("beta:b1:on-demand", "beta:b1:on-demand"),
    ],
)
def test_find_takes_the_cheapest_row_that_fits_and_spot_only_when_asked(tmp_path, text, found):
    assert catalogue_of(tmp_path).find(text).id == found


def test_find_takes_spot_where_nothing_else_is_sold(tmp_path):
    row = "beta,*,,b2,X1,1,16,8,64,,0.4,2026-08-22"
    assert catalogue_of(tmp_path, row).find("beta:b2").market is Market.SPOT


@pytest.mark.parametrize(
    ("text", "help_"),
    [
        ("alpha:a.lagre", "did you mean alpha:a.large"),
        ("alhpa:a.large", "did you mean alpha:a.large"),
        ("alpha:a.large:eastt", "did you mean alpha:a.large:east"),
        ("gamma:c1:spot", "did you mean gamma:north:c1:on-demand"),
        ("", "no offer is called ''"),
    ],
)
def test_find_helps_with_typos(tmp_path, text, help_):
    with pytest.raises(UnknownName, match=help_):
        catalogue_of(tmp_path).find(text)


def test_one_machine_type_with_several_gpus_makes_several_offers(tmp_path):
    rows = ["beta,*,,n1,X1,1,16,8,64,1.0,,2026-08-22", "beta,*,,n1,X1,2,16,8,64,1.9,,2026-08-22"]
    catalogue = catalogue_of(tmp_path, *rows)
    assert [offer.id for offer in catalogue.select(instance_type="n1")] == [
        "beta:n1+2xX1:on-demand",
        "beta:n1+1xX1:on-demand",
    ]
    assert catalogue.find("beta:n1+1xX1").gpus_per_node == 1


BAD_ROWS = {  # what was planted -> (row, reason, which markets are set aside)
    "zero price": ("beta,*,,bad,X1,1,16,8,64,0,0.3,2026-08-22", "zero", {"on-demand"}),
    "negative price": ("beta,*,,bad,X1,1,16,8,64,1.0,-0.3,2026-08-22", "negative", {"spot"}),
    "not a number": ("beta,*,,bad,X1,1,16,8,64,nan,,2026-08-22", "not a number", {"on-demand"}),
    "infinite": ("beta,*,,bad,X1,1,16,8,64,inf,,2026-08-22", "not a number", {"on-demand"}),
    "words": ("beta,*,,bad,X1,1,16,8,64,call us,,2026-08-22", "not a number", {"on-demand"}),
    "underscore": ("beta,*,,bad,X1,1,16,8,64,1_0,,2026-08-22", "not a number", {"on-demand"}),
    "spot above on-demand": ("beta,*,,bad,X1,1,16,8,64,1.0,1.4,2026-08-22", "above on-demand", {"spot"}),
    "dollars for cents": ("beta,*,,bad,X1,1,16,8,64,90,,2026-08-22", "times above the usual", {"on-demand"}),
    "placeholder": ("beta,*,,bad,X1,8,16,8,64,0.01,0.01,2026-08-22", "per GPU-hour", {"on-demand", "spot"}),
    "one GPU's price for eight": ("delta,*,,bad,X1,8,16,8,64,0.9,,2026-08-22", "below the usual", {"on-demand"}),
    "fraction": ("beta,*,,bad,X1,0.5,16,8,64,0.5,0.2,2026-08-22", "fraction of a GPU", {"on-demand", "spot"}),
    "stands twice": (USUAL[0].replace("1.00", "1.01"), "same offer as line 2", {"on-demand", "spot"}),
}


@pytest.mark.parametrize("planted", BAD_ROWS)
def test_a_price_that_cannot_be_believed_is_set_aside_with_its_reason(tmp_path, planted):
    row, reason, markets = BAD_ROWS[planted]
    catalogue = catalogue_of(tmp_path, row)
    assert {(out.listing.market.value, out.listing.line) for out in catalogue.quarantined} == {(m, 7) for m in markets}
    assert all(reason in out.reason for out in catalogue.quarantined)
    left = [offer for offer in catalogue.select() if offer.instance_type == "bad"]
    stated = [price for price in row.split(",")[9:11] if price]
    assert len(left) == (0 if planted == "stands twice" else len(stated) - len(markets))


def test_find_says_why_it_does_not_offer_a_price_that_is_set_aside(tmp_path):
    with pytest.raises(UnknownName, match="quarantined: zero"):
        catalogue_of(tmp_path, "beta,*,,bad,X1,1,16,8,64,0,,2026-08-22").find("beta:bad")


EXPLAINED_ROWS = {
    "spot equal to on-demand": "beta,*,,fine,X1,1,16,8,64,0.9,0.9,2026-08-22",
    "spot above on-demand by rounding": "beta,*,,fine,X1,1,16,8,64,0.90004,0.9001,2026-08-22",
    "a host with many CPUs": "beta,*,,fine,X1,1,16,64,64,6.2,,2026-08-22",
    "a deep discount on its own on-demand price": "beta,*,,fine,X1,1,16,8,64,0.5,0.05,2026-08-22",
}


@pytest.mark.parametrize("planted", EXPLAINED_ROWS)
def test_an_odd_price_with_an_explanation_is_believed(tmp_path, planted):
    assert catalogue_of(tmp_path, EXPLAINED_ROWS[planted]).quarantined == ()


def test_a_low_price_is_believed_when_a_second_cloud_asks_the_same(tmp_path):
    alone = "delta,*,,old,X1,1,16,8,64,0.10,,2026-08-22"
    assert len(catalogue_of(tmp_path, alone).quarantined) == 1
    assert catalogue_of(tmp_path, alone, alone.replace("delta", "omega")).quarantined == ()


def test_a_cloud_whose_whole_list_is_wrong_does_not_move_the_middle(tmp_path):
    rows = [f"delta,r{i},,d1,X1,1,16,8,64,95,,2026-08-22" for i in range(50)]
    catalogue = catalogue_of(tmp_path, *rows)
    assert len(catalogue.quarantined) == 50
    assert {offer.cloud for offer in catalogue.select()} == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("beta,*,,b3,X1,1,16,8,64,1.0,2026-08-22", "11 fields where the header has 12"),
        ("beta,*,,b3,X1,one,16,8,64,1.0,,2026-08-22", "gpu_count is 'one'"),
        ("beta,*,,b3,X1,0,16,8,64,1.0,,2026-08-22", "gpu_count is '0'"),
        ("beta,*,,b3,X1,1,16,-8,64,1.0,,2026-08-22", "vcpus is '-8'"),
        ("beta,*,,b3,,1,16,8,64,1.0,,2026-08-22", "gpu is ''"),
        (",*,,b3,X1,1,16,8,64,1.0,,2026-08-22", "cloud is ''"),
        ("beta,*,, b3,X1,1,16,8,64,1.0,,2026-08-22", "instance_type is ' b3'"),
        ("beta,*,,b3,X1,1,16,8,64,1.0,,22.8.2026", "as_of is '22.8.2026'"),
    ],
)
def test_a_malformed_row_is_refused_with_file_and_line(tmp_path, row, why):
    with pytest.raises(BadInput, match=why) as caught:
        catalogue_of(tmp_path, row)
    assert caught.value.line == 7
    assert caught.value.source.endswith("offers.csv")


@pytest.mark.parametrize("name", CATALOGUES)
def test_nothing_that_ships_is_offered_at_a_price_that_cannot_be(name):
    catalogue = load_catalogue(name)
    offers = catalogue.select()
    assert len(offers) == len({offer.id for offer in offers}) > 2_000
    assert all(0.02 <= offer.usd_per_gpu_h <= 100 for offer in offers)
    on_demand = {offer.id.removesuffix("on-demand"): offer for offer in offers if offer.market is Market.ON_DEMAND}
    for offer in offers:
        row = on_demand.get(offer.id.removesuffix("spot"))
        assert row is None or offer.price.usd_per_h <= row.price.usd_per_h + 1e-4


def test_what_is_set_aside_of_the_current_list_is_known(current):
    reasons = [out.reason for out in current.quarantined]
    assert sum(reason.startswith("fraction of a GPU") for reason in reasons) == 302
    assert {out.listing.cloud for out in current.quarantined} == {"aws", "azure", "mithril", "primeintellect"}
    assert len(reasons) == 319


def test_a_node_has_as_many_gpus_as_can_be_built(current):
    miscounted = {out.listing.instance_type for out in current.quarantined if "boards of 8" in out.reason}
    assert miscounted == {"Standard_ND96isr_H100_v5"}  # listed with twelve H100, it has eight
    assert not [out for out in current.quarantined if "name says" in out.reason]
    counts = {(offer.gpu, offer.gpus_per_node) for offer in current.select()}
    assert {("A100", 16), ("A4000", 12), ("H100-NVL", 10)} <= counts  # two boards; no boards


def test_the_kinds_that_sit_on_boards_are_those_in_the_table_of_gpus():
    path = data.locate("gpus.csv")
    with path.open(encoding="utf-8") as file:
        sockets = {row["gpu"] for row in csv.DictReader(file) if row["form"].startswith(("SXM", "OAM"))}
    assert sockets == ON_BOARDS


def test_the_example_of_the_tutorial_costs_what_aws_asks(current):
    offer = current.find("aws:g4dn.12xlarge")
    assert (offer.gpu, offer.gpus_per_node, offer.price) == ("T4", 4, Price.from_usd_per_h("3.912"))
    assert offer.region == "us-east-1"


def test_runpod_may_ask_the_same_for_spot_and_on_demand(current):
    assert current.select(cloud="runpod", market="spot")


def test_every_offer_is_found_by_its_own_id(current):
    for offer in current.select()[::97]:
        assert current.find(offer.id) == current.quote(offer.id).offer == offer


def test_an_unknown_catalogue_is_named():
    with pytest.raises(UnknownName, match="2023-02-15"):
        load_catalogue("2023")
