"""One model on some GPUs: how long a prefill, a decode step and a whole request take.

`Timed` is what `econ.Deployment` is made of; `econ.serving` and `econ.cost` add their questions to it.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .arrays import is_array, maximum, minimum, number, where, whole
from .config import load_model
from .errors import DoesNotFit
from .hardware import Link, load_accelerator
from .memory import Memory, memory
from .model import Model
from .parallel import collectives, stages
from .precision import CACHE_BYTES, canonical
from .profiles import load_profile
from .roofline import Step, step
from .units import GIB, shown
from .work import Split, Work, forward

INTERNODE_BYTES_PER_S = 50e9  # each way: one 400 Gb/s adapter a GPU, as in the deployments that insights2025 describes
LONGEST_OUTPUT = 10**6  # tokens; each is a step of its own


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


@dataclass(frozen=True, eq=False)
class Timed:
    """`model` on `n_gpus` = tp * pp * dp accelerators: dp replicas of pp stages, each layer split tp ways.

    Names or objects. `ep` spreads a layer's experts over that many of the tp * dp GPUs. `weights` and `kv` are
    dtypes, None as published. profile="ideal" is the floor: causal scores, logits of the last position, every byte
    once, full peak and full bandwidth, no communication; nothing real is faster. Other profiles add what was
    measured. `link` (bytes per second each way, or a Link) overrides the datasheet's; a group larger than
    `gpus_per_node` uses 50e9 B/s. `gpu_mem_frac` is the share of a GPU's visible memory that weights, cache and
    state may take; `max_running` the engine's own limit on sequences a replica.
    Raises ValueError for degrees that do not multiply to n_gpus, or that do not divide heads or experts.

    >>> d = Timed("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(d.prefill(prompt=2048).time_s, 6), round(d.decode(context=2048).time_s, 6)
    (0.072264, 0.010424)
    """

    model: Any  # a Model after construction
    accelerator: Any  # an Accelerator after construction
    n_gpus: int = 1
    tp: Any = None  # a whole number after construction
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weights: str | None = None
    kv: str | None = None
    profile: Any = "ideal"  # a Profile after construction
    link: Any = None
    gpu_mem_frac: float = 0.9
    max_running: int | None = None
    gpus_per_node: int = 8

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen dataclass
        put("model", load_model(self.model))
        put("accelerator", load_accelerator(self.accelerator))
        for name in ("n_gpus", "pp", "dp", "ep", "gpus_per_node"):
            put(name, whole(name, getattr(self, name)))
        put("tp", max(self.n_gpus // (self.pp * self.dp), 1) if self.tp is None else whole("tp", self.tp))
        if self.tp * self.pp * self.dp != self.n_gpus:
            raise ValueError(f"tp={self.tp} * pp={self.pp} * dp={self.dp} is not n_gpus={self.n_gpus}; "
                             "give degrees that multiply to it")
        _check_heads(self.model, self.tp)
        _check_experts(self.model, self.tp, self.dp, self.ep)
        self.model.recipe(self.weights)
        if self.kv is not None:
            put("kv", canonical(self.kv, CACHE_BYTES, "kv"))
        put("profile", load_profile(self.profile))
        if self.max_running is not None:
            put("max_running", whole("max_running", self.max_running))
        if is_array(self.gpu_mem_frac):
            raise ValueError("gpu_mem_frac is an array; a deployment has one, so give a single number")
        put("gpu_mem_frac", number("gpu_mem_frac", self.gpu_mem_frac, minimum=0, maximum=1))
        if self.link is not None and not isinstance(self.link, Link):
            put("link", Link(name="given", bytes_per_s_each_way=number("link", self.link, minimum=1)))
        stages(self.model, self.pp)

    @property
    def split(self) -> Split:
        """The part of every layer that one GPU holds."""
        return Split(tp=self.tp, experts=self.ep)

    @cached_property
    def stages(self) -> tuple[Model, ...]:
        """The pipeline stages of one replica; the model itself without a pipeline."""
        return stages(self.model, self.pp)

    def link_bytes_per_s(self, n: int) -> float:
        """Bytes per second each way between the members of a group of `n` GPUs.

        Raises ValueError where the accelerator's link is not known and none was given.
        """
        if self.link is not None:
            return self.link.bytes_per_s_each_way
        if n > self.gpus_per_node:
            return INTERNODE_BYTES_PER_S
        if self.accelerator.link is None:
            raise ValueError(f"{self.accelerator.name} has no known link; give link= in bytes per second each way")
        return self.accelerator.link.bytes_per_s_each_way

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
        steps = int(output.max() if is_array(output) else output) - 1
        decoding = sum(where(k < output - 1, 1.0, 0.0) * self._time(batch, 1, prompt + k) for k in range(steps))
        total, later = ttft + decoding, where(output > 1, output - 1, 1)
        return Request(ttft_s=ttft, tpot_s=where(output > 1, decoding / later, single), total_s=total,
                       output_tokens_per_s=batch * output / total, feasible=feasible)

    def memory(self, batch=1, context=0) -> Memory:
        """What the fullest GPU holds for `batch` sequences of `context` tokens a replica. Never raises DoesNotFit."""
        return self._memory(batch, context, self.split)

    def _memory(self, batch, context, split: Split) -> Memory:
        usable_bytes = self.gpu_mem_frac * self.accelerator.memory_bytes
        each = [memory(part, usable_bytes, batch, context, self.weights, self.kv, split) for part in self.stages]
        return each[0] if len(each) == 1 else _fullest(each)

    def _step(self, batch, new_tokens, context) -> Step:
        feasible = self._checked(batch, context + new_tokens)
        work = self._works(batch, new_tokens, context)
        timed = self._terms(work, batch, new_tokens, context)
        if is_array(feasible):
            timed = {name: where(feasible, value, float("nan")) for name, value in timed.items()}
        return step(max(work, key=lambda w: _lowest(w.bytes)), feasible=feasible, **timed)

    def _time(self, batch, new_tokens, context):
        t = self._terms(self._works(batch, new_tokens, context), batch, new_tokens, context)
        return maximum(t["compute_s"], t["memory_s"]) + t["comm_s"] + t["overhead_s"]

    def _terms(self, work: list[Work], batch, new_tokens, context) -> dict:
        """The terms of one pass, all stages one after the other."""
        bus, profile = self.accelerator.hbm_bytes_per_s, self.profile
        peak_s, bus_s = sum(self._compute_s(w) for w in work), sum(w.bytes for w in work) / bus
        terms = {"compute_s": peak_s, "memory_s": bus_s, "comm_s": 0.0, "overhead_s": 0.0}
        if profile.name != "ideal":
            kv = sum(w.kv_read_bytes + w.kv_write_bytes for w in work) / bus
            terms = {"compute_s": peak_s / profile.flop_frac,
                     "memory_s": (bus_s - kv) / profile.weight_frac + kv / profile.kv_frac,
                     "comm_s": self._comm_s(batch, new_tokens),
                     "overhead_s": self._overhead_s(batch, new_tokens, context)}
        return {**terms, "peak_s": peak_s / self.pp, "bus_s": bus_s / self.pp}

    def _comm_s(self, batch, new_tokens):
        profile, total = self.profile, 0.0
        for c in collectives(self.model, batch, new_tokens, self.tp, self.pp, self.ep):
            wire_s = c.wire_bytes / (self.link_bytes_per_s(c.n) * profile.link_frac) if profile.link_frac else 0.0
            total = total + c.count * (wire_s + profile.collective_s * math.log2(c.n))
        return total

    def _overhead_s(self, batch, new_tokens, context):
        profile = self.profile
        experts = sum(n * max((t.used for t in layer.tensors if t.role == "expert"), default=0)
                      for layer, n in self.model.layer_kinds)
        late = where((context > profile.long_context_tokens) & (new_tokens == 1), profile.long_context_s, 0.0)
        return profile.step_s + profile.expert_s * experts + profile.sequence_s * batch * self.pp + late

    def _works(self, batch, new_tokens, context) -> list[Work]:
        """The work of one GPU of each stage."""
        return [forward(part, batch, new_tokens, context, weights=self.weights, kv=self.kv, split=self.split)
                for part in self.stages]

    def _compute_s(self, work: Work):
        peaks = self.accelerator.peaks
        wide = peaks.get("bf16") or self.accelerator.flop_per_s("fp16")
        return sum(flops / (peaks.get(rate) or wide) for rate, flops in work.flops_by_rate.items())

    def _checked(self, batch, tokens):
        """True where `tokens` a sequence fit; raises for a scalar that does not."""
        limit = self.model.max_context
        need = self.memory(batch, tokens)
        feasible = need.fits if limit is None else need.fits & (tokens <= limit)
        if is_array(feasible):
            return feasible
        if limit is not None and tokens > limit:
            raise ValueError(f"{tokens:,} tokens are beyond the {limit:,} that {self.model.name} takes; use fewer")
        if not need.fits:
            raise DoesNotFit(self._short(need, batch, tokens))
        return True

    def _short(self, need: Memory, batch, tokens) -> str:
        g, short = self.accelerator.name, f"short by {-need.free_bytes / GIB:,.2f} GiB on each GPU"
        asked = f"{self.model.name} on {self.n_gpus} x {g}: batch {batch:,} at {tokens:,} tokens is {short}"
        if need.max_batch >= 1:
            return f"{asked}; batch {need.max_batch:,} fits"
        alone = self.memory(1, tokens).max_context
        if alone >= 1:
            return f"{asked}; one sequence of {alone:,} tokens fits"
        held, budget = need.weight_bytes / GIB, need.budget_bytes / GIB
        return f"{asked}; the weights take {held:,.1f} of {budget:,.1f} GiB: {self._larger()}"

    def _larger(self) -> str:
        for tp in (2, 4, 8, 16, 32, 64):
            if tp > self.tp and not self.model.heads % tp and self._memory(1, 1, Split(tp=tp, experts=tp)).fits:
                return f"tp={tp} fits"
        return "use GPUs with more memory or smaller weights"


def _lowest(value) -> float:
    return float(value.min()) if is_array(value) else value


def _fullest(each: list[Memory]) -> Memory:
    """The stage with the least free memory, with the batch and context that every stage can hold."""
    tightest = min(each, key=lambda b: _lowest(b.free_bytes))
    return replace(tightest, fits=_every(b.fits for b in each), max_batch=_least(b.max_batch for b in each),
                   max_context=_least(b.max_context for b in each))


def _every(flags):
    result: Any = True
    for one in flags:
        result = result & one
    return result


def _least(values):
    result: Any = float("inf")
    for one in values:
        result = minimum(result, one)
    return result


def _whole_tokens(output):
    output = number("output", output, minimum=1, maximum=LONGEST_OUTPUT)
    if not (output % 1 == 0).all() if is_array(output) else output % 1:
        raise ValueError(f"output={shown(output)}; give whole numbers of tokens")
    return output


def _check_heads(model: Model, tp: int) -> None:
    for attention, _ in model.attention_kinds:
        if attention.heads % tp:
            raise ValueError(f"tp={tp} does not divide the {attention.heads} heads of {model.name}; use a divisor")


def _check_experts(model: Model, tp: int, dp: int, ep: int) -> None:
    if ep == 1:
        return
    counts = {t.copies for layer, _ in model.layer_kinds for t in layer.tensors if t.role == "expert"}
    if not counts:
        raise ValueError(f"ep={ep}, but {model.name} has no experts; use ep=1")
    if any(n % ep for n in counts):
        raise ValueError(f"ep={ep} does not divide the {max(counts)} experts of {model.name}; use a divisor")
    if (tp * dp) % ep or (tp % ep and ep % tp):
        raise ValueError(f"ep={ep} does not fit tp={tp} * dp={dp} GPUs; use a divisor or a multiple of tp that divides "
                         f"{tp * dp}")
