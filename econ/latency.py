"""A deployment: one model on some GPUs. How long a prefill, a decode step and a whole request take."""

from dataclasses import dataclass
from typing import Any

from .arrays import is_array, number, where, whole
from .config import load_model
from .errors import DoesNotFit
from .hardware import load_accelerator
from .memory import Memory, memory
from .model import Model
from .precision import CACHE_BYTES, canonical
from .roofline import Step, step
from .units import GIB, shown
from .work import Split, Work, forward

PROFILES = ("ideal",)
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
class Deployment:
    """`model` on `n_gpus` accelerators: tp * dp of them, each replica split tp ways. Names or objects.

    profile="ideal" is the floor: causal scores, logits of the last position, every byte once, full peak and full
    bandwidth, no communication. Nothing real is faster. `weights` and `kv` are dtypes, None as published;
    `gpu_mem_frac` is the share of a GPU's visible memory that weights, cache and state may take.
    Raises ValueError for degrees that do not multiply to n_gpus or do not divide the query heads.

    >>> d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    >>> round(d.prefill(prompt=2048).time_s, 6), round(d.decode(context=2048).time_s, 6)
    (0.072264, 0.010424)
    """

    model: Any  # a Model after construction
    accelerator: Any  # an Accelerator after construction
    n_gpus: int = 1
    tp: Any = None  # a whole number after construction
    dp: int = 1
    weights: str | None = None
    kv: str | None = None
    profile: str = "ideal"
    gpu_mem_frac: float = 0.9

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen dataclass
        put("model", load_model(self.model))
        put("accelerator", load_accelerator(self.accelerator))
        put("n_gpus", whole("n_gpus", self.n_gpus))
        put("dp", whole("dp", self.dp))
        put("tp", self.n_gpus // self.dp if self.tp is None else whole("tp", self.tp))
        if self.tp * self.dp != self.n_gpus:
            raise ValueError(f"tp={self.tp} * dp={self.dp} is not n_gpus={self.n_gpus}; give degrees that do")
        _check_heads(self.model, self.tp)
        self.model.recipe(self.weights)
        if self.kv is not None:
            put("kv", canonical(self.kv, CACHE_BYTES, "kv"))
        if self.profile not in PROFILES:
            raise ValueError(f"unknown profile {shown(self.profile)}; use one of {', '.join(PROFILES)}")
        if is_array(self.gpu_mem_frac):
            raise ValueError("gpu_mem_frac is an array; a deployment has one, so give a single number")
        put("gpu_mem_frac", number("gpu_mem_frac", self.gpu_mem_frac, minimum=0, maximum=1))

    @property
    def split(self) -> Split:
        """The part of every layer that one GPU holds."""
        return Split(tp=self.tp, experts=self.tp)

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
        return memory(self.model, usable_bytes, batch, context, self.weights, self.kv, split)

    def _step(self, batch, new_tokens, context) -> Step:
        feasible = self._checked(batch, context + new_tokens)
        work = self._work(batch, new_tokens, context)
        compute_s, memory_s = self._compute_s(work), work.bytes / self.accelerator.hbm_bytes_per_s
        if is_array(feasible):
            compute_s, memory_s = where(feasible, compute_s, float("nan")), where(feasible, memory_s, float("nan"))
        return step(work, compute_s, memory_s, feasible=feasible)

    def _work(self, batch, new_tokens, context) -> Work:
        return forward(self.model, batch, new_tokens, context, weights=self.weights, kv=self.kv, split=self.split)

    def _time(self, batch, new_tokens, context):
        work = self._work(batch, new_tokens, context)
        return step(work, self._compute_s(work), work.bytes / self.accelerator.hbm_bytes_per_s).time_s

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


def _whole_tokens(output):
    output = number("output", output, minimum=1, maximum=LONGEST_OUTPUT)
    if not (output % 1 == 0).all() if is_array(output) else output % 1:
        raise ValueError(f"output={shown(output)}; give whole numbers of tokens")
    return output


def _check_heads(model: Model, tp: int) -> None:
    for attention, _ in model.attention_kinds:
        if attention.heads % tp:
            raise ValueError(f"tp={tp} does not divide the {attention.heads} heads of {model.name}; use a divisor")
