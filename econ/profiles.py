"""How far real systems stay below the floor: a few named constants, fitted to published measurements.

A profile is one TOML file in data/profiles: its constants, the data and date they were fitted on, and the
error on data left out of the fit. "ideal" is physics and has no file. "general/vllm" is a variant: the same file
with the constants that are an engine's own.
"""

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache

from .arrays import scalar
from .errors import UnknownName
from .names import DATA, nearest
from .units import shown

_SHARES = ("flop_frac", "weight_frac", "kv_frac", "link_frac", "expert_prefill_frac")
_STACKED = ("a100", "a30", "h100", "h200", "h800", "h20", "gh200", "b200", "b300", "gb200", "gb300", "mi", "v100",
            "p100", "gaudi", "tpu", "trainium")  # names of cards with stacked memory start so
_AT_LEAST_0 = ("collective_s", "expert_s", "sequence_s", "step_s", "layer_s", "long_context_s", "first_token_steps",
               "burst_frac")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Constants that turn a floor into a prediction; the defaults are the floor itself.

    Shares are fractions of the peak, times are seconds. *Effective* constants hold more than their name says.
    """

    name: str = "ideal"
    flop_frac: float = 1.0  # of peak FLOP/s
    weight_frac: float = 1.0  # of memory bandwidth, reading weights and state
    kv_frac: float = 1.0  # of memory bandwidth, reading and writing the cache; effective
    link_frac: float | None = None  # of the link, one way; None: communication is inside the other constants
    collective_s: float = 0.0  # of each collective, times log2 of its GPUs; effective
    expert_s: float = 0.0  # for each expert of a token, in each routed layer; effective
    sequence_s: float = 0.0  # for each running sequence, every step
    step_s: float = 0.0  # every step
    layer_s: float = 0.0  # each layer, every step
    long_context_s: float = 0.0  # every decode step beyond long_context_tokens
    long_context_tokens: float = float("inf")
    overlap: bool = True  # arithmetic while memory is read: the longer counts; False: both, the shorter as overhead
    prompts_share_passes: bool = False  # a full engine reads prompts beside decode steps: throughput counts FLOPs only
    expert_prefill_frac: float | None = None  # of peak FLOP/s, experts of a lone prompt; None: flop_frac
    first_token_steps: float = 0.0  # decode steps that a benchmark waits for its first token; effective
    burst_frac: float = 0.0  # of half the other running prompts, read before one's own in a benchmark's first burst
    fitted: dict = field(default_factory=dict, hash=False)  # data, date, engine, rows, held-out errors: see the file

    def __post_init__(self):
        for name in _SHARES:
            share = getattr(self, name)
            if share is not None and scalar(name, share, minimum=0, maximum=1) == 0:
                raise ValueError(f"profile {self.name}: {name}=0; give a share above 0 and up to 1")
        for name in _AT_LEAST_0:
            scalar(name, getattr(self, name), minimum=0)

    def interval(self, quantity: str, value) -> tuple:
        """The range that holds the measured value in 80 % of groups left out of the fit.

        `quantity` is one of those that the profile was fitted to, such as "tpot". Raises ValueError for another.
        A profile with an engine's own constants ("general/vllm") knows the engine; without, the range is wider.

        >>> low, high = load_profile("general").interval("tpot", 0.010)
        >>> low < 0.010 < high
        True
        """
        known = self.fitted.get("interval", {})
        if "/" not in self.name:
            known = {**known, **self.fitted.get("interval_of_unseen_engines", {})}
        if quantity not in known:
            raise ValueError(f"profile {self.name} has no interval for {shown(quantity)}; "
                             f"it has {', '.join(known) or 'none'}")
        low, high = known[quantity]
        return low * value, high * value

    def unseen(self, model, accelerator) -> list[str]:
        """Which of "model" and "gpu" the fit did not contain: how far a question is from the data.

        >>> from econ import load_accelerator, load_model
        >>> load_profile("general").unseen(load_model("llama-3.3-70b"), load_accelerator("mi300x"))
        ['gpu']
        """
        pairs = (("model", model.name, "models"), ("gpu", accelerator.name, "accelerators"))
        return [what for what, name, known in pairs if name not in self.fitted.get(known, ())]


def llama_cpp(gpu: str) -> str:
    """The name of the llama.cpp profile for a GPU: cards with stacked memory and Metal have constants of their own.

    >>> llama_cpp("a100-sxm-80"), llama_cpp("apple-m2"), llama_cpp("rtx-4090")
    ('llama.cpp/hbm', 'llama.cpp/metal', 'llama.cpp')
    """
    name = gpu.lower()
    return "llama.cpp" + ("/metal" if name.startswith("apple") else "/hbm" if name.startswith(_STACKED) else "")


IDEAL = Profile()
_CONSTANTS = (*_SHARES, *_AT_LEAST_0, "long_context_tokens", "overlap", "prompts_share_passes")


def profiles() -> list[str]:
    """Names of the profiles.

    >>> "ideal" in profiles()
    True
    """
    names = ["ideal"]
    for path in sorted((DATA / "profiles").glob("*.toml")):
        names += [path.stem, *(f"{path.stem}/{variant}" for variant in _table(path.stem).get("variants", ()))]
    return names


@lru_cache(maxsize=64)
def load_profile(name) -> Profile:
    """A `Profile` by name, or the one that is given. Raises UnknownName with the nearest names.

    >>> load_profile("ideal").weight_frac
    1.0
    """
    if isinstance(name, Profile):
        return name
    if name == "ideal":
        return IDEAL
    if not isinstance(name, str) or name not in profiles():
        raise UnknownName(f"unknown profile {shown(name)}; nearest: {nearest(str(name)[:80], profiles())}")
    stem, _, variant = name.partition("/")
    table = _table(stem)
    constants = {**table["constants"], **(table["variants"][variant] if variant else {})}
    unknown = set(constants) - set(_CONSTANTS)
    if unknown:
        raise ValueError(f"profile {name}: unknown constants {', '.join(sorted(unknown))}; use {', '.join(_CONSTANTS)}")
    return Profile(name=name, fitted=table["fitted"], **constants)


@lru_cache(maxsize=16)
def _table(stem: str) -> dict:
    return tomllib.loads((DATA / "profiles" / f"{stem}.toml").read_text(encoding="utf-8"))
