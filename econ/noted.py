"""Notes that a person adds to a log, one `key: value` a line: what the log does not say, or a number to be judged.

Texts: model, gpu, weights, kv. Counts: n_gpus, tp, pp, dp, ep, batch, concurrency, prompt, output, context, kv_tokens,
kv_blocks. Times with ms or s: tpot, ttft. Rates with tok/s: decode (all sequences of the batch), prefill, throughput
(output tokens). Rates with GB/s or TB/s: bandwidth, link. Sizes with GB or GiB, decimal or binary as written:
kv_pool, kv_bytes_per_token, weight_size. Shares and prices: mfu in %, flop_rate in TFLOP/s, usd_per_gpu_hour,
usd_per_mtok.
"""

import re

from .scan import known_gpu, number
from .units import GIB, KIB, MIB

_SECONDS, _TOKENS, _BYTES_PER_S = {"ms": 1e-3, "s": 1.0}, {"tok/s": 1.0}, {"GB/s": 1e9, "TB/s": 1e12}
_BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_COUNT, _USD = {"": 1, "tokens": 1, "blocks": 1}, {"": 1, "$": 1}
_UNITS: dict[str, dict] = {
    **dict.fromkeys(("n_gpus", "tp", "pp", "dp", "ep", "batch", "concurrency", "prompt", "output", "context"), _COUNT),
    **dict.fromkeys(("kv_tokens", "kv_blocks"), _COUNT),
    **dict.fromkeys(("tpot", "ttft"), _SECONDS),
    **dict.fromkeys(("decode", "prefill", "throughput"), _TOKENS),
    **dict.fromkeys(("bandwidth", "link"), _BYTES_PER_S),
    **dict.fromkeys(("kv_pool", "kv_bytes_per_token", "weight_size"), _BYTES),
    **dict.fromkeys(("usd_per_gpu_hour", "usd_per_mtok"), _USD),
    "mfu": {"%": 0.01},
    "flop_rate": {"TFLOP/s": 1e12},
}
_TEXTS = ("model", "gpu", "weights", "kv")
_KEYS = "|".join([*_UNITS, *_TEXTS])
_NOTE = re.compile(
    rf"^[#>* \t]{{0,8}}({_KEYS})[ \t]{{0,8}}[:=][ \t]{{0,8}}([^\n]{{1,200}}?)[ \t]{{0,20}}$",
    re.M | re.I,
)
_QUANTITY = re.compile(r"(\$?)([-+]?\d[\d,]{0,24}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,4})?) ?([A-Za-z/%]{0,8})")
_NAMES = {"kv": "kv_dtype", "kv_pool": "kv_pool_bytes", "weight_size": "weight_bytes"}


def notes(text: str) -> tuple[str | None, dict, list[dict]]:
    """The facts of all notes in a text and the runs they describe. A value without its unit is not believed.

    >>> notes("model: llama-2-7b\\ngpu: a10\\ntpot: 27 ms")[2]
    [{'phase': 'decode', 'batch': 1, 'context': 0, 'time_s': 0.027}]
    """
    facts: dict = {}
    for key, value in _NOTE.findall(text):
        key = key.lower()
        read = value if key in _TEXTS else _quantity(value, _UNITS[key])
        if read is not None:
            facts[_NAMES.get(key, key)] = read
    if "gpu" in facts:
        facts["gpu"] = known_gpu(facts["gpu"]) or facts["gpu"]
    return ("notes" if facts else None), facts, _runs({k: v for k, v in facts.items() if isinstance(v, str) or v > 0})


def _quantity(value: str, units: dict) -> float | None:
    match = _QUANTITY.fullmatch(value)
    n = number(match[2]) if match else None
    if match is None or n is None or (match[3] or match[1]) not in units:
        return None
    return n * units[match[3] or match[1]]


def _runs(facts: dict) -> list[dict]:
    """What the notes measured: positive values only."""
    batch, context = facts.get("batch", 1), facts.get("context", 0)
    step = {"phase": "decode", "batch": batch, "context": context}
    runs = [{**step, "time_s": facts["tpot"]}] if "tpot" in facts else []
    runs += [{**step, "time_s": batch / facts["decode"]}] if "decode" in facts else []
    prompt = facts.get("prompt") or context
    whole = {"phase": "prefill", "batch": batch, "prompt": prompt}
    runs += [{**whole, "time_s": facts["ttft"]}] if prompt and "ttft" in facts else []
    runs += [{**whole, "time_s": batch * prompt / facts["prefill"]}] if prompt and "prefill" in facts else []
    lengths = {k: facts[k] for k in ("concurrency", "prompt", "output") if k in facts}
    runs += [{"phase": "load", "output_tokens_per_s": facts["throughput"], **lengths}] if "throughput" in facts else []
    return runs + ([{"phase": "link", "bytes_per_s": facts["link"]}] if "link" in facts else [])
