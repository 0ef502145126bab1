"""A paged KV cache: keys and values in blocks of a shared pool, attention that follows the block table.

Shapes stand in comments: S new tokens, T tokens in all. `batching` runs the small Llama on it.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from econ.kernels._setup import Device, Dtype, pick_device, pick_dtype
from econ.kernels.pool import BLOCK_TOKENS, BlockTables, check_count


class PagedCache(BlockTables):
    """Keys and values of many sequences in one pool of blocks, without any contiguous reservation.

    bytes = layers * 2 * n_blocks * block_tokens * kv_heads * head_dim * bytes(dtype)

    Raises ValueError for sizes that are not positive whole numbers, an unknown dtype or device, keys of
    another shape, and a sequence that is unknown or for which no place was reserved.

    >>> PagedCache(layers=80, n_blocks=128, kv_heads=8, head_dim=128, dtype="bf16", device="meta").bytes
    671088640
    """

    def __init__(self, *, layers: int, n_blocks: int, kv_heads: int, head_dim: int, dtype: Dtype,
                 block_tokens: int = BLOCK_TOKENS, device: Device = None) -> None:
        super().__init__(n_blocks, block_tokens)
        for name, size in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            check_count(name, size)
        self.kv = torch.zeros(layers, 2, n_blocks, block_tokens, kv_heads, head_dim,
                              dtype=pick_dtype(dtype), device=pick_device(device))

    @property
    def bytes(self) -> int:
        """Bytes of the whole pool, used or not."""
        return self.kv.untyped_storage().nbytes()

    def write(self, layer: int, seq: Hashable, k: Tensor, v: Tensor) -> None:
        """Store one layer's keys and values behind what the sequence has.  k, v [1, kv_heads, S, head_dim]

        `advance` counts the tokens as stored when every layer has written them.
        """
        self._check_known(seq)
        self._check_shape(k)
        positions = range(self.n_tokens[seq], self.n_tokens[seq] + k.shape[2])
        places = self._places(seq, positions)
        flat = self.kv[layer].flatten(1, 2)  # [2, n_blocks * block_tokens, kv_heads, head_dim], a view
        flat[0, places], flat[1, places] = k[0].transpose(0, 1), v[0].transpose(0, 1)

    def read(self, layer: int, seq: Hashable, n_tokens: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values gathered into a row of tokens.  Two of [1, kv_heads, T, head_dim]"""
        self._check_known(seq)
        n_tokens = self.n_tokens[seq] if n_tokens is None else n_tokens
        blocks = self.kv[layer][:, self.tables[seq]]  # [2, blocks, block_tokens, kv_heads, head_dim]
        k, v = blocks.flatten(1, 2)[:, :n_tokens].transpose(1, 2)  # each [kv_heads, T, head_dim]
        return k[None], v[None]

    def _copy(self, source: int, target: int) -> None:
        self.kv[:, :, target] = self.kv[:, :, source]

    def _places(self, seq: Hashable, positions: range) -> Tensor:
        """Where these tokens lie in the pool: block * block_tokens + place in the block."""
        table, size = self.tables[seq], self.block_tokens
        if positions.stop > len(table) * size or self._shares_last(seq):
            raise ValueError(f"sequence {seq!r} has no place of its own for tokens {positions.start} to "
                             f"{positions.stop - 1}; call reserve({seq!r}, {positions.stop}) first")
        return torch.tensor([table[t // size] * size + t % size for t in positions], device=self.kv.device)

    def _check_shape(self, k: Tensor) -> None:
        _, _, _, _, kv_heads, head_dim = self.kv.shape
        if k.dim() != 4 or k.shape[0] != 1 or k.shape[1] != kv_heads or k.shape[3] != head_dim:
            raise ValueError(f"keys have shape {list(k.shape)}; this cache takes [1, {kv_heads}, new, {head_dim}]")


def paged_attention(q: Tensor, kv: Tensor, table: Sequence[int], n_tokens: int) -> Tensor:
    """Causal attention of the last S of T tokens, block by block through the table, nothing gathered.

    Softmax runs online: the largest score so far and the sum of weights are corrected with every block,
    in fp32 or wider.

    q [heads, S, head_dim], kv [2, n_blocks, block_tokens, kv_heads, head_dim] -> [heads, S, head_dim]
    Raises ValueError for heads that kv_heads do not divide and a table too short for T.
    """
    (heads, new, head_dim), (_, _, block_tokens, kv_heads, _) = q.shape, kv.shape
    _check_attention(heads, kv_heads, new, n_tokens, len(table) * block_tokens)
    wide = torch.promote_types(q.dtype, torch.float32)
    q = q.reshape(kv_heads, -1, head_dim).to(wide) * head_dim**-0.5  # [kv_heads, R, head_dim], R = group * S
    reach = torch.arange(n_tokens - new, n_tokens, device=q.device)  # the last key each query may see
    reach = reach.repeat(heads // kv_heads)[:, None]  # [R, 1]
    top = q.new_full((*q.shape[:2], 1), -torch.inf)  # largest score of each row so far
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for first, block in zip(range(0, n_tokens, block_tokens), table, strict=False):
        k, v = kv[:, block].transpose(1, 2).to(wide)  # each [kv_heads, block_tokens, head_dim]
        scores = q @ k.mT  # [kv_heads, R, block_tokens]
        position = torch.arange(first, first + block_tokens, device=q.device)
        scores = scores.masked_fill(position > reach, -torch.inf)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weight, shrink = (scores - higher).exp(), (top - higher).exp()
        total = total * shrink + weight.sum(-1, keepdim=True)
        out = out * shrink + weight @ v
        top = higher
    return (out / total).reshape(heads, new, head_dim).to(kv.dtype)


def _check_attention(heads: int, kv_heads: int, new: int, n_tokens: int, room: int) -> None:
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads evenly; use a multiple of {kv_heads}")
    if not new <= n_tokens <= room:
        raise ValueError(f"n_tokens={n_tokens} does not lie between {new} new tokens and the {room} that the "
                         "table's blocks hold; reserve more blocks or pass the length with the new tokens")
