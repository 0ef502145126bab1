"""One axis of a figure: its scale, its limits and the round numbers along it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

SCALES = ("linear", "log", "log2")


def tick_text(value: float) -> str:
    """A number as it stands beside an axis.

    >>> [tick_text(value) for value in (0, 0.5, 200, 4096, 131_072, 2_500_000)]
    ['0', '0.5', '200', '4,096', '131,072', '2.5M']
    """
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:,.6g}{suffix}"
    return f"{value:,.6g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """A labelled axis from `low` to `high`; `scale` is "linear", "log" (decades) or "log2" (doublings)."""
    label: str
    scale: str
    low: float
    high: float

    @classmethod
    def around(cls, label: str, scale: str, numbers: list[float], margin: bool) -> "Axis":
        """The axis that holds all `numbers`; with `margin`, room above them and, if linear, down to zero."""
        low, high = min(numbers), max(numbers)
        if margin and scale == "linear":
            low, high = min(low, 0.0), high + 0.06 * (high - min(low, 0.0))
        elif margin:
            low, high = low / 1.3, high * 1.3
        if low == high:
            low, high = (low - 1, high + 1) if scale == "linear" else (low / 2, high * 2)
        return cls(label, scale, low, high)

    def share(self, value: float) -> float:
        """How far along the axis a value lies: 0 at the low end, 1 at the high end.

        >>> Axis("FLOP/B", "log", 1, 100).share(10)
        0.5
        """
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, pixels: float, room: Callable[[str, str], float]) -> list[float]:
        """The densest round numbers whose labels keep `room(label, next label)` pixels between their centres.

        >>> Axis("tokens", "log2", 1, 512).ticks(150, lambda a, b: 40)
        [1.0, 8.0, 64.0, 512.0]
        """
        for candidates in (self._logarithmic(), self._linear()):
            for ticks in candidates:
                gaps = [(self.share(b) - self.share(a)) * pixels - room(tick_text(a), tick_text(b))
                        for a, b in pairwise(ticks)]
                if gaps and min(gaps) >= 0:
                    return ticks
        return [self.low, self.high]

    def _inside(self, ticks) -> list[float]:
        return [tick for tick in ticks if -1e-9 <= self.share(tick) <= 1 + 1e-9]

    def _logarithmic(self) -> Iterator[list[float]]:
        if self.scale == "linear":
            return
        base = 2 if self.scale == "log2" else 10
        exponents = range(math.floor(math.log(self.low, base)), math.ceil(math.log(self.high, base)) + 1)
        if base == 10:
            yield self._inside([m * 10.0**e for e in exponents for m in (1, 2, 5)])
        for every in range(1, len(exponents) + 1):
            yield self._inside([float(base)**e for e in exponents if e % every == 0])

    def _linear(self) -> Iterator[list[float]]:
        exponent = math.floor(math.log10(self.high - self.low))
        for step in (m * 10.0**e for e in (exponent - 1, exponent, exponent + 1) for m in (1, 2, 5)):
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            yield self._inside([float(f"{i * step:.10g}") for i in range(first, last + 1)])
