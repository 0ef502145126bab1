"""Attention in six ways that give the same numbers: plain, tiled, windowed, grouped and latent.

Shapes: B sequences, S queries, T keys of which the last S belong to the queries. Nothing here is
faster than torch's own attention; each kernel shows what one idea saves in memory or FLOPs. What the
tiles save in traffic is counted in `hbm`.
"""

import math

import torch
from torch import Tensor

from econ.kernels._setup import DTYPES
from econ.kernels.llama import _check_sizes, lower_right_mask

State = tuple[Tensor, Tensor, Tensor]  # a query's largest score, sum of exp [.., S, 1], mix [.., S, v_dim]


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Attention as it is defined: all scores, softmax over each row, then the mix of the values.

    softmax(q k^T / sqrt(head_dim)) v
    q [B, heads, S, head_dim], k [B, heads, T, head_dim], v [B, heads, T, v_dim] -> [B, heads, S, v_dim]

    Scores and softmax are alive together: 2 * B * heads * S * T * bytes(dtype).
    Raises ValueError for shapes, formats or devices that do not match, and for more queries than keys
    in causal attention; so do all kernels here.

    >>> q = torch.zeros(1, 1, 3, 2)  # equal scores: each token averages what it sees
    >>> naive(q, q, torch.tensor([1.0, 3.0, 8.0]).view(1, 1, 3, 1)).flatten().tolist()
    [1.0, 2.0, 4.0]
    """
    new, total = check_qkv(q, k, v, causal)
    scores = q * q.shape[-1] ** -0.5 @ k.mT  # [B, heads, S, T]
    if causal:
        scores.masked_fill_(~lower_right_mask(new, total, q.device), -math.inf)
    return scores.softmax(-1) @ v


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, tile_q: int = 256,
          tile_k: int = 512) -> Tensor:
    """The same without the S x T scores: one tile at a time, softmax corrected as larger scores appear.

    Tiles above the causal diagonal are skipped. FLOPs are those of `naive`, less the skipped tiles;
    memory beyond the output is a few tiles, whatever S and T are. Shapes and errors as in `naive`;
    sums are kept in fp32 or wider. Source: Dao et al. 2022, with the loop order of Dao 2024.
    """
    new, total = check_qkv(q, k, v, causal)
    _check_sizes({"tile_q": tile_q, "tile_k": tile_k})
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for start in range(0, new, tile_q):
        rows = q[:, :, start:start + tile_q] * q.shape[-1] ** -0.5
        seen = total - new + min(start + tile_q, new) if causal else total  # keys the last of these rows sees
        out[:, :, start:start + tile_q] = _flash_rows(rows, k[:, :, :seen], v[:, :, :seen], causal, tile_k)
    return out


def _flash_rows(rows: Tensor, k: Tensor, v: Tensor, causal: bool, tile_k: int) -> Tensor:
    """One tile of scaled queries against all keys up to its last row's own.  -> [B, heads, rows, v_dim]"""
    n_rows, seen = rows.shape[2], k.shape[2]
    state = empty_state(rows, v.shape[-1])
    for start in range(0, seen, tile_k):
        scores = rows @ k[:, :, start:start + tile_k].mT  # [B, heads, rows, tile_k]
        if causal and start + tile_k > seen - n_rows + 1:  # the tile crosses the diagonal
            mask = lower_right_mask(n_rows, seen - start, rows.device)[:, :tile_k]
            scores.masked_fill_(~mask, -math.inf)
        state = online_softmax(state, scores, v[:, :, start:start + tile_k])
    _, total, mix = state
    return mix / total


def empty_state(rows: Tensor, v_dim: int) -> State:
    """The state of queries that have seen no key yet."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    largest = rows.new_full((*rows.shape[:-1], 1), -math.inf, dtype=wide)
    return largest, torch.zeros_like(largest), rows.new_zeros(*rows.shape[:-1], v_dim, dtype=wide)


def online_softmax(state: State, scores: Tensor, v: Tensor) -> State:
    """Add a tile of keys: what was summed under the old maximum shrinks by exp(old - new).

    scores [.., S, tile], v [.., tile, v_dim]; `mix / total` is attention over all tiles so far.
    """
    largest, total, mix = state
    new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
    shrink = (largest - new_largest).exp()
    weights = (scores - new_largest).exp_()
    total = total * shrink + weights.sum(-1, keepdim=True)
    return new_largest, total, mix * shrink + weights.to(v.dtype) @ v


def sliding_window(q: Tensor, k: Tensor, v: Tensor, window: int, chunk: int = 128) -> Tensor:
    """Causal attention in which a query sees the last `window` keys, its own included.

    Works by chunks of queries, each against chunk + window - 1 keys: time and memory grow with S, not S*T.
    Shapes and errors as in `naive`.
    """
    new, total = check_qkv(q, k, v, causal=True)
    _check_sizes({"window": window, "chunk": chunk})
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for start in range(0, new, chunk):
        rows = q[:, :, start:start + chunk] * q.shape[-1] ** -0.5
        first = total - new + start  # position of the first row's own key
        low, end = max(0, first - window + 1), first + rows.shape[2]
        mask = lower_right_mask(rows.shape[2], end - low, q.device).triu(first - window + 1 - low)
        scores = rows @ k[:, :, low:end].mT  # [B, heads, chunk, chunk + window - 1]
        scores.masked_fill_(~mask, -math.inf)
        out[:, :, start:start + chunk] = scores.softmax(-1) @ v[:, :, low:end]
    return out


def grouped_query(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, scale: float | None = None) -> Tensor:
    """Attention in which heads / kv_heads query heads share one KV head, which is read once for all of them.

    q [B, heads, S, head_dim], k [B, kv_heads, T, head_dim], v [B, kv_heads, T, v_dim] -> [B, heads, S, v_dim]

    Query head h uses KV head h // (heads / kv_heads). `scale` replaces 1 / sqrt(head_dim).
    Errors as in `naive`, and for heads that kv_heads do not divide.
    """
    new, total = check_qkv(q, k, v, causal, grouped=True)
    batch, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
    rows = q.reshape(batch, kv_heads, heads // kv_heads * new, -1)  # the group's queries, one below the other
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = rows * scale @ k.mT  # [B, kv_heads, group * S, T]
    if causal:
        each = scores.view(batch, kv_heads, -1, new, total)
        each.masked_fill_(~lower_right_mask(new, total, q.device), -math.inf)
    return (scores.softmax(-1) @ v).reshape(batch, heads, new, -1)


def latent_expanded(q: Tensor, cache: Tensor, up_k: Tensor, up_v: Tensor, causal: bool = True) -> Tensor:
    """Multi-head latent attention as it is defined: rebuild the keys and values of every head from the cache.

    q [B, heads, S, nope + rope], cache [B, T, rank + rope] (a latent and one rotated key for all heads),
    up_k [heads, nope, rank], up_v [heads, v_dim, rank] -> [B, heads, S, v_dim]

    Raises ValueError for shapes, formats or devices that do not match. Source: DeepSeek-AI 2024.
    """
    rank = _check_latent(q, cache, up_k, up_v)
    latent, rotated = cache[:, :, :rank], cache[:, None, :, rank:].expand(-1, q.shape[1], -1, -1)
    keys = torch.einsum("btr,hnr->bhtn", latent, up_k)
    return naive(q, torch.cat((keys, rotated), -1), torch.einsum("btr,hvr->bhtv", latent, up_v), causal)


def latent_absorbed(q: Tensor, cache: Tensor, up_k: Tensor, up_v: Tensor, causal: bool = True) -> Tensor:
    """The same without rebuilding: up_k moves into the queries, up_v behind the mix. One KV head for all.

    q (up_k c) = (q up_k) c, so the queries score the cache itself. The scale stays that of nope + rope.
    Shapes and errors as in `latent_expanded`.
    """
    rank, nope = _check_latent(q, cache, up_k, up_v), up_k.shape[1]
    absorbed = torch.einsum("bhsn,hnr->bhsr", q[..., :nope], up_k)
    queries, keys = torch.cat((absorbed, q[..., nope:]), -1), cache[:, None]  # keys [B, 1, T, rank + rope]
    mix = grouped_query(queries, keys, keys[..., :rank], causal, q.shape[-1] ** -0.5)  # [B, heads, S, rank]
    return torch.einsum("bhsr,hvr->bhsv", mix, up_v)


def check_qkv(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool = False) -> tuple[int, int]:
    """Numbers of queries and keys, or a ValueError that says which two tensors do not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or 0 in x.shape:
            raise ValueError(f"{name} has shape {list(x.shape)}; use [batch, heads, tokens, dim], none 0")
    _check_alike(q=q, k=k, v=v)
    heads, kv_heads = q.shape[1], k.shape[1]
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)} do not fit together; "
                         "use one batch, one head_dim for q and k, the same heads and tokens for k and v")
    if grouped and heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads evenly; use a divisor of {heads}")
    if not grouped and heads != kv_heads:
        raise ValueError(f"{heads} heads but {kv_heads} KV heads; use grouped_query, or repeat k and v")
    if causal and q.shape[2] > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries but {k.shape[2]} keys: a causal query needs its own key; "
                         "use k and v of all tokens, or causal=False")
    return q.shape[2], k.shape[2]


def _check_latent(q: Tensor, cache: Tensor, up_k: Tensor, up_v: Tensor) -> int:
    """The rank of the latent, or a ValueError."""
    tensors = {"q": q, "cache": cache, "up_k": up_k, "up_v": up_v}
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in tensors.items())
    fits = ([x.dim() for x in tensors.values()] == [4, 3, 3, 3] and q.shape[0] == cache.shape[0]
            and q.shape[1] == up_k.shape[0] == up_v.shape[0] and up_k.shape[2] == up_v.shape[2]
            and cache.shape[2] - up_k.shape[2] == q.shape[3] - up_k.shape[1] >= 0)
    if not fits:
        raise ValueError(f"{shapes}: use q [batch, heads, new, nope + rope], cache [batch, tokens, rank + "
                         "rope], up_k [heads, nope, rank] and up_v [heads, v_dim, rank]")
    _check_alike(**tensors)
    return up_k.shape[2]


def _check_alike(**tensors: Tensor) -> None:
    kinds = {name: f"{x.dtype} on {x.device.type}" for name, x in tensors.items()}
    known = all(x.dtype in DTYPES.values() for x in tensors.values())
    if not known or len(set(kinds.values())) > 1:
        told = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise ValueError(f"{told}; use one device and one of {', '.join(DTYPES)} for all of them")
