"""Build one layer's weights from a config: which matrices and vectors there are, in which shapes.

`keys` is the config reader of `econ.config`; `family` says what its keys leave open.
"""

from .errors import ConfigError
from .families import Family
from .model import Attention, Layer, Tensor


def build_layer(keys, family: Family, attention: Attention, routed: bool, ignored=()) -> Layer:
    """One decoder layer: norms, attention, and a dense or a routed MLP.

    `ignored` names the parts that the checkpoint's quantisation leaves alone.
    """
    hidden = keys.integer("hidden")
    tensors = _norms(keys, family, hidden)
    tensors += _latent_tensors(keys, family, attention) if attention.latent else _attention_tensors(keys, family, attention)
    tensors += _routed_mlp(keys, family) if routed else dense_mlp(keys, family, "mlp", _dense_width(keys, family))
    return Layer(tensors=tuple(_marked(t, ignored) for t in tensors), attention=attention)


def norm_tensors(name: str, kind: str, width: int) -> tuple[Tensor, ...]:
    """A norm's scale, and its bias where it has one.

    >>> [t.n_params for t in norm_tensors("norm", "layer", 64)]
    [64, 64]
    """
    scale = Tensor(name=name, shape=(width,), role="norm", shard="whole")
    return (scale, Tensor(name=f"{name}.bias", shape=(width,), role="norm", shard="whole")) if kind == "layer" else (scale,)


def linear(name: str, out: int, into: int, bias=False, shard: str = "tp", **kwargs) -> list[Tensor]:
    """A matrix [out, in] and its bias vector, if any."""
    tensors = [Tensor(name=name, shape=(out, into), shard=shard, **kwargs)]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(out,), role="bias", shard=shard))
    return tensors


def _marked(tensor: Tensor, ignored) -> Tensor:
    if tensor.role not in ("linear", "expert") or not any(_covers(part, tensor.name) for part in ignored):
        return tensor
    fields = {name: getattr(tensor, name) for name in Tensor.__slots__}
    return Tensor(**{**fields, "quantized": False})


def _covers(part: str, name: str) -> bool:
    return name == part or name.startswith(part + ".") or part.endswith("." + name) or name.endswith("." + part)


def _norms(keys, family: Family, hidden: int) -> list[Tensor]:
    count = family.norms
    if keys.raw("new_decoder_architecture") is True:
        count = 2 if keys.integer("num_ln_in_parallel_attn", default=2) == 2 else 1
    elif keys.raw("parallel_attn") is False:
        count = 2
    return [t for i in range(count) for t in norm_tensors(f"norm{i}", family.norm, hidden)]


def _attention_tensors(keys, family: Family, a: Attention) -> list[Tensor]:
    hidden = keys.integer("hidden")
    qkv_bias, o_bias = keys.flag(family.qkv_bias), keys.flag(family.o_bias)
    q_width, k_width, v_width = a.heads * a.qk_dim, a.kv_heads * a.qk_dim, a.kv_heads * a.v_dim
    tensors = linear("self_attn.q_proj", q_width, hidden, qkv_bias)
    tensors += linear("self_attn.k_proj", k_width, hidden, qkv_bias, shard="kv")
    tensors += linear("self_attn.v_proj", v_width, hidden, qkv_bias, shard="kv")
    tensors += linear("self_attn.o_proj", hidden, a.heads * a.v_dim)
    if o_bias:
        tensors.append(Tensor(name="self_attn.o_proj.bias", shape=(hidden,), role="bias", shard="whole"))
    qk_norm = keys.flag(family.qk_norm)
    if qk_norm:
        full = qk_norm == "full"
        tensors += norm_tensors("self_attn.q_norm", "rms", q_width if full else a.qk_dim)
        tensors += norm_tensors("self_attn.k_norm", "rms", k_width if full else a.qk_dim)
    if family.sinks:
        tensors.append(Tensor(name="self_attn.sinks", shape=(a.heads,), role="other"))
    return tensors


def _latent_tensors(keys, family: Family, a: Attention) -> list[Tensor]:
    hidden, latent, bias = keys.integer("hidden"), a.latent, keys.flag(family.qkv_bias)
    rank, nope = latent.rank, a.qk_dim - latent.rope_dim
    q_rank = keys.optional("q_lora_rank")
    if q_rank is None:
        tensors = linear("self_attn.q_proj", a.heads * a.qk_dim, hidden)
    else:
        tensors = linear("self_attn.q_a_proj", q_rank, hidden, bias, shard="whole")
        tensors += norm_tensors("self_attn.q_a_norm", "rms", q_rank)
        tensors += linear("self_attn.q_b_proj", a.heads * a.qk_dim, q_rank)
    tensors += linear("self_attn.kv_a_proj", rank + latent.rope_dim, hidden, bias, shard="whole")
    tensors += norm_tensors("self_attn.kv_a_norm", "rms", rank)
    tensors += linear("self_attn.kv_b_proj", a.heads * (nope + a.v_dim), rank)
    return tensors + linear("self_attn.o_proj", hidden, a.heads * a.v_dim, bias)


def dense_mlp(keys, family: Family, name: str, width: int) -> list[Tensor]:
    """A gated (three matrices) or plain (two) MLP of the given inner width."""
    hidden, bias = keys.integer("hidden"), keys.flag(family.mlp_bias)
    parts = ("gate_proj", "up_proj") if family.gated else ("up_proj",)
    tensors = [t for part in parts for t in linear(f"{name}.{part}", width, hidden, bias)]
    tensors += linear(f"{name}.down_proj", hidden, width)
    return tensors + ([Tensor(name=f"{name}.down_proj.bias", shape=(hidden,), role="bias", shard="whole")] if bias else [])


def _dense_width(keys, family: Family) -> int:
    if family.moe == "interleave" and keys.raw("intermediate_size_mlp") is not None:
        return keys.integer("intermediate_size_mlp")
    return keys.integer("ffn", default=4 * keys.integer("hidden"))


def _routed_mlp(keys, family: Family) -> list[Tensor]:
    hidden, experts, used = keys.integer("hidden"), keys.integer("experts"), keys.integer("top_k")
    if used > experts:
        raise ConfigError(f"num_experts_per_tok={used} is more than the {experts} experts; use at most {experts}")
    width = keys.optional("moe_intermediate_size") or keys.integer("ffn")
    tensors = [Tensor(name="mlp.router", shape=(experts, hidden), role="router", shard="whole")]
    if family.router_bias:
        tensors.append(Tensor(name="mlp.router.bias", shape=(experts,), role="bias", shard="whole"))
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    if not family.gated:
        del shapes["gate_proj"]
    for part, shape in shapes.items():
        tensors.append(Tensor(name=f"mlp.experts.{part}", shape=shape, role="expert", copies=experts, used=used, shard="ep"))
        if family.expert_bias:
            tensors.append(Tensor(name=f"mlp.experts.{part}.bias", shape=shape[:1], role="bias", copies=experts, used=used,
                                  shard="ep"))
    return tensors + _shared_expert(keys, family, width)


def _shared_expert(keys, family: Family, width: int) -> list[Tensor]:
    shared = (keys.optional("shared_expert_intermediate_size", least=0)
              or keys.optional("moe_shared_expert_intermediate_size", least=0)
              or keys.optional("shared_intermediate_size", least=0)
              or (keys.optional("n_shared_experts", least=0) or 0) * width
              or (width if family.moe == "interleave" else 0))
    if not shared:
        return []
    tensors = dense_mlp(keys, family, "mlp.shared_expert", shared)
    if family.shared_gate:
        gate = Tensor(name="mlp.shared_expert_gate", shape=(1, keys.integer("hidden")), role="router", shard="whole")
        tensors.append(gate)
    return tensors
