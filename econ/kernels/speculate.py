"""Speculative decoding: a draft proposes k tokens, one pass of the target checks them all.

Rejection sampling keeps the target's distribution exactly; greedy decoding is the same rule with all
probability on the likeliest token. p belongs to the target, q to the draft (leviathan2023; chen2023 swaps
the letters). Shapes stand in comments: N chains, k drafted tokens, V the vocabulary.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from econ.kernels.llama import KVCache, Llama
from econ.kernels.pool import check_count


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What to draw from after a rejection: the part of p that q does not cover.  p, q [..., V]

    max(p - q, 0) / sum of it

    >>> residual(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.75, 0.0]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    left = (p - q).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, p)  # p == q is never rejected, but for rounding


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Chance that one drafted token is kept: sum of min(p, q).  p, q [..., V] -> [...]

    >>> acceptance(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.75, 0.0]))
    tensor(0.5000)
    """
    return torch.minimum(p, q).sum(-1)


def verify(drafted: Tensor, q: Tensor, p: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Keep drafted tokens until the first rejection, then add one token of the target's.

    drafted [N, k], q [N, k, V], p [N, k + 1, V] -> tokens [N, k + 1], kept [N]

    Token i is kept with chance min(1, p_i / q_i). `tokens[n, :kept[n] + 1]` count; what follows is void.
    The added token comes from the residual after a rejection, else from p after all k.
    Raises ValueError for shapes that do not belong together. Source: leviathan2023, section 2.3.
    """
    _check_shapes(drafted, q, p)
    n, k = drafted.shape
    chosen = drafted[..., None]
    chance = p[:, :k].gather(-1, chosen)[..., 0] / q.gather(-1, chosen)[..., 0]  # [N, k]
    draw = torch.rand(n, k, generator=random, dtype=p.dtype, device=p.device)
    kept = (draw < chance).long().cumprod(1).sum(1)  # [N], before the first rejection
    row = torch.arange(n, device=p.device)
    covered = F.pad(q, (0, 0, 0, 1))  # [N, k + 1, V]: nothing is drafted in the last place, its residual is p
    added = residual(p[row, kept], covered[row, kept]).multinomial(1, generator=random)  # [N, 1]
    return torch.cat((drafted, added), dim=1).scatter(1, kept[:, None], added), kept


def _check_shapes(drafted: Tensor, q: Tensor, p: Tensor) -> None:
    n, k = drafted.shape if drafted.dim() == 2 else (0, 0)
    if n < 1 or k < 1 or q.shape[:2] != (n, k) or p.shape != (n, k + 1, q.shape[-1]):
        raise ValueError(f"drafted {list(drafted.shape)}, q {list(q.shape)} and p {list(p.shape)} do not belong "
                         "together; use [N, k], [N, k, V] and [N, k + 1, V]")


def chain_round(target: Tensor, draft: Tensor, start: Tensor, k: int,
                random: torch.Generator) -> tuple[Tensor, Tensor]:
    """One round for N chains of a toy model whose next token depends on the last one alone.

    target, draft [V, V]: row v holds the probabilities after token v.  start [N] -> as `verify`
    Raises ValueError for k below 1 and tables that are not square and alike.
    """
    check_count("k", k)
    if target.dim() != 2 or target.shape[0] != target.shape[1] or target.shape != draft.shape:
        raise ValueError(f"tables {list(target.shape)} and {list(draft.shape)}; use two of [V, V]")
    seen = [start]
    for _ in range(k):
        seen.append(draft[seen[-1]].multinomial(1, generator=random)[:, 0])
    before = torch.stack(seen, dim=1)  # [N, k + 1]
    return verify(before[:, 1:], draft[before[:, :k]], target[before], random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Generated tokens, and what they took."""

    tokens: Tensor  # [1, new_tokens]
    n_rounds: int  # passes of the target after the prompt
    n_drafted: int
    n_kept: int  # drafted tokens that the target kept

    @property
    def kept_frac(self) -> float:
        """Drafted tokens kept; those after a rejection count as not kept, so it lies below `acceptance`."""
        return self.n_kept / self.n_drafted


def first_layers(model: Llama, n: int) -> Llama:
    """A draft that shares the weights of a model and skips all but its first n layers."""
    check_count("n", n)
    if n > len(model.layers):
        raise ValueError(f"n={n} layers were asked for; the model has {len(model.layers)}")
    draft = copy.copy(model)
    draft.layers = model.layers[:n]
    return draft


def generate(target: Llama, draft: Llama, prompt: Tensor, new_tokens: int, k: int = 4,
             temperature: float = 0.0, seed: int = 0) -> Speculation:
    """Continue a prompt with the target's own tokens, k of them drafted at a time.  prompt [1, S]

    At temperature 0 the tokens are those of `target.generate`; above it they are distributed as the
    target's samples. Both caches go back to the last token that was kept.
    Raises ValueError for more than one sequence (each would keep another number of tokens), models with
    different vocabularies, and sizes that are not positive whole numbers.
    """
    _check_generate(target, draft, prompt, new_tokens, k, temperature)
    random = torch.Generator(target.device).manual_seed(seed)
    length = prompt.shape[1] + new_tokens + k + 1
    caches = target.new_cache(1, length), draft.new_cache(1, length)
    seen, n_rounds, n_kept = prompt, 0, 0
    while seen.shape[1] < prompt.shape[1] + new_tokens:
        drafted, q = _propose(draft, seen, caches[1], k, temperature, random)
        ahead = torch.cat((seen[:, caches[0].n_tokens:], drafted), dim=1)
        p = probabilities(target.prefill(ahead, caches[0], logits="all")[:, -k - 1:], temperature)
        tokens, kept = verify(drafted, q, p, random)
        seen = torch.cat((seen, tokens[:, :int(kept) + 1]), dim=1)
        for cache in caches:
            cache.rewind(min(cache.n_tokens, seen.shape[1] - 1))
        n_rounds, n_kept = n_rounds + 1, n_kept + int(kept)
    return Speculation(tokens=seen[:, prompt.shape[1]:][:, :new_tokens], n_rounds=n_rounds,
                       n_drafted=n_rounds * k, n_kept=n_kept)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Softmax of logits / temperature; at temperature 0 all probability lies on the likeliest token."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return (logits / temperature).softmax(-1)


def _propose(draft: Llama, seen: Tensor, cache: KVCache, k: int, temperature: float,
             random: torch.Generator) -> tuple[Tensor, Tensor]:
    """k tokens of the draft's, one after the other, and where they were drawn from.  [1, k], [1, k, V]"""
    start, rows = seen.shape[1], []
    for _ in range(k):
        rows.append(probabilities(draft.prefill(seen[:, cache.n_tokens:], cache), temperature))  # [1, 1, V]
        seen = torch.cat((seen, rows[-1][:, 0].multinomial(1, generator=random)), dim=1)
    return seen[:, start:], torch.cat(rows, dim=1)


def _check_generate(target: Llama, draft: Llama, prompt: Tensor, new_tokens: int, k: int,
                    temperature: float) -> None:
    check_count("new_tokens", new_tokens)
    check_count("k", k)
    if prompt.dim() != 2 or prompt.shape[0] != 1:
        raise ValueError(f"prompt has shape {list(prompt.shape)}; use [1, S]: one sequence at a time")
    if target.head.shape[0] != draft.head.shape[0]:
        raise ValueError(f"the target has {target.head.shape[0]} tokens, the draft {draft.head.shape[0]}; "
                         "use two models with one vocabulary")
    if not temperature >= 0:
        raise ValueError(f"temperature={temperature!r} is negative; use 0 (greedy) or more")
