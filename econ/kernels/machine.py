"""This machine's two ceilings, measured: FLOP/s of matrix products, bytes per second of memory.

On a CPU everything runs on one thread and counts processor time; on a GPU, CUDA events time the whole
device. Peaks are the best a plain torch program gets, not what the maker prints.
"""

import itertools
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from econ.kernels._setup import (
    DTYPES,
    Device,
    dtype_name,
    matmul_dtype,
    matmul_dtypes,
    pick_device,
    pick_dtype,
)
from econ.kernels.timing import Timing, time_median

if TYPE_CHECKING:
    from econ.hardware import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How large the operands are: far beyond the caches of the device."""

    matmul_n: int
    stream_bytes: int
    stack_bytes: int
    width: int
    batches: tuple[int, ...]


_CPU = _Sizes(matmul_n=1024, stream_bytes=2**28, stack_bytes=2**28, width=4096,
              batches=(1, 2, 4, 8, 16, 32, 64, 128, 256))
_GPU = _Sizes(matmul_n=8192, stream_bytes=2**31, stack_bytes=2**30, width=8192,
              batches=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A measured rate (FLOP/s or B/s) with the spread of the times behind it."""

    per_s: float
    spread_frac: float  # interquartile range / median

    @classmethod
    def of(cls, amount: float, timing: Timing) -> "Rate":
        return cls(per_s=amount / timing.median_s, spread_frac=timing.spread_frac)


def matmul_peak(dtype: str, device: Device = None, budget_s: float = 0.5) -> Rate:
    """FLOP/s of a large square product, the ceiling for arithmetic in this format.

    2 * n**3 / time                                                                    [FLOP/s]

    Another shape may be a few per cent faster. Raises ValueError for an unknown dtype or device.
    """
    device = _timed_device(device)
    n = _sizes(device).matmul_n
    a, b = (_random(n, n, dtype, device) for _ in range(2))
    return Rate.of(2 * n**3, time_median(lambda: F.linear(a, b), 9, device, budget_s))


def stream_bandwidth(device: Device = None, budget_s: float = 0.5) -> Rate:
    """Bytes per second of reading one long array once: the ceiling for memory traffic.          [B/s]"""
    device = _timed_device(device)
    x = torch.ones(_sizes(device).stream_bytes // 4, device=device)
    return Rate.of(x.nbytes, time_median(x.sum, 9, device, budget_s))


def gemv_bandwidth(dtype: str, device: Device = None, budget_s: float = 0.5) -> Rate:
    """Bytes per second at which weights are read when they multiply one vector, as in decode.   [B/s]

    Below `stream_bandwidth`: on a CPU one thread must also convert and multiply what it loads.
    Raises ValueError for an unknown dtype or device.
    """
    device = _timed_device(device)
    width = _sizes(device).width
    stack = _weight_stack(dtype, width, device)
    x, turn = _random(1, width, dtype, device), itertools.cycle(stack)
    return Rate.of(stack[0].nbytes, time_median(lambda: F.linear(x, next(turn)), 9, device, budget_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one device reaches, by number format, and under which conditions it was measured."""

    name: str  # processor, as the system reports it
    device: str  # "cpu" or "cuda"
    threads: int  # CPU threads behind the rates
    memory_bytes: int | None  # None where the system does not say
    peak_flop_per_s: dict[str, float]  # matrix products, by format
    stream_bytes_per_s: float  # one long read
    gemv_bytes_per_s: dict[str, float]  # weights times one vector, by format
    spread_frac: dict[str, float]  # interquartile range / median of every rate above
    torch_version: str
    measured_in_s: float  # wall time the measurement took

    def ridge(self, dtype: str) -> float:
        """Intensity at which the two ceilings meet: peak FLOP/s over streamed bytes per second.  [FLOP/B]"""
        return self.peak_flop_per_s[dtype] / self.stream_bytes_per_s

    def roof_flop_per_s(self, intensity: float, dtype: str) -> float:
        """Most FLOP/s at an intensity in FLOP/B: min(peak, intensity * streamed bytes per second)."""
        return min(self.peak_flop_per_s[dtype], intensity * self.stream_bytes_per_s)

    def as_accelerator(self) -> "Accelerator":
        """This machine as an `econ` accelerator, so that every formula of the book applies to it.

        Its bandwidth is that of a plain read; decode reaches `gemv_bytes_per_s`, which is lower.
        """
        from econ.hardware import Accelerator, Source
        on = f"{self.threads} CPU thread" if self.device == "cpu" else "the whole GPU"
        how = Source(provenance="measured", title=f"measured here, {on}, torch {self.torch_version}")
        return Accelerator(name="this-machine", printed_name=self.name, vendor=self.name.split()[0],
                           peaks=dict(self.peak_flop_per_s), hbm_bytes_per_s=self.stream_bytes_per_s,
                           printed_bytes=None, visible_bytes=self.memory_bytes, link=None, tdp_w=None,
                           sources={"compute": how, "memory": how}, notes="measured, not a datasheet")


def measure(seconds: float = 5.0, device: Device = None) -> Machine:
    """Measure this machine's ceilings in every format it multiplies well, within about `seconds`.

    Raises ValueError for a device that cannot be timed or for less than half a second.
    """
    device, start = _timed_device(device), time.perf_counter()
    if not seconds >= 0.5:
        raise ValueError(f"seconds={seconds} is too short for a spread; use 0.5 or more")
    formats = matmul_dtypes(device)
    budget_s = 0.6 * seconds / (2 * len(formats) + 1)  # the rest goes to making operands and warming up
    matmul = {name: matmul_peak(name, device, budget_s) for name in formats}
    gemv = {name: gemv_bandwidth(name, device, budget_s) for name in formats}
    stream = stream_bandwidth(device, budget_s)
    rates = {f"matmul {name}": rate for name, rate in matmul.items()} | {"stream": stream}
    rates |= {f"gemv {name}": rate for name, rate in gemv.items()}
    return Machine(name=_device_name(device), device=device.type, threads=1,
                   memory_bytes=_memory_bytes(device), stream_bytes_per_s=stream.per_s,
                   peak_flop_per_s={name: rate.per_s for name, rate in matmul.items()},
                   gemv_bytes_per_s={name: rate.per_s for name, rate in gemv.items()},
                   spread_frac={name: rate.spread_frac for name, rate in rates.items()},
                   torch_version=torch.__version__, measured_in_s=time.perf_counter() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One linear layer applied to a batch of vectors: what it did, what it moved, how long it took."""

    dtype: str
    batch: int
    flops: int
    bytes: int  # weights, inputs and outputs, each moved once
    time_s: float
    spread_frac: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes

    @property
    def flop_per_s(self) -> float:
        return self.flops / self.time_s


def linear_sweep(dtype: str | None = None, batches: Sequence[int] | None = None, device: Device = None,
                 repeats: int = 7) -> tuple[SweepPoint, ...]:
    """Time one square linear layer at growing batch: the measured roofline.

    Weights come from a stack far larger than the caches, the next matrix at each call, as in a model.
    `dtype` defaults to the fastest format. In fp32 on a CPU the library needs 2 to 3 times longer at
    batch 2 and 3 than at 1: read no knee there.
    Raises ValueError for an unknown dtype or device or a batch below 1.
    """
    device = _timed_device(device)
    name, sizes = dtype_name(dtype or matmul_dtype(device)), _sizes(device)
    stack = _weight_stack(name, sizes.width, device)
    return tuple(_sweep_point(batch, stack, repeats) for batch in batches or sizes.batches)


def _sweep_point(batch: int, stack: list[torch.Tensor], repeats: int) -> SweepPoint:
    if batch < 1:
        raise ValueError(f"batch={batch} is not a size; use 1 or more")
    w, turn = stack[0], itertools.cycle(stack)
    x = _random(batch, w.shape[1], dtype_name(w.dtype), w.device)  # [batch, width]
    timing = time_median(lambda: F.linear(x, next(turn)), repeats, w.device)
    return SweepPoint(dtype=dtype_name(w.dtype), batch=batch, flops=2 * batch * w.numel(),
                      bytes=w.nbytes + 2 * x.nbytes, time_s=timing.median_s, spread_frac=timing.spread_frac)


def knee_batch(points: Sequence[SweepPoint]) -> float:
    """Batch at which the flat part of a sweep meets its slope: time at the least batch over time per vector.

    time(smallest) / (time(largest) / largest)

    Close to what peak / GEMV bandwidth predicts by construction, and above peak / streamed bandwidth.
    """
    first, last = min(points, key=lambda p: p.batch), max(points, key=lambda p: p.batch)
    return first.time_s / (last.time_s / last.batch)


def _sizes(device: torch.device) -> _Sizes:
    return _GPU if device.type == "cuda" else _CPU


def _timed_device(device: Device) -> torch.device:
    found = pick_device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device {str(found)!r} cannot be timed; use 'cpu' or 'cuda'")
    return found


def _random(rows: int, cols: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Random numbers, because constant operands run faster on a power-limited GPU."""
    return torch.randn(rows, cols, device=device).to(pick_dtype(dtype))


def _weight_stack(dtype: str, width: int, device: torch.device) -> list[torch.Tensor]:
    """Square matrices [width, width] that together exceed every cache; one random tile, repeated."""
    tile = _random(width // 4, width // 4, dtype, device)
    count = math.ceil(_sizes(device).stack_bytes / (width * width * DTYPES[dtype].itemsize))
    return [tile.repeat(4, 4) for _ in range(max(2, count))]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "CPU"


def _memory_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})  # Unix
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else None
