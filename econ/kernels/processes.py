"""Several processes that send each other messages, started from a notebook, a script or `torchrun`.

One process a GPU, with NCCL, where there are as many GPUs as processes; otherwise all on the CPU, with
gloo and one thread each. A new process finds a function by its name: it must live in a module.
"""

import contextlib
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from econ.kernels.llama import _check_sizes

# A server that has loaded torch and nothing else forks each process, in place of loading torch in every one.
# Forking the notebook itself would copy locks that its threads hold.
START = "forkserver" if sys.platform == "linux" else "spawn"
PRELOADED = ["torch.distributed.tensor.parallel", "torch._dynamo"]  # torch loads the second when a meter is on


def run(fn: Callable[..., Any], n: int, *args: Any, timeout_s: float = 300.0) -> list[Any]:
    """Call `fn(*args)` in `n` processes at once; what each returns, in the order of their ranks.

    The first call takes seconds (each process needs torch), later ones on Linux a fraction of one. `fn`,
    its arguments and its results travel by pickle. A message that does not come within `timeout_s` is an error.
    Raises ValueError for a function that has no module, n below 1, and what `fn` itself refuses.
    """
    _check_sizes({"n": n})
    _check_importable(fn)
    if START == "forkserver":
        get_context(START).set_forkserver_preload(PRELOADED)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it warns of each process it ends
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.start_processes(_process, (fn, args, n, folder, timeout_s), nprocs=n, start_method=START)
        except mp.ProcessExitedException:
            for refusal in sorted(Path(folder).glob("*.refusal")):
                raise ValueError(refusal.read_text(encoding="utf-8")) from None
            raise
        return [pickle.loads((Path(folder) / f"{rank}.result").read_bytes()) for rank in range(n)]


def _process(rank: int, fn: Callable[..., Any], args: tuple, n: int, folder: str, timeout_s: float) -> None:
    with world(rank, n, dist.FileStore(f"{folder}/meeting", n), timeout_s):
        try:
            (Path(folder) / f"{rank}.result").write_bytes(pickle.dumps(fn(*args)))
        except ValueError as error:
            (Path(folder) / f"{rank}.refusal").write_text(str(error), encoding="utf-8")
            os._exit(1)  # at once: the others may be waiting for this process, and are ended with it


@contextlib.contextmanager
def world(rank: int, n: int, store: dist.Store | None = None, timeout_s: float = 300.0) -> Iterator[None]:
    """Be process `rank` of `n` while the body runs; without a store, meet where `torchrun` says."""
    local = int(os.environ.get("LOCAL_RANK", rank))
    backend = pick_backend(int(os.environ.get("LOCAL_WORLD_SIZE", n)))
    gpu = torch.device("cuda", local) if backend == "nccl" else None
    if gpu:
        torch.cuda.set_device(gpu)
    torch.set_num_threads(1)
    dist.init_process_group(backend, store=store, rank=rank, world_size=n, device_id=gpu,
                            timeout=timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        dist.destroy_process_group()


def pick_backend(n: int) -> str:
    """NCCL where each of `n` processes can have a GPU of its own, else gloo on the CPU."""
    return "nccl" if torch.cuda.device_count() >= n and dist.is_nccl_available() else "gloo"


def here() -> torch.device:
    """The device of this process: its own GPU, or the CPU.

    Raises ValueError outside `run`, `world` or `torchrun`.
    """
    place()
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def place() -> tuple[int, int]:
    """This process's rank and the number of processes. Raises ValueError where there is only the caller."""
    if not dist.is_initialized():
        raise ValueError("this process is alone; call it through processes.run(fn, n), or under torchrun")
    return dist.get_rank(), dist.get_world_size()


def _check_importable(fn: Callable[..., Any]) -> None:
    name, module = getattr(fn, "__qualname__", repr(fn)), getattr(fn, "__module__", "")
    in_a_cell = module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if "<" in name or in_a_cell:
        raise ValueError(f"{name} lives in a cell or in another function, where a new process cannot find it; "
                         "put it into a module and import it")
