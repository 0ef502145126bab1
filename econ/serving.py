"""Many requests at once: continuous batching in steady state, arrivals and saturation, limits on latency.

One cycle serves R requests of a replica: R prefills, then output - 1 decode steps that all R share.
"""

from dataclasses import dataclass
from typing import Any

from .arrays import is_array, maximum, minimum, number, scalar, where
from .errors import DoesNotFit
from .latency import Timed

CONCURRENCIES = tuple(round(2 ** (k / 4)) for k in range(53))  # 1 to 8,192, four points a doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a deployment delivers under a steady load of equal requests.

    `ttft_s` holds the wait of a request that finds no place, `tpot_s` the prefills of others between two tokens;
    `itl_max_s` is the longest gap between two tokens. `running_batch` and `queued` are for the whole deployment.
    `limited_by`: "kv" (no memory for more), "engine" (its own limit) or "concurrency" (no more clients).
    """

    ttft_s: Any
    tpot_s: Any
    itl_max_s: Any
    output_tokens_per_s: Any
    requests_per_s: Any
    running_batch: Any
    queued: Any
    limited_by: Any
    prefill_s: Any  # GPU time of one prompt, each replica
    decode_s: Any  # time of one step of the running batch
    cycle_s: Any
    feasible: Any = True


@dataclass(frozen=True, eq=False)
class Served(Timed):
    """A `Timed` deployment that also answers for many requests at once."""

    def serve(self, concurrency=1, prompt=1, output=1, chunk_tokens=None, cached_frac=0.0) -> Load:
        """Steady state with `concurrency` clients that each send the next request when one is done.

        R = min(concurrency / dp, sequences the cache holds at prompt + output, max_running)
        cycle = R p + (output - 1) t, p = prefill(1, prompt), t = decode(R, prompt + output / 2)            [s]
        tokens/s = dp R output / cycle; tpot = t + R p / (output - 1); ttft = p + (concurrency / dp - R) cycle / R

        A pipeline runs pp groups of R / pp sequences, one a stage: p counts 1 / pp, t is that of a group. Fewer
        clients than replicas leave replicas idle. `cached_frac` of each prompt is found in a prefix cache and not
        computed. With `chunk_tokens`, prompts are read in pieces beside the decode steps: the same work, but no gap
        between two tokens longer than one mixed step. All arguments may be arrays.
        Raises DoesNotFit where not even one sequence fits, ValueError for a bad size.

        >>> v = Served("llama-3.3-70b", "h100-sxm", n_gpus=4).serve(concurrency=64, prompt=2048, output=300)
        >>> v.limited_by, round(v.output_tokens_per_s)
        ('concurrency', 2193)
        """
        concurrency, prompt = number("concurrency", concurrency, minimum=1), number("prompt", prompt, minimum=1)
        output, cached = number("output", output, minimum=1), number("cached_frac", cached_frac, minimum=0, maximum=1)
        held = self._sequences(prompt + output)
        dp = minimum(concurrency, self.dp)  # replicas at work
        running = minimum(concurrency / dp, minimum(held, self.max_running or float("inf")))
        running = where(held >= 1, running, float("nan")) if is_array(held) else running
        groups = minimum(maximum(running, 1), self.pp)
        prefill = self._time(1, maximum(prompt * (1 - cached), 1), prompt * cached)
        decode = self._time(running / groups, 1, prompt + output / 2)
        cycle = running * prefill / groups + (output - 1) * decode
        later = where(output > 1, output - 1, 1)
        tpot = decode + where(output > 1, running * prefill / groups / later, 0.0)
        wait = (concurrency / dp - running) * cycle / running
        gap = decode + prefill if chunk_tokens is None else self._mixed(running / groups, prompt, output, chunk_tokens)
        cycle = where(output > 1, cycle, maximum(cycle, running * prefill / groups))
        return Load(ttft_s=prefill + wait, tpot_s=tpot, itl_max_s=gap, requests_per_s=dp * running / cycle,
                    output_tokens_per_s=dp * running * output / cycle, running_batch=dp * running,
                    queued=concurrency - dp * running, prefill_s=prefill, decode_s=decode, cycle_s=cycle,
                    limited_by=self._limited_by(concurrency / dp, held), feasible=held >= 1)

    def _sequences(self, tokens):
        """Sequences a replica can hold; raises where a single number is 0."""
        limit, held = self.model.max_context, self.memory(1, tokens).max_batch
        if is_array(held) or is_array(tokens):
            return held if limit is None else where(tokens <= limit, held, 0.0)
        if held < 1 or (limit is not None and tokens > limit):
            self._checked(1, tokens)
            raise DoesNotFit(f"{self.model.name}: no sequence of {tokens:,} tokens fits")
        return held

    def _limited_by(self, wanted, held):
        engine = self.max_running or float("inf")
        who = where(engine < held, "engine", "kv") if is_array(held) else ("engine" if engine < held else "kv")
        return where(wanted <= minimum(held, engine), "concurrency", who)

    def _mixed(self, running, prompt, output, chunk_tokens):
        """A step that decodes the batch and reads a chunk of one prompt at its end, weights read once."""
        chunk = minimum(number("chunk_tokens", chunk_tokens, minimum=1), prompt)
        one, piece, empty = (self._terms(self._works(*pass_), *pass_)
                             for pass_ in ((running, 1, prompt + output / 2), (1, chunk, prompt - chunk), (1, 1, 0)))
        weights_s = empty["memory_s"]  # in both: read once
        busy = maximum(one["compute_s"] + piece["compute_s"], one["memory_s"] + piece["memory_s"] - weights_s)
        return busy + one["comm_s"] + piece["comm_s"] + one["overhead_s"]

    def at_rate(self, requests_per_s, prompt=1, output=1) -> Load:
        """Steady state under requests that arrive at a rate, whatever the number of clients.

        The concurrency c at which c requests in the system leave as fast as they come (Little's law).
        Raises ValueError at or beyond saturation: a queue that grows has no steady state. Scalars only.

        >>> d = Served("llama-3.3-70b", "h100-sxm", n_gpus=4)
        >>> round(d.at_rate(2.0, prompt=2048, output=300).running_batch, 1)
        7.5
        """
        rate = scalar("requests_per_s", requests_per_s, minimum=0)
        if not rate > 0:
            raise ValueError(f"requests_per_s={rate}; give a rate above 0")
        most = self._most(prompt, output)
        top = self.serve(most, prompt, output).requests_per_s
        if rate >= top:
            raise ValueError(f"{rate:g} requests per second saturate the deployment; it serves at most {top:.4g}")
        low, high = 1.0, float(most)
        for _ in range(60):
            middle = (low * high) ** 0.5
            enough = self.serve(middle, prompt, output).requests_per_s >= rate
            low, high = (low, middle) if enough else (middle, high)
        return self.serve(high, prompt, output)

    def _most(self, prompt, output) -> int:
        """Requests in the system that run without a queue."""
        prompt, output = scalar("prompt", prompt, minimum=1), scalar("output", output, minimum=1)
        return self.dp * int(minimum(self._sequences(prompt + output), self.max_running or float("inf")))

    def frontier(self, prompt=1, output=1) -> list[tuple[int, float, float]]:
        """Concurrency, tokens per second of one user, and tokens per second of one GPU, from alone to full.

        Concurrencies that would queue are left out: they add waiting and nothing else.
        """
        points = []
        for concurrency in (c for c in CONCURRENCIES if c <= self._most(prompt, output)):
            v = self.serve(concurrency, prompt, output)
            points.append((concurrency, 1 / v.tpot_s, v.output_tokens_per_s / self.n_gpus))
        return points

    def largest_load(self, prompt=1, output=1, slo_ttft_s=float("inf"), slo_tpot_s=float("inf")) -> Load | None:
        """The highest load without a queue at which both limits hold; None if not even one client gets them.

        `slo_ttft_s` limits the time to the first token with the whole batch ahead of it in the worst case:
        a prompt that waits for one other. Searched to one client, since both times grow with the load.
        """
        for name, limit in (("slo_ttft_s", slo_ttft_s), ("slo_tpot_s", slo_tpot_s)):
            if limit != float("inf"):
                scalar(name, limit, minimum=0)
        best, low, high = None, 1, self._most(prompt, output)
        while low <= high:
            middle = (low + high) // 2
            v = self.serve(middle, prompt, output)
            if v.ttft_s <= slo_ttft_s and v.tpot_s <= slo_tpot_s:
                best, low = v, middle + 1
            else:
                high = middle - 1
        return best
