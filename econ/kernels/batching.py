"""Many sequences in one forward pass: batches of unequal lengths, continuous batching, shared prefixes.

The linear layers see one row of tokens, whoever they belong to, and read their weights once for all;
attention alone tells the sequences apart. Shapes stand in comments: N new tokens of all sequences, S of
one, T its tokens in all, H the hidden size.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from econ.kernels.llama import Llama, attend, rms_norm, rotate, rotation, swiglu
from econ.kernels.paged import PagedCache
from econ.kernels.pool import BLOCK_TOKENS
from econ.kernels.prefix import PrefixStore
from econ.kernels.scheduling import Request, Scheduler, Trace, serve

Batch = Sequence[tuple[Hashable, Tensor]]  # sequences with their new tokens, each [S]


def paged_cache(model: Llama, n_blocks: int, block_tokens: int = BLOCK_TOKENS) -> PagedCache:
    """An empty paged cache of this model's shape."""
    return PagedCache(layers=len(model.layers), n_blocks=n_blocks, block_tokens=block_tokens, device=model.device,
                      kv_heads=model.kv_heads, head_dim=model.head_dim, dtype=model.dtype)


def forward(model: Llama, batch: Batch, cache: PagedCache) -> Tensor:
    """Logits after the new tokens of each sequence, prompts and single tokens together.  -> [len(batch), vocab]

    Raises ValueError where the pool has too few free blocks, or for tokens that the model refuses.
    """
    _make_room(model, batch, cache)
    lengths = [len(tokens) for _, tokens in batch]
    turns = [rotation(cache.n_tokens[seq], len(tokens), model.head_dim, model.rope_theta, model.device)
             for seq, tokens in batch]
    cos, sin = (torch.cat(tables).to(model.dtype) for tables in zip(*turns, strict=True))  # [N, head_dim / 2]
    x = F.embedding(torch.cat([tokens for _, tokens in batch])[None], model.embedding)  # [1, N, H]
    for index, w in enumerate(model.layers):
        x = x + _attention(rms_norm(x, w["attention_norm"]), w, batch, cache, index, cos, sin)
        x = x + swiglu(rms_norm(x, w["ffn_norm"]), w["gate"], w["up"], w["down"])
    for (seq, _), new in zip(batch, lengths, strict=True):
        cache.advance(seq, new)
    last = torch.tensor(lengths, device=model.device).cumsum(0) - 1  # where each sequence ends
    return F.linear(rms_norm(x[0, last], model.norm), model.head)


def _attention(x: Tensor, w: dict[str, Tensor], batch: Batch, cache: PagedCache, layer: int,
               cos: Tensor, sin: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w[name]).unflatten(-1, (-1, cache.kv.shape[-1])).transpose(1, 2) for name in "qkv")
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)  # q [1, heads, N, head_dim], k and v [1, kv_heads, N, ...]
    lengths, out = [len(tokens) for _, tokens in batch], []
    for (seq, new), *parts in zip(batch, *(t.split(lengths, dim=2) for t in (q, k, v)), strict=True):
        cache.write(layer, seq, parts[1], parts[2])
        out.append(attend(parts[0], *cache.read(layer, seq, cache.n_tokens[seq] + len(new))))
    return F.linear(torch.cat(out, dim=2).transpose(1, 2).flatten(2), w["o"])


def _make_room(model: Llama, batch: Batch, cache: PagedCache) -> None:
    if not batch:
        raise ValueError("the batch is empty; give at least one sequence with its new tokens")
    if len({seq for seq, _ in batch}) < len(batch):
        raise ValueError("a sequence stands twice in the batch; give all its new tokens at once")
    for seq, tokens in batch:
        if tokens.dim() != 1:
            raise ValueError(f"the new tokens of {seq!r} have shape {list(tokens.shape)}; use [new]")
        model._check(tokens[None], None, "last")
        end = cache.n_tokens.get(seq, 0) + len(tokens)
        if not cache.reserve(seq, end):
            raise ValueError(f"sequence {seq!r} needs room for {end} tokens, and {cache.pool.n_free} blocks of "
                             f"{cache.block_tokens} are free; free a sequence or use a larger pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a run generated, and what it took."""

    tokens: list[list[int]]  # of each prompt, in the order given
    trace: Trace
    n_computed: int  # tokens that went through the model
    n_reused: int  # tokens whose keys and values were there already


class Batcher:
    """Continuous batching on a paged cache: requests come and go between iterations of one model.

    Every iteration computes one token of each running request, and the whole prompt of each new one.
    `continuous` and `max_running` are those of `Scheduler`; `reuse_prefixes` keeps full blocks for later
    requests that begin with the same tokens. Greedy: the tokens are those that each prompt gets alone.
    Raises ValueError for a pool too small for one request and for input that does not match.
    """

    def __init__(self, model: Llama, n_blocks: int, *, block_tokens: int = BLOCK_TOKENS,
                 max_running: int | None = None, continuous: bool = True, reuse_prefixes: bool = False) -> None:
        self.model, self.cache = model, paged_cache(model, n_blocks, block_tokens)
        self.prefixes = PrefixStore(self.cache.pool, block_tokens) if reuse_prefixes else None
        self.max_running, self.continuous = max_running, continuous
        self.tokens: dict[Request, list[int]] = {}  # prompt and what was generated
        self.n_computed = self.n_reused = 0

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int | Sequence[int],
            arrivals: Sequence[int] | None = None) -> Served:
        """Generate for all prompts.  `new_tokens` for each or for all; `arrivals` in iterations, default 0"""
        outputs = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else list(new_tokens)
        arrivals = [0] * len(prompts) if arrivals is None else arrivals
        if not len(prompts) == len(outputs) == len(arrivals):
            raise ValueError(f"{len(prompts)} prompts, {len(outputs)} lengths and {len(arrivals)} arrivals; "
                             "give one of each a request")
        requests = [Request(prompt_tokens=len(p), output_tokens=n, arrival=at)
                    for p, n, at in zip(prompts, outputs, arrivals, strict=True)]
        self.tokens = dict(zip(requests, map(list, prompts), strict=True))
        self.n_computed = self.n_reused = 0
        scheduler = Scheduler(self, max_running=self.max_running, continuous=self.continuous)
        trace = serve(scheduler, requests, self._iterate)
        return Served(tokens=[self.tokens[r][r.prompt_tokens:] for r in requests], trace=trace,
                      n_computed=self.n_computed, n_reused=self.n_reused)

    def _iterate(self, requests: list[Request]) -> None:
        """One forward pass: the tokens of each request that are not in the cache yet, then the next one."""
        batch = [(r, torch.tensor(self.tokens[r][self.cache.n_tokens[r]:], device=self.model.device))
                 for r in requests]
        self.n_computed += sum(len(new) for _, new in batch)
        best = forward(self.model, batch, self.cache).argmax(-1).tolist()
        for request, token in zip(requests, best, strict=True):
            self._keep_prefix(request)
            self.tokens[request].append(token)

    # What the scheduler asks of a memory: the cache, and the blocks kept for later.

    @property
    def max_tokens(self) -> int:
        return self.cache.max_tokens

    def reserve(self, seq: Request, n_tokens: int, spare_blocks: int = 0) -> bool:
        new = seq not in self.cache.tables
        if new and self.prefixes:
            shared = self.prefixes.match(self.tokens[seq][:-1])  # one token is left to compute
            self.cache.adopt(seq, shared, len(shared) * self.cache.block_tokens)
        while not self.cache.reserve(seq, n_tokens, spare_blocks):
            if not (self.prefixes and self.prefixes.evict()):
                if new and self.prefixes:
                    self.cache.free(seq)
                return False
        self.n_reused += self.cache.n_tokens[seq] if new else 0
        return True

    def free(self, seq: Request) -> None:
        self._keep_prefix(seq)
        self.cache.free(seq)

    def _keep_prefix(self, seq: Request) -> None:
        if self.prefixes:
            self.prefixes.insert(self.tokens[seq][:self.cache.n_tokens[seq]], self.cache.tables[seq])
