"""One model over several processes: split within its layers, between its layers, or by its experts.

Everything here runs in each process of a group (`processes` starts one) and calls plain
`torch.distributed`; `messages.count_messages` sees what is sent. Each process builds the same whole model
from its seed and keeps its part. Shapes as in `llama`.
"""

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from econ.kernels.llama import KVCache, Llama, rms_norm, rotation, swiglu
from econ.kernels.processes import place

COLUMN = ("q", "k", "v", "gate", "up")  # cut by what they make: whole heads, whole channels
ROW = ("o", "down")  # cut by what they take in: the heads and channels that this process made
Expert = tuple[Tensor, Tensor, Tensor]  # gate and up [ffn, H], down [H, ffn]


def all_reduce(x: Tensor) -> Tensor:
    """The sum of every process's `x`, in every process."""
    dist.all_reduce(x)
    return x


def run_layers(part: Llama, x: Tensor, cache: KVCache | None = None,
               join: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """`x` after the layers held here; `join` completes what attention and the MLP made of it.  x [B, S, H]"""
    first = cache.n_tokens if cache else 0
    turn = rotation(first, x.shape[1], part.head_dim, part.rope_theta, part.device)
    cos, sin = (table.to(part.dtype) for table in turn)
    for index, w in enumerate(part.layers):
        x = x + join(part._attention(rms_norm(x, w["attention_norm"]), w, cache, index, cos, sin))
        x = x + join(swiglu(rms_norm(x, w["ffn_norm"]), w["gate"], w["up"], w["down"]))
    if cache:
        cache.n_tokens += x.shape[1]
    return x


class TensorParallelLlama(Llama):
    """This process's heads and MLP channels of every layer; embedding, norms and head whole.

    Two all-reduces a layer of B * S * H elements. Column then row: what the first matrix makes here is
    what the second takes in here, so nothing is sent between the two. `new_cache` holds kv_heads / n heads.
    Raises ValueError for heads, KV heads or channels that the processes do not divide.
    """

    def __init__(self, whole: Llama) -> None:
        rank, n = place()
        check_split(n, split_counts(whole))
        self.__dict__.update(whole.__dict__)
        self.heads, self.kv_heads = whole.heads // n, whole.kv_heads // n
        self.layers = [shard(w, rank, n) for w in whole.layers]

    def forward(self, tokens: Tensor, cache: KVCache | None = None, logits: str = "last") -> Tensor:
        """The same logits in every process.  tokens [B, S] -> [B, 1 or S, vocab]"""
        self._check(tokens, cache, logits)
        x = run_layers(self, F.embedding(tokens, self.embedding), cache, all_reduce)
        return F.linear(rms_norm(x[:, -1:] if logits == "last" else x, self.norm), self.head)

    prefill = forward


def shard(w: dict[str, Tensor], rank: int, n: int) -> dict[str, Tensor]:
    """Part `rank` of `n` of a layer's matrices [out, in]; norms stay whole."""
    cut = {name: w[name].chunk(n, 0)[rank] for name in COLUMN}
    cut |= {name: w[name].chunk(n, 1)[rank] for name in ROW}
    return w | {name: part.clone(memory_format=torch.contiguous_format) for name, part in cut.items()}


class PipelineStage:
    """This process's consecutive layers; the first also holds the embedding, the last norm and head.

    One send of B * S * H elements between neighbours. A single batch passes: one stage works at a time.
    Raises ValueError for more stages than layers.
    """

    def __init__(self, whole: Llama) -> None:
        self.rank, self.n = place()
        counts = stage_layers(len(whole.layers), self.n)
        first = sum(counts[:self.rank])
        self.part = copy.copy(whole)
        self.part.layers = whole.layers[first:first + counts[self.rank]]

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor | None:
        """Logits of the last token in the last stage, None elsewhere.  tokens [B, S] -> [B, 1, vocab]"""
        self.part._check(tokens, cache, "last")
        x = F.embedding(tokens, self.part.embedding)  # [B, S, H]: used by the first stage, overwritten by others
        if self.rank > 0:
            dist.recv(x, self.rank - 1)
        x = run_layers(self.part, x, cache)
        if self.rank < self.n - 1:
            dist.send(x, self.rank + 1)
            return None
        return F.linear(rms_norm(x[:, -1:], self.part.norm), self.part.head)


def stage_layers(layers: int, n: int) -> list[int]:
    """Layers of each stage: what is left over goes to the last stages but one, as `econ.parallel.stages`.

    >>> stage_layers(61, 4)
    [15, 15, 16, 15]
    """
    if n > layers:
        raise ValueError(f"{n} stages are more than the {layers} layers; use at most {layers}")
    counts = [layers // n] * n
    for i in range(layers % n):
        counts[-2 - i] += 1
    return counts


def expert_mlp(x: Tensor, router: Tensor, local: list[Expert], top_k: int) -> Tensor:
    """Routed experts spread over the processes; each brings its own tokens.  x [T, H] -> [T, H]

    `router` [E, H] is whole everywhere, `local` are experts rank * E/n onwards. Two all-to-alls: every token
    goes to its top_k experts and comes back, T * top_k * H elements out; how many go where differs each time
    and is told first, in E whole numbers.
    Raises ValueError for experts that do not add up to E, or top_k outside 1..E.
    """
    n_experts = _check_experts(x, router, local, top_k)
    scores, chosen = F.linear(x, router).topk(top_k)  # [T, k] each
    order = chosen.flatten().argsort(stable=True)  # every (token, choice), by expert
    token = order // top_k
    sent = chosen.flatten().bincount(minlength=n_experts)  # [E]: rows for each expert
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)  # [n * E/n]: rows from each process for each local expert
    rows = _exchange(x[token], sent, received)
    expert = torch.arange(len(local), device=x.device).repeat(place()[1]).repeat_interleave(received)
    made = torch.empty_like(rows)
    for index, weights in enumerate(local):
        made[expert == index] = swiglu(rows[expert == index], *weights)
    back = _exchange(made, received, sent)  # [T * k, H], by expert
    share = scores.softmax(-1).flatten()[order]
    return torch.zeros_like(x).index_add_(0, token, back * share[:, None])


def _exchange(rows: Tensor, sent: Tensor, received: Tensor) -> Tensor:
    """Send uneven blocks of rows to every process; `sent` and `received` are rows by process and expert."""
    out, into = (counts.view(place()[1], -1).sum(1).tolist() for counts in (sent, received))
    result = rows.new_empty(sum(into), rows.shape[1])
    dist.all_to_all_single(result, rows, into, out)
    return result


def split_counts(whole: Llama) -> dict[str, int]:
    """What tensor parallelism divides: whole heads, whole KV heads, MLP channels."""
    return {"heads": whole.heads, "KV heads": whole.kv_heads, "MLP channels": whole.layers[0]["gate"].shape[0]}


def check_split(n: int, counts: dict[str, int]) -> None:
    """Raises ValueError unless `n` processes divide every count."""
    for name, count in counts.items():
        if count % n:
            raise ValueError(f"{count} {name} cannot be split over {n} processes; use a divisor of {count}")


def _check_experts(x: Tensor, router: Tensor, local: list[Expert], top_k: int) -> int:
    n = place()[1]
    if x.dim() != 2 or router.dim() != 2 or x.shape[1] != router.shape[1]:
        raise ValueError(f"x {list(x.shape)} and router {list(router.shape)} do not fit; use [tokens, hidden] "
                         "and [experts, hidden]")
    if len(local) * n != len(router):
        raise ValueError(f"{len(local)} experts in each of {n} processes are not the router's {len(router)}; "
                         f"use {len(router) / n:g} in each")
    if not 1 <= top_k <= len(router):
        raise ValueError(f"top_k={top_k} of {len(router)} experts; use 1 to {len(router)}")
    return len(router)
