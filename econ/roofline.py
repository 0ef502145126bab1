"""Two ceilings: how long work takes if only arithmetic, or only memory traffic, limits it."""

from dataclasses import dataclass
from typing import Any

from .arrays import maximum, minimum, number, where, whole
from .errors import check_type
from .hardware import Accelerator
from .work import Work

FASTEST = 1e24  # FLOP/s or B/s: beyond any machine, far from the end of float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The time of one pass and where it goes. FLOPs and bytes are one GPU's, the fullest.

    `mfu_frac` is the share of peak FLOP/s in use over the whole step, `mbu_frac` the share of bandwidth.
    `bound` names the largest term. `feasible` is False (and times are nan) at array points that do not fit.
    """

    time_s: Any
    compute_s: Any
    memory_s: Any
    comm_s: Any
    overhead_s: Any
    flops: Any
    bytes: Any
    bound: Any
    mfu_frac: Any
    mbu_frac: Any
    feasible: Any = True


def total_s(compute_s, memory_s, comm_s=0.0, overhead_s=0.0):
    """The time of one pass: the two ceilings overlap, what a profile adds does not.

    max(compute, memory) + comm + overhead                                                              [s]

    >>> total_s(3.0, 10.0, comm_s=0.5)
    10.5
    """
    return maximum(compute_s, memory_s) + comm_s + overhead_s


def step(flops, moved_bytes, compute_s, memory_s, comm_s=0.0, overhead_s=0.0, peak_s=None, bus_s=None,
         feasible=True) -> Step:
    """A `Step` from its terms.

    `peak_s` and `bus_s` are the same FLOPs and bytes at peak rates, for MFU and MBU; by default the given terms.
    """
    time_s = total_s(compute_s, memory_s, comm_s, overhead_s)
    peak_s, bus_s = compute_s if peak_s is None else peak_s, memory_s if bus_s is None else bus_s
    busy = where(time_s == 0, 1.0, time_s)
    return Step(time_s=time_s, compute_s=compute_s, memory_s=memory_s, comm_s=comm_s, overhead_s=overhead_s,
                flops=flops, bytes=moved_bytes, bound=_largest(compute_s, memory_s, comm_s, overhead_s),
                mfu_frac=peak_s / busy, mbu_frac=bus_s / busy, feasible=feasible)


def _largest(compute_s, memory_s, comm_s, overhead_s):
    bound = where(memory_s >= compute_s, "memory", "compute")
    first = maximum(compute_s, memory_s)
    bound = where(comm_s > first, "comm", bound)
    return where(overhead_s > maximum(first, comm_s), "overhead", bound)


def time_on(work: Work, accelerator: Accelerator, dtype: str = "bf16", n: int = 1) -> Step:
    """The time of some work on `n` accelerators taken as one, with two ceilings and no capacity check.

    time = max(FLOPs / (n * peak), bytes / (n * bandwidth))                                             [s]

    Real kernels reach 50-90 % of either ceiling; nothing reaches more. Raises ValueError for a precision the
    accelerator lacks or n below 1.

    >>> from econ import forward, load_accelerator, load_model
    >>> article = forward(load_model("llama-3.3-70b"), new_tokens=2048, causal=False, count="article")
    >>> round(time_on(article, load_accelerator("h100-sxm")).time_s, 5)
    0.29474
    """
    check_type("work", work, Work, "econ.forward(model)")
    check_type("accelerator", accelerator, Accelerator, "econ.load_accelerator(name)")
    n = whole("n", n)
    return step(work.flops, work.bytes, compute_s=work.flops / (n * accelerator.flop_per_s(dtype)),
                memory_s=work.bytes / (n * accelerator.hbm_bytes_per_s))


def attainable_flop_per_s(intensity, peak_flop_per_s, bytes_per_s):
    """The roofline: the most FLOP/s that work of a given intensity can reach.

    min(peak, intensity * bandwidth)                                                        [FLOP/s]

    `intensity` in FLOP/B, `peak_flop_per_s` in FLOP/s, `bytes_per_s` in B/s. An upper bound: measured kernels
    bend below it near the ridge. Raises ValueError for anything but finite numbers of at least 0.
    Source: Williams, Waterman and Patterson 2009.

    >>> attainable_flop_per_s(1.0, 989e12, 3.35e12)
    3350000000000.0
    """
    intensity, peak = number("intensity", intensity, 0), number("peak_flop_per_s", peak_flop_per_s, 0, FASTEST)
    return 1.0 * minimum(intensity * number("bytes_per_s", bytes_per_s, 0, FASTEST), peak)
