"""Four ways to serve for less, and where each stops paying: quantised weights, speculation, cached prefixes, two pools.

Each function compares deployments of this package; none has a constant of its own.
"""

from dataclasses import dataclass, replace

from .arrays import scalar, whole
from .cost import Deployment
from .latency import Timed


def quantization_speedup(d: Timed, weights: str, batch=1, context=0):
    """How many times faster a decode step gets with weights in another format.

    step time as placed / step time with `weights`

    At batch 1 and a short context nearly the ratio of the streamed bytes. Weight-only formats (int8, int4, GGUF)
    multiply in 16 bits: they gain nothing where arithmetic is the bound. Neglects the time to unpack.
    Raises DoesNotFit where either does not fit.

    >>> d = Timed("llama-3.1-8b", "h100-sxm")
    >>> round(quantization_speedup(d, "int4"), 2), round(quantization_speedup(d, "int4", batch=256), 2)
    (3.21, 1.16)
    """
    return d.decode(batch, context).time_s / replace(d, weights=weights).decode(batch, context).time_s


def batch_without_quantization_gain(d: Timed, weights: str, context=0, least: float = 1.0) -> int | None:
    """The smallest batch at which the step is no more than `least` times faster; None if it is at all that fit.

    With a long context the cache keeps the step memory-bound, and a gain, ever smaller, remains.

    >>> batch_without_quantization_gain(Timed("llama-3.1-8b", "h100-sxm"), "int4")
    296
    """
    scalar("least", least, minimum=0)
    return _first_batch([d, replace(d, weights=weights)], context,
                        lambda batch: quantization_speedup(d, weights, batch, context) <= least)


def expected_tokens(acceptance_frac, k: int):
    """Tokens that one verified draft of `k` tokens gives on average, the target's own last token included.

    (1 - a^(k + 1)) / (1 - a)                                                                       [tokens]

    Assumes that each drafted token is accepted with the same probability, whatever came before.
    Source: leviathan2023.

    >>> round(expected_tokens(0.8, 4), 3), expected_tokens(0, 4), expected_tokens(1, 4)
    (3.362, 1, 5)
    """
    a, k = scalar("acceptance_frac", acceptance_frac, minimum=0, maximum=1), whole("k", k)
    return sum(a**i for i in range(k + 1))


def speculation_speedup(d: Timed, draft: Timed | None, acceptance_frac, k: int, batch=1, context=0):
    """How many times faster tokens come if a draft of `k` tokens is verified in one pass.

    expected tokens * step / (k * draft step + pass over k + 1 new tokens)

    `draft` gives its tokens one at a time; None is a draft that costs nothing, such as text copied from the prompt.
    The verifying pass reads the weights once, but multiplies k + 1 times as much and touches more experts: with
    batch the gain turns into a loss. Both must fit their GPUs; one that shares them is not counted.
    Raises DoesNotFit where one does not. Source: leviathan2023, with its cost ratio worked out at each batch.

    >>> d, draft = (Timed(name, "h100-sxm", n_gpus=4) for name in ("llama-3.3-70b", "llama-3.2-1b"))
    >>> [round(speculation_speedup(d, draft, 0.8, 4, batch, 500), 2) for batch in (1, 128)]
    [3.14, 1.67]
    """
    drafting = 0.0 if draft is None else k * draft.decode(batch, context).time_s
    tokens = expected_tokens(acceptance_frac, k)
    return tokens * d.decode(batch, context).time_s / (drafting + d.verify(batch, k + 1, context).time_s)


def batch_where_speculation_loses(d: Timed, draft: Timed | None, acceptance_frac, k: int, context=0) -> int | None:
    """The smallest batch at which plain decoding is faster; None if speculation wins at all that fit.

    >>> d, draft = (Timed(name, "h100-sxm", n_gpus=4) for name in ("llama-3.3-70b", "llama-3.2-1b"))
    >>> batch_where_speculation_loses(d, draft, 0.8, 4, context=500)
    242
    """
    return _first_batch([d] if draft is None else [d, draft], context + k,
                        lambda batch: speculation_speedup(d, draft, acceptance_frac, k, batch, context) < 1)


def _first_batch(placed: list[Timed], context, found) -> int | None:
    """The smallest batch for which `found` is true: 1, 2, 4, ... as far as it fits, then between the last two."""
    most = min(d.memory(1, context + 1).max_batch for d in placed)
    low, high = 0, 1
    while high < most and not found(high):
        low, high = high, min(2 * high, most)
    if most < 1 or not found(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSaving:
    """What a hit in the prefix cache saves of one request, on average."""

    prefill_s: float
    usd_per_request: float
    requests_frac: float  # more requests a second from the same GPUs


def prefix_saving(d: Deployment, hit_frac, usd_per_gpu_hour, concurrency=1, prompt=1, output=1) -> PrefixSaving:
    """Prefill seconds and dollars that a request saves if `hit_frac` of its prompt is already in the cache.

    Prefill of the whole prompt minus that of the rest; price of a request minus its price at the higher rate.
    The memory that kept prefixes take from the running batch, and routing that misses them, are not counted.

    >>> d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> s = prefix_saving(d, 0.5, 2.5, concurrency=64, prompt=2048, output=300)
    >>> round(s.prefill_s * 1e3, 1), round(s.requests_frac, 2)
    (35.8, 0.35)
    """
    without, hit = d.serve(concurrency, prompt, output), d.serve(concurrency, prompt, output, cached_frac=hit_frac)
    usd = d.cost(usd_per_gpu_hour, concurrency, prompt, output).usd_per_request
    more = hit.requests_per_s / without.requests_per_s
    return PrefixSaving(prefill_s=without.prefill_s - hit.prefill_s, usd_per_request=usd * (1 - 1 / more),
                        requests_frac=more - 1)


def kv_transfer_s(d: Timed, prompt, link_bytes_per_s):
    """The time to send one prompt's cache and state from the GPUs that read it to those that go on.

    bytes of the prompt / (GPUs of a replica * link)                                                    [s]

    Each GPU sends its part over a link of its own, one way. Layer by layer, all but the last layer's part can hide
    behind the prefill: compare with `d.prefill(1, prompt).time_s`. Source: zhong2024, patel2024.

    >>> d = Timed("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(kv_transfer_s(d, 2048, 50e9) * 1e3, 2), round(d.prefill(1, 2048).time_s * 1e3, 1)
    (3.36, 72.3)
    """
    link = scalar("link_bytes_per_s", link_bytes_per_s, minimum=1)
    return (d.model.kv_cache_bytes(prompt, dtype=d.kv) + d.model.state_bytes()) / (d.tp * d.pp * link)


def prefill_replicas(prefill: Deployment, decode: Deployment, running, prompt=1, output=1):
    """Prefill replicas that keep one decode replica of `running` sequences busy, when the two phases have own GPUs.

    prefill time of a prompt * running / ((output - 1) * decode step)

    Rounded up to whole replicas it says from what size two pools pay: traffic for less leaves GPUs idle.
    Raises DoesNotFit where the batch does not fit. Source: zhong2024.

    >>> d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(prefill_replicas(d, d, running=64, prompt=2048, output=300), 2)
    1.12
    """
    steps = scalar("output", output, minimum=2) - 1
    decode_s = decode.decode(running, prompt + output / 2).time_s
    return prefill.prefill(1, prompt).time_s * running / (steps * decode_s)
