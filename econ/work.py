"""One forward pass as work: FLOPs and bytes, operator by operator, on any machine.

`forward` adds up what a pass over a batch must compute and move. It knows nothing about a GPU's speed.
Counting conventions are arguments, never assumptions: see `forward`.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .arrays import ceil_div, flag, minimum, number, where
from .errors import check_type
from .model import Attention, Layer, Model, Recurrent, Tensor, touched
from .precision import CACHE_BYTES, canonical
from .units import fmt, shown

ACTIVATION_BYTES = 2  # activations travel between kernels in 16 bits
ARTICLE_FLOPS_PER_WIDTH = 10  # RMSNorm 4 and RoPE 6, per token and element of the width, once a layer
ARTICLE_FLOPS_PER_SCORE = 5  # softmax: maximum, subtract, exponential, sum, divide


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which part of every layer one GPU holds: `tp` tensor-parallel slices, experts over `experts` GPUs.

    Beyond tp the experts are spread over several replicas, and each then sees the tokens of all of them.

    >>> Split(tp=4).share(Tensor(name="q_proj", shape=(8, 8)), None)
    0.25
    """

    tp: int = 1
    experts: int = 1

    @property
    def replicas(self):
        """Replicas that share one set of experts; each brings its own tokens to them."""
        return max(self.experts // self.tp, 1)

    def share(self, tensor: Tensor, attention: Attention | None):
        """Fraction of a tensor that one GPU holds and multiplies; the number 1 when nothing is cut."""
        if tensor.shard == "whole":
            return 1
        if tensor.shard == "kv" and attention:
            return self.cache_share(attention)
        return _fraction(1, max(self.tp, self.experts) if tensor.shard == "ep" else self.tp)

    def cache_share(self, attention: Attention):
        """Fraction of a layer's cache on one GPU: KV heads are divided, and replicated beyond their number."""
        if attention.latent:
            return 1
        return _fraction(ceil_div(attention.kv_heads, self.tp), attention.kv_heads)


def _fraction(part: int, whole: int):
    return 1 if part == whole else part / whole


WHOLE = Split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a pass, all layers that have it together: what `Work.table` prints."""

    name: str
    flops: Any = 0
    weight_bytes: Any = 0
    kv_read_bytes: Any = 0
    kv_write_bytes: Any = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """FLOPs and bytes of one forward pass, the whole model, all sequences of the batch.

    `flops_by_rate` splits the FLOPs by the precision whose tensor-core rate they may use. `weight_bytes` are the
    streamed ones. `activation_bytes` are reported and not part of `intensity` or of any time.
    """

    flops: Any
    flops_by_rate: dict
    weight_bytes: Any
    kv_read_bytes: Any
    kv_write_bytes: Any
    state_bytes: Any
    activation_bytes: Any
    operators: tuple[Operator, ...] = field(default=(), repr=False)

    @property
    def bytes(self):
        """Bytes that must cross the memory bus: streamed weights, cache read and written, recurrent state."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.state_bytes

    @property
    def intensity(self):
        """Arithmetic intensity in FLOP/B: flops / (weight_bytes + kv_read_bytes + kv_write_bytes)."""
        return self.flops / (self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes)

    def table(self) -> str:
        """One aligned line per operator: FLOPs, share of the FLOPs, bytes of weights and cache."""
        rows = [("operator", "FLOPs", "share", "weights", "cache")]
        for op in self.operators:
            share = fmt(op.flops / self.flops, "%", 3) if self.flops else "0 %"
            rows.append((op.name, _flops_text(op.flops), share, _bytes_text(op.weight_bytes),
                         _bytes_text(op.kv_read_bytes + op.kv_write_bytes)))
        rows.append(("total", _flops_text(self.flops), "100 %", _bytes_text(self.weight_bytes),
                     _bytes_text(self.kv_read_bytes + self.kv_write_bytes)))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        sides = [str.ljust, str.rjust, str.rjust, str.rjust, str.rjust]
        return "\n".join("  ".join(pad(cell, width) for pad, cell, width in zip(sides, row, widths, strict=True))
                         for row in rows)


def _scaled_text(value, units: tuple[str, ...]) -> str:
    for unit, size in zip(units, (1e12, 1e9, 1e6, 1e3, 1), strict=True):
        if value >= size or unit == units[-1]:
            return fmt(value, unit, 4)
    raise AssertionError


def _flops_text(value) -> str:
    return _scaled_text(value, ("TFLOP", "GFLOP", "MFLOP", "kFLOP", "FLOP"))


def _bytes_text(value) -> str:
    return _scaled_text(value, ("TB", "GB", "MB", "kB", "B"))


def forward(model: Model, batch=1, new_tokens=1, context=0, causal: bool = True, logits: str = "last",
            count: str = "matmul", weights: str | None = None, kv: str | None = None, split: Split = WHOLE) -> Work:
    """The work of one forward pass over `batch` sequences of `new_tokens` tokens each.

    FLOPs = sum over matrices of 2 * elements * tokens + sum over layers of scores * 2 * heads * (qk_dim + v_dim)

    `context` tokens a sequence are cached before the pass. With `causal`, query i of the new tokens sees
    context + i keys (and at most its window); without, every query sees all context + new_tokens: the full square.
    `logits`: "last" (one position a sequence), "all" or "none". `count`: "matmul" is 2 FLOP per multiply-add of
    every matrix product, what a tracer counts; "article" adds RMSNorm (4), RoPE (6) per element of the width once a
    layer and softmax (5) per score. `weights` is a recipe or None for the checkpoint as published; `kv` the cache's
    dtype. Latent (MLA) layers take the cheaper of absorbed and expanded scores. `split` counts one GPU's part only.
    The three sizes may be arrays.
    Raises ValueError for a negative or non-finite size or an unknown option.

    >>> from econ.config import load_model
    >>> forward(load_model("llama-3.3-70b"), new_tokens=2048, causal=False).flops
    291372682706944
    """
    check_type("model", model, Model, "econ.load_model(name)")
    check_type("split", split, Split, "Split(tp=4)")
    options = {"causal": flag("causal", causal), "article": _one_of("count", count, ("matmul", "article")) == "article"}
    batch, new_tokens = number("batch", batch, minimum=0), number("new_tokens", new_tokens, minimum=0)
    context = number("context", context, minimum=0)
    tokens = batch * new_tokens
    positions = {"last": batch, "all": tokens, "none": 0 * batch}[_one_of("logits", logits, ("last", "all", "none"))]
    sums = weight_sums(model, model.recipe(weights), split)
    seen = [positions if s.role == "head" else tokens for s in sums]
    routed = {(s.copies, s.used) for s in sums if s.copies > 1}
    read = {key: touched(*key, tokens * split.replicas) for key in routed}
    matrices = [s.operator(n, read.get((s.copies, s.used), 1)) for s, n in zip(sums, seen, strict=True)]
    cache = model.cache_dtype if kv is None else canonical(kv, CACHE_BYTES, "kv")
    mixers = list(_mixers(model, batch, new_tokens, context, CACHE_BYTES[cache], split, **options))
    by_rate: dict = {"bf16": 0}
    for rate, op in [*((s.rate, op) for s, op in zip(sums, matrices, strict=True)),
                     *(("fp8" if cache == "fp8" else "bf16", op) for op in mixers)]:
        by_rate[rate] = by_rate.get(rate, 0) + op.flops
    operators = (*matrices, *mixers)
    return Work(
        flops=sum(op.flops for op in operators), flops_by_rate=by_rate,
        weight_bytes=sum(op.weight_bytes for op in operators),
        kv_read_bytes=sum(op.kv_read_bytes for op in operators),
        kv_write_bytes=sum(op.kv_write_bytes for op in operators),
        state_bytes=_part(2 * model.state_bytes(batch), split.tp),  # read and written
        activation_bytes=ACTIVATION_BYTES * sum(s.activation_elements * n for s, n in zip(sums, seen, strict=True)),
        operators=operators)


def _one_of(name: str, value, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name}={shown(value)}; use {', '.join(known)}")
    return value


def _part(amount, tp: int):
    return amount / tp if tp > 1 else amount


def _mixers(model: Model, batch, new_tokens, context, cache: int, split: Split, causal: bool, article: bool):
    """What mixes positions rather than multiplies weights: attention scores, recurrences, element-wise steps."""
    tokens = batch * new_tokens
    for attention, n in model.attention_kinds:
        yield _attention_operator(attention, n, batch, new_tokens, context, causal, article, cache, split)
        if attention.index and attention.index.own:
            every = n * batch * scores(new_tokens, context, causal)
            yield Operator(name="index", flops=attention.index.flops_per_score * every,
                           kv_read_bytes=n * batch * cache * attention.index_elements * context)
    for recurrent, n in model.recurrent_kinds:
        flops = n * batch * _recurrent_flops(recurrent, new_tokens, context)
        yield Operator(name=recurrent.kind, flops=_part(flops, split.tp))
    if article:
        yield Operator(name="norm, rope", flops=ARTICLE_FLOPS_PER_WIDTH * tokens * model.hidden * len(model.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSum:
    """All tensors of one name and format, every layer together: what a pass multiplies and reads of them."""

    name: str
    role: str
    rate: str
    copies: int
    used: int
    flops_per_token: Any
    bytes: Any  # of one copy
    activation_elements: Any

    def operator(self, tokens, copies_read) -> Operator:
        """The work of these tensors on `tokens` positions of this replica."""
        return Operator(name=self.name, flops=self.flops_per_token * tokens, weight_bytes=copies_read * self.bytes)


@lru_cache(maxsize=256)
def weight_sums(model: Model, recipe: str, split: Split = WHOLE) -> tuple[WeightSum, ...]:
    """Every tensor that a pass reads, merged by name, role and format over all layers; the head last.

    >>> from econ.config import load_model
    >>> sum(s.bytes for s in weight_sums(load_model("llama-3.3-70b"), "bf16"))
    139006066688
    """
    merged: dict[tuple, list] = {}
    for i, layer in enumerate((*model.layers, Layer(tensors=(*model.final, model.head)))):
        for t in layer.tensors:
            stored, share = model.format_of(t, recipe, i), split.share(t, layer.attention)
            small = t.role in ("norm", "bias", "other") and t.copies == 1
            name, role = ("norms, biases", "norm") if small else (t.name, t.role)
            entry = merged.setdefault((name, role, stored.rate, t.copies, t.used), [0, 0, 0])
            entry[0] += t.flops_per_token * (_fraction(1, split.tp) if t.shard == "ep" else share)
            entry[1] += stored.bytes(t.shape) * share
            entry[2] += sum(t.shape) * t.used * share if t.flops_per_token else 0
    rows = [WeightSum(name=k[0], role=k[1], rate=k[2], copies=k[3], used=k[4], flops_per_token=v[0], bytes=v[1],
                      activation_elements=v[2]) for k, v in merged.items()]
    return tuple(sorted(rows, key=lambda row: row.role == "head"))


def scores(new_tokens, context, causal: bool = True, window: int | None = None, chunked: bool = False):
    """Query-key pairs of one sequence and one head.

    causal: sum over i = 1..new of min(context + i, window); else new * (context + new)                 [pairs]

    A chunked layer's query sees its own block of `window` tokens up to itself.

    >>> scores(2048, 0), scores(1, 2048), scores(2048, 0, causal=False), scores(8, 0, window=4)
    (2098176, 2049, 4194304, 26)
    """
    if not causal:
        return new_tokens * (context + new_tokens)
    if window is None:
        return new_tokens * context + _triangle(new_tokens)
    seen = _chunked_pairs if chunked else _windowed_pairs
    return seen(context + new_tokens, window) - seen(context, window)


def _triangle(n):
    return n * (n + 1) // 2 if isinstance(n, int) else n * (n + 1) / 2


def _windowed_pairs(n, window: int):
    inside = minimum(n, window)
    return _triangle(inside) + (n - inside) * window


def _chunked_pairs(n, chunk: int):
    return (n // chunk) * _triangle(chunk) + _triangle(n % chunk)


def reach(context, window: int | None = None, chunked: bool = False):
    """Cached tokens that the next query can still see: all, the last window - 1, or the rest of its block.

    >>> reach(2048), reach(2048, 1024), reach(10_000, 8192, chunked=True)
    (2048, 1023, 1808)
    """
    if window is None:
        return context
    return context % window if chunked else minimum(context, window - 1)


def kinks(model: Model, last) -> set[int]:
    """Contexts up to `last` at which the work of a decode step leaves its straight line of the context.

    A window is full, a chunk begins, or sparse attention starts to choose.

    >>> from econ.config import load_model
    >>> kinks(load_model("gpt-oss-20b"), 8192)
    {127}
    """
    found: set[int] = set()
    for a, _ in model.attention_kinds:
        if a.index:
            found |= {a.index.top_k - 1, a.index.top_k}
        elif a.window:
            found |= set(range(a.window, int(last) + 1, a.window)) if a.chunked else {a.window - 1}
    return found


def _attention_operator(a: Attention, n: int, batch, new_tokens, context, causal, article, cache, split: Split):
    top_k = a.index.top_k if a.index else None
    pairs = n * batch * scores(new_tokens, context, causal, top_k or a.window, a.chunked)
    flops = pairs * a.flops_per_score
    if a.latent:  # expand the cached latents into K and V again, or score against the latents themselves
        expand = 2 * n * batch * context * a.latent.up_elements
        flops = minimum(flops + expand, pairs * a.flops_per_absorbed_score)
    if article:
        flops = flops + ARTICLE_FLOPS_PER_SCORE * a.heads * pairs
    share = split.cache_share(a) * n * batch * cache
    seen = minimum(context, top_k * new_tokens) if top_k else reach(context, a.window, a.chunked)
    name = "scores" if a.window is None else f"scores, {'chunk' if a.chunked else 'window'} {a.window:,}"
    return Operator(name=name, flops=_part(flops, split.tp),
                    kv_read_bytes=share * a.read_elements * seen,
                    kv_write_bytes=share * a.cache_elements * new_tokens)


def _recurrent_flops(r: Recurrent, new_tokens, context):
    """FLOPs of one sequence's recurrence and of the short convolution before it.

    The convolution also runs over its padding: kernel - 1 positions before the first token, one after a cached
    state. A rule with blocks handles prompts in blocks, and a single token after a cached state step by step.
    """
    padding = where(context > 0, 1, max(r.conv_kernel - 1, 0)) * (new_tokens > 0)
    conv, step = r.conv_flops_per_position * (new_tokens + padding), r.flops_per_token * new_tokens
    if not r.block:
        return conv + step
    whole, rest = new_tokens // r.block * r.block, new_tokens % r.block
    rest = where(rest > 0, r.block, 0) if r.pads else rest
    blocks = r.block_flops_per_token * (whole + rest) + r.block_flops_per_pair * (whole * r.block + rest * rest)
    return conv + where((context > 0) & (new_tokens == 1), step, blocks)
