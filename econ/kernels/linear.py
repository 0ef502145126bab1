"""Linear attention in four forms, and the selective scan of state-space models: a state instead of a cache.

Without the softmax the products of attention may be done in any order, and k^T v of all past tokens fits
one matrix of fixed size. Shapes: B sequences, N tokens, a state of head_dim x v_dim a head. States keep
the format of their inputs: in bf16 a long sum loses its small terms, so use fp32 or fp64.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from econ.kernels.attention import check_qkv
from econ.kernels.llama import _check_sizes


def feature_map(x: Tensor) -> Tensor:
    """elu(x) + 1: positive, so that weights are shares of a positive sum.  Source: Katharopoulos et al. 2020.

    >>> feature_map(torch.tensor([0.0, 2.0])).tolist()
    [1.0, 3.0]
    """
    return F.elu(x) + 1


def quadratic(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Linear attention with the N x N weights written out, as in softmax attention.

    out_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = phi(q_i) . phi(k_j)
    q and k [B, heads, N, head_dim], v [B, heads, N, v_dim] -> [B, heads, N, v_dim]

    Raises ValueError for shapes, formats or devices that do not match; so do all forms here.
    """
    _check(q, k, v)
    weights = feature_map(q) @ feature_map(k).mT  # [B, heads, N, N]
    if causal:
        weights.tril_()
    return weights @ v / weights.sum(-1, keepdim=True)


def parallel(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """The same re-associated: phi(q) (phi(k)^T v) instead of (phi(q) phi(k)^T) v.

    Work grows with N. A causal mask needs the state at every token: N * head_dim * v_dim elements a head,
    which is what `chunked` avoids. Shapes and errors as in `quadratic`.
    """
    _check(q, k, v)
    q, k = feature_map(q), feature_map(k)
    if not causal:
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)
    states = (k[..., :, None] * v[..., None, :]).cumsum(2)  # [B, heads, N, head_dim, v_dim]
    mix = (q[..., None, :] @ states)[..., 0, :]
    return mix / (q * k.cumsum(2)).sum(-1, keepdim=True)


class State(NamedTuple):
    """All that linear attention keeps of the past, whatever its length."""

    kv: Tensor  # sum of phi(k)^T v  [B, heads, head_dim, v_dim]
    k: Tensor  # sum of phi(k), for the normaliser  [B, heads, 1, head_dim]


def new_state(k: Tensor, v: Tensor) -> State:
    """The state before the first token, for keys and values like these."""
    return State(k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), k.new_zeros(*k.shape[:2], 1, k.shape[3]))


def recurrent(q: Tensor, k: Tensor, v: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """Causal linear attention token by token, from a state to the next: the form that decodes.

    Shapes and errors as in `quadratic`, and for a state of other sizes. One token is one decode step.
    """
    state, out = _start(q, k, v, state), q.new_empty(v.shape)
    q, k = feature_map(q), feature_map(k)
    for t in range(q.shape[2]):
        one = slice(t, t + 1)
        state = State(state.kv + k[:, :, one].mT @ v[:, :, one], state.k + k[:, :, one])
        out[:, :, one] = q[:, :, one] @ state.kv / (q[:, :, one] @ state.k.mT)
    return out, state


def chunked(q: Tensor, k: Tensor, v: Tensor, state: State | None = None,
            chunk: int = 64) -> tuple[Tensor, State]:
    """Causal linear attention chunk by chunk: quadratic inside a chunk, a state from chunk to chunk.

    The form that prefills: matrix products as large as the chunk, work that grows with N.
    Shapes and errors as in `recurrent`.
    """
    _check_sizes({"chunk": chunk})
    state, out = _start(q, k, v, state), q.new_empty(v.shape)
    for start in range(0, q.shape[2], chunk):
        part = slice(start, start + chunk)
        rows, keys, values = feature_map(q[:, :, part]), feature_map(k[:, :, part]), v[:, :, part]
        weights = (rows @ keys.mT).tril_()  # [B, heads, chunk, chunk]
        mix = rows @ state.kv + weights @ values
        out[:, :, part] = mix / (rows @ state.k.mT + weights.sum(-1, keepdim=True))
        state = State(state.kv + keys.mT @ values, state.k + keys.sum(-2, keepdim=True))
    return out, state


def scan_sequential(decay: Tensor, inflow: Tensor) -> Tensor:
    """State after every token: h_t = decay_t * h_(t-1) + inflow_t, one token after the other.

    decay and inflow [B, N, ...] -> [B, N, ...]
    """
    states, state = torch.empty_like(inflow), torch.zeros_like(inflow[:, 0])
    for t in range(inflow.shape[1]):
        state = decay[:, t] * state + inflow[:, t]
        states[:, t] = state
    return states


def scan_associative(decay: Tensor, inflow: Tensor) -> Tensor:
    """The same in log2(N) parallel rounds: neighbours merge, half as many are scanned, the rest is filled in.

    (a, b) then (c, d) is (c a, c b + d), and that rule is associative. About twice the work of the loop.
    """
    n = inflow.shape[1]
    if n == 1:
        return inflow
    last = n - n % 2
    first, second = slice(0, last, 2), slice(1, last, 2)
    merged = decay[:, second] * inflow[:, first] + inflow[:, second]
    odd = scan_associative(decay[:, second] * decay[:, first], merged)  # states after tokens 1, 3, 5, ...
    states = torch.empty_like(inflow)
    states[:, 0], states[:, 1::2] = inflow[:, 0], odd
    states[:, 2::2] = decay[:, 2::2] * odd[:, :(n - 1) // 2] + inflow[:, 2::2]
    return states


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor,
                   associative: bool = False) -> Tensor:
    """The state-space layer of Mamba: what a token writes, reads and lets decay depends on the token.

    h_t = exp(delta_t a) h_(t-1) + delta_t x_t b_t,   y_t = c_t . h_t
    x and delta [B, N, channels], a [channels, state], b and c [B, N, state] -> [B, N, channels]

    `delta` is positive and `a` negative, so that the state fades. Skip connection and gate are left out.
    Raises ValueError for shapes or formats that do not match. Source: Gu and Dao 2024.
    """
    _check_scan(x, delta, a, b, c)
    decay = (delta[..., None] * a).exp()  # [B, N, channels, state]
    inflow = (delta * x)[..., None] * b[:, :, None, :]
    states = (scan_associative if associative else scan_sequential)(decay, inflow)
    return (states * c[:, :, None, :]).sum(-1)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """A state that corrects itself: what it already says about a key is replaced, not added to.

    S_t = g_t S_(t-1) + k_t^T r_t (v_t - k_t g_t S_(t-1)),   out_t = q_t S_t
    q and k [B, heads, N, head_dim], v [B, heads, N, v_dim], gate and rate [B, heads, N] between 0 and 1
    -> [B, heads, N, v_dim] and the last S [B, heads, head_dim, v_dim]

    Assumes keys of length 1. Errors as in `quadratic`. Source: Yang, Kautz and Hatamizadeh 2025.
    """
    _check(q, k, v)
    if gate.shape != q.shape[:3] or rate.shape != q.shape[:3]:
        raise ValueError(f"gate {list(gate.shape)} and rate {list(rate.shape)} do not fit q {list(q.shape)}; "
                         f"use {list(q.shape[:3])}, one number a token and head")
    state, out = new_state(k, v).kv, q.new_empty(v.shape)
    for t in range(q.shape[2]):
        one = slice(t, t + 1)
        state = state * gate[:, :, one, None]
        correction = rate[:, :, one, None] * (v[:, :, one] - k[:, :, one] @ state)  # [B, heads, 1, v_dim]
        state = state + k[:, :, one].mT @ correction
        out[:, :, one] = q[:, :, one] @ state
    return out, state


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    new, total = check_qkv(q, k, v, causal=False)
    if new != total:
        raise ValueError(f"{new} queries but {total} keys; use as many, earlier tokens are in the state")


def _start(q: Tensor, k: Tensor, v: Tensor, state: State | None) -> State:
    _check(q, k, v)
    blank = new_state(k, v)
    if state is not None and [x.shape for x in state] != [x.shape for x in blank]:
        raise ValueError(f"the state is {[list(x.shape) for x in state]}, these keys and values need "
                         f"{[list(x.shape) for x in blank]}; use new_state(k, v)")
    return blank if state is None else state


def _check_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    tensors = {"x": x, "delta": delta, "a": a, "b": b, "c": c}
    shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items())
    known = [t.dim() for t in tensors.values()] == [3, 3, 2, 3, 3] and 0 not in (*x.shape, *a.shape)
    if not (known and x.shape == delta.shape and b.shape == c.shape == (*x.shape[:2], a.shape[1])
            and a.shape[0] == x.shape[2]):
        raise ValueError(f"{shapes}: use x and delta [batch, tokens, channels], a [channels, state], "
                         "b and c [batch, tokens, state]")
    if len({t.dtype for t in tensors.values()}) > 1 or not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}, a is {a.dtype}; use one floating-point format for all five")
