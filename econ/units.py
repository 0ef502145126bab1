"""Units: decimal and binary constants, and the one function that formats a number.

Everything in `econ` is a plain number in a base unit: byte, FLOP, second, USD, token, watt.
GB is 1e9 bytes. GiB is 2**30 bytes and appears only where a program prints it.
"""

import math
from fractions import Fraction
from numbers import Rational

K, M, G, T, P = 10**3, 10**6, 10**9, 10**12, 10**15
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_PREFIXES = {"": 1, "k": K, "M": M, "G": G, "T": T, "P": P}
_BINARY = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}


def _unit_table() -> dict[str, Fraction]:
    """Every unit that may stand behind a number, with its size in base units."""
    table = {prefix + base: Fraction(size)
             for base in ("B", "FLOP", "FLOP/s", "B/s", "FLOP/B", "tok/s", "W", "J", "Wh", "B/token")
             for prefix, size in _PREFIXES.items()}
    table |= {name + tail: Fraction(size) for name, size in _BINARY.items() for tail in ("", "/s", "/token")}
    table |= {"s": Fraction(1), "ms": Fraction(1, K), "us": Fraction(1, M), "µs": Fraction(1, M), "ns": Fraction(1, G),
              "h": Fraction(3600), "min": Fraction(60), "$": Fraction(1), "%": Fraction(1, 100), "x": Fraction(1),
              "": Fraction(1), "params": Fraction(1), "M params": Fraction(M), "B params": Fraction(G),
              "T params": Fraction(T), "tokens": Fraction(1), "token": Fraction(1), "GHz": Fraction(G),
              "MHz": Fraction(M), "GPUs": Fraction(1), "bits": Fraction(1), "$/h": Fraction(1)}
    return table


UNITS = _unit_table()


def unit_size(unit: str) -> Fraction:
    """Size of a unit in base units, exactly.

    Raises ValueError for a unit that is not in the table.

    >>> unit_size("GB"), unit_size("MiB")
    (Fraction(1000000000, 1), Fraction(1048576, 1))
    """
    if not isinstance(unit, str) or unit not in UNITS:
        raise ValueError(f"unknown unit {shown(unit)}; use GB, GiB, TB/s, TFLOP/s, FLOP/B, ms, tok/s, $, % or "
                         "another of econ.units.UNITS")
    return UNITS[unit]


def _exact(value) -> Fraction:
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, float | Rational):
        raise ValueError(f"cannot format {shown(value)}: not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"cannot format {value}: not a finite number")
    return Fraction(value)


def _digits(name: str, value, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={shown(value)}; give a whole number of at least {least}")
    return value


def fixed(value, unit: str, decimals: int) -> str:
    """A value with its unit, rounded half-even to a fixed number of decimals.

    Raises ValueError for an unknown unit, a value that is not a finite number, or negative decimals.

    >>> fixed(671_088_640, "MB", 1)
    '671.1 MB'
    """
    decimals = _digits("decimals", decimals, 0)
    scaled = round(_exact(value) / unit_size(unit) * 10**decimals)  # Fraction rounds half to even
    whole, part = divmod(abs(scaled), 10**decimals)
    number = f"{'-' if scaled < 0 else ''}{whole:,}"
    return _join(f"{number}.{part:0{decimals}}" if decimals else number, unit)


def fmt(value, unit: str, digits: int = 3) -> str:
    """A value with its unit, rounded half-even to `digits` significant digits.

    Integers keep every digit before the point, so a count is never blurred below one unit.
    A non-zero value never prints as 0. Raises ValueError for an unknown unit, a value that is not a finite number,
    or digits below 1.

    >>> fmt(671_088_640, "MB"), fmt(0.29474, "s", 2), fmt(141_107_412_992, "GB", 4)
    ('671 MB', '0.29 s', '141.1 GB')
    """
    scaled, digits = _exact(value) / unit_size(unit), _digits("digits", digits, 1)
    if scaled == 0:
        return _join("0", unit)
    exponent = _floor_log10(abs(scaled))
    decimals = max(digits - 1 - exponent, 0)
    if _floor_log10(abs(Fraction(round(scaled * 10**decimals), 10**decimals))) > exponent:
        decimals = max(decimals - 1, 0)
    return fixed(value, unit, decimals)


def _floor_log10(value: Fraction) -> int:
    exponent = len(str(value.numerator)) - len(str(value.denominator))
    return exponent if value >= Fraction(10) ** exponent else exponent - 1


def _join(number: str, unit: str) -> str:
    if unit == "$":
        return f"-${number[1:]}" if number.startswith("-") else f"${number}"
    if unit in ("", "x", "%"):
        return f"{number}{' %' if unit == '%' else unit}"
    return f"{number} {unit}"


def shown(value) -> str:
    """A value as an error message shows it: on one line, and no longer than 60 characters.

    >>> shown("h100" * 100)
    "'h100h100h100h100h100h100h100h100h100h100h100h100h100h100..."
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
