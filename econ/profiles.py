"""How far real systems stay below the floor: a few named constants, fitted to published measurements.

A profile is one TOML file in data/profiles: its constants, the data and date they were fitted on, and the
error on data left out of the fit. "ideal" is physics and has no file.
"""

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache

from .arrays import scalar
from .errors import UnknownName
from .names import DATA, nearest
from .units import shown

_SHARES = ("flop_frac", "weight_frac", "kv_frac", "link_frac")
_TIMES = ("collective_s", "expert_s", "sequence_s", "step_s", "long_context_s")


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
    long_context_s: float = 0.0  # every decode step beyond long_context_tokens
    long_context_tokens: float = float("inf")
    fitted: dict = field(default_factory=dict, hash=False)  # data, date, engine, rows, held-out errors: see the file

    def __post_init__(self):
        for name in _SHARES:
            share = getattr(self, name)
            if not (share is None and name == "link_frac") and scalar(name, share, minimum=0, maximum=1) == 0:
                raise ValueError(f"profile {self.name}: {name}=0; give a share above 0 and up to 1")
        for name in _TIMES:
            scalar(name, getattr(self, name), minimum=0)


IDEAL = Profile()
_CONSTANTS = (*_SHARES, *_TIMES, "long_context_tokens")


def profiles() -> list[str]:
    """Names of the profiles.

    >>> "ideal" in profiles()
    True
    """
    return ["ideal", *sorted(path.stem for path in (DATA / "profiles").glob("*.toml"))]


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
    table = tomllib.loads((DATA / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))
    unknown = set(table["constants"]) - set(_CONSTANTS)
    if unknown:
        raise ValueError(f"profile {name}: unknown constants {', '.join(sorted(unknown))}; use {', '.join(_CONSTANTS)}")
    return Profile(name=name, fitted=table["fitted"], **table["constants"])
