"""A report in the making: what the checks found, and how a figure is split and shown."""

from dataclasses import dataclass, field

from .units import GIB, fmt

CLOSE = 0.01  # a residual that needs no name


@dataclass(slots=True)
class Draft:
    """A report in the making: every check adds what it found."""

    facts: dict
    findings: list = field(default_factory=list)  # (verdict, sentence)
    residuals: list = field(default_factory=list)
    phases: list = field(default_factory=list)
    missing: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    advice: list = field(default_factory=list)

    def lacks(self, *what: str) -> None:
        """Say once that a fact is missing."""
        self.missing += [one for one in what if one not in self.missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One printed figure, the terms that explain it, and what is left. All in the unit: bytes (B) or seconds (s)."""

    of: str
    printed: float
    unit: str
    terms: dict
    unnamed: float
    unnamed_frac: float


def residual(of: str, printed: float, unit: str, terms: dict) -> Residual:
    """A `Residual` whose unnamed part is what the terms leave of the printed figure.

    >>> residual("weights", 110.0, "B", {"weights": 100.0}).unnamed
    10.0
    """
    left = printed - sum(terms.values())
    return Residual(
        of=of,
        printed=printed,
        unit=unit,
        terms=terms,
        unnamed=left,
        unnamed_frac=left / abs(printed) if printed else 0.0,
    )


def gib(value: float) -> str:
    """Bytes in both units: engines print GiB and often write GB."""
    if abs(value) < GIB / 10:
        return fmt(value, "MB", 3)
    return f"{fmt(value, 'GB', 4)} ({value / GIB:,.2f} GiB)"


def seconds(value: float) -> str:
    """A time in ms, or in s from 10 s on."""
    return fmt(value, "s" if value >= 10 else "ms", 3)
