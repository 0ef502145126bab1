"""Whole against split, in one call: how far apart the results are, and which messages it took.

From a notebook `demonstrate("tensor")` starts two processes. On several GPUs, or machines:

    torchrun --nproc-per-node 2 -m econ.kernels.demonstrate tensor
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from econ.kernels._setup import Dtype, pick_dtype
from econ.kernels.distributed import Expert, PipelineStage, TensorParallelLlama, check_split, expert_mlp
from econ.kernels.llama import Llama, swiglu
from econ.kernels.messages import Messages, count_messages
from econ.kernels.processes import here, place, run, world

SHAPE = {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 512, "vocab": 1000}
EXPERTS = {"hidden": 128, "ffn": 256, "n_experts": 8, "top_k": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What one process of `n` saw: the largest difference from the whole model, and its own messages."""

    split: str
    rank: int
    n: int
    backend: str
    largest_error: float | None  # None in a process that holds no result
    messages: tuple[Messages, ...]


def demonstrate(split: str, n: int = 2, batch: int = 2, prompt: int = 64, dtype: Dtype = "fp64",
                shape: dict[str, int] | None = None) -> list[Demonstration]:
    """Run one prefill whole and split over `n` processes, or experts over tokens; one record a process.

    `split` is "tensor", "torch" (the same by torch's own tools), "pipeline" or "experts"; `shape` replaces
    sizes of SHAPE or EXPERTS. Each process brings batch * prompt tokens to the experts.
    Raises ValueError for another split and for sizes that cannot be split over n.
    """
    return run(here_and_now, n, split, batch, prompt, dtype, shape)


def here_and_now(split: str, batch: int = 2, prompt: int = 64, dtype: Dtype = "fp64",
                 shape: dict[str, int] | None = None) -> Demonstration:
    """The same in a process that already belongs to a group."""
    splits = {"tensor": _tensor, "torch": _torch, "pipeline": _pipeline, "experts": _experts}
    if split not in splits:
        raise ValueError(f"split={split!r} is unknown; use one of {', '.join(splits)}")
    whole, part = splits[split](batch, prompt, dtype, shape)
    made: list[Tensor | None] = []
    messages = count_messages(lambda: made.append(part()))
    error = None if made[0] is None else float((made[0] - whole()).abs().max())
    rank, n = place()
    return Demonstration(split=split, rank=rank, n=n, backend=dist.get_backend(), largest_error=error,
                         messages=messages)


def _model(batch: int, prompt: int, dtype: Dtype, shape: dict[str, int] | None) -> tuple[Llama, Tensor]:
    model = Llama(**_sizes(SHAPE, shape), dtype=dtype, device=here())
    random = torch.Generator().manual_seed(1)
    vocab = model.embedding.shape[0]
    return model, torch.randint(vocab, (batch, prompt), generator=random).to(model.device)


def _tensor(*sizes: Any) -> tuple[Any, Any]:
    model, tokens = _model(*sizes)
    part = TensorParallelLlama(model)
    return lambda: model.prefill(tokens), lambda: part.prefill(tokens)


def _torch(*sizes: Any) -> tuple[Any, Any]:
    from econ.kernels.dtensor import TorchParallelLlama
    model, tokens = _model(*sizes)
    part = TorchParallelLlama(model)
    return lambda: model.prefill(tokens), lambda: part.prefill(tokens)


def _pipeline(*sizes: Any) -> tuple[Any, Any]:
    model, tokens = _model(*sizes)
    part = PipelineStage(model)
    return lambda: model.prefill(tokens), lambda: part.forward(tokens)


def _experts(batch: int, prompt: int, dtype: Dtype, shape: dict[str, int] | None) -> tuple[Any, Any]:
    (rank, n), sizes = place(), _sizes(EXPERTS, shape)
    top_k, held = sizes.pop("top_k"), sizes["n_experts"] // n
    check_split(n, {"experts": sizes["n_experts"]})
    router, experts = random_experts(**sizes, dtype=dtype)
    x = _normal(torch.Generator().manual_seed(2 + rank), batch * prompt, sizes["hidden"], dtype)  # its own tokens
    local = experts[rank * held:(rank + 1) * held]
    return lambda: all_experts(x, router, experts, top_k), lambda: expert_mlp(x, router, local, top_k)


def _sizes(usual: dict[str, int], shape: dict[str, int] | None) -> dict[str, Any]:
    unknown = set(shape or {}) - set(usual)
    if unknown:
        raise ValueError(f"shape has unknown sizes {', '.join(sorted(unknown))}; use {', '.join(usual)}")
    return usual | (shape or {})


def random_experts(hidden: int, ffn: int, n_experts: int, dtype: Dtype) -> tuple[Tensor, list[Expert]]:
    """A router [E, H] and E experts, the same in every process."""
    random = torch.Generator().manual_seed(0)

    def matrix(rows: int, cols: int) -> Tensor:
        return _normal(random, rows, cols, dtype) * cols**-0.5

    return matrix(n_experts, hidden), [(matrix(ffn, hidden), matrix(ffn, hidden), matrix(hidden, ffn))
                                       for _ in range(n_experts)]


def all_experts(x: Tensor, router: Tensor, experts: list[Expert], top_k: int) -> Tensor:
    """Every expert on every token, and of each token's results those of its top_k.  x [T, H] -> [T, H]"""
    scores, chosen = (x @ router.T).topk(top_k)  # [T, k] each
    share = torch.zeros(len(x), len(router), dtype=x.dtype, device=x.device).scatter(1, chosen, scores.softmax(-1))
    parts = [share[:, [e]] * swiglu(x, *weights) for e, weights in enumerate(experts)]
    return torch.stack(parts).sum(0)


def _normal(random: torch.Generator, rows: int, cols: int, dtype: Dtype) -> Tensor:
    return torch.randn(rows, cols, generator=random, dtype=torch.float64).to(here(), pick_dtype(dtype))


def main(argv: list[str]) -> None:
    """Print the record of each process: those of torchrun, or two started here."""
    split = argv[0] if argv else "tensor"
    if "RANK" not in os.environ:
        print(*demonstrate(split), sep="\n")
        return
    with world(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])):
        print(here_and_now(split))


if __name__ == "__main__":
    main(sys.argv[1:])
