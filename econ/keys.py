"""A parsed config.json, read with aliases, class defaults and checks: every error names the key and what was given."""

import json
import math
from functools import lru_cache

from .errors import ConfigError
from .names import DATA

ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "d_kv"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k",
              "top_k_experts"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "n_ctx", "max_seq_len", "model_max_length"),
}
SIZES = ("layers", "hidden", "heads", "ffn", "vocab")  # what a published config states at its top level
TEXT_KEYS = ("text_config", "llm_config", "language_config")
LARGEST = 2**40


@lru_cache(maxsize=1)
def class_defaults() -> dict[str, dict]:
    """What each family's configuration class assumes for a key that a config leaves out.

    >>> class_defaults()["mistral"]["sliding_window"]
    4096
    """
    return json.loads((DATA / "defaults.json").read_text(encoding="utf-8"))


class Keys:
    """One config: a layer's own values, then the text model's keys, then the top level's, then the family's defaults.

    Present and null differs from absent: only an absent key takes the class default.
    """

    def __init__(self, config: dict):
        if not isinstance(config, dict):
            raise ConfigError(f"a config is a JSON object, not a {type(config).__name__}; give a model's config.json")
        self.top, self.text = config, _text_config(config)
        self.nested = self.text is not config
        self.defaults: dict = {}
        self.spellings: dict[str, tuple[str, ...]] = {}  # the family's own names of keys
        self.layer: dict = {}
        self.read: set[str] = set()

    def at(self, layer: dict) -> "Keys":
        """The same config as one layer sees it, with that layer's own values on top."""
        if not layer:
            return self
        view = object.__new__(Keys)
        view.__dict__.update(self.__dict__, layer={**self.layer, **layer})
        return view

    def names(self, what: str) -> tuple[str, ...]:
        """The keys that may hold a quantity, in order."""
        return (*self.spellings.get(what, ()), *ALIASES.get(what, (what,)))

    def given(self, what: str):
        """The first value that is present and not null, without any default."""
        names = self.names(what)
        self.read.update(names)
        return next((source[name] for source in (self.layer, self.text, self.top) for name in names
                     if source.get(name) is not None), None)

    def default(self, what: str):
        """The class default of a quantity, None where there is none."""
        return next((self.defaults[name] for name in self.names(what) if self.defaults.get(name) is not None), None)

    def raw(self, what: str):
        """The value of a quantity: as given, or the class default where no key of it is present; else None."""
        value, names = self.given(what), self.names(what)
        if value is not None or any(name in self.text for name in names):
            return value
        if what in SIZES and not self.nested and self.default(what) is not None:
            raise _missing(names)  # a default is nobody's size: only a nested text_config may leave sizes out
        return self.default(what)

    def integer(self, what: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`, by quantity or by key."""
        value = self.raw(what)
        if value is not None:
            return whole(self.names(what)[0], value, least)
        if default is None:
            raise _missing(self.names(what))
        return default

    def number(self, what: str) -> float:
        """A finite positive number."""
        value = self.raw(what)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise ConfigError(f"{what}={_short(value)} is not a positive number")
        return value

    def optional(self, what: str, least: int = 1) -> int | None:
        """The same, or None where the key is null, or absent without a default."""
        return None if self.raw(what) is None else self.integer(what, least=least)

    def flag(self, spec) -> bool:
        """A family's column: true, false, or the name of the key that decides."""
        if not isinstance(spec, str):
            return bool(spec)
        value = self.raw(spec)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{spec}={value!r} is not true or false")
        return bool(value)

    def listed(self, what: str, length: int | None = None) -> list | None:
        """A list, of one entry a layer where `length` is given; None where absent."""
        value, name = self.raw(what), self.names(what)[0]
        if value is None:
            return None
        draft = self.given("num_nextn_predict_layers")  # entries beyond the layers are those of draft layers
        if isinstance(value, list) and isinstance(draft, int) and length is not None and len(value) == length + draft:
            value = value[:length]
        if not isinstance(value, list) or (length is not None and len(value) != length):
            given = f"{len(value)} entries" if isinstance(value, list) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} has {given}; give a list" + (f" of {length}, one a layer" if length else ""))
        return value

    def mapping(self, what: str) -> dict:
        """A JSON object; empty where absent."""
        value = self.raw(what)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{what} is a {type(value).__name__}; give a JSON object")
        return value or {}


def whole(name: str, value, least: int = 1) -> int:
    """A checked whole number.

    >>> whole("num_hidden_layers", 32.0)
    32
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ConfigError(f"{name}={_short(value)} is not a whole number; give an integer of at least {least}")
    if value < least:
        raise ConfigError(f"{name}={value} is too small; give an integer of at least {least}")
    if value > LARGEST:
        raise ConfigError(f"{name}={_short(value)} is larger than any published model's; check the config")
    return int(value)


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _missing(names: tuple[str, ...]) -> ConfigError:
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    return ConfigError(f"the config has no {names[0]}: add {names[0]}{others} as a whole number")


def _text_config(config: dict) -> dict:
    thinker = config.get("thinker_config")
    outer = thinker if isinstance(thinker, dict) else config
    for name in TEXT_KEYS:
        if outer.get(name) is not None:
            if not isinstance(outer[name], dict):
                raise ConfigError(f"{name} is a {type(outer[name]).__name__}; give a JSON object")
            return outer[name]
    return outer
