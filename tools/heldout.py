"""How far off a fit is on groups of rows that it did not see, and the interval that follows."""

import math

import numpy as np
import robust


def held_out(some: list, scheme: str, fit, apply) -> np.ndarray:
    """log(predicted / measured) of every row by a fit that saw no row of its group.

    `scheme` is a key of each row's `groups`, or two joined by " and ": then neither is seen.
    """
    groups = [k.groups for k in some]
    errors = np.full(len(some), np.nan)
    for group in sorted({tuple(g[s] for s in scheme.split(" and ")) for g in groups}):
        names = dict(zip(scheme.split(" and "), group, strict=True))
        test = np.array([all(g[s] == name for s, name in names.items()) for g in groups])
        train = np.array([all(g[s] != name for s, name in names.items()) for g in groups])
        engines = {group[0].split()[-1]} if scheme == "source" else set()
        if scheme == "source":  # an engine is left out with its source
            train &= np.array([g["source"].split()[-1] not in engines for g in groups])
        errors[test] = apply(fit(train, engines), test)
    return errors


def summary(errors: np.ndarray) -> list:
    """Rows, median and mean absolute error in per cent, from logarithms."""
    size = np.abs(np.expm1(errors))
    return [len(errors), round(100 * float(np.median(size)), 1), round(100 * float(size.mean()), 1)]


def interval(errors: np.ndarray, cells: list) -> list[float]:
    """Factors on a prediction between which 80 % of left-out groups lie, each cell counting the same."""
    weights = robust.cell_weights(cells) ** 2
    return [round(math.exp(robust.weighted_quantile(-errors, weights, q)), 3) for q in (0.1, 0.9)]


def wider(a: list[float], b: list[float]) -> list[float]:
    """The interval that contains both.

    >>> wider([0.5, 1.5], [0.6, 1.7])
    [0.5, 1.7]
    """
    return [min(a[0], b[0]), max(a[1], b[1])]


def coverage(errors: np.ndarray, low: float, high: float) -> float:
    """Per cent of measured values inside the interval."""
    return round(100 * float(np.mean((-errors >= math.log(low)) & (-errors <= math.log(high)))), 1)
