"""Read a Hugging Face config.json into a `Model`, or refuse with one line that names the key.

`load_model` takes a registry name, a hub id, the path of a config.json, or a dict. What a config does not say
and the family's code fixes stands in `econ.families`. A wrong number is worse than an error: an unknown
family, or a key that changes the arithmetic and is not implemented, raises ConfigError.
"""

import csv
import json
import math
import os
import re
from functools import lru_cache
from pathlib import Path

from .errors import ConfigError, UnknownName
from .families import FAMILIES, SYNONYMS, Family
from .layers import build_layer, norm_tensors
from .model import Attention, Latent, Layer, Model, Tensor
from .names import DATA, aliases, nearest
from .quantized import published_format, skips
from .units import shown

ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "d_kv"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token", "moe_topk", "top_k_experts"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "n_ctx"),
}
TEXT_KEYS = ("text_config", "llm_config", "language_config")


class Keys:
    """A config.json, read with defaults, aliases and checks; every error names the key and what was given."""

    def __init__(self, config: dict):
        if not isinstance(config, dict):
            raise ConfigError(f"a config is a JSON object, not {type(config).__name__}; give the config.json of a model")
        nested = next((config[k] for k in TEXT_KEYS if isinstance(config.get(k), dict)), None)
        if nested is None and isinstance(config.get("thinker_config"), dict):
            nested = config["thinker_config"].get("text_config")
        self.text = nested if isinstance(nested, dict) else config
        self.top = config
        self.defaults: dict = {}

    def raw(self, *names: str):
        """First value that is present and not null, text config first; else the family's default; else None."""
        for source in (self.text, self.top):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        if any(name in self.text for name in names):  # present and null: the default does not apply
            return None
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def integer(self, what: str, default=None, least: int = 1) -> int:
        """A whole number of at least `least`, by alias name or by key."""
        names = ALIASES.get(what, (what,))
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise ConfigError(f"the config has no {names[0]}: add {names[0]}"
                                  + (f" (or {', '.join(names[1:])})" if names[1:] else "") + " as a whole number")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
            raise ConfigError(f"{names[0]}={value!r} is not a whole number; give an integer of at least {least}")
        if value < least:
            raise ConfigError(f"{names[0]}={value} is too small; give an integer of at least {least}")
        if value > 2**40:
            raise ConfigError(f"{names[0]}={value} is larger than any published model's; check the config")
        return int(value)

    def optional(self, what: str, least: int = 1) -> int | None:
        """The same, or None where the key is absent or null."""
        return None if self.raw(*ALIASES.get(what, (what,))) is None else self.integer(what, least=least)

    def flag(self, spec) -> bool | str:
        """A family's column: a constant, or "key=default" looked up in the config."""
        if not isinstance(spec, str) or "=" not in spec:
            return spec
        name, default = spec.split("=")
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r} is not true or false")
        return value if value is not None else default == "true"

    def listed(self, name: str, length: int | None = None) -> list | None:
        """A list, of one entry a layer where `length` is given; None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or (length is not None and len(value) != length):
            given = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
            raise ConfigError(f"{name} has {given}; give a list" + (f" of {length}, one a layer" if length else ""))
        return value


def load_model(source) -> Model:
    """A `Model` from a registry name, a hub id, the path of a config.json, a dict, or a `Model` itself.

    Raises UnknownName (with the nearest names) or ConfigError (with the key and what would work).

    >>> load_model("llama-3.3-70b").n_params
    70553706496
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, dict):
        return read_config(source, name=str(source.get("_name_or_path") or source.get("model_type") or "config"))
    if not isinstance(source, str | Path):
        raise ConfigError(f"cannot read a model from {type(source).__name__}; give a name, a path or a dict")
    path = Path(source)
    if path.suffix == ".json" or os.path.isfile(path):  # a text that cannot be a path is not a file
        return read_config(_read_json(path), name=path.stem if path.stem != "config" else path.resolve().parent.name)
    return _registered(_registry_name(str(source)))


def models() -> list[str]:
    """Names of the models that ship with the package.

    >>> "llama-3.3-70b" in models()
    True
    """
    return sorted(p.stem for p in (DATA / "models").glob("*.json"))


def registry_name(hub_id: str) -> str:
    """The name of a model here: its hub name without owner, -instruct, -hf and meta-, in lower case.

    >>> registry_name("meta-llama/Meta-Llama-3.1-70B-Instruct")
    'llama-3.1-70b'
    """
    name = hub_id.split("/")[-1].lower()
    return re.sub(r"-(instruct|hf)(?=-|$)", "", name.removeprefix("meta-"))


def _registry_name(name: str) -> str:
    known = models()
    for candidate in (name.lower(), registry_name(name)):
        candidate = aliases("models").get(candidate, candidate)
        if candidate in known:
            return candidate
    raise UnknownName(f"unknown model {shown(name)}; nearest: {nearest(registry_name(name), known)}. "
                      "A path of a config.json works too")


@lru_cache(maxsize=256)
def _registered(name: str) -> Model:
    source = _sources()[name]
    return read_config(_read_json(DATA / "models" / f"{name}.json"), name=name, hub_id=source["hub_id"], note=source["note"])


@lru_cache(maxsize=1)
def _sources() -> dict[str, dict[str, str]]:
    with open(DATA / "models" / "sources.csv", encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no file {str(path)!r}; give the path of a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not a readable JSON file: {str(error)[:80]}") from None


def read_config(config: dict, name: str = "config", hub_id: str = "", note: str = "") -> Model:
    """A `Model` from the parsed config.json. Raises ConfigError."""
    keys = Keys(config)
    family = _family(keys)
    keys.defaults = family.defaults
    for key, bad in family.reject:
        value = keys.raw(key)
        if value == bad or (bad is True and value):
            raise ConfigError(f"{key}={value!r} changes the arithmetic of this family and is not implemented")
    n_layers, hidden, vocab = keys.integer("layers"), keys.integer("hidden"), keys.integer("vocab")
    if n_layers > 10_000:
        raise ConfigError(f"num_hidden_layers={n_layers} is larger than any published model's; check the config")
    published, wide = published_format(keys), _dtype(keys)
    cached = {}  # equal layers are one object
    ignore = skips(keys)
    windows = _windows(keys, family, n_layers)
    layers = []
    for i in range(n_layers):
        kind = (windows[i], _is_routed(keys, family, i), ignore(i))
        if kind not in cached:
            cached[kind] = build_layer(keys, family, _attention(keys, family, *windows[i]), routed=kind[1], ignored=kind[2])
        layers.append(cached[kind])
    return Model(
        name=name, hub_id=hub_id, layers=tuple(layers), hidden=hidden,
        embeddings=_embeddings(keys, family, vocab, hidden),
        head=Tensor(name="lm_head", shape=(vocab, hidden), role="head", quantized=False),
        final=_final(keys, family, vocab, hidden), tied=_tied(keys, family), max_context=keys.optional("context"),
        dtype=wide, published=published, cache_dtype=_cache_dtype(keys), note=note)


def _family(keys: Keys) -> Family:
    kind = keys.text.get("model_type") or keys.top.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ConfigError("the config has no model_type; add the family's name, for example \"llama\"")
    kind = SYNONYMS.get(kind, kind)
    if kind not in FAMILIES:
        raise ConfigError(f"model_type {kind!r} is not implemented; nearest: {nearest(kind, list(FAMILIES))}. "
                          "A new family is one row in econ/families.py")
    return FAMILIES[kind]


def _tied(keys: Keys, family: Family) -> bool:
    for source in (keys.text, keys.top):
        for name in ("tie_word_embeddings", "tie_embedding"):
            if isinstance(source.get(name), bool):
                return source[name]
    return family.tie


def _attention(keys: Keys, family: Family, window: int | None, chunked: bool) -> Attention:
    heads, hidden = keys.integer("heads"), keys.integer("hidden")
    if family.mla:
        return _latent_attention(keys, heads, window)
    kv_heads = _kv_heads(keys, heads)
    head_dim = keys.optional("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise ConfigError(f"hidden_size={hidden} is not divisible by num_attention_heads={heads}; add head_dim")
        head_dim = hidden // heads
    v_dim = keys.optional("v_head_dim") or head_dim
    return Attention(heads=heads, kv_heads=kv_heads, qk_dim=head_dim, v_dim=v_dim, window=window, chunked=chunked)


def _kv_heads(keys: Keys, heads: int) -> int:
    multi_query = keys.raw("multi_query") is True and not keys.raw("new_decoder_architecture")
    if keys.raw("multi_query_attention") is False:
        return heads
    kv_heads = 1 if multi_query else keys.integer("kv_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(f"num_attention_heads={heads} is not divisible by num_key_value_heads={kv_heads}; "
                          f"use a divisor of {heads}")
    return kv_heads


def _latent_attention(keys: Keys, heads: int, window: int | None) -> Attention:
    rank, rope = keys.integer("kv_lora_rank"), keys.integer("qk_rope_head_dim")
    nope, v_dim = keys.integer("qk_nope_head_dim"), keys.integer("v_head_dim")
    latent = Latent(rank=rank, rope_dim=rope, up_elements=rank * heads * (nope + v_dim))
    return Attention(heads=heads, kv_heads=heads, qk_dim=nope + rope, v_dim=v_dim, window=window, latent=latent)


def _windows(keys: Keys, family: Family, n_layers: int) -> list[tuple[int | None, bool]]:
    """(window, chunked) of every layer; (None, False) is full attention."""
    size = keys.optional("sliding_window") or keys.optional("sliding_window_size")
    full = (None, False)
    kinds = keys.listed("layer_types", n_layers)
    if kinds is not None:
        known = {"full_attention": full, "attention": full, "sliding_attention": (size, False),
                 "chunked_attention": (keys.optional("attention_chunk_size"), True)}
        for kind in kinds:
            if kind not in known or (known[kind][0] is None and known[kind] != full) or (
                    kind == "sliding_attention" and size is None):
                raise ConfigError(f"layer_types has {kind!r}, which this family does not implement"
                                  if kind not in known else f"layer_types has {kind!r} but no window size is given")
        return [known[kind] for kind in kinds]
    rule = family.window
    if rule == "chunk":
        chunk = keys.integer("attention_chunk_size")
        return [full if (i + 1) % 4 == 0 else (chunk, True) for i in range(n_layers)]
    if rule in ("none", "layer_types") and rule == "none" or size is None or keys.raw("use_sliding_window") is False:
        return [full] * n_layers
    slides = {
        "all": lambda i: True,
        "even": lambda i: i % 2 == 0,
        "layer_types": lambda i: i % 2 == 0,
        "max_window_layers": lambda i: i >= keys.integer("max_window_layers", default=n_layers, least=0),
        "pattern": lambda i: (i + 1) % keys.integer("sliding_window_pattern") != 0,
    }[rule]
    return [(size, False) if slides(i) else full for i in range(n_layers)]


def _is_routed(keys: Keys, family: Family, i: int) -> bool:
    if family.moe == "none" or not keys.optional("experts", least=0):
        return False
    if family.moe == "all":
        return True
    if family.moe == "step":
        return i not in (keys.listed("mlp_only_layers") or []) and (i + 1) % keys.integer("decoder_sparse_step") == 0
    if family.moe == "interleave":
        return (i + 1) % keys.integer("interleave_moe_layer_step") == 0
    every = keys.raw("moe_layer_freq")
    if isinstance(every, list):
        return bool(keys.listed("moe_layer_freq", keys.integer("layers"))[i])
    return i >= keys.integer("first_k_dense_replace", least=0) and i % keys.integer("moe_layer_freq") == 0


def _embeddings(keys: Keys, family: Family, vocab: int, hidden: int) -> tuple[Tensor, ...]:
    width = keys.optional("word_embed_proj_dim") or hidden
    if width != hidden:
        raise ConfigError(f"word_embed_proj_dim={width} differs from hidden_size={hidden}: not implemented")
    tables = [Tensor(name="embed_tokens", shape=(vocab, hidden), role="embedding")]
    if family.positions:
        rows = keys.integer(family.positions[0], default=2048 if family.positions[1] else 1024) + family.positions[1]
        tables.append(Tensor(name="positions", shape=(rows, hidden), role="embedding", shard="whole"))
    return tuple(tables)


def _final(keys: Keys, family: Family, vocab: int, hidden: int) -> tuple[Tensor, ...]:
    tensors = norm_tensors("norm", family.norm, hidden) if family.final_norm else ()
    if family.embed_norm:
        tensors += norm_tensors("embed_norm", family.norm, hidden)
    if family.head_bias:
        tensors += (Tensor(name="lm_head.bias", shape=(vocab,), role="bias"),)
    return tensors


def _dtype(keys: Keys) -> str:
    given = str(keys.raw("dtype", "torch_dtype") or "bfloat16").replace("torch.", "")
    known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32",
             "auto": "bf16"}
    if given not in known:
        raise ConfigError(f"torch_dtype={given!r} is not implemented; use one of bfloat16, float16, float32")
    return known[given]


def _cache_dtype(keys: Keys) -> str:
    quantization = keys.raw("quantization_config")
    scheme = quantization.get("kv_cache_scheme") if isinstance(quantization, dict) else None
    named = quantization.get("kv_cache_quant_algo") if isinstance(quantization, dict) else None
    eight_bit = (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or str(named).upper() == "FP8"
    return "fp8" if eight_bit else "bf16"


def layer_at(model: Model, index: int) -> Layer:
    """Layer `index` of a model, counted from 0.

    >>> layer_at(load_model("llama-3.1-8b"), 0).attention.kv_heads
    8
    """
    return model.layers[index]
