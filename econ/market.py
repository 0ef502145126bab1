"""What others ask: rent of GPUs by the hour, and API prices by the million tokens, as dated listings."""

import csv
import statistics
from dataclasses import dataclass
from functools import lru_cache

from .arrays import number
from .errors import UnknownName
from .names import DATA, nearest
from .units import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one accelerator rents for: the median of the dated rows in data/prices, with the newest date among them."""

    usd_per_gpu_hour: float
    newest: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """One provider's list price of a model. USD per million tokens; cached input None where it is not discounted."""

    provider: str
    model: str
    date: str
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    usd_per_mtok_cached_input: float | None

    def usd_per_request(self, prompt, output, cached_frac=0.0):
        """What a request costs: each kind of token at its own price.

        (prompt * ((1 - cached) * input + cached * cached input) + output * output) / 1e6                  [USD]

        >>> price = ApiPrice(provider="a", model="m", date="2026", usd_per_mtok_input=1.0, usd_per_mtok_output=4.0,
        ...                  usd_per_mtok_cached_input=0.1)
        >>> price.usd_per_request(1000, 500), price.usd_per_request(1000, 500, cached_frac=0.5)
        (0.003, 0.00255)
        """
        cached, fresh = number("cached_frac", cached_frac, minimum=0, maximum=1), self.usd_per_mtok_input
        hit = fresh if self.usd_per_mtok_cached_input is None else self.usd_per_mtok_cached_input
        read = number("prompt", prompt, minimum=0) * ((1 - cached) * fresh + cached * hit)
        return (read + number("output", output, minimum=0) * self.usd_per_mtok_output) / 1e6


@lru_cache(maxsize=1)
def prices() -> dict[str, Price]:
    """Rental prices by accelerator: medians of the rows in data/prices/gpu_rental.csv, midpoints of ranges left out.

    >>> prices()["h100-sxm"].rows > 5
    True
    """
    found: dict[str, list[tuple[str, float]]] = {}
    for row in _rows("gpu_rental"):
        if "midpoint" not in row["notes"]:
            listed = row["date"].split()[0], float(row["usd_per_gpu_hour"])
            found.setdefault(row["accelerator"], []).append(listed)
    return {name: Price(usd_per_gpu_hour=statistics.median(usd for _, usd in rows), newest=max(d for d, _ in rows),
                        rows=len(rows)) for name, rows in found.items()}


def api_prices(model: str) -> list[ApiPrice]:
    """List prices of a model at several providers, as in data/prices/api.csv. Raises UnknownName with the nearest.

    >>> len(api_prices("llama-3.3-70b")) > 5
    True
    """
    listings = _api()
    if model not in listings:
        raise UnknownName(f"no API price of {shown(model)}; nearest: {nearest(str(model)[:80], list(listings))}")
    return listings[model]


@lru_cache(maxsize=1)
def _api() -> dict[str, list[ApiPrice]]:
    found: dict[str, list[ApiPrice]] = {}
    for row in _rows("api"):
        name = row["model"].lower().split("/")[0]
        cached = row["usd_per_mtok_cached_input"]
        found.setdefault(name, []).append(ApiPrice(
            provider=row["provider"], model=name, date=row["date"].split()[0],
            usd_per_mtok_input=float(row["usd_per_mtok_input"]),
            usd_per_mtok_output=float(row["usd_per_mtok_output"]),
            usd_per_mtok_cached_input=float(cached) if cached else None))
    return found


def _rows(name: str) -> list[dict[str, str]]:
    with open(DATA / "prices" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
