"""What one GPU must hold: weights, KV cache needed and reserved, recurrent state; and what still fits beside them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .arrays import LARGEST, ceil_div, is_array, maximum, minimum, number, where
from .errors import check_type
from .model import Model
from .precision import cache_bytes
from .work import WHOLE, Split

BLOCK_TOKENS = 16  # tokens of one cache page in common engines; a sequence's last page is partly empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU, and the largest batch and context that fit. All sizes in bytes.

    `kv_bytes` is what the sequences need, `kv_reserved_bytes` what an engine sets aside for them: whole pages, at
    least one a sequence, and windowed layers charged in full. `free_bytes` is the budget minus all of it; negative
    means short.
    """

    budget_bytes: Any
    weight_bytes: Any
    kv_bytes: Any
    kv_reserved_bytes: Any
    state_bytes: Any
    activation_bytes: Any
    overhead_bytes: Any
    free_bytes: Any
    fits: Any
    max_batch: Any
    max_context: Any


@lru_cache(maxsize=256)
def weight_bytes_per_gpu(model: Model, weights: str | None = None, split: Split = WHOLE):
    """Bytes of resident weights on one GPU: its slice of the sharded tensors and all of the replicated ones.

    >>> from econ.config import load_model
    >>> weight_bytes_per_gpu(load_model("llama-3.3-70b"), "bf16", Split(tp=4)) / 1e9
    35.278831616
    """
    recipe = model.recipe(weights)
    outer = (*model.embeddings[1:], *model.final, model.head) if model.tied else model.outer  # one table, as the head
    total = 0
    for i, layer in enumerate(model.layers):
        total += sum(model.format_of(t, recipe, i).bytes(t.shape) * t.copies * split.share(t, layer.attention)
                     for t in layer.tensors)
    return total + sum(model.format_of(t, recipe).bytes(t.shape) * split.share(t, None) for t in outer)


def kv_bytes_per_gpu(model: Model, tokens, batch=1, kv: str | None = None, split: Split = WHOLE):
    """Cache bytes that `batch` sequences of `tokens` tokens need on one GPU.

    >>> from econ.config import load_model
    >>> kv_bytes_per_gpu(load_model("llama-3.3-70b"), 2048, split=Split(tp=16))
    83886080.0
    """
    size = cache_bytes(model.cache_dtype if kv is None else kv)
    return batch * size * sum(
        n * a.cache_elements * split.cache_share(a) * (tokens if a.window is None else minimum(tokens, a.window))
        for a, n in model.attention_kinds)


def kv_reserved_bytes_per_gpu(model: Model, tokens, batch=1, kv: str | None = None, split: Split = WHOLE):
    """Cache bytes that an engine sets aside: whole pages of 16 tokens, windowed layers as if they had no window.

    batch * max(1, ceil(tokens / 16)) * 16 * bytes of a token                                           [B]

    >>> from econ.config import load_model
    >>> kv_reserved_bytes_per_gpu(load_model("llama-3.1-8b"), 2041)
    268435456
    """
    return batch * maximum(ceil_div(tokens, BLOCK_TOKENS), 1) * _page_bytes(model, kv, split)


@lru_cache(maxsize=256)
def _page_bytes(model: Model, kv: str | None, split: Split):
    return BLOCK_TOKENS * cache_bytes(model.cache_dtype if kv is None else kv) * sum(
        n * a.cache_elements * split.cache_share(a) for a, n in model.attention_kinds)


def memory(model: Model, capacity_bytes, batch=1, context=0, weights: str | None = None, kv: str | None = None,
           split: Split = WHOLE, activation_bytes=0, overhead_bytes=0) -> Memory:
    """What the fullest GPU holds for `batch` sequences of `context` tokens, and what would still fit.

    free = capacity - weights - reserved cache - state - activations - overhead                         [B]

    `capacity_bytes` is what the engine may use of one GPU. `max_batch` is at this context, `max_context` at this
    batch and never beyond the model's own maximum; both are 0 where the weights alone do not fit.
    Raises ValueError only for sizes that are not numbers or an unknown dtype.

    >>> from econ.config import load_model
    >>> m = memory(load_model("llama-3.1-8b"), 80e9, batch=32, context=8192)
    >>> m.fits, m.max_batch, m.max_context
    (True, 59, 15232)
    """
    check_type("model", model, Model, "econ.load_model(name)")
    capacity_bytes = number("capacity_bytes", capacity_bytes, minimum=0)
    activation_bytes = number("activation_bytes", activation_bytes, minimum=0)
    overhead_bytes = number("overhead_bytes", overhead_bytes, minimum=0)
    batch, context = number("batch", batch, minimum=0), number("context", context, minimum=0)
    held = weight_bytes_per_gpu(model, weights, split)
    reserved = kv_reserved_bytes_per_gpu(model, context, batch, kv, split)
    state_each = model.state_bytes() / split.tp
    room = capacity_bytes - held - activation_bytes - overhead_bytes
    each = kv_reserved_bytes_per_gpu(model, context, 1, kv, split) + state_each
    free = room - batch * each
    return Memory(
        budget_bytes=capacity_bytes, weight_bytes=held, kv_bytes=kv_bytes_per_gpu(model, context, batch, kv, split),
        kv_reserved_bytes=reserved, state_bytes=batch * state_each, activation_bytes=activation_bytes,
        overhead_bytes=overhead_bytes, free_bytes=free, fits=free >= 0, max_batch=_whole(room, each),
        max_context=_max_context(model, room - batch * state_each, batch, kv, split))


def _whole(room, each):
    """How many of `each` go into `room`, at least 0."""
    count = maximum(room, 0) // maximum(each, 1)  # a sequence that keeps nothing is charged one byte
    return count if is_array(count) else int(count)


def _max_context(model: Model, room, batch, kv: str | None, split: Split):
    page, limit = maximum(batch, 1) * _page_bytes(model, kv, split), model.max_context or int(LARGEST)
    if not model.attention_kinds:  # a recurrent state does not grow
        return where(room >= 0, limit, 0)
    return minimum(BLOCK_TOKENS * _whole(room, page), limit)
