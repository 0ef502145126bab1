"""A small Llama in plain tensors: RMSNorm, rotary positions, grouped-query attention, SwiGLU, KV cache.

The whole network is `Llama.forward`, the `_attention` it calls and the six short functions at the top;
everything else creates weights and refuses bad input. Shapes stand in comments: B sequences, S new
tokens, T tokens in all (cached + new), H the hidden size. On the `meta` device, where tensors have
shapes and no contents, the true 70B is built and traced in seconds.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from econ.kernels._setup import Device, Dtype, pick_device, pick_dtype


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-5) -> Tensor:
    """Scale each vector to a root mean square of 1, then by a learned gain.  x [B, S, H], gain [H]"""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return gain * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotation(first: int, new: int, head_dim: int, theta: float,
             device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle that positions first .. first+new-1 turn by.  Two of [S, head_dim/2]"""
    pairs = torch.arange(head_dim // 2, device=device, dtype=torch.float64)
    positions = torch.arange(first, first + new, device=device, dtype=torch.float64)
    angle = positions[:, None] * theta ** (-2 * pairs / head_dim)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + head_dim/2]) by its position's angle.  x [B, heads, S, head_dim]"""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def lower_right_mask(new: int, total: int, device: torch.device) -> Tensor:
    """True where a query may look: the last query sees every key, the one before all but one.  [S, T]

    torch's own `is_causal=True` lines up the *first* query with the first key instead, which is
    wrong as soon as earlier tokens are cached.

    >>> lower_right_mask(2, 4, torch.device("cpu")).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    return torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last S of T tokens; `heads / kv_heads` query heads share one key head.

    q [B, heads, S, head_dim], k and v [B, kv_heads, T, head_dim] -> [B, heads, S, head_dim]
    """
    new, total = q.shape[2], k.shape[2]
    mask = lower_right_mask(new, total, q.device) if 1 < new < total else None
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=1 < new == total, enable_gqa=True)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The feed-forward block.  x [B, S, H], gate and up [ffn, H], down [H, ffn] -> [B, S, H]"""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class KVCache:
    """Keys and values of the tokens seen so far, in one block reserved for `max_tokens` a sequence.

    bytes = layers * 2 * batch * kv_heads * max_tokens * head_dim * bytes(dtype)

    Raises ValueError for a size that is not a positive whole number, a dtype or a device that is unknown.

    >>> KVCache(layers=80, batch=1, kv_heads=8, max_tokens=2048, head_dim=128,
    ...         dtype="bf16", device="meta").bytes
    671088640
    """

    def __init__(self, *, layers: int, batch: int, kv_heads: int, max_tokens: int, head_dim: int,
                 dtype: Dtype, device: Device = None) -> None:
        shape = {"layers": layers, "batch": batch, "kv_heads": kv_heads, "max_tokens": max_tokens,
                 "head_dim": head_dim}
        _check_sizes(shape)
        self.kv = torch.zeros(layers, 2, batch, kv_heads, max_tokens, head_dim,
                              dtype=pick_dtype(dtype), device=pick_device(device))
        self.n_tokens = 0

    @property
    def batch(self) -> int:
        return self.kv.shape[2]

    @property
    def max_tokens(self) -> int:
        return self.kv.shape[4]

    @property
    def bytes(self) -> int:
        """Bytes reserved, full or not."""
        return self.kv.untyped_storage().nbytes()

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's new keys and values behind the old; both as [B, kv_heads, T, head_dim]."""
        end = self.n_tokens + k.shape[2]
        self.kv[layer, 0, :, :, self.n_tokens:end] = k
        self.kv[layer, 1, :, :, self.n_tokens:end] = v
        return self.kv[layer, 0, :, :, :end], self.kv[layer, 1, :, :, :end]

    def rewind(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` and forget the rest: how a shared prefix is used again."""
        if not 0 <= n_tokens <= self.max_tokens:
            raise ValueError(f"cannot rewind to {n_tokens} tokens; this cache holds 0 to {self.max_tokens}")
        self.n_tokens = n_tokens


class Llama:
    """A Llama of any size with random weights, given by nine plain numbers.

    `head_dim` is stated, not hidden / heads; `ffn` is the width inside SwiGLU; `tied` uses the
    embedding table as the output head. `device="meta"` takes no memory.
    Raises ValueError for sizes that are not positive whole numbers, heads that kv_heads do not divide,
    an odd head_dim, and an unknown dtype or device.

    >>> Llama(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256,
    ...       dtype="bf16", device="meta").n_params
    70553706496
    """

    def __init__(self, *, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int,
                 vocab: int, tied: bool = False, dtype: Dtype = "fp32", device: Device = None,
                 rope_theta: float = 500_000.0, seed: int = 0) -> None:
        _check_sizes({"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
                      "head_dim": head_dim, "ffn": ffn, "vocab": vocab})
        _check_heads(heads, kv_heads, head_dim)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.rope_theta, self.dtype, self.device = rope_theta, pick_dtype(dtype), pick_device(device)
        self._random = None if self.device.type == "meta" else torch.Generator(self.device).manual_seed(seed)
        self.embedding = self._matrix(vocab, hidden)
        self.layers = [self._layer_weights(hidden, ffn) for _ in range(layers)]
        self.norm = self._ones(hidden)
        self.head = self.embedding if tied else self._matrix(vocab, hidden)

    def _layer_weights(self, hidden: int, ffn: int) -> dict[str, Tensor]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {"attention_norm": self._ones(hidden), "q": self._matrix(q, hidden),
                "k": self._matrix(kv, hidden), "v": self._matrix(kv, hidden), "o": self._matrix(hidden, q),
                "ffn_norm": self._ones(hidden), "gate": self._matrix(ffn, hidden),
                "up": self._matrix(ffn, hidden), "down": self._matrix(hidden, ffn)}

    def _matrix(self, rows: int, cols: int) -> Tensor:
        weight = torch.empty(rows, cols, dtype=self.dtype, device=self.device)
        return weight if self._random is None else weight.normal_(0, cols**-0.5, generator=self._random)

    def _ones(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self.dtype, device=self.device)

    def forward(self, tokens: Tensor, cache: KVCache | None = None, logits: str = "last") -> Tensor:
        """Logits of new tokens that follow what the cache holds.  tokens [B, S] -> [B, 1 or S, vocab]"""
        self._check(tokens, cache, logits)
        first = cache.n_tokens if cache else 0
        turn = rotation(first, tokens.shape[1], self.head_dim, self.rope_theta, self.device)
        cos, sin = (table.to(self.dtype) for table in turn)
        x = F.embedding(tokens, self.embedding)  # [B, S, H]
        for index, w in enumerate(self.layers):
            x = x + self._attention(rms_norm(x, w["attention_norm"]), w, cache, index, cos, sin)
            x = x + swiglu(rms_norm(x, w["ffn_norm"]), w["gate"], w["up"], w["down"])
        if cache:
            cache.n_tokens += tokens.shape[1]
        return F.linear(rms_norm(x[:, -1:] if logits == "last" else x, self.norm), self.head)

    def _attention(self, x: Tensor, w: dict[str, Tensor], cache: KVCache | None, index: int,
                   cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (F.linear(x, w[name]).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for name in "qkv")
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)  # q [B, heads, S, head_dim], k [B, kv_heads, S, ...]
        if cache:
            k, v = cache.append(index, k, v)  # [B, kv_heads, T, head_dim]
        return F.linear(attend(q, k, v).transpose(1, 2).flatten(2), w["o"])

    prefill = forward  # the prompt, whole or in chunks: each call continues where the cache ends

    def decode(self, token: Tensor, cache: KVCache) -> Tensor:
        """Logits after one more token of each sequence.  token [B] -> [B, vocab]"""
        if token.dim() != 1:
            raise ValueError(f"decode takes one token a sequence, shape [B], not {list(token.shape)}; "
                             "use prefill for [B, S]")
        return self.forward(token[:, None], cache)[:, 0]

    def generate(self, prompt: Tensor, new_tokens: int, use_cache: bool = True) -> Tensor:
        """The likeliest continuation.  prompt [B, S] -> [B, new_tokens]

        Without the cache every step runs the whole sequence again, the cost that a cache avoids.
        """
        _check_sizes({"new_tokens": new_tokens})
        self._check(prompt, None, "last")
        seen, cache = prompt, None
        if use_cache:
            cache = self.new_cache(prompt.shape[0], prompt.shape[-1] + new_tokens)
        for _ in range(new_tokens):
            ahead = seen[:, cache.n_tokens:] if cache else seen
            best = self.forward(ahead, cache)[:, -1].argmax(-1)  # [B]
            seen = torch.cat((seen, best[:, None]), dim=1)
        return seen[:, prompt.shape[1]:]

    def new_cache(self, batch: int, max_tokens: int) -> KVCache:
        """An empty cache of this model's shape."""
        return KVCache(layers=len(self.layers), batch=batch, kv_heads=self.kv_heads, max_tokens=max_tokens,
                       head_dim=self.head_dim, dtype=self.dtype, device=self.device)

    def weights(self) -> Iterator[Tensor]:
        """Every weight once, a tied head included in the embedding."""
        yield from (self.embedding, self.norm)
        if self.head is not self.embedding:
            yield self.head
        for layer in self.layers:
            yield from layer.values()

    @property
    def n_params(self) -> int:
        return sum(weight.numel() for weight in self.weights())

    def _check(self, tokens: Tensor, cache: KVCache | None, logits: str) -> None:
        if tokens.dim() != 2 or 0 in tokens.shape:
            raise ValueError(f"tokens have shape {list(tokens.shape)}; use [batch, new], each at least 1")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens are {tokens.dtype}; use whole numbers, torch.int64")
        if tokens.device.type != self.device.type:
            raise ValueError(f"tokens are on {tokens.device}, the model on {self.device}; use tokens.to(...)")
        vocab = self.embedding.shape[0]
        if tokens.device.type == "cpu" and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab):
            raise ValueError(f"a token lies outside the vocabulary; use 0 to {vocab - 1}")
        if logits not in ("last", "all"):
            raise ValueError(f"logits={logits!r} is unknown; use 'last' (one position a sequence) or 'all'")
        if cache is not None:
            self._check_cache(tokens, cache)

    def _check_cache(self, tokens: Tensor, cache: KVCache) -> None:
        batch, new = tokens.shape
        shape = [len(self.layers), 2, batch, self.kv_heads, cache.max_tokens, self.head_dim]
        found = (list(cache.kv.shape), cache.kv.dtype, cache.kv.device.type)
        wanted = (shape, self.dtype, self.device.type)
        if found != wanted:
            raise ValueError("the cache is {} {} on {}".format(*found) + "; this model and batch need "
                             "{} {} on {}; use model.new_cache(...)".format(*wanted))
        if cache.n_tokens + new > cache.max_tokens:
            raise ValueError(f"the cache holds {cache.n_tokens} of {cache.max_tokens} tokens, too few places "
                             f"for {new} more; use max_tokens={cache.n_tokens + new} or more")


def _check_sizes(sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name}={size!r} is not a size; use a whole number of at least 1")


def _check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads evenly; use a divisor of {heads}")
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim} is odd, but rotary positions turn pairs; use an even number")
