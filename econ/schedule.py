"""Which kind every layer is: its mixer, its window, its MLP, and the values it has for itself.

What the config lists comes first: layer_types, layers_block_type, hybrid_override_pattern, attn_type_list and
mlp_layer_types. The family's rule decides where the config is silent.
"""

from dataclasses import dataclass

from .errors import ConfigError
from .families import Family
from .keys import Keys, whole
from .rules import FULL

KINDS = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "shared_index_attention",
         "linear_attention", "conv", "hybrid", "none")
LEGACY = {"attention": "full_attention", "mamba": "linear_attention", "mamba2": "linear_attention",
          "deepseek_sparse_attention": "indexed_attention", "mlp": "none", "moe": "none"}
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
MOST_LAYERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One layer's kind. `own` are the values that this layer has in place of the model's."""

    mixer: str
    mlp: str
    window: int | None = None
    reads_cache_of_another: bool = False
    own: tuple[tuple[str, object], ...] = ()


_LAYOUT = ("layer_types", "layers_block_type", "attn_type_list", "attn_layer_period", "attn_layer_indices",
           "full_attention_interval", "sliding_window", "attention_chunk_size")
_WINDOWS = {"sliding_attention": ("sliding_window", "sliding_window_size"),
            "chunked_attention": ("attention_chunk_size",)}


def schedule(keys: Keys, family: Family) -> list[Place]:
    """The kind of every layer, in order. Raises ConfigError."""
    pattern = _pattern(keys)
    n = _layer_count(keys, pattern)
    named = pattern or _listed(keys, n)
    if named or family.mixer is not FULL:
        keys.read.update(_LAYOUT)
    mixers = [_mixer(keys, family, named, i, n) for i in range(n)]
    sizes = {kind: _window(keys, kind, bool(named)) for kind in set(mixers)}
    shared = _shared_layers(keys, family, mixers)
    return [_place(keys, family, mixer, sizes[mixer], _mlp(keys, family, named, i, n), i, n, i >= n - shared)
            for i, mixer in enumerate(mixers)]


def _place(keys: Keys, family: Family, mixer: str, window: int | None, mlp: str, i: int, n: int, shared: bool) -> Place:
    own = tuple(sorted(_own(keys, family, mixer, i, n, shared).items()))
    if mixer in _WINDOWS and window is None:
        mixer = "full_attention"
    return Place(mixer=mixer, mlp=mlp, window=window, reads_cache_of_another=shared, own=own)


def _layer_count(keys: Keys, pattern: list[str] | None) -> int:
    n = len(pattern) if pattern and keys.given("layers") is None else keys.integer("layers")
    if n > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers={n} is larger than any published model's; check the config")
    if pattern and len(pattern) != n:
        raise ConfigError(f"the pattern names {len(pattern)} layers but num_hidden_layers={n}; make them agree")
    return n


def _pattern(keys: Keys) -> list[str] | None:
    pattern = keys.raw("hybrid_override_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(PATTERN):
        raise ConfigError(f"hybrid_override_pattern={str(pattern)[:40]!r}: use the characters {' '.join(PATTERN)}")
    return [PATTERN[c] for c in pattern]


def _listed(keys: Keys, n: int) -> list[str] | None:
    for name in ("layer_types", "layers_block_type"):
        kinds = keys.listed(name, n)
        if kinds is not None:
            return [str(kind) for kind in kinds]
    types = keys.listed("attn_type_list", n)
    return None if types is None else [{1: "attention", 0: "linear_attention"}.get(_plain(t), repr(t)) for t in types]


def _plain(value):
    return value if isinstance(value, int) else None


def _mixer(keys: Keys, family: Family, named: list[str] | None, i: int, n: int) -> str:
    kind = named[i] if named else family.mixer(keys, i, n)
    kind = "full_attention" if family.last_full and i == n - 1 else LEGACY.get(kind, kind)
    if not _has(keys, family, kind):
        where = "layer_types" if named else "this family"
        raise ConfigError(f"{where} has the kind {kind[:30]!r} for layer {i}, which is not implemented for this "
                          "family; list layer_types, for example full_attention or sliding_attention")
    return kind


def _has(keys: Keys, family: Family, kind: str) -> bool:
    """Whether the family's code has this mixer."""
    if kind in _WINDOWS:
        return any(key in keys.defaults for key in keys.names(_WINDOWS[kind][0]))
    if kind in ("linear_attention", "conv", "hybrid"):
        return family.recurrent is not None and (kind == "conv") == (family.recurrent == "conv")
    return kind in KINDS and (not family.only or kind in family.only)


def _mlp(keys: Keys, family: Family, named: list[str] | None, i: int, n: int) -> str:
    if named and family.one_part:
        return {"mlp": "dense", "moe": "sparse"}.get(named[i], "none")
    kinds = keys.listed("mlp_layer_types", n)
    kind = kinds[i] if kinds else family.mlp(keys, i, n)
    if kind not in ("dense", "sparse", "none"):
        raise ConfigError(f"mlp_layer_types has {kind!r}; use dense or sparse")
    no_experts = kind == "sparse" and (keys.optional("experts", least=0) or 0) <= family.fewest_experts
    return "dense" if no_experts else kind


def _window(keys: Keys, kind: str, named: bool) -> int | None:
    if kind not in _WINDOWS:
        return None
    used = kind == "chunked_attention" or keys.raw("use_sliding_window") is not False
    if not used and "use_sliding_window" not in keys.defaults:
        raise ConfigError("use_sliding_window=False in a family that does not know it; set sliding_window to null")
    for name in _WINDOWS[kind] if used else ():
        if keys.raw(name) is not None:
            return keys.integer(name)
    if named:
        raise ConfigError(f"layer_types has {kind!r} but no window size is given: add {_WINDOWS[kind][0]}")
    return None


def _shared_layers(keys: Keys, family: Family, mixers: list[str]) -> int:
    shared = keys.integer(family.shared_kv, least=0) if family.shared_kv else 0
    first = len(mixers) - shared
    if shared and (first < 1 or set(mixers[first:]) - set(mixers[:first])):
        raise ConfigError(f"{family.shared_kv}={shared} leaves no layer that keeps the cache which the last ones read")
    return shared


def _own(keys: Keys, family: Family, kind: str, i: int, n: int, shared: bool) -> dict:
    own = {name: (keys.listed(name, n) or [])[i] for name in family.lists if isinstance(keys.raw(name), list)}
    table = keys.mapping("per_layer_config")
    if not table:
        return {**own, **(family.per_layer(keys, kind, shared) if family.per_layer else {})}
    entry: object = next((table[key] for key in table if _index(key) == i), {})
    if not isinstance(entry, dict) or "skip" in entry:
        raise ConfigError(f"per_layer_config for layer {i}: give an object of keys; skip is not implemented")
    return {**own, **entry}


def _index(key: str) -> int:
    return whole("a key of per_layer_config", int(key) if key.isdecimal() and len(key) < 6 else key, least=0)
