"""Checks that stand in the chapters: a number in the text fails its cell when the computed value disagrees.

`claim` ties one printed number to an expression, `claim_between` a band to a measurement, `expect` a sentence
to a condition. What they print never depends on the machine.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction

from econ.units import fixed, unit_size

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_QUANTITY = re.compile(rf"(?P<sign>-?)(?P<usd>\$?)(?P<number>{NUMBER})\s*(?P<unit>\D.*)?")


class ClaimError(AssertionError):
    """A number or a sentence in the text that the computed value contradicts."""


def parse(text: str) -> tuple[Decimal, str]:
    """Number and unit of a printed quantity, the number with the digits that were printed.

    Thousands separators are allowed, a sign of approximation is not.
    Raises ValueError when the text is not one number with a unit of `econ.units`.

    >>> parse("141.1 GB"), parse("$1.71"), parse("2,048 tokens")
    ((Decimal('141.1'), 'GB'), (Decimal('1.71'), '$'), (Decimal('2048'), 'tokens'))
    """
    plain = text.replace("\u00a0", " ").replace("\u202f", " ").strip()
    found = _QUANTITY.fullmatch(plain)
    if not found or (found["usd"] and found["unit"] not in (None, "/h")):
        raise ValueError(f'cannot read {text!r}: write one number and its unit, such as "671 MB" or "$1.71"')
    unit = found["usd"] + (found["unit"] or "")
    unit_size(unit)
    return Decimal(found["sign"] + found["number"].replace(",", "")), unit


def in_base_units(text: str) -> Fraction:
    """A printed quantity as an exact number of base units.

    >>> in_base_units("3.35 TB/s")
    Fraction(3350000000000, 1)
    """
    number, unit = parse(text)
    return Fraction(number) * unit_size(unit)


def claim(value, text: str, label: str) -> None:
    """Print `label: text`, or fail when the value does not round to the text.

    The exact value is rounded half to even at the last digit that the text prints.
    Raises ClaimError when the digits differ or the value is not finite, ValueError for an unknown unit.

    >>> claim(671_088_640, "671 MB", "KV cache of 2,048 tokens")
    KV cache of 2,048 tokens: 671 MB
    >>> claim(671_088_640, "672 MB", "KV cache")
    Traceback (most recent call last):
    econ.check.ClaimError: KV cache: the value is 671 MB (671088640 in base units), the text says 672 MB
    """
    number, unit = parse(text)
    value = _finite(value, label, text)
    decimals = max(-int(number.as_tuple().exponent), 0)
    if round(Fraction(value) / unit_size(unit), decimals) != Fraction(number):
        actual = fixed(value, unit, decimals)
        raise ClaimError(f"{label}: the value is {actual} ({value} in base units), the text says {text}")
    print(f"{label}: {text}")


def claim_between(value, lo, hi, label: str) -> None:
    """Print `label: between lo and hi`, or fail when the value lies outside; the value itself is not printed.

    A bound is a number in base units, or text such as "20 GB/s". Raises ClaimError outside the band,
    ValueError for an empty band.

    >>> claim_between(31.4e9, "5 GB/s", "500 GB/s", "copy bandwidth of this machine")
    copy bandwidth of this machine: between 5 GB/s and 500 GB/s
    """
    low, high = (in_base_units(bound) if isinstance(bound, str) else bound for bound in (lo, hi))
    if not low < high:
        raise ValueError(f"{label}: {lo} to {hi} is not a band; give the smaller bound first")
    value = _finite(value, label, f"between {lo} and {hi}")
    if not low <= value <= high:
        raise ClaimError(f"{label}: {value} in base units lies outside {lo} to {hi}")
    print(f"{label}: between {lo} and {hi}")


def expect(condition, message: str) -> None:
    """Print `ok: message`, or fail when the condition is false.

    Raises ClaimError when it is false, ValueError when it is not a truth value (a string or a
    number is always true and would check nothing).

    >>> expect(3.35e12 > 2e12, "the H100 reads faster than the A100")
    ok: the H100 reads faster than the A100
    """
    truth = condition.item() if hasattr(condition, "item") else condition
    if not isinstance(truth, bool):
        raise ValueError(f"expect() was given {condition!r}; give a comparison that is True or False")
    if not truth:
        raise ClaimError(f"not so: {message}")
    print(f"ok: {message}")


def _finite(value, label: str, text: str):
    value = value.item() if hasattr(value, "item") else value
    if not math.isfinite(value):
        raise ClaimError(f"{label}: the value is {value}, the text says {text}")
    return value
