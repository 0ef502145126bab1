"""Which GPUs for a model: every accelerator and count, at the highest load that meets the limits, cheapest first."""

from dataclasses import dataclass

from .arrays import scalar
from .config import load_model
from .cost import Deployment
from .errors import DoesNotFit
from .hardware import Accelerator, accelerators, load_accelerator
from .market import prices as rental_prices
from .placement import divides_heads
from .profiles import load_profile
from .serving import INFINITE, Load

COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One accelerator and count, at its highest load within the limits. Prices are None where there is no row."""

    accelerator: str
    n_gpus: int
    tp: int
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    running_batch: float
    limited_by: str
    usd_per_hour: float | None
    usd_per_mtok_blended: float | None


def _prices_by_name(given) -> dict[str, float]:
    if given is None:
        return {name: price.usd_per_gpu_hour for name, price in rental_prices().items()}
    return {load_accelerator(name).name: scalar("price", usd, minimum=0) for name, usd in given.items()}


def compare(model, prompt=1, output=1, slo_ttft_s=INFINITE, slo_tpot_s=INFINITE, prices=None,
            **deployment) -> list[Choice]:
    """Every accelerator in counts of 1, 2, 4 and 8 on which the model fits, cheapest per token first, unpriced last.

    Each at the highest load without a queue at which both limits hold, with the TP degree that serves most.
    `prices` maps accelerator names to USD per GPU-hour; by default the medians of `prices()`. Further arguments
    (weights, kv, profile, gpu_mem_frac) are those of a deployment. Raises ValueError for a bad size or price.

    >>> compare("llama-3.1-8b", prompt=2048, output=300, slo_tpot_s=0.05, prices={"h100-sxm": 2.5})[0].accelerator
    'h100-sxm'
    """
    model = load_model(model)
    by_name = _prices_by_name(prices)
    rows: list[Choice] = []
    for name in accelerators():
        best: dict[int, Choice] = {}
        for tp in COUNTS:
            served = _served(model, name, tp, prompt, output, slo_ttft_s, slo_tpot_s, deployment)
            if served is None:
                continue
            for n in (n for n in COUNTS if n % tp == 0):
                row = _row(name, n, tp, served, by_name.get(name), prompt, output)
                if n not in best or row.output_tokens_per_s > best[n].output_tokens_per_s:
                    best[n] = row
        rows += best.values()
    return sorted(rows, key=_cheapest_first)


def _cheapest_first(row: Choice) -> tuple:
    priced = row.usd_per_mtok_blended is not None
    return not priced, row.usd_per_mtok_blended if priced else -row.output_tokens_per_s, row.n_gpus


def _served(model, name: str, tp: int, prompt, output, slo_ttft_s, slo_tpot_s, options: dict) -> Load | None:
    """The best load of one replica within the limits, or None."""
    accelerator = load_accelerator(name)
    if not _is_known(accelerator, tp, options) or not divides_heads(model, tp):
        return None
    try:
        return Deployment(model, accelerator, n_gpus=tp, **options).largest_load(prompt, output, slo_ttft_s, slo_tpot_s)
    except DoesNotFit:
        return None


def _is_known(accelerator: Accelerator, tp: int, options: dict) -> bool:
    """True if all figures that a prediction needs are known: capacity, a 16-bit rate, the link where it counts."""
    link_counts = tp > 1 and load_profile(options.get("profile", "ideal")).link_frac and not options.get("link")
    capacity = accelerator.visible_bytes or accelerator.printed_bytes
    return bool(capacity and {"bf16", "fp16"} & set(accelerator.peaks) and (accelerator.link or not link_counts))


def _row(name: str, n: int, tp: int, served: Load, price: float | None, prompt, output) -> Choice:
    dp = n // tp
    tokens_per_s = dp * served.requests_per_s * (prompt + output)
    return Choice(accelerator=name, n_gpus=n, tp=tp, ttft_s=served.ttft_s, tpot_s=served.tpot_s,
                  output_tokens_per_s=dp * served.output_tokens_per_s, running_batch=dp * served.running_batch,
                  limited_by=served.limited_by, usd_per_hour=None if price is None else price * n,
                  usd_per_mtok_blended=None if price is None else price * n / 3600 / tokens_per_s * 1e6)
