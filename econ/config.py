"""Read a Hugging Face config.json into a `Model`, or refuse with one line that names the key.

`load_model` takes a registry name, a hub id, the path of a config.json, or a dict. What a config does not say
and the family's code fixes stands in `econ.families`. A wrong number is worse than an error: an unknown
family, or a key that changes the arithmetic and is not implemented, raises ConfigError.
"""

import csv
import json
import os
import re
from functools import lru_cache
from pathlib import Path

from .errors import ConfigError, UnknownName
from .families import FAMILIES, SYNONYMS, Family
from .ignored import unquantised
from .keys import Keys, class_defaults
from .layers import build_layer, extra_tensors, norm_tensors
from .model import Layer, Model, Tensor
from .names import DATA, aliases, nearest
from .quantized import cache_dtype, published_format
from .schedule import schedule
from .units import shown

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32",
          "half": "fp16", "float": "fp32", "auto": "bf16"}
HEADLESS = ("Classification", "Reward", "QuestionAnswering", "Embedding", "Score", "ValueHead", "Retrieval")
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim")  # mean nothing where use_mla is false
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_loops")  # one is none
# Keys that change parameters, cache or FLOPs wherever they are used: one that was not read must say nothing.
ARITHMETIC = (
    "add_cross_attention", "altup_num_inputs", "attention_bias", "attention_chunk_size", "attention_k_eq_v",
    "attn_layer_indices", "attn_layer_period", "attn_type_list", "block_configs", "compress_rates", "compress_ratios",
    "conv_L_cache", "cross_attention_layers", "dense_intermediate_size", "expert_ffn_hidden_size", "ffn_multipliers",
    "full_attention_interval", "global_head_dim", "hc_mult", "hidden_size_per_layer_input", "hybrid_override_pattern",
    "index_head_dim", "index_topk", "is_encoder_decoder", "kv_lora_rank", "laurel_rank", "layer_types",
    "layers_block_type", "linear_attn_config", "linear_num_value_heads", "lm_head_bias", "loop_num_passes",
    "mamba_d_state", "mlp_bias", "mlp_layer_types", "moe_intermediate_size", "moe_latent_size", "moe_layers",
    "moe_num_experts", "n_recurrent_loops", "n_routed_experts", "n_shared_experts", "num_attention_groups",
    "num_attention_heads_per_layer", "num_experts", "num_global_key_value_heads", "num_heads_per_layer",
    "num_kv_shared_layers", "num_local_experts", "num_loops", "num_mem_blocks", "num_query_heads",
    "num_shared_experts", "o_lora_rank", "per_layer_config", "q_lora_rank", "qk_layernorm", "qk_rope_head_dim",
    "qkv_bias", "shared_expert_intermediate_size", "shared_intermediate_size", "sliding_window",
    "sparse_attention_config", "ssm_state_size", "swa_num_key_value_heads", "total_ut_steps", "use_cla", "use_mla",
    "use_qk_norm", "v_head_dim", "zero_expert_num")


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
    config = _read_json(DATA / "models" / f"{name}.json")
    return read_config(config, name=name, hub_id=source["hub_id"], note=source["note"])


@lru_cache(maxsize=1)
def _sources() -> dict[str, dict[str, str]]:
    with open(DATA / "models" / "sources.csv", encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no file {str(path)!r}; give the path of a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not a readable JSON file: {str(error)[:80]}") from None


def read_config(config: dict, name: str = "config", hub_id: str = "", note: str = "") -> Model:
    """A `Model` from the parsed config.json. Raises ConfigError."""
    keys = Keys(config)
    family = family_of(keys)
    layers = _layers(keys, family)
    hidden, vocab = keys.integer("hidden"), keys.integer("vocab")
    outer = extra_tensors(keys, family.outer, None, {"attention"})
    width = keys.optional("word_embed_proj_dim") or hidden
    model = Model(
        name=name, hub_id=hub_id, layers=layers, hidden=hidden,
        embeddings=(*_embeddings(keys, family, vocab, width), *(t for t in outer if t.role == "embedding")),
        head=Tensor(name="lm_head", shape=(vocab, width), role="head", quantized=False),
        final=(*_final(keys, family, vocab, hidden), *(t for t in outer if t.role != "embedding")),
        tied=keys.flag("tie_word_embeddings"), max_context=_max_context(keys), dtype=_dtype(keys),
        published=published_format(keys), cache_dtype=cache_dtype(keys), note=note)
    _refuse_unread(keys, family)
    return model


def family_of(keys: Keys) -> Family:
    """The family's row, its defaults and spellings handed to the reader. Raises ConfigError for an unknown family."""
    kind = next((source["model_type"] for source in (keys.text, keys.top) if source.get("model_type")), None)
    if not isinstance(kind, str):
        raise ConfigError("the config has no model_type; add the family's name, for example \"llama\"")
    kind = SYNONYMS.get(kind, kind)
    if kind not in FAMILIES:
        raise ConfigError(f"model_type {kind[:40]!r} is not implemented; nearest: {nearest(kind, list(FAMILIES))}. "
                          "A new family is one row in econ/families.py")
    family = FAMILIES[kind]
    keys.defaults = {**class_defaults().get(kind, {}), **family.defaults}
    keys.spellings = {"tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"), **family.spellings}
    for name in family.flatten:
        keys.text = {**keys.mapping(name), **keys.text}
    _refuse_headless(keys)
    for key, bad in family.reject:
        value = keys.given(key)
        if value is not None and (bad(value) if callable(bad) else value == bad):
            raise ConfigError(f"{key}={str(value)[:40]!r} changes the arithmetic of this family and is not implemented")
    return family


def _refuse_headless(keys: Keys) -> None:
    given = keys.given("architectures")
    for architecture in given if isinstance(given, list) else ():
        if any(word in str(architecture) for word in HEADLESS):
            raise ConfigError(f"architectures has {architecture!r}, which has no language-model head; "
                              "give the config of the generating model")


def _refuse_unread(keys: Keys, family: Family) -> None:
    known = {*keys.read, *keys.defaults}
    known.update(LATENT if keys.given("use_mla") is False else ())
    known.update(("use_qk_norm", "qk_layernorm") if family.qk_norm else ())
    known.update(("attention_bias", "qkv_bias") if family.qkv_bias is True else ())
    for key in ARITHMETIC:
        value = keys.text.get(key) or keys.top.get(key)
        if value and key not in known and not (key in COUNTS and value == 1):
            raise ConfigError(f"{key}={str(value)[:40]!r} changes the arithmetic and this family does not know it")


def _layers(keys: Keys, family: Family) -> tuple[Layer, ...]:
    skip, built, layers = unquantised(keys), {}, []
    for i, place in enumerate(schedule(keys, family)):
        key = (place.mixer, place.mlp, place.window, place.reads_cache_of_another, repr(place.own))
        if key not in built:  # equal layers are one object
            built[key] = build_layer(keys.at(dict(place.own)), family, place)
        layers.append(skip(i, built[key]))
    return tuple(layers)


def _embeddings(keys: Keys, family: Family, vocab: int, width: int) -> tuple[Tensor, ...]:
    tables = [Tensor(name="embed_tokens", shape=(vocab, width), role="embedding")]
    if family.positions:
        rows = keys.integer(family.positions[0]) + family.positions[1]
        tables.append(Tensor(name="positions", shape=(rows, keys.integer("hidden")), role="embedding", shard="whole"))
    return tuple(tables)


def _final(keys: Keys, family: Family, vocab: int, hidden: int) -> tuple[Tensor, ...]:
    final = family.final_norm(keys) if callable(family.final_norm) else family.final_norm
    tensors = norm_tensors("norm", family.norm, hidden) if final else ()
    if family.embed_norm:
        tensors += norm_tensors("embed_norm", family.norm, hidden)
    if keys.flag(family.head_bias):
        tensors += (Tensor(name="lm_head.bias", shape=(vocab,), role="bias"),)
    return tensors


def _max_context(keys: Keys) -> int | None:
    stated = keys.nested or keys.given("context") is not None  # a class default is no model's limit
    return keys.optional("context") if stated else None


def _dtype(keys: Keys) -> str:
    given = str(keys.raw("dtype") or keys.raw("torch_dtype") or "bfloat16").replace("torch.", "")
    if given not in DTYPES:
        raise ConfigError(f"torch_dtype={given[:40]!r} is not implemented; use one of bfloat16, float16, float32")
    return DTYPES[given]
