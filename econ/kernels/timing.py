"""Honest times on a small machine: medians with their spread, and the small Llama's two phases.

Every measured claim runs on one CPU thread and counts that thread's processor time, or reads the
events of a GPU; `_setup` says why. A time without its spread is not returned.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from econ.kernels._setup import Device, elapsed_s, one_thread, pick_device
from econ.kernels.llama import Llama

SHORTEST_SAMPLE_S = 0.002  # a clock read costs about 1 us; a sample of 2 ms makes that invisible


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The median time of one call, and how far the middle half of the runs lies apart."""

    median_s: float
    spread_frac: float  # interquartile range / median
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """Summarise at least two runs.

        >>> Timing.of([1.0, 1.0, 1.1, 0.9, 1.0]).median_s
        1.0
        """
        median = statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median_s=median, spread_frac=(high - low) / median, runs=len(seconds))


def time_median(fn: Callable[[], Any], repeats: int = 7, device: Device = None,
                budget_s: float | None = None) -> Timing:
    """Time `fn`: one warm-up, then the median of `repeats` runs on one thread.

    A run repeats a short `fn` until it lasts about 2 ms. With `budget_s`, runs stop when that many
    seconds of wall time are used up, but never before three.
    Raises ValueError for fewer than three repeats.
    """
    if repeats < 3:
        raise ValueError(f"repeats={repeats} gives no spread; use 3 or more")
    device = pick_device(device)
    samples: list[float] = []
    deadline = time.perf_counter() + (budget_s or 1e9)
    with one_thread():
        fn()  # warm-up: pages, caches, kernel selection
        calls = max(1, round(SHORTEST_SAMPLE_S / max(elapsed_s(fn, device), 1e-7)))
        while len(samples) < repeats and (len(samples) < 3 or time.perf_counter() < deadline):
            samples.append(elapsed_s(fn, device, calls) / calls)
    return Timing.of(samples)


def log_log_slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent p of times ~ sizes**p: 1 is linear, 2 is quadratic.

    >>> round(log_log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    logs = (torch.tensor(values, dtype=torch.float64).log().tolist() for values in (sizes, times))
    return statistics.linear_regression(*logs).slope


def time_prefill(model: Llama, prompt: int, batch: int = 1, repeats: int = 5) -> Timing:
    """Time of one prefill of `prompt` tokens a sequence into an empty cache, logits of the last token."""
    tokens = torch.zeros(batch, prompt, dtype=torch.int64, device=model.device)
    cache = model.new_cache(batch, prompt)

    def run() -> None:
        cache.rewind(0)
        model.prefill(tokens, cache)

    return time_median(run, repeats, model.device)


def time_decode(model: Llama, context: int, batch: int = 1, repeats: int = 7) -> Timing:
    """Time of one decode step with `context` tokens cached: it attends context + 1."""
    token = torch.zeros(batch, dtype=torch.int64, device=model.device)
    cache = model.new_cache(batch, context + 1)
    cache.kv.normal_()  # really written: untouched zero pages would all be read from one page

    def run() -> None:
        cache.rewind(context)
        model.decode(token, cache)

    return time_median(run, repeats, model.device)


def streamed_matrices(model: Llama) -> list[torch.Tensor]:
    """Every matrix that one decode step reads whole: all but the embedding table of an untied model."""
    return [weight for layer in model.layers for weight in layer.values() if weight.dim() == 2] + [model.head]


def gemv_bytes_per_s(model: Llama, repeats: int = 7) -> float:
    """Bandwidth at which this machine multiplies the model's own matrices by one vector each.

    It lies below the bandwidth of a plain read: a product of one row keeps fewer loads in flight.
    """
    work = [(torch.ones(1, w.shape[1], dtype=w.dtype, device=w.device), w) for w in streamed_matrices(model)]
    timing = time_median(lambda: [F.linear(x, w) for x, w in work], repeats, model.device)
    return sum(w.nbytes for _, w in work) / timing.median_s


def fit_decode(points: Sequence[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Constants (a, b, c) of step time = a + b*batch + c*batch*context, from (batch, context, seconds).

    Least squares of relative errors. a: weights read once [s]; b: work of one more sequence [s];
    c: one more cached token [s]. Raises ValueError for fewer than three points.

    >>> [round(x, 6) for x in fit_decode([(1, 0, 3.0), (2, 0, 5.0), (1, 10, 8.0)])]
    [1.0, 2.0, 0.5]
    """
    if len(points) < 3:
        raise ValueError(f"{len(points)} points cannot fix three constants; use at least 3, better 5")
    rows = torch.tensor([[1 / t, b / t, b * s / t] for b, s, t in points], dtype=torch.float64)
    ones = torch.ones(len(points), 1, dtype=torch.float64)
    a, b, c = torch.linalg.lstsq(rows, ones).solution[:, 0].tolist()
    return a, b, c
