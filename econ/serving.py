"""Many requests at once: continuous batching in steady state, arrivals and saturation, limits on latency.

One cycle serves R requests of a replica: R prefills, then output - 1 decode steps that all R share.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from .arrays import ceil_div, in_slices, is_array, maximum, minimum, number, scalar, where
from .errors import DoesNotFit
from .latency import Timed
from .roofline import total_s
from .work import Work

CONCURRENCIES = sorted({round(2 ** (k / 4)) for k in range(53)})  # 1 to 8,192, four points a doubling
INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a deployment delivers under a steady load of equal requests.

    `ttft_s` holds the wait of a request that finds no place, `tpot_s` the prefills of others between two tokens;
    `itl_max_s` is the gap between two tokens with one prompt, or one piece of it, in between. `running_batch` and
    `queued` are for the whole deployment. `limited_by`: "kv" (no memory for more), "engine" (its own limit) or
    "concurrency" (no more clients). `feasible` is False, and all but `limited_by` nan, at array points that do not fit.
    """

    ttft_s: Any
    tpot_s: Any
    itl_max_s: Any
    output_tokens_per_s: Any
    requests_per_s: Any
    running_batch: Any
    queued: Any
    limited_by: Any
    prefill_s: Any  # what one prompt adds to a cycle of its replica
    decode_s: Any  # time of one step of the running batch
    cycle_s: Any
    feasible: Any = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    """The passes of one cycle of a replica that runs `running` sequences."""

    first_s: Any  # from the start of a prompt to its first token
    service_s: Any  # for which a prompt occupies one stage, before the next can follow
    prefill_s: Any
    decode_s: Any
    gap_s: Any
    met_s: Any  # the cycle of one sequence, which meets every other prompt as a pass of its own
    cycle_s: Any


class Served(Timed):
    """A `Timed` deployment that also answers for many requests at once."""

    @in_slices
    def serve(self, concurrency=1, prompt=1, output=1, chunk_tokens=None, cached_frac=0.0) -> Load:
        """Steady state with `concurrency` clients that each send the next request when one is done.

        R = min(concurrency / dp, sequences the cache holds at prompt + output, max_running)
        cycle = R p + (output - 1) t, p = prefill(1, prompt), t = decode(R, prompt + output / 2)            [s]
        tokens/s = dp R output / cycle; tpot = t + R p / (output - 1); ttft = p + (concurrency / dp - R) cycle / R

        A pipeline runs pp groups of R / pp sequences, one a stage: p counts 1 / pp, t is that of a group. Fewer
        clients than replicas leave replicas idle. `cached_frac` of each prompt is found in a prefix cache and not
        computed; that shared prefixes are held once is not counted. With `chunk_tokens`, a prompt is read in pieces
        that ride on decode steps, both reading the weights once: p is what the pieces add to those steps, and the
        first token takes as many steps as there are pieces. Prompts are read one at a time, and no profile serves
        more than that allows at full rates; an engine that reads several short ones in a pass can. All arguments may
        be arrays.
        Raises DoesNotFit where not even one sequence fits, ValueError for a bad size.

        >>> v = Served("llama-3.3-70b", "h100-sxm", n_gpus=4).serve(concurrency=64, prompt=2048, output=300)
        >>> v.limited_by, round(v.output_tokens_per_s)
        ('concurrency', 2193)
        """
        concurrency, prompt = number("concurrency", concurrency, minimum=1), number("prompt", prompt, minimum=1)
        output, cached = number("output", output, minimum=1), number("cached_frac", cached_frac, minimum=0, maximum=1)
        chunk = None if chunk_tokens is None else number("chunk_tokens", chunk_tokens, minimum=1)
        held = self._sequences(prompt + output)
        replicas = minimum(concurrency, self.dp)  # at work
        places = minimum(maximum(held, 1), self.max_running or INFINITE)
        running = minimum(concurrency / replicas, places)
        c = self._cycle(running, prompt, output, cached, chunk)
        wait = (concurrency / replicas - running) * c.cycle_s / running
        load = self._load(c, replicas, running, output, ttft_s=c.first_s + wait,
                          queued=concurrency - replicas * running,
                          limited_by=self._limited_by(concurrency / replicas, held))
        return _masked(load, held >= 1)

    def _cycle(self, running, prompt, output, cached=0.0, chunk=None) -> _Cycle:
        groups = minimum(maximum(running, 1), self.pp)  # of a pipeline, each on another stage
        group, context = maximum(running, 1) / groups, prompt + output / 2
        fresh = maximum(prompt * (1 - cached), 1)
        others = self.profile.sequence_s * self.pp * (maximum(running, 1) - group)  # every stage schedules all groups
        decode, steps = self._time(group, 1, context) + others, output - 1
        if chunk is None:
            alone = self._time(1, fresh, prompt - fresh)
            added, gap = self._shared_s(alone, fresh, prompt - fresh), decode + alone
        else:
            pieces = ceil_div(fresh, minimum(chunk, fresh))
            piece = fresh / pieces
            mixed = others + self._mixed_s(group, context, piece, prompt - (fresh + piece) / 2)  # halfway in the prompt
            gap = others + self._mixed_s(group, context, piece, prompt - piece)
            alone, added, steps = pieces * mixed, pieces * (mixed - decode), maximum(steps, running * pieces / groups)
        cycle = running * added / groups + steps * decode
        met = cycle if chunk is not None else running * alone / groups + steps * decode
        first = alone if chunk is not None else self._first_token_s(
            alone, _per_token(met, output, decode), running, fresh, prompt - fresh)
        return _Cycle(first_s=first, service_s=added / self.pp, prefill_s=added / groups, decode_s=decode, gap_s=gap,
                      met_s=met, cycle_s=cycle)

    def _mixed_s(self, batch, context, chunk, before):
        """A step that decodes a batch and reads a piece of one prompt after `before` tokens, the weights once."""
        decodes, pieces = self._works(batch, 1, context), self._works(1, chunk, before)
        shared = self._works(batch + chunk, 1, 0)
        work = [_joined(a, b, w.weight_bytes) for a, b, w in zip(decodes, pieces, shared, strict=True)]
        return total_s(*self._terms(work, batch + chunk, self._overhead_s(batch, 1, context)))

    def _load(self, c: _Cycle, replicas, running, output, **named) -> Load:
        rate = replicas * running / c.cycle_s
        return Load(tpot_s=_per_token(c.met_s, output, c.decode_s), itl_max_s=c.gap_s, requests_per_s=rate,
                    output_tokens_per_s=output * rate, running_batch=replicas * running, prefill_s=c.prefill_s,
                    decode_s=c.decode_s, cycle_s=c.cycle_s, **named)

    def _shared_s(self, alone, new, old):
        """What one more prompt costs a full engine: a pass; where passes are shared, its FLOPs and messages.

        Never less than a read of the weights at full bandwidth: the floor of its own pass, which is not shared.
        """
        if not self.profile.prompts_share_passes:
            return alone
        works = self._works(1, new, old)
        compute_s = sum(self._compute_s(work) for work in works) / self.profile.flop_frac
        return maximum(compute_s + self._wire_s(new), sum(w.bytes for w in works) / self.accelerator.hbm_bytes_per_s)

    def _first_token_s(self, alone, tpot, running, new, old):
        """The time to the first token of a request that finds a place: its pass under "ideal". A profile adds

        pass * (1 + burst_frac * (running - 1) / 2) + first_token_steps * tpot                              [s]

        where the pass has its experts at their own rate and no overheads: published runs start all at once.
        """
        profile = self.profile
        if not (profile.first_token_steps or profile.burst_frac or profile.expert_prefill_frac):
            return alone
        compute, memory, *_ = self._terms(self._works(1, new, old), new, 0.0)
        rate = 1 / (profile.expert_prefill_frac or profile.flop_frac) - 1 / profile.flop_frac
        compute = compute + rate * self._expert_compute_s(new)
        read = (maximum(compute, memory) if profile.overlap else compute + memory) + self._wire_s(new)
        return read * (1 + profile.burst_frac * maximum(running - 1, 0) / 2) + profile.first_token_steps * tpot

    def _sequences(self, tokens):
        """Sequences a replica can hold; raises where a single number is 0."""
        limit, held = self.model.max_context, self.memory(1, tokens).max_batch
        if is_array(held):
            return held if limit is None else where(tokens <= limit, held, 0.0)
        if held < 1 or (limit is not None and tokens > limit):
            self._checked(1, tokens)
            raise DoesNotFit(f"{self.model.name}: no sequence of {tokens:,} tokens fits")
        return held

    def _limited_by(self, wanted, held):
        engine = self.max_running or INFINITE
        who = where(engine < held, "engine", "kv")
        return where(wanted <= minimum(held, engine), "concurrency", who)

    def at_rate(self, requests_per_s, prompt=1, output=1) -> Load:
        """Steady state under requests that arrive at random at a mean rate, split evenly over the replicas.

        running = rate * time in the system (Little's law); ttft = p + rate p^2 / (2 (1 - rate p))          [s]

        The second term is the mean wait for the prompts before one's own (Pollaczek-Khinchine, equal prompts).
        Raises ValueError at or beyond saturation: a queue that grows has no steady state. Scalars only.

        >>> d = Served("llama-3.3-70b", "h100-sxm", n_gpus=4)
        >>> v = d.at_rate(2.0, prompt=2048, output=300)
        >>> round(v.running_batch, 1), round(v.ttft_s / d.prefill(1, 2048).time_s, 3)
        (7.5, 1.084)
        """
        rate = scalar("requests_per_s", requests_per_s, minimum=0) / self.dp
        if not rate > 0:
            raise ValueError(f"requests_per_s={requests_per_s}; give a rate above 0")
        low, high = 1.0, self._most(prompt, output) / self.dp
        top = high / self._cycle(high, prompt, output).cycle_s
        if rate >= top:
            raise ValueError(f"{requests_per_s:g} requests per second saturate the deployment; it serves at most "
                             f"{self.dp * top:.4g}")
        running = rate * self._cycle(1, prompt, output).cycle_s  # one after the other
        if running > 1:
            for _ in range(60):
                running = (low * high) ** 0.5
                enough = running / self._cycle(running, prompt, output).cycle_s >= rate
                low, high = (low, running) if enough else (running, high)
        c = self._cycle(running, prompt, output)
        wait = rate * c.service_s**2 / (2 * (1 - rate * c.service_s))
        load = self._load(c, self.dp, running, output, queued=0.0, limited_by="concurrency", ttft_s=c.first_s + wait)
        return replace(load, requests_per_s=requests_per_s, output_tokens_per_s=requests_per_s * output)

    def _most(self, prompt, output) -> int:
        """Requests in the system that run without a queue."""
        prompt, output = scalar("prompt", prompt, minimum=1), scalar("output", output, minimum=1)
        return self.dp * int(minimum(self._sequences(prompt + output), self.max_running or INFINITE))

    def frontier(self, prompt=1, output=1) -> list[tuple[int, float, float]]:
        """Concurrency, tokens per second of one user, and tokens per second of one GPU, from alone to full.

        Concurrencies that would queue are left out: they add waiting and nothing else.
        """
        most = self._most(prompt, output)
        loads = ((c, self.serve(c, prompt, output)) for c in (*(c for c in CONCURRENCIES if c < most), most))
        return [(c, 1 / v.tpot_s, v.output_tokens_per_s / self.n_gpus) for c, v in loads]

    def largest_load(self, prompt=1, output=1, slo_ttft_s=INFINITE, slo_tpot_s=INFINITE) -> Load | None:
        """The highest load without a queue at which both limits hold; None if not even one client gets them.

        Exact to one client: without a queue the first token takes one prefill at any load, and tpot grows with it.
        `limited_by` is what one more client would meet: "kv", "engine", or a limit on the times ("concurrency").
        """
        for name, limit in (("slo_ttft_s", slo_ttft_s), ("slo_tpot_s", slo_tpot_s)):
            if limit != INFINITE:
                scalar(name, limit, minimum=0)
        best, low, high = None, 1, (most := self._most(prompt, output))
        while low <= high:
            middle = (low + high) // 2
            v = self.serve(middle, prompt, output)
            if v.ttft_s <= slo_ttft_s and v.tpot_s <= slo_tpot_s:
                best, low = v, middle + 1
            else:
                high = middle - 1
        if best and best.running_batch == most:
            return replace(best, limited_by=self._limited_by(INFINITE, self._sequences(prompt + output)))
        return best


def _per_token(cycle_s, output, step_s):
    """The time of each output token after the first; with one alone, that of a step."""
    return where(output > 1, cycle_s / where(output > 1, output - 1, 1), step_s)


def _joined(a: Work, b: Work, weight_bytes) -> Work:
    """Two passes in one: the FLOPs and cache traffic of both, the weights as given."""
    rates = {rate: a.flops_by_rate[rate] + b.flops_by_rate[rate] for rate in a.flops_by_rate}
    return replace(a, flops=a.flops + b.flops, flops_by_rate=rates, weight_bytes=weight_bytes,
                   kv_read_bytes=a.kv_read_bytes + b.kv_read_bytes, kv_write_bytes=a.kv_write_bytes + b.kv_write_bytes,
                   state_bytes=a.state_bytes + b.state_bytes, operators=())


def _masked(load: Load, feasible) -> Load:
    """nan at the points of an array that do not fit."""
    if not is_array(feasible):
        return load
    names = [f.name for f in fields(Load) if f.name not in ("limited_by", "feasible")]
    return replace(load, feasible=feasible,
                   **{name: where(feasible, getattr(load, name), float("nan")) for name in names})
