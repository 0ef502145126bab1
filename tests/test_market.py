"""Listings as they are in data/prices, and what they make of a request."""

import csv
import statistics

import pytest

from econ import Deployment, UnknownName, accelerators, api_prices, prices
from econ.cost import break_even_utilisation_frac
from econ.market import ApiPrice
from econ.names import DATA

pytestmark = pytest.mark.core


def listed(name):
    with open(DATA / "prices" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rents_are_medians_of_dated_listings():
    rows = [row for row in listed("gpu_rental") if row["accelerator"] == "h200-sxm" and "midpoint" not in row["notes"]]
    price = prices()["h200-sxm"]
    assert price.rows == len(rows)
    assert price.usd_per_gpu_hour == statistics.median(float(row["usd_per_gpu_hour"]) for row in rows)
    assert prices()["h100-sxm"].newest == "2026-11-09" and all(len(p.newest) in (4, 7, 10) for p in prices().values())
    assert set(prices()) <= set(accelerators())


def test_every_api_listing_is_read():
    names = {row["model"].lower().split("/")[0] for row in listed("api")}
    every = [price for name in names for price in api_prices(name)]
    assert len(every) == len(listed("api")) and all(price.date[:2] == "20" for price in every)
    assert sum(price.usd_per_mtok_cached_input is not None for price in every) == sum(
        bool(row["usd_per_mtok_cached_input"]) for row in listed("api"))


def test_input_is_never_free_and_rarely_dearer_than_output():
    """The article found input at 0.33 to 1.0 of output at six providers; so it is at nearly all."""
    every = [p for row in {row["model"].lower().split("/")[0] for row in listed("api")} for p in api_prices(row)]
    ratios = [p.usd_per_mtok_input / p.usd_per_mtok_output for p in every if p.usd_per_mtok_output]
    assert statistics.median(ratios) < 0.5 and sum(r > 1 for r in ratios) < 0.05 * len(ratios)


def test_a_request_pays_each_kind_of_token():
    """The article's cheapest listing, $0.12 in and $0.30 out: 64 requests in 19.928 s earn $3.86 an hour."""
    price = ApiPrice(provider="x", model="m", date="2025", usd_per_mtok_input=0.12, usd_per_mtok_output=0.30,
                     usd_per_mtok_cached_input=0.03)
    assert 3600 * 64 / 19.928 * price.usd_per_request(2035, 300) == pytest.approx(3.86, abs=0.005)
    assert price.usd_per_request(1000, 0, cached_frac=1) == pytest.approx(0.03 / 1000)
    assert price.usd_per_request(1000, 0, cached_frac=0.25) == pytest.approx(0.0975 / 1000)


def test_a_discount_is_on_the_cached_input_alone():
    """Half of a bill of $480 is input: 90 % off it is $216, not $432."""
    price = ApiPrice(provider="x", model="m", date="2026", usd_per_mtok_input=1.0, usd_per_mtok_output=1.0,
                     usd_per_mtok_cached_input=0.1)
    bills = [price.usd_per_request(240e6, 240e6, cached_frac=share) for share in (0, 1)]
    assert bills == pytest.approx([480, 480 - 216])


def test_without_a_discount_cached_input_costs_the_same():
    price = next(p for p in api_prices("llama-3.3-70b") if p.usd_per_mtok_cached_input is None)
    assert price.usd_per_request(2000, 100, cached_frac=0.5) == price.usd_per_request(2000, 100)


def test_break_even_is_the_share_of_hours_at_which_prices_meet():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    asked = statistics.median(p.usd_per_request(2035, 300) for p in api_prices("llama-3.3-70b"))
    share = break_even_utilisation_frac(d.cost(2.5, 64, 2035, 300).usd_per_request, asked)
    assert 0 < share < 1
    assert d.cost(2.5, 64, 2035, 300, utilisation_frac=share).usd_per_request == pytest.approx(asked)
    assert break_even_utilisation_frac(10, 3.86) == pytest.approx(2.59, abs=0.01)  # the article's hour: never


@pytest.mark.parametrize("call, said", [
    (lambda: api_prices("llama-3.3-7b"), "llama-3.3-70b"), (lambda: api_prices(7), "no API price of 7"),
    (lambda: api_prices("llama-3.3-70b")[0].usd_per_request(-1, 1), "prompt=-1"),
    (lambda: api_prices("llama-3.3-70b")[0].usd_per_request(1, 1, 2), "cached_frac=2"),
    (lambda: break_even_utilisation_frac(1, 0), "api_usd_per_request=0")])
def test_bad_questions(call, said):
    with pytest.raises(ValueError, match=said):
        call()
    with pytest.raises(UnknownName):
        api_prices("none")
