"""How long a prefill, a decode step and a whole request take on a placed model."""

import math
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

from .arrays import ceil_div, is_array, maximum, minimum, number, where
from .parallel import Collective, collectives
from .placement import Placed
from .profiles import IDEAL
from .roofline import Step, step, total_s
from .units import shown
from .work import Work, forward, kinks, weight_sums

INTERNODE_BYTES_PER_S = 50e9  # each way: one 400 Gb/s adapter a GPU, as in the deployments that insights2025 describes
LONGEST_OUTPUT = 10**6  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The times of one request alone (or of `batch` equal ones): first token, each further token, all of it.

    `feasible` is False (and times are nan) at array points that do not fit.
    """

    ttft_s: Any
    tpot_s: Any
    total_s: Any
    output_tokens_per_s: Any
    feasible: Any = True


class Timed(Placed):
    """A `Placed` model that also says how long its passes take.

    >>> d = Timed("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(d.prefill(prompt=2048).time_s, 6), round(d.decode(context=2048).time_s, 6)
    (0.072264, 0.010424)
    """

    def prefill(self, batch=1, prompt=1) -> Step:
        """The time to read `batch` prompts of `prompt` tokens and to give the first token of each.

        Raises DoesNotFit if the cache of the whole batch does not fit, ValueError for a bad size.
        """
        return self._step(number("batch", batch, minimum=1), number("prompt", prompt, minimum=1), 0)

    def decode(self, batch=1, context=0) -> Step:
        """The time of one step that gives one more token to each of `batch` sequences with `context` tokens cached.

        Raises DoesNotFit if the cache of the whole batch does not fit, ValueError for a bad size.
        """
        return self._step(number("batch", batch, minimum=1), 1, number("context", context, minimum=0))

    def verify(self, batch=1, tokens=1, context=0) -> Step:
        """The time of a pass over `tokens` drafted tokens a sequence that gives logits at every one of them.

        >>> d = Timed("llama-3.3-70b", "h100-sxm", n_gpus=4)
        >>> round(d.verify(1, 5, context=2048).time_s / d.decode(1, context=2048).time_s, 4)
        1.0

        Raises DoesNotFit if the cache of the whole batch does not fit, ValueError for a bad size.
        """
        batch, tokens = number("batch", batch, minimum=1), number("tokens", tokens, minimum=1)
        return self._step(batch, tokens, number("context", context, minimum=0), logits="all")

    def request(self, batch=1, prompt=1, output=1) -> Request:
        """The times of `batch` equal requests that start together: one prefill, then output - 1 decode steps.

        tpot = (total - ttft) / (output - 1); with one output token, the time of a step at this prompt       [s]

        Decode step k runs at context prompt + k, k = 0..output-2. The last token is given but not cached.
        Raises DoesNotFit if the cache of prompt + output - 1 tokens a sequence does not fit, ValueError for a bad
        size or an output that is not a whole number of tokens.
        """
        batch, prompt = number("batch", batch, minimum=1), number("prompt", prompt, minimum=1)
        output = _whole_tokens(output)
        feasible = self._checked(batch, prompt + output - 1)
        ttft, single = self._time(batch, prompt, 0), self._time(batch, 1, prompt)
        if is_array(feasible):
            ttft, output = where(feasible, ttft, float("nan")), where(feasible, output, 1)
            single = where(feasible, single, float("nan"))
        decoding = self._decoding_s(batch, prompt, output - 1)
        total, later = ttft + decoding, where(output > 1, output - 1, 1)
        return Request(ttft_s=ttft, tpot_s=where(output > 1, decoding / later, single), total_s=total,
                       output_tokens_per_s=batch * output / total, feasible=feasible)

    def _decoding_s(self, batch, first, count):
        """The time of `count` decode steps at contexts first, first + 1, ...

        Both ceilings are straight lines of the context between a few kinks, so that each piece has a closed form.
        """
        low, high = _lowest(first), -_lowest(-(first + count))
        inner = {k for k in (*kinks(self.model, high), self.profile.long_context_tokens + 1) if low < k < high}
        edges = [low, *sorted(inner), high]
        return sum(self._piece_s(batch, first, count, a, b) for a, b in pairwise(edges))

    def _piece_s(self, batch, first, count, a, b):
        """The time of those of the steps whose context lies in [a, b)."""
        start, end = (minimum(maximum(ceil_div(edge - first, 1), 0), count) for edge in (a, b))
        opening, closing = self._pass(batch, 1, first + start), self._pass(batch, 1, first + maximum(end - 1, start))
        if not self.profile.overlap:  # a straight line
            return (end - start) * (total_s(*opening) + total_s(*closing)) / 2
        (compute, memory, comm, overhead), (compute_end, memory_end, *_) = opening, closing
        larger = _sum_of_larger(compute, compute_end, memory, memory_end, end - start)
        return larger + (end - start) * (comm + overhead)

    def _step(self, batch, new_tokens, context, logits="last") -> Step:
        feasible = self._checked(batch, context + new_tokens)
        work = self._works(batch, new_tokens, context, logits)
        terms = self._terms(work, batch * new_tokens, self._overhead_s(batch, new_tokens, context))
        if is_array(feasible):
            terms = [where(feasible, term, float("nan")) for term in terms]
        compute, memory, comm, overhead = terms
        bus_s = sum(w.bytes for w in work) / self.accelerator.hbm_bytes_per_s
        return step(
            flops=reduce(maximum, (w.flops for w in work)), moved_bytes=reduce(maximum, (w.bytes for w in work)),
            compute_s=compute, memory_s=memory, comm_s=comm, overhead_s=overhead, feasible=feasible,
            peak_s=compute * self.profile.flop_frac / self.pp, bus_s=bus_s / self.pp)

    def _time(self, batch, new_tokens, context):
        return total_s(*self._pass(batch, new_tokens, context))

    def _pass(self, batch, new_tokens, context):
        return self._terms(self._works(batch, new_tokens, context), batch * new_tokens,
                           self._overhead_s(batch, new_tokens, context))

    def _works(self, batch, new_tokens, context, logits="last") -> list[Work]:
        """The work of one GPU of each stage."""
        return [forward(part, batch, new_tokens, context, logits=logits, weights=self.weights, kv=self.kv,
                        split=self.split) for part in self.stages]

    def _terms(self, work: list[Work], tokens, overhead_s):
        """Compute, memory, communication, overhead: one pass over `tokens` in all, its stages one after the other.

        Where a profile says that arithmetic and reading do not overlap, the shorter of them is overhead.
        """
        bus, profile = self.accelerator.hbm_bytes_per_s, self.profile
        peak_s, bus_s = sum(self._compute_s(w) for w in work), sum(w.bytes for w in work) / bus
        if profile is IDEAL:
            return peak_s, bus_s, 0.0, 0.0
        kv_s = sum(w.kv_read_bytes + w.kv_write_bytes for w in work) / bus
        memory_s = (bus_s - kv_s) / profile.weight_frac + kv_s / profile.kv_frac
        compute_s = peak_s / profile.flop_frac
        if not profile.overlap:
            overhead_s = overhead_s + minimum(compute_s, memory_s)
        return compute_s, memory_s, self._comm_s(tokens), overhead_s

    def _compute_s(self, work: Work):
        return sum(flops / self._peak(rate) for rate, flops in work.flops_by_rate.items())

    def _peak(self, rate: str) -> float:
        peaks = self.accelerator.peaks
        return peaks.get(rate) or peaks.get("bf16") or self.accelerator.flop_per_s("fp16")

    def _expert_compute_s(self, tokens):
        """The part of the arithmetic of `tokens` that routed experts do, at peak."""
        return sum(s.flops_per_token * tokens / self._peak(s.rate) for part in self.stages
                   for s in weight_sums(part, part.recipe(self.weights), self.split) if s.role == "expert")

    def _comm_s(self, tokens):
        every = collectives(self.model, 1, tokens, self.tp, self.pp, self.ep)
        return self._wire_s(tokens) + self.profile.collective_s * sum(c.count * math.log2(c.n) for c in every)

    def _wire_s(self, tokens):
        """The bytes of all collectives at the profile's share of the link."""
        if not self.profile.link_frac:
            return 0.0
        return sum(c.count * c.wire_bytes / (self.link_bytes_per_s(c) * self.profile.link_frac)
                   for c in collectives(self.model, 1, tokens, self.tp, self.pp, self.ep))

    def link_bytes_per_s(self, c: Collective) -> float:
        """Bytes per second each way that a GPU has for a collective: its own link, or the network between nodes.

        A pipeline that spans nodes is charged the network for every hop.
        Raises ValueError where the accelerator's link is not known and none was given.
        """
        if self.link is not None:
            return self.link.bytes_per_s_each_way
        if self.accelerator.link is None:
            raise ValueError(f"{self.accelerator.name} has no known link; give link= in bytes per second each way")
        inside = self.accelerator.link.bytes_per_s_each_way
        return min(inside, INTERNODE_BYTES_PER_S) if c.span > self.gpus_per_node else inside

    def _overhead_s(self, batch, new_tokens, context):
        profile = self.profile
        if profile is IDEAL:
            return 0.0
        experts = sum(n * max((t.used for t in layer.tensors if t.role == "expert"), default=0)
                      for layer, n in self.model.layer_kinds)
        late = where((context > profile.long_context_tokens) & (new_tokens == 1), profile.long_context_s, 0.0)
        fixed = profile.step_s + profile.layer_s * len(self.model.layers)
        return fixed + profile.expert_s * experts + profile.sequence_s * batch * self.pp + late


def _lowest(value) -> float:
    return float(value.min()) if is_array(value) else value


def _sum_of_larger(a0, a1, b0, b1, n):
    """Sum over n evenly spaced points of the larger of two straight lines, from a0 to a1 and from b0 to b1.

    >>> _sum_of_larger(0, 4, 4, 0, 5)    # 4 + 3 + 2 + 3 + 4
    16.0
    """
    high, low = maximum(a0 - b0, a1 - b1), minimum(a0 - b0, a1 - b1)
    slope = (high - low) / maximum(n - 1, 1)
    above = where(high > 0, minimum(high // maximum(slope, 1e-300) + 1, n), 0)  # points at which a is the larger
    return n * (b0 + b1) / 2 + above * high - slope * above * (above - 1) / 2


def _whole_tokens(output):
    output = number("output", output, minimum=1, maximum=LONGEST_OUTPUT)
    if not (output % 1 == 0).all() if is_array(output) else output % 1:
        raise ValueError(f"output={shown(output)}; give whole numbers of tokens")
    return output
