"""Messages between processes: a meter that counts them, and what an all-reduce costs here.

The meter watches torch's own communication operators, so that it counts what is sent, by whichever
library: the kernels of `distributed`, or torch's tensor parallelism.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from econ.kernels._setup import elapsed_s
from econ.kernels.processes import here, place, run
from econ.kernels.timing import Timing

_SENDING = {"allreduce_": ("all-reduce", 0), "all_reduce": ("all-reduce", 0),  # kind, and which operand is sent
            "alltoall_base_": ("all-to-all", 1), "all_to_all_single": ("all-to-all", 0), "send": ("send", 0),
            "_allgather_base_": ("all-gather", 1), "all_gather_into_tensor": ("all-gather", 0),
            "_reduce_scatter_base_": ("reduce-scatter", 1), "reduce_scatter_tensor": ("reduce-scatter", 0)}
_SILENT = ("recv_", "barrier", "wait_tensor", "_wrap_tensor_autograd")
SIZES_BYTES = {"gloo": tuple(2**i for i in range(10, 25, 2)), "nccl": tuple(2**i for i in range(10, 29, 2))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Equal messages that one process took part in: `count` times, `size_bytes` handed over each time."""

    kind: str  # all-reduce, all-to-all, all-gather, reduce-scatter, send, or torch's name of anything else
    count: int
    size_bytes: int


class _Meter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if "c10d" in func.namespace and name not in _SILENT:
            kind, operand = _SENDING.get(name, (name, 0))
            sent = [x for x in tree_leaves(args[operand]) if isinstance(x, torch.Tensor)]
            self.seen[kind, sum(x.nbytes for x in sent)] += 1
        return func(*args, **(kwargs or {}))


def count_messages(fn: Callable[[], Any]) -> tuple[Messages, ...]:
    """The messages that `fn` sends from this process, equal ones together, in the order of their first.

    Counts calls and the bytes handed over, not what the library puts on the wire: a ring all-reduce
    sends 2 (n - 1) / n of them. What is received counts where it was sent.
    """
    with _Meter() as meter:
        fn()
    return tuple(Messages(kind=kind, count=count, size_bytes=size) for (kind, size), count in meter.seen.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Time of an all-reduce among `n` processes as alpha + size / rate, with how well that holds.

    Spreads are interquartile ranges over medians: of the constants, fitted to each repeat alone, and of
    the time at each size. `held_out_error_frac` is the largest error at a size that the fit did not see.
    """

    n: int
    backend: str
    alpha_s: float
    bytes_per_s: float
    alpha_spread_frac: float
    bytes_per_s_spread_frac: float
    held_out_error_frac: float
    sizes_bytes: tuple[int, ...]
    times: tuple[Timing, ...]

    def time_s(self, size_bytes: float) -> float:
        """alpha + size / rate                                                                       [s]"""
        return self.alpha_s + size_bytes / self.bytes_per_s

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes per second each way that a ring must carry for this rate: 2 (n - 1) / n of the size.  [B/s]"""
        return self.bytes_per_s * 2 * (self.n - 1) / self.n

    @property
    def hop_s(self) -> float:
        """Latency of one of the ring's 2 (n - 1) steps.                                             [s]"""
        return self.alpha_s / (2 * (self.n - 1))


def measure_all_reduce(n: int = 2, repeats: int = 7, sizes_bytes: Sequence[int] | None = None) -> AllReduce:
    """Start `n` processes, time their all-reduces and fit alpha and rate.

    Wall time on CPUs (waiting is part of a message), events on GPUs. On a busy machine the spread says
    more than the constants. Raises ValueError for n below 2 and what `time_all_reduce` refuses.
    """
    if n < 2:
        raise ValueError(f"n={n}: one process sends no messages; use 2 or more")
    backend, sizes, samples = run(time_all_reduce, n, repeats, sizes_bytes)[0]
    return fit_all_reduce(n, backend, sizes, samples)


def time_all_reduce(repeats: int = 7, sizes_bytes: Sequence[int] | None = None,
                    calls: int = 3) -> tuple[str, tuple[int, ...], list[list[float]]]:
    """In each process: the backend, the sizes in bytes, and for every repeat the seconds at every size.

    Raises ValueError outside a group of processes, for fewer than 3 repeats or 3 sizes, and for sizes
    that are not whole fp32 numbers.
    """
    place()
    backend = dist.get_backend()
    sizes = tuple(SIZES_BYTES[backend] if sizes_bytes is None else sizes_bytes)
    if repeats < 3 or len(set(sizes)) < 3:
        raise ValueError(f"repeats={repeats} and {len(set(sizes))} sizes give no spread; use 3 or more of both")
    if any(size < 4 or size % 4 for size in sizes):
        raise ValueError(f"sizes_bytes={sizes} are not all fp32 numbers; use multiples of 4")
    buffers = [torch.zeros(size // 4, device=here()) for size in sizes]
    for x in buffers:
        dist.all_reduce(x)  # the first of a size makes buffers and connections
    return backend, sizes, [[_once_s(x, calls) for x in buffers] for _ in range(repeats)]


def _once_s(x: torch.Tensor, calls: int) -> float:
    dist.barrier()  # start together
    if x.device.type == "cuda":
        return elapsed_s(lambda: dist.all_reduce(x), x.device, calls) / calls
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x)
    return (time.perf_counter() - start) / calls


def fit_all_reduce(n: int, backend: str, sizes_bytes: Sequence[int],
                   samples: Sequence[Sequence[float]]) -> AllReduce:
    """Fit time = alpha + size / rate by least squares of relative errors; `samples` are repeats x sizes.

    >>> fit = fit_all_reduce(2, "gloo", [1000, 2000, 4000], [[3.0, 5.0, 9.0]] * 3)
    >>> round(fit.alpha_s, 6), round(fit.bytes_per_s, 6), round(fit.time_s(3000), 6)
    (1.0, 500.0, 7.0)
    """
    times = tuple(Timing.of(column) for column in zip(*samples, strict=True))
    medians = [t.median_s for t in times]
    alpha, per_byte = _line(sizes_bytes, medians)
    alone = [_line(sizes_bytes, row) for row in samples]
    return AllReduce(n=n, backend=backend, alpha_s=alpha, bytes_per_s=1 / per_byte,
                     alpha_spread_frac=Timing.of([a for a, _ in alone]).spread_frac,
                     bytes_per_s_spread_frac=Timing.of([1 / b for _, b in alone]).spread_frac,
                     held_out_error_frac=_held_out(sizes_bytes, medians),
                     sizes_bytes=tuple(sizes_bytes), times=times)


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    rows = torch.tensor([[1 / t, size / t] for size, t in zip(sizes, seconds, strict=True)], dtype=torch.float64)
    scale = rows.amax(0)  # bytes are many and their seconds few: bring both columns to one size
    solution = torch.linalg.lstsq(rows / scale, torch.ones(len(rows), 1, dtype=torch.float64)).solution
    alpha, per_byte = (solution[:, 0] / scale).tolist()
    return alpha, per_byte


def _held_out(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    errors = []
    for out in range(len(sizes)):
        alpha, per_byte = _line([*sizes[:out], *sizes[out + 1:]], [*seconds[:out], *seconds[out + 1:]])
        errors.append(abs((alpha + per_byte * sizes[out]) / seconds[out] - 1))
    return max(errors)
