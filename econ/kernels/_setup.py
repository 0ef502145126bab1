"""The traps of timing torch, dealt with once, when the first kernel is imported.

1. Idle OpenMP threads spin, and on a busy machine two threads are then far slower than one:
   waiting threads sleep instead, and every measured claim runs inside `one_thread()`.
2. The wall clock counts other people's programs: `elapsed_s` counts the processor time of this
   thread, or reads the events of a GPU.
3. glibc gives large buffers back to the system at every free, so that each kernel pays for page
   faults that no GPU has: `keep_freed_pages()` tells it to keep them.
4. The fastest number format differs between machines, and a CPU may be 100 times slower in fp16
   than in bf16: `matmul_dtype()` tries them.

It also teaches torch's FLOP counter the fused attention of a CPU, which it counts as zero.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch loads OpenMP

try:
    import torch
except ImportError as error:  # pragma: no cover - the core of econ works without torch
    raise ImportError("econ.kernels needs torch, which is not installed; try: pip install torch") from error

import torch.nn.functional as F
from torch.utils import flop_counter

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Dtype = str | torch.dtype
Device = str | torch.device | None


def keep_freed_pages() -> bool:
    """Tell glibc to keep freed memory up to 2 GiB; True where that worked (Linux with glibc only).

    Peak memory as the operating system reports it then never falls: use `meter.peak_live_bytes`.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL("libc.so.6")
    m_trim_threshold, m_mmap_max = -1, -4  # constants of malloc.h
    return bool(libc.mallopt(m_mmap_max, 0) and libc.mallopt(m_trim_threshold, 2**31 - 1))


def register_attention() -> None:
    """Make torch's FLOP counter count every fused attention alike: 2 FLOP per multiply-add, full S x S.

    It knows nothing of the CPU's, and before torch 2.13 it may refuse grouped heads in a GPU's.
    """
    names = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    for name in names:
        kernel = getattr(torch.ops.aten, f"_scaled_dot_product_{name}")
        flop_counter.flop_registry.pop(kernel, None)
        flop_counter.register_flop_formula(kernel)(_attention_flops)


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    batch, heads, new, head_dim = query  # shapes, not tensors: key [B, kv_heads, total, head_dim]
    return 2 * batch * heads * new * key[2] * (head_dim + value[3])


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the body on one CPU thread, which `elapsed_s` needs, and restore the number after it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def elapsed_s(fn: Callable[[], Any], device: Device = "cpu", calls: int = 1) -> float:
    """Seconds that `calls` calls of `fn` take: this thread's processor time, or CUDA events on a GPU.

    On a CPU it sees the calling thread alone, so it belongs inside `one_thread()`.
    """
    if torch.device(device or "cpu").type == "cuda":
        return _cuda_elapsed_s(fn, calls)
    start = time.thread_time()
    for _ in range(calls):
        fn()
    return time.thread_time() - start


def _cuda_elapsed_s(fn: Callable[[], Any], calls: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3  # events count milliseconds


def pick_device(device: Device = None) -> torch.device:
    """The device asked for, or the GPU where there is one and else the CPU.

    Raises ValueError for a device that torch does not know or cannot see.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {device!r} is unknown to torch; use 'cpu', 'cuda' or 'meta'") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(found)!r} was asked for, but torch sees no GPU; use 'cpu' or 'meta'")
    return found


def pick_dtype(dtype: Dtype) -> torch.dtype:
    """A torch dtype from its name in the book or from itself.

    Raises ValueError for anything but fp64, fp32, bf16 and fp16.

    >>> pick_dtype("bf16")
    torch.bfloat16
    """
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    raise ValueError(f"dtype {dtype!r} is not one of the kernels' formats; use {', '.join(DTYPES)}")


def dtype_name(dtype: Dtype) -> str:
    """The book's name of a torch dtype: torch.bfloat16 is "bf16"."""
    return next(name for name, value in DTYPES.items() if value == pick_dtype(dtype))


def matmul_dtypes(device: Device = None) -> tuple[str, ...]:
    """Formats worth trying for a matrix product; fp16 on a CPU may run 100 times slower than fp32."""
    return ("fp32", "bf16", "fp16") if pick_device(device).type == "cuda" else ("fp64", "fp32", "bf16")


def matmul_dtype(device: Device = None) -> str:
    """The format in which this device multiplies matrices fastest, found by trying (about 50 ms).

    Trying is safer than asking: some GPUs claim bf16 and run it slowly, in software.
    """
    device = pick_device(device)
    with one_thread():
        seconds = {name: _probe_s(DTYPES[name], device) for name in matmul_dtypes(device)}
    return min(seconds, key=lambda name: seconds[name])


def _probe_s(dtype: torch.dtype, device: torch.device) -> float:
    n = 2048 if device.type == "cuda" else 384
    a = torch.randn(n, n, device=device).to(dtype)  # [n, n]
    return min(elapsed_s(lambda: F.linear(a, a), device) for _ in range(3))


def model_dtype(device: Device = None) -> str:
    """The format the small models run in: fp32 on a CPU, where bf16 attention is slow, else the fastest."""
    device = pick_device(device)
    return matmul_dtype(device) if device.type == "cuda" else "fp32"


PAGES_KEPT = keep_freed_pages()
register_attention()
