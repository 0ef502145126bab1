"""One model on some GPUs: which part each GPU holds, and what fits beside it."""

from dataclasses import dataclass, fields
from functools import cached_property, reduce
from typing import Any

from .arrays import is_array, minimum, number, where, whole
from .config import load_model
from .errors import DoesNotFit
from .hardware import Link, load_accelerator
from .memory import Memory, memory
from .model import Model
from .parallel import stages
from .precision import CACHE_BYTES, canonical
from .profiles import load_profile
from .units import GIB
from .work import Split


@dataclass(frozen=True, eq=False, repr=False)
class Placed:
    """`model` on `n_gpus` = tp * pp * dp accelerators: dp replicas of pp stages, each layer split tp ways.

    Names or objects. `ep` spreads a layer's experts over that many of the tp * dp GPUs. `weights` and `kv` are
    dtypes, None as published. profile="ideal" is the floor: causal scores, logits of the last position, every byte
    once, full peak and full bandwidth, no communication; nothing real is faster. Other profiles add what was
    measured. `link` (bytes per second each way, or a Link) overrides the datasheet's; a group that spans more than
    `gpus_per_node` uses at most 50e9 B/s. `gpu_mem_frac` is the share of a GPU's visible memory that weights, cache
    and state may take; `max_running` the engine's own limit on sequences a replica.
    Raises ValueError for degrees that do not multiply to n_gpus, or that do not divide heads or experts.

    >>> Placed("llama-3.3-70b", "h100-sxm", n_gpus=8, dp=2, kv="fp8")
    Placed(model='llama-3.3-70b', accelerator='h100-sxm', n_gpus=8, tp=4, dp=2, kv='fp8')
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
        put("profile", load_profile(self.profile))
        for name in ("n_gpus", "pp", "dp", "ep", "gpus_per_node"):
            put(name, whole(name, getattr(self, name)))
        put("tp", max(self.n_gpus // (self.pp * self.dp), 1) if self.tp is None else whole("tp", self.tp))
        self._check_degrees()
        self.model.recipe(self.weights)
        if self.kv is not None:
            put("kv", canonical(self.kv, CACHE_BYTES, "kv"))
        if self.max_running is not None:
            put("max_running", whole("max_running", self.max_running))
        if is_array(self.gpu_mem_frac):
            raise ValueError("gpu_mem_frac is an array; a deployment has one, so give a single number")
        put("gpu_mem_frac", number("gpu_mem_frac", self.gpu_mem_frac, minimum=0, maximum=1))
        if self.link is not None and not isinstance(self.link, Link):
            put("link", Link(name="given", bytes_per_s_each_way=number("link", self.link, minimum=1)))

    def __repr__(self):
        values = {f: getattr(getattr(self, f.name), "name", getattr(self, f.name)) for f in fields(self)}
        options = [f"{f.name}={value!r}" for f, value in values.items() if value != f.default]
        return f"{type(self).__name__}({', '.join(options)})"

    def _check_degrees(self) -> None:
        tp, pp, dp, ep, name = self.tp, self.pp, self.dp, self.ep, self.model.name
        if tp * pp * dp != self.n_gpus:
            raise ValueError(f"tp={tp} * pp={pp} * dp={dp} is not n_gpus={self.n_gpus}; "
                             "give degrees that multiply to it")
        if not divides_heads(self.model, tp):
            raise ValueError(f"tp={tp} does not divide the {self.model.heads} heads of {name}; use a divisor")
        counts = {t.copies for layer, _ in self.model.layer_kinds for t in layer.tensors if t.role == "expert"}
        if ep > 1 and not counts:
            raise ValueError(f"ep={ep}, but {name} has no experts; use ep=1")
        if any(n % ep for n in counts):
            raise ValueError(f"ep={ep} does not divide the {max(counts)} experts of {name}; use a divisor")
        if (tp * dp) % ep or (tp % ep and ep % tp):
            raise ValueError(f"ep={ep} does not fit tp={tp} * dp={dp} GPUs; use a divisor of tp, or a multiple of it "
                             f"that divides {tp * dp}")
        stages(self.model, pp)

    @property
    def split(self) -> Split:
        """The part of every layer that one GPU holds."""
        return Split(tp=self.tp, experts=self.ep)

    @cached_property
    def stages(self) -> tuple[Model, ...]:
        """The pipeline stages of one replica; the model itself without a pipeline."""
        return stages(self.model, self.pp)

    def memory(self, batch=1, context=0) -> Memory:
        """What the fullest GPU holds for `batch` sequences of `context` tokens a replica. Never raises DoesNotFit.

        >>> Placed("llama-3.3-70b", "h100-sxm", n_gpus=2).memory(batch=8, context=2048).max_batch
        19
        """
        return self._memory(batch, context, self.split)

    def _memory(self, batch, context, split: Split) -> Memory:
        usable_bytes = self.gpu_mem_frac * self.accelerator.memory_bytes
        each = [memory(part, usable_bytes, batch, context, self.weights, self.kv, split) for part in self.stages]
        return reduce(_tighter, each)

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
            if tp > self.tp and divides_heads(self.model, tp) and self._memory(1, 1, Split(tp=tp, experts=tp)).fits:
                return f"tp={tp} fits"
        return "use GPUs with more memory or smaller weights"


def divides_heads(model: Model, tp: int) -> bool:
    """True if every attention layer's query heads can be shared out evenly among `tp` GPUs."""
    return not any(attention.heads % tp for attention, _ in model.attention_kinds)


def _tighter(a: Memory, b: Memory) -> Memory:
    """Of two stages the one with less free memory, with the batch and context that both can hold."""
    tight = a.free_bytes <= b.free_bytes
    one = {f.name: where(tight, getattr(a, f.name), getattr(b, f.name)) for f in fields(Memory)}
    both = {name: minimum(getattr(a, name), getattr(b, name)) for name in ("fits", "max_batch", "max_context")}
    return Memory(**{**one, **both})
