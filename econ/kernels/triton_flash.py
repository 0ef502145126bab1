"""Causal flash attention as one GPU kernel, in Triton: `attention.flash` with its tiles really on chip.

Needs the package `triton` (`pip install econ[triton]`). With TRITON_INTERPRET=1 in the environment before
triton is first imported, the same kernel runs on a CPU, slowly, for checking.
"""

from __future__ import annotations  # the kernel's names a triton that may not be there

import math
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from econ.kernels.attention import check_qkv

tl: Any = None  # triton.language, loaded with the kernel


def triton_flash(q: Tensor, k: Tensor, v: Tensor, tile_q: int = 64, tile_k: int = 64) -> Tensor:
    """Causal attention; each program of the GPU takes one tile of queries of one head.

    q [B, heads, S, head_dim], k and v [B, heads, T, head_dim] -> [B, heads, S, head_dim]

    Sums are kept in fp32. Raises ValueError as `attention.naive` does, and for fp64, tensors that are not on
    a GPU, and a head_dim or tile that is not a power of 2 of at least 16; ImportError without triton.
    """
    new, total = check_qkv(q, k, v, causal=True)
    _check(q, v, tile_q, tile_k)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    grid = (math.ceil(new / tile_q), q.shape[0] * q.shape[1])
    _kernel()[grid](q, k, v, out, q.shape[-1] ** -0.5, new, total,
                    DIM=q.shape[-1], TILE_Q=tile_q, TILE_K=tile_k)
    return out


def _flash_tile(q, k, v, out, scale, new, total,
                DIM: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr):
    head, dim = tl.program_id(1), tl.arange(0, DIM)
    row = tl.program_id(0) * TILE_Q + tl.arange(0, TILE_Q)
    position = total - new + row  # of the query's own key
    at = (head * new + row)[:, None] * DIM + dim[None, :]
    queries = tl.load(q + at, mask=row[:, None] < new, other=0.0)  # [TILE_Q, DIM]
    largest = tl.full((TILE_Q,), float("-inf"), tl.float32)
    sums = tl.zeros((TILE_Q,), tl.float32)
    mix = tl.zeros((TILE_Q, DIM), tl.float32)
    seen = tl.minimum(total - new + (tl.program_id(0) + 1) * TILE_Q, total)
    for start in range(0, seen, TILE_K):  # tiles above the diagonal are skipped
        key = start + tl.arange(0, TILE_K)
        here = (head * total + key)[:, None] * DIM + dim[None, :]
        keys = tl.load(k + here, mask=key[:, None] < total, other=0.0)  # [TILE_K, DIM]
        values = tl.load(v + here, mask=key[:, None] < total, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale  # [TILE_Q, TILE_K]
        scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink, weights = tl.exp(largest - new_largest), tl.exp(scores - new_largest[:, None])
        sums = sums * shrink + tl.sum(weights, 1)
        mix = mix * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        largest = new_largest
    tl.store(out + at, mix / sums[:, None], mask=row[:, None] < new)


@cache
def _kernel() -> Any:
    global tl
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise ImportError("triton_flash needs triton; try: pip install econ[triton]") from error
    return triton.jit(_flash_tile)


def _check(q: Tensor, v: Tensor, tile_q: int, tile_k: int) -> None:
    for name, size in (("head_dim", q.shape[-1]), ("tile_q", tile_q), ("tile_k", tile_k)):
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name}={size} is not a size Triton multiplies; use 16, 32, 64, 128, ...")
    if q.shape[-1] != v.shape[-1]:
        raise ValueError(f"head_dim is {q.shape[-1]} in q and {v.shape[-1]} in v; use one for both here")
    if q.dtype == torch.float64:
        raise ValueError("fp64 inputs, but the sums are in fp32; use fp32, bf16 or fp16")
    if q.device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        raise ValueError(f"tensors are on {q.device.type}; use a GPU, or start with TRITON_INTERPRET=1")
