"""Find every number that carries a unit in Markdown, in mathematics and in the text that a cell prints."""

import re
from dataclasses import dataclass
from fractions import Fraction

from econ.check import NUMBER
from econ.units import UNITS

# How a unit may be spelled in prose -> (canonical unit, factor on top of it).
_SPELLED = {
    "byte": "B", "bytes": "B", "kilobytes": "kB", "megabytes": "MB", "gigabytes": "GB", "terabytes": "TB",
    "second": "s", "seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns",
    "μs": "us", "µs": "us", "percent": "%", "per cent": "%", "FLOPs": "FLOP", "TFLOPs": "TFLOP",
    "GFLOPs": "GFLOP", "TFLOPS": "TFLOP/s", "TFLOPs/s": "TFLOP/s", "KB": "kB", "FLOP/byte": "FLOP/B",
    "FLOPs/B": "FLOP/B", "FLOP per byte": "FLOP/B", "tokens/s": "tok/s", "tokens per second": "tok/s",
    "token": "tokens", "parameters": "params", "million parameters": "M params", "billion params": "B params",
    "billion parameters": "B params", "trillion parameters": "T params", "×": "x", "times": "x", "-fold": "x",
    "watts": "W", "dollars": "$", "USD": "$",
}
_MORE = {"k tokens": 10**3, "M tokens": 10**6, "thousand tokens": 10**3, "million tokens": 10**6,
         "billion tokens": 10**9}
_FREE = {"", "h", "min", "GPUs", "bits", "$/h", "$"}  # "$" stands in front of its number and is matched there
_CANONICAL = {unit: unit for unit in [*UNITS, *_MORE] if unit not in _FREE} | _SPELLED
_NEVER_ATTACHED = {"B", "s", "W", "J", "T params"}   # "70B" names a model and "2020s" a decade
_ALWAYS_ATTACHED = {"x", "×", "-fold"}               # "2 x 3" multiplies
_DIMENSIONS = ("B/token", "FLOP/B", "FLOP/s", "B/s", "tok/s", "FLOP", "tokens", "params",
               "Wh", "Hz", "B", "W", "J", "s", "$", "%", "x")

_NUM = rf"{NUMBER}(?:e[+-]?\d+|\s?×\s?10\^-?\d+)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(_CANONICAL, key=len, reverse=True))
_RANGE = rf"(?P<first>[-−]?{_NUM})(?:\s?(?:-|–|to)\s?¤?(?P<last>{_NUM}))?"
_BEHIND = re.compile(rf"(?<![\w.^_−–-]){_RANGE}(?P<gap>[ -]?)(?P<unit>{_UNIT})(?!\w)")
BARE_NUMBER = re.compile(rf"(?:≈|~)?\s*{_NUM}")
UNIT_AT_END = re.compile(rf"(?<!\w)(?:{_UNIT})(?=[\])\s]*$)")
_MONEY = re.compile(rf"(?P<unit>¤)\s?{_RANGE}(?!\w|[.,]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number as printed, without separators, and the canonical name of its unit."""

    digits: str
    unit: str

    @property
    def size(self) -> Fraction:
        """One unit in base units."""
        return Fraction(_MORE[self.unit]) if self.unit in _MORE else UNITS[self.unit]

    @property
    def dimension(self) -> str:
        """What the unit measures: the unit without its prefix, such as B/s for TB/s."""
        return next(dimension for dimension in _DIMENSIONS if self.unit.endswith(dimension))

    @property
    def value(self) -> Fraction:
        """The quantity in base units, exactly."""
        return Fraction(self.digits) * self.size

    def __str__(self) -> str:
        return f"${self.digits}" if self.unit == "$" else f"{self.digits} {self.unit}"


def canonical(unit: str) -> str:
    """The one spelling of a unit, or an empty string for a unit that prose may use freely."""
    return "$" if unit.startswith("$") else _CANONICAL.get(unit, "")


def quantities(text: str) -> list[Quantity]:
    """Every number with a unit in plain text, in order; both ends of a range carry the range's unit.

    >>> [str(q) for q in quantities("13-46 us on an H100, 2,048 tokens, 7x, in a 2x2 grid of chapter 3")]
    ['13 us', '46 us', '2048 tokens', '7 x']
    """
    text = re.sub(r"[\u00a0\u202f\u2009\s]+", " ", text).replace("\\$", "¤").replace("$", "¤")
    text = re.sub(r"(?<![×^\d] )(?<![×^\d.])10\^(-?\d+)", r"1e\1", text)
    text = re.sub(rf"\bbetween ({_NUM}) and ({_NUM})", r"\1 to \2", text)
    found = [(hit.start(), q) for pattern in (_BEHIND, _MONEY) for hit in pattern.finditer(text)
             for q in _read(hit, text)]
    return [q for _, q in sorted(found, key=lambda pair: pair[0])]


def _read(hit: re.Match, text: str) -> list[Quantity]:
    spelled = hit["unit"]
    unit = "$" if spelled == "¤" else _CANONICAL[spelled]
    attached = unit != "$" and hit["gap"] == ""
    if attached and spelled in _NEVER_ATTACHED or not attached and spelled in _ALWAYS_ATTACHED:
        return []
    if hit["first"] == "1" and (spelled == "token" or re.match(r"\s*=| is\b", text[hit.end():])):
        return []  # "1 token", and the definition of a unit
    numbers = (hit["first"], hit["last"])
    return [Quantity(digits=_plain_number(number), unit=unit) for number in numbers if number]


def _plain_number(number: str) -> str:
    number = number.replace(",", "").replace("−", "-")
    return re.sub(r"\s?×\s?10\^", "e", number)
