"""Dollars per million tokens, by kind of token, and the deployment that answers every question of this package."""

from dataclasses import dataclass
from typing import Any

from .arrays import in_slices, is_array, number, where
from .memory import kv_bytes_per_gpu
from .serving import Load, Served
from .units import shown
from .work import forward

ALLOCATIONS = ("time", "flops", "equal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What is paid, divided among input, output and cached input tokens. USD; prices are per million tokens.

    usd_per_mtok_input * input + usd_per_mtok_output * output = what is paid, for every allocation.
    `feasible` is False (and prices are nan) at array points that do not fit.
    """

    usd_per_mtok_input: Any
    usd_per_mtok_output: Any
    usd_per_mtok_cached_input: Any
    usd_per_mtok_blended: Any
    usd_per_request: Any
    usd_per_hour: Any
    joules_per_output_token: Any  # as if every hour, idle ones too, drew the full TDP; None where that is not known
    feasible: Any = True


class Deployment(Served):
    """One model on some GPUs: memory, time, load and cost. See `econ.placement.Placed` for the arguments.

    >>> d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(d.prefill(prompt=2048).time_s, 6), d.serve(64, 2048, 300).limited_by
    (0.072264, 'concurrency')
    """

    @in_slices
    def cost(self, usd_per_gpu_hour, concurrency=1, prompt=1, output=1, utilisation_frac=1.0,
             allocation="time") -> Cost:
        """Dollars per million tokens of a steady load.

        blended = usd_per_gpu_hour * n_gpus / 3600 / utilisation / (tokens in and out per second)        [USD/token]

        Allocation "time": GPU time of prefills is charged to input tokens, of decode steps to output tokens.
        "flops": in proportion to the FLOPs of each. "equal": every token alike. A cached input token pays for
        reading its keys and values once, and for the share of the memory that they occupy during one cycle.
        Idle hours are in `utilisation_frac`; staff, network and margins are not in here.
        Raises ValueError for a negative price, a utilisation outside (0, 1] or an unknown allocation.

        >>> c = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4).cost(2.5, concurrency=64, prompt=2048, output=300)
        >>> round(c.usd_per_mtok_blended, 4), round(c.usd_per_hour, 2)
        (0.1619, 10.0)
        """
        price, busy = number("usd_per_gpu_hour", usd_per_gpu_hour, minimum=0), _busy(utilisation_frac)
        if allocation not in ALLOCATIONS:
            raise ValueError(f"allocation={shown(allocation)}; use one of {', '.join(ALLOCATIONS)}")
        prompt, output = number("prompt", prompt, minimum=1), number("output", output, minimum=1)
        load = self.serve(concurrency, prompt, output)
        usd_per_s = price * self.n_gpus / 3600 / busy
        request = usd_per_s / load.requests_per_s
        to_input = self._input_frac(load, prompt, output, allocation)
        watts = self.accelerator.tdp_w and self.n_gpus * self.accelerator.tdp_w
        return Cost(
            usd_per_mtok_input=1e6 * request * to_input / prompt,
            usd_per_mtok_output=1e6 * request * (1 - to_input) / output,
            usd_per_mtok_cached_input=1e6 * usd_per_s * self._cached_s(load),
            usd_per_mtok_blended=1e6 * request / (prompt + output), usd_per_request=request,
            usd_per_hour=price * self.n_gpus, joules_per_output_token=watts and watts / busy / load.output_tokens_per_s,
            feasible=load.feasible)

    def _input_frac(self, load: Load, prompt, output, allocation: str):
        """The share of a request's cost that its input tokens carry."""
        if allocation == "equal":
            return prompt / (prompt + output)
        if allocation == "flops":
            reading = forward(self.model, 1, prompt, 0).flops
            return reading / (reading + (output - 1) * forward(self.model, 1, 1, prompt + output / 2).flops)
        return where(output > 1, 1 - (output - 1) * load.decode_s / load.cycle_s, 1.0)

    def _cached_s(self, load: Load):
        """Seconds of the deployment that one cached token takes: on its GPUs, one read and a share of the memory."""
        held = sum(kv_bytes_per_gpu(part, 1, kv=self.kv, split=self.split) for part in self.stages)
        g = self.accelerator
        each = 1 / (g.hbm_bytes_per_s * self.profile.kv_frac) + load.cycle_s / g.memory_bytes
        return held / (self.pp * self.dp) * each


def _busy(utilisation_frac):
    busy = number("utilisation_frac", utilisation_frac, minimum=0, maximum=1)
    if not ((busy > 0).all() if is_array(busy) else busy > 0):
        raise ValueError("utilisation_frac=0: a deployment that serves nothing has no cost per token; give more than 0")
    return busy


def usd_per_mtok(usd_per_hour, tokens_per_s, utilisation_frac=1.0):
    """Dollars per million tokens of GPUs that cost so much an hour and give so many tokens a second while busy.

    usd_per_hour / 3600 / utilisation / tokens_per_s * 1e6                                             [USD]

    Say which tokens: output alone, or input and output.

    >>> round(usd_per_mtok(2.5, 700), 2), round(usd_per_mtok(2.5, 700, utilisation_frac=0.1), 2)
    (0.99, 9.92)
    """
    rent, rate = number("usd_per_hour", usd_per_hour, minimum=0), number("tokens_per_s", tokens_per_s, minimum=1e-9)
    return 1e6 * rent / 3600 / _busy(utilisation_frac) / rate


def break_even_utilisation_frac(usd_per_request, api_usd_per_request):
    """The share of busy hours at which own GPUs cost as much per request as an API: below, the API is cheaper.

    price of a request on GPUs that are always busy / price of the API                                 [share]

    Above 1 the API is cheaper at any load. Compare at a load that the GPUs would really have.

    >>> break_even_utilisation_frac(0.0005, 0.002)
    0.25
    """
    own = number("usd_per_request", usd_per_request, minimum=0)
    return own / number("api_usd_per_request", api_usd_per_request, minimum=1e-18)


def break_even_tokens_per_hour(usd_per_hour, api_usd_per_mtok):
    """Tokens an hour at which renting costs as much as an API: below, the API is cheaper.

    usd_per_hour / api price                                                                          [tokens/h]

    >>> break_even_tokens_per_hour(10.0, 0.5)
    20000000.0
    """
    rent = number("usd_per_hour", usd_per_hour, minimum=0)
    return rent / (number("api_usd_per_mtok", api_usd_per_mtok, minimum=1e-12) / 1e6)
