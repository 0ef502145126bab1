"""Build one layer's weights from a config: which matrices and vectors there are, in which shapes.

`keys` is the config reader as that layer sees it; `family` says what its keys leave open.
"""

from math import prod
from typing import Any

from .errors import ConfigError
from .families import Family
from .keys import Keys
from .model import Attention, Index, Latent, Layer, Tensor
from .recurrent import RECURRENCES
from .rules import Extra
from .schedule import Place

INDEXED = ("indexed_attention", "shared_index_attention")
ATTENDS = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", *INDEXED)


def build_layer(keys: Keys, family: Family, place: Place) -> Layer:
    """One decoder layer: norms, mixer, and a dense or a routed MLP. Raises ConfigError."""
    hidden = keys.integer("hidden")
    norms = family.norms(keys) if callable(family.norms) else family.norms
    tensors = [t for i in range(norms) for t in norm_tensors(f"norm{i}", family.norm, hidden)]
    attention = recurrent = None
    if place.mixer in ATTENDS:
        attention = attention_of(keys, family, place)
        tensors += ATTENTIONS[family.attention](keys, family, attention)
    if family.recurrent and place.mixer in ("linear_attention", "conv", "hybrid"):
        weights, recurrent = RECURRENCES[family.recurrent](keys, family.recurrent)
        tensors += weights
    if place.mlp == "dense" or (place.mlp == "sparse" and family.beside):
        tensors += dense_mlp(keys, family, "mlp", width_of(keys, family.dense))
    if place.mlp == "sparse":
        tensors += routed_mlp(keys, family)
    tensors += extra_tensors(keys, family.extras, attention, {place.mixer, place.mlp, "all"})
    return Layer(tensors=tuple(tensors), attention=attention, recurrent=recurrent)


def norm_tensors(name: str, kind: str, width: int) -> tuple[Tensor, ...]:
    """A norm's scale, and its bias where it has one.

    >>> [t.n_params for t in norm_tensors("norm", "layer", 64)]
    [64, 64]
    """
    names = {"rms": (name,), "layer_nobias": (name,), "layer": (name, f"{name}.bias"), "none": ()}[kind]
    return tuple(Tensor(name=n, shape=(width,), role="norm", shard="whole") for n in names)


def linear(name: str, out: int, into: int, bias=False, shard="tp", bias_shard: str | None = None) -> list[Tensor]:
    """A matrix [out, in] and its bias vector, if any."""
    tensors = [Tensor(name=name, shape=(out, into), shard=shard)]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(out,), role="bias", shard=bias_shard or shard))
    return tensors


DIMENSIONS = {"heads": "heads", "kv_heads": "kv_heads", "head_dim": "qk_dim", "v_dim": "v_dim"}


def size(keys: Keys, expression: str, attention: Attention | None = None) -> int:
    """A product of quantities, "a*b" or "a//2": each a number, a dimension of the attention, or a key."""
    base, _, divisor = expression.partition("//")
    return prod(_factor(keys, part, attention) for part in base.split("*")) // int(divisor or 1)


def _factor(keys: Keys, part: str, attention: Attention | None) -> int:
    if part.isdecimal():
        return int(part)
    if attention and part in DIMENSIONS:
        return getattr(attention, DIMENSIONS[part])
    if part == "altup_others":
        return keys.integer("altup_num_inputs") - 1
    return keys.integer(part, least=0)


def width_of(keys: Keys, column) -> int:
    """An MLP's inner width: a family's column is a function or an expression; null is four times the width."""
    if callable(column):
        return column(keys)
    if column == "ffn":
        return keys.integer("ffn", default=4 * keys.integer("hidden") if keys.default("ffn") is None else None)
    return size(keys, column)


def extra_tensors(keys: Keys, extras: tuple[Extra, ...], attention: Attention | None, on: set[str]) -> list[Tensor]:
    """The weights of a family's `extras` that a layer with these properties has."""
    on = on | ({"attention"} if attention else set())
    return [_extra(keys, x, attention) for x in extras if x.on in on and _holds(keys, x.when)]


def _holds(keys: Keys, when) -> bool:
    return when is None or bool(when(keys) if callable(when) else keys.raw(when))


def _extra(keys: Keys, x: Extra, attention: Attention | None) -> Tensor:
    shape = tuple(size(keys, part, attention) for part in x.shape)
    if x.routed:
        return Tensor(name=x.name, shape=shape, role="expert", shard="ep", copies=keys.integer("experts"),
                      used=keys.integer("top_k"))
    role = "embedding" if x.name.startswith("embed") else "linear" if len(shape) > 1 else "other"
    return Tensor(name=x.name, shape=shape, role=role, shard="whole" if x.whole or len(shape) == 1 else "tp",
                  quantized=not x.plain)


def attention_of(keys: Keys, family: Family, place: Place) -> Attention:
    """What a layer scores and caches."""
    heads = keys.integer("heads")
    if family.attention == "mla":
        sizes = _latent(keys, heads, place)
    else:
        head_dim = _head_dim(keys, heads, family.split_heads)
        v_dim = keys.optional("v_head_dim") if "v_head_dim" in keys.defaults else None
        sizes = dict(kv_heads=_kv_heads(keys, heads), qk_dim=head_dim, v_dim=v_dim or head_dim)
    return Attention(heads=heads, window=place.window, chunked=place.mixer == "chunked_attention",
                     keeps_cache=not place.reads_cache_of_another, **sizes)


def _latent(keys: Keys, heads: int, place: Place) -> dict[str, Any]:
    rank, rope, nope = keys.integer("kv_lora_rank"), keys.integer("qk_rope_head_dim"), keys.integer("qk_nope_head_dim")
    v_dim = keys.optional("v_head_dim") or keys.integer("hidden") // heads
    index = None
    if place.mixer in INDEXED:
        index = Index(heads=keys.integer("index_n_heads"), dim=keys.integer("index_head_dim"),
                      top_k=keys.integer("index_topk"), own=place.mixer == "indexed_attention")
    latent = Latent(rank=rank, rope_dim=rope, up_elements=rank * heads * (nope + v_dim))
    return dict(kv_heads=heads, qk_dim=nope + rope, v_dim=v_dim, latent=latent, index=index)


def _head_dim(keys: Keys, heads: int, split: bool) -> int:
    given, hidden = keys.optional("head_dim"), keys.integer("hidden")
    if given and not (split and given * heads != hidden):
        return given
    if given:
        raise ConfigError(f"head_dim={given} differs from hidden_size / heads = {hidden}/{heads}, "
                          "which this family's code uses")
    if hidden % heads:
        raise ConfigError(f"hidden_size={hidden} is not divisible by num_attention_heads={heads}; add head_dim")
    return hidden // heads


def _kv_heads(keys: Keys, heads: int) -> int:
    if keys.raw("multi_query_attention") is False:
        return heads
    multi_query = keys.raw("multi_query") is True and not keys.raw("new_decoder_architecture")
    kv_heads = 1 if multi_query else keys.integer("kv_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(f"num_attention_heads={heads} is not divisible by num_key_value_heads={kv_heads}; "
                          f"use a divisor of {heads}")
    return kv_heads


def _grouped(keys: Keys, family: Family, a: Attention) -> list[Tensor]:
    hidden, bias = keys.integer("hidden"), keys.flag(family.qkv_bias)
    q_width, k_width, v_width = a.heads * a.qk_dim, a.kv_heads * a.qk_dim, a.kv_heads * a.v_dim
    tensors = linear("self_attn.q_proj", (2 if family.q_gate else 1) * q_width, hidden, bias)
    if a.keeps_cache:
        tensors += linear("self_attn.k_proj", k_width, hidden, bias, shard="kv")
        if not (family.k_is_v and a.window is None and keys.flag(family.k_is_v)):
            tensors += linear("self_attn.v_proj", v_width, hidden, bias, shard="kv")
    tensors += linear("self_attn.o_proj", hidden, a.heads * a.v_dim, keys.flag(family.o_bias), bias_shard="whole")
    if family.qk_norm and keys.flag(family.qk_norm_if):
        widths = {"full": (q_width, k_width), "heads": (q_width, k_width)}.get(family.qk_norm, (a.qk_dim, a.qk_dim))
        kind = "layer" if family.qk_norm == "head_bias" else "rms"
        tensors += norm_tensors("self_attn.q_norm", kind, widths[0])
        tensors += norm_tensors("self_attn.k_norm", kind, widths[1]) if a.keeps_cache else ()
    return tensors


def _latent_tensors(keys: Keys, family: Family, a: Attention) -> list[Tensor]:
    hidden, bias, latent = keys.integer("hidden"), keys.flag(family.qkv_bias), a.latent
    assert latent
    q_width, q_rank = a.heads * a.qk_dim, keys.optional("q_lora_rank")
    if q_rank is None:
        tensors = linear("self_attn.q_proj", q_width, hidden)
    else:
        tensors = linear("self_attn.q_a_proj", q_rank, hidden, bias, shard="whole")
        tensors += norm_tensors("self_attn.q_a_norm", "rms", q_rank)
        tensors += linear("self_attn.q_b_proj", q_width, q_rank)
    tensors += linear("self_attn.kv_a_proj", latent.rank + latent.rope_dim, hidden, bias, shard="whole")
    tensors += norm_tensors("self_attn.kv_a_norm", "rms", latent.rank)
    tensors += linear("self_attn.kv_b_proj", a.heads * (a.qk_dim - latent.rope_dim + a.v_dim), latent.rank)
    return tensors + linear("self_attn.o_proj", hidden, a.heads * a.v_dim, keys.flag(family.o_bias), bias_shard="whole")


ATTENTIONS = {"gqa": _grouped, "mla": _latent_tensors, "none": lambda keys, family, a: []}


def dense_mlp(keys: Keys, family: Family, name: str, width: int) -> list[Tensor]:
    """A gated (three matrices) or plain (two) MLP of the given inner width."""
    hidden, bias = keys.integer("hidden"), keys.flag(family.mlp_bias)
    parts = ("gate_proj", "up_proj") if family.gated else ("up_proj",)
    tensors = [t for part in parts for t in linear(f"{name}.{part}", width, hidden, bias)]
    return tensors + linear(f"{name}.down_proj", hidden, width, bias, bias_shard="whole")


def routed_mlp(keys: Keys, family: Family) -> list[Tensor]:
    """The router, the experts and the shared expert of one layer."""
    hidden, experts, used = keys.integer("hidden"), keys.integer("experts"), keys.integer("top_k")
    if used > experts:
        raise ConfigError(f"num_experts_per_tok={used} is more than the {experts} experts; use at most {experts}")
    width = width_of(keys, family.expert)
    tensors = [Tensor(name="mlp.gate", shape=(experts, hidden), role="router", shard="whole")]
    if family.router_bias:
        tensors.append(Tensor(name="mlp.gate.bias", shape=(experts,), role="bias", shard="whole"))
    inside = (keys.optional(family.expert_input) if family.expert_input else None) or hidden
    shapes = {"gate_proj": (width, inside), "up_proj": (width, inside), "down_proj": (inside, width)}
    each: dict[str, Any] = dict(copies=experts, used=used, shard="ep")
    for part, shape in shapes.items():
        if part == "gate_proj" and not family.gated:
            continue
        tensors.append(Tensor(name=f"mlp.experts.{part}", shape=shape, role="expert", **each))
        if family.expert_bias:
            tensors.append(Tensor(name=f"mlp.experts.{part}.bias", shape=shape[:1], role="bias", **each))
    return tensors + _shared_expert(keys, family, width)


def _shared_expert(keys: Keys, family: Family, width: int) -> list[Tensor]:
    if not family.shared:
        return []
    what, unit = family.shared
    amount = width_of(keys, what) if what == "ffn" else keys.optional(what, least=0) or 0
    if not amount:
        return []
    tensors = dense_mlp(keys, family, "mlp.shared_expert", amount if unit == "width" else amount * width)
    if family.shared_gate:
        shape = (1, keys.integer("hidden"))
        tensors.append(Tensor(name="mlp.shared_expert_gate", shape=shape, role="router", shard="whole"))
    return tensors
