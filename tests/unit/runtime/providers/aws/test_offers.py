"""Prices on demand that are asked for: what is read, what is kept, and what counts where nobody answers.

moto has no Price List service: the answers are in the format of its reference, with the fields that are read.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.errors import BadInput
from sublet.market.catalogue import load_catalogue
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.offers import ask_prices, listed_prices, offers_from, price_of

REGION, KIND = "us-east-1", "g4dn.xlarge"
PLACE = (REGION, KIND)
CONFIG = AwsConfig(regions=(REGION,), instance_types=(KIND,), image="ami-1", controller="tls:host:7070")
LISTED = {PLACE: (Price.from_usd_per_h("0.526"), "2026-08-22")}


def product(usd, *, unit="Hrs", **attributes):
    """One entry of GetProducts."""
    facts = {"instanceType": KIND, "regionCode": REGION, "operatingSystem": "Linux", "tenancy": "Shared"}
    facts |= {"preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand", **attributes}
    rate = {"unit": unit, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": usd}}
    terms = {"SKU.JRTCKXETXF": {"effectiveDate": "2026-10-01T00:00:00Z", "priceDimensions": {"SKU.J.6YS6EN2CT7": rate}}}
    entry = {"product": {"sku": "SKU", "productFamily": "Compute Instance", "attributes": facts}}
    return json.dumps({**entry, "terms": {"OnDemand": terms}, "publicationDate": "2026-11-12T00:00:00Z"})


class Service:
    """The Price List service; `pages` are its answers, in turn, or an error."""

    def __init__(self, *pages):
        self.pages, self.asked = list(pages), []

    def make(self, service, region):
        assert (service, region) == ("pricing", "us-east-1")
        return SimpleNamespace(get_products=self._answer)

    def _answer(self, **request):
        self.asked.append(request)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return {"PriceList": page, **({"NextToken": "more"} if self.pages else {})}


def denied():
    facts = {"Error": {"Code": "AccessDeniedException", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return ClientError(facts, "GetProducts")


def asked_on(day, tmp_path, *pages):
    service = Service(*pages)
    found, notes = ask_prices(service.make, tmp_path, LISTED, day)
    return found, notes, len(service.asked)


def test_the_price_by_the_hour_of_the_very_product_is_read_and_pages_are_followed():
    others = [product("9", operatingSystem="Windows"), product("8", tenancy="Dedicated"), product("7", unit="Quantity")]
    others += [product("6", marketoption="CapacityBlock"), product("0.0000000000")]
    service = Service(others, [product("0.5270000000")])
    assert price_of(service.make, REGION, KIND) == "0.527"
    fields = {each["Field"]: each["Value"] for each in service.asked[0]["Filters"]}
    assert fields["regionCode"] == REGION
    assert fields["preInstalledSw"] == "NA"
    assert service.asked[1]["NextToken"] == "more"


def test_of_two_prices_the_higher_counts_and_a_grain_is_rounded_up():
    assert price_of(Service([product("0.5"), product("0.5260001")]).make, REGION, KIND) == "0.526001"


@pytest.mark.parametrize("page", [[], ["{}"], ["no JSON"], [product("dear")]])
def test_an_answer_without_a_price_is_told_as_such(page):
    with pytest.raises(BadInput, match="GetProducts"):
        price_of(Service(page).make, REGION, KIND)


def test_it_is_asked_for_once_a_day_and_a_fall_counts_when_it_is_heard_on_a_second(tmp_path):
    found, notes, calls = asked_on("2026-11-17", tmp_path, [product("0.4")])
    assert (found[PLACE].price, notes, calls) == (Price.from_usd_per_h("0.526"), [], 1)  # the list's is higher
    found, _, calls = asked_on("2026-11-17", tmp_path)
    assert (found[PLACE].price, calls) == (Price.from_usd_per_h("0.526"), 0)
    found, _, calls = asked_on("2026-11-18", tmp_path, [product("0.4")])
    assert (found[PLACE].price, calls) == (Price.from_usd_per_h("0.4"), 1)
    found, notes, _ = asked_on("2026-11-19", tmp_path, [product("0.6")])  # a rise counts at once, and is told
    assert found[PLACE].price == Price.from_usd_per_h("0.6")
    assert "0.6" in notes[0]
    assert "2026-08-22" in notes[0]


def test_who_may_not_ask_is_told_of_which_day_the_price_is_and_goes_on(tmp_path):
    found, notes, _ = asked_on("2026-11-17", tmp_path, denied())
    assert found == {}
    assert "pricing:GetProducts" in notes[0]
    assert "2026-08-22" in notes[0]
    asked_on("2026-11-18", tmp_path, [product("0.6")])
    found, notes, _ = asked_on("2026-11-19", tmp_path, denied())
    assert found[PLACE].price == Price.from_usd_per_h("0.6")  # the last answer, which is higher than the list
    assert "2026-11-18" in notes[0]


@pytest.mark.parametrize("text", ["", "[", "[{}]", '[{"region": "r", "kind": "k", "usd_per_h": 1, "day": 2}]'])
def test_a_file_of_prices_that_cannot_be_read_is_written_anew(tmp_path, text):
    (tmp_path / "prices.json").write_text(text, encoding="utf-8")
    found, _, calls = asked_on("2026-11-17", tmp_path, [product("0.6")])
    assert (found[PLACE].usd_per_h, calls) == ("0.6", 1)
    assert json.loads((tmp_path / "prices.json").read_text(encoding="utf-8"))[0]["day"] == "2026-11-17"


def test_offers_cost_what_was_asked_for_and_spot_is_capped_by_it(tmp_path):
    catalogue = load_catalogue()
    assert listed_prices(CONFIG, catalogue)[PLACE][0] == Price.from_usd_per_h("0.526")
    found, _, _ = asked_on("2026-11-17", tmp_path, [product("0.75")])
    offers = offers_from(CONFIG, catalogue, asked=found)
    dear = Price.from_usd_per_h("0.75")
    assert {(offer.price, offer.cap) for offer in offers if offer.market is Market.ON_DEMAND} == {(dear, dear)}
    assert {offer.cap for offer in offers if offer.market is Market.SPOT} == {dear}
    assert [offer.id for offer in offers] == [offer.id for offer in offers_from(CONFIG, catalogue)]
