"""Mixers that keep a state of fixed size instead of a cache: their weights, their state, their cost a token.

Every function takes the config reader and returns (weights, Recurrent). Sizes are in elements.
"""

from .errors import ConfigError
from .keys import Keys
from .model import Recurrent, Tensor

DELTA_CHUNK = 64  # tokens that a delta rule handles as one block of matrix products
LIGHTNING_BLOCK = 256
MAMBA2_CHUNK = 256


def state_dtype(keys: Keys) -> str:
    """The dtype of the recurrent state: fp32 unless the config names one."""
    given = keys.raw("mamba_ssm_cache_dtype") or keys.raw("mamba_ssm_dtype") or "float32"
    known = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    if str(given) not in known:
        raise ConfigError(f"mamba_ssm_cache_dtype={given!r} is not implemented; use one of {', '.join(known)}")
    return known[str(given)]


def _vector(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, shape=shape, role="other")


def _linear(name: str, out: int, into: int, bias: bool = False) -> list[Tensor]:
    return [Tensor(name=name, shape=(out, into)), *_bias(name, out, bias)]


def _convolution(name: str, channels: int, kernel: int, bias: bool = False) -> list[Tensor]:
    return [_vector(name, channels, kernel), *_bias(name, channels, bias)]


def _bias(name: str, size: int, present: bool) -> list[Tensor]:
    return [Tensor(name=f"{name}.bias", shape=(size,), role="bias")] if present else []


# What the families call the same quantities.
_MAMBA: dict[str, dict[str, str]] = {
    "mamba": dict(expand="expand", inner="intermediate_size", state="state_size", kernel="conv_kernel",
                  rank="time_step_rank", bias="use_bias", conv_bias="use_conv_bias"),
    "jamba": dict(expand="mamba_expand", inner="", state="mamba_d_state", kernel="mamba_d_conv", rank="mamba_dt_rank",
                  bias="mamba_proj_bias", conv_bias="mamba_conv_bias"),
    "mamba2": dict(heads="num_heads", dim="head_dim", state="state_size", groups="n_groups", kernel="conv_kernel",
                   expand="expand", inner="", bias="use_bias", out_bias="use_bias", conv_bias="use_conv_bias",
                   norm="", chunk="chunk_size"),
    "bamba": dict(heads="mamba_n_heads", dim="mamba_d_head", state="mamba_d_state", groups="mamba_n_groups",
                  kernel="mamba_d_conv", expand="mamba_expand", inner="", bias="mamba_proj_bias",
                  out_bias="mamba_proj_bias", conv_bias="mamba_conv_bias", norm="", chunk="mamba_chunk_size"),
    "nemotron_h": dict(heads="mamba_num_heads", dim="mamba_head_dim", state="ssm_state_size", groups="n_groups",
                       kernel="conv_kernel", expand="", inner="", bias="use_bias", out_bias="use_bias",
                       conv_bias="use_conv_bias", norm="", chunk="chunk_size"),
}
_MAMBA["falcon_h1"] = {**_MAMBA["bamba"], "inner": "mamba_d_ssm", "out_bias": "projectors_bias",
                       "norm": "mamba_rms_norm"}


def _inner(keys: Keys, name: dict[str, str]) -> int:
    """The inner width of a Mamba layer: as given, or `expand` times the model's."""
    given = keys.optional(name["inner"]) if name["inner"] else None
    return given or int(keys.number(name["expand"]) * keys.integer("hidden"))


def mamba(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """Mamba-1: d_inner channels with d_state numbers each."""
    name = _MAMBA[kind]
    hidden, inner, bias = keys.integer("hidden"), _inner(keys, name), keys.flag(name["bias"])
    state, kernel = keys.integer(name["state"]), keys.integer(name["kernel"])
    rank = -(-hidden // 16) if keys.raw(name["rank"]) == "auto" else keys.integer(name["rank"])
    tensors = _linear("mamba.in_proj", 2 * inner, hidden, bias)
    tensors += _convolution("mamba.conv1d", inner, kernel, keys.flag(name["conv_bias"]))
    tensors += _linear("mamba.x_proj", rank + 2 * state, inner) + _linear("mamba.dt_proj", inner, rank, True)
    tensors += [_vector("mamba.A_log", inner, state), _vector("mamba.D", inner)]
    tensors += _linear("mamba.out_proj", hidden, inner, bias)
    if kind == "jamba":
        sizes = (("dt", rank), ("b", state), ("c", state))
        tensors += [_vector(f"mamba.{part}_layernorm", size) for part, size in sizes]
    return tensors, Recurrent(kind="scan", state_elements=inner * state, conv_channels=inner, conv_kernel=kernel,
                              state_dtype=state_dtype(keys), flops_per_token=2 * inner * state)


def mamba2(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """Mamba-2: heads x head_dim x d_state numbers, B and C shared by groups of heads."""
    name = _MAMBA[kind]
    hidden, heads, groups = keys.integer("hidden"), keys.integer(name["heads"]), keys.integer(name["groups"])
    inner = _inner(keys, name) if name["expand"] else heads * keys.integer(name["dim"])
    _check_heads(keys, name, heads, groups, inner)
    state, kernel = keys.integer(name["state"]), keys.integer(name["kernel"])
    channels = inner + 2 * groups * state
    tensors = _linear("mamba.in_proj", inner + channels + heads, hidden, keys.flag(name["bias"]))
    tensors += _convolution("mamba.conv1d", channels, kernel, keys.flag(name["conv_bias"]))
    tensors += [_vector(f"mamba.{vector}", heads) for vector in ("dt_bias", "A_log", "D")]
    tensors += [_vector("mamba.norm", inner)] if not name["norm"] or keys.flag(name["norm"]) else []
    tensors += _linear("mamba.out_proj", hidden, inner, keys.flag(name["out_bias"]))
    return tensors, Recurrent(
        kind="scan", state_elements=inner * state, conv_channels=channels, conv_kernel=kernel,
        state_dtype=state_dtype(keys), flops_per_token=4 * inner * state,
        block=keys.integer(name["chunk"], default=MAMBA2_CHUNK), block_flops_per_token=4 * inner * state,
        block_flops_per_pair=2 * (groups * state + inner))


def _check_heads(keys: Keys, name: dict[str, str], heads: int, groups: int, inner: int) -> None:
    dim = inner // heads if keys.raw(name["dim"]) == "auto" else keys.integer(name["dim"])
    if heads * dim != inner:
        raise ConfigError(f"{name['heads']}={heads} x {name['dim']}={dim} is not the inner width {inner}")
    if heads % groups:
        raise ConfigError(f"{name['heads']}={heads} is not divisible by {name['groups']}={groups}")


def gated_delta_net(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """A gated delta rule: v_heads x key_dim x value_dim numbers, written by outer products.

    A null dimension follows from the attention heads: keys 3/4 of the width, values twice the keys.
    """
    hidden = keys.integer("hidden")
    k_heads = keys.optional("linear_num_key_heads") or keys.integer("heads")
    v_heads = keys.optional("linear_num_value_heads") or keys.integer("heads")
    k_dim = keys.optional("linear_key_head_dim") or 3 * hidden // (4 * k_heads)
    v_dim = keys.optional("linear_value_head_dim") or 2 * k_dim
    kernel, value = keys.integer("linear_conv_kernel_dim"), v_heads * v_dim
    if v_heads % k_heads:
        raise ConfigError(f"linear_num_value_heads={v_heads} is not divisible by linear_num_key_heads={k_heads}")
    channels = 2 * k_heads * k_dim + value
    tensors = _linear("linear_attn.in_proj_qkvz", channels + value, hidden)
    tensors += _linear("linear_attn.in_proj_ba", 2 * v_heads, hidden)
    tensors += _convolution("linear_attn.conv1d", channels, kernel) + _gates(v_heads, v_heads, v_dim)
    tensors += _linear("linear_attn.out_proj", hidden, value)
    return tensors, delta_rule(keys, v_heads, k_dim, v_dim, channels, kernel)


def _gates(decays: int, heads: int, dim: int) -> list[Tensor]:
    sizes = (("dt_bias", decays), ("A_log", heads), ("norm", dim))
    return [_vector(f"linear_attn.{name}", size) for name, size in sizes]


def delta_rule(keys: Keys, heads: int, k_dim: int, v_dim: int, channels: int, kernel: int) -> Recurrent:
    """The state and the cost of a delta rule: blocks of 64 tokens in prefill, element by element in decode."""
    return Recurrent(
        kind="delta rule", state_elements=heads * k_dim * v_dim, conv_channels=channels, conv_kernel=kernel,
        state_dtype=state_dtype(keys), block=DELTA_CHUNK, pads=True,
        block_flops_per_token=6 * heads * k_dim * v_dim, block_flops_per_pair=2 * heads * (2 * k_dim + v_dim))


def kimi_delta(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """A delta rule with one decay a channel; q, k and v share one short convolution."""
    hidden, full = keys.integer("hidden"), kind == "kimi_delta_full"
    heads = keys.integer("heads") if full else keys.integer("linear_num_heads")
    dim, kernel = keys.integer("linear_head_dim"), keys.integer("linear_conv_kernel_dim")
    width = heads * dim
    tensors = [t for part in "qkv" for t in _linear(f"linear_attn.{part}_proj", width, hidden)]
    gates = (("_proj", width, hidden),) if full else (("_a_proj", dim, hidden), ("_b_proj", width, dim))
    for part, out, into in gates:
        tensors += _linear(f"linear_attn.f{part}", out, into) + _linear(f"linear_attn.g{part}", out, into)
    tensors += _convolution("linear_attn.conv1d", 3 * width, kernel) + _linear("linear_attn.b_proj", heads, hidden)
    tensors += _gates(width, heads, dim) + _linear("linear_attn.o_proj", hidden, width)
    return tensors, delta_rule(keys, heads, dim, dim, 3 * width, kernel)


def lightning(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """Lightning attention: heads x head_dim x head_dim numbers, exact attention inside blocks of 256 tokens."""
    hidden, heads = keys.integer("hidden"), keys.integer("heads")
    dim = keys.optional("head_dim") or hidden // heads
    width = heads * dim
    tensors = _linear("self_attn.qkv_proj", 3 * width, hidden) + _linear("self_attn.output_gate", width, hidden)
    tensors += [_vector("self_attn.norm", width)] + _linear("self_attn.out_proj", hidden, width)
    state = heads * dim * dim
    return tensors, Recurrent(kind="lightning", state_elements=state, state_dtype=state_dtype(keys),
                              flops_per_token=4 * state, block=keys.integer("block_size", default=LIGHTNING_BLOCK),
                              block_flops_per_token=4 * state, block_flops_per_pair=4 * width)


def short_convolution(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """A gated convolution over the last few tokens: no state beside them."""
    hidden, kernel, bias = keys.integer("hidden"), keys.integer("conv_L_cache"), keys.flag("conv_bias")
    tensors = _linear("conv.in_proj", 3 * hidden, hidden, bias) + _convolution("conv.conv", hidden, kernel, bias)
    tensors += _linear("conv.out_proj", hidden, hidden, bias)
    return tensors, Recurrent(kind="convolution", state_elements=0, conv_channels=hidden, conv_kernel=kernel)


def rg_lru(keys: Keys, kind: str) -> tuple[list[Tensor], Recurrent]:
    """A real-gated linear recurrence of `lru_width` channels behind a short convolution."""
    hidden, heads, kernel = keys.integer("hidden"), keys.integer("heads"), keys.integer("conv1d_width")
    width = keys.optional("lru_width") or hidden
    if width % heads:
        raise ConfigError(f"lru_width={width} is not divisible by num_attention_heads={heads}")
    tensors = _linear("recurrent.linear_x", width, hidden, True) + _linear("recurrent.linear_y", width, hidden, True)
    tensors += _linear("recurrent.linear_out", hidden, width, True)
    tensors += _convolution("recurrent.conv_1d", width, kernel, True) + [_vector("recurrent.param", width)]
    for gate in ("input_gate", "recurrent_gate"):  # one square block a head
        tensors += _linear(f"recurrent.{gate}", width, width // heads, True)
    return tensors, Recurrent(
        kind="scan", state_elements=width, conv_channels=width, conv_kernel=kernel, state_dtype=state_dtype(keys))


RECURRENCES = {
    "mamba": mamba, "jamba": mamba, "mamba2": mamba2, "bamba": mamba2, "nemotron_h": mamba2, "falcon_h1": mamba2,
    "gated_delta_net": gated_delta_net, "kimi_delta": kimi_delta, "kimi_delta_full": kimi_delta,
    "lightning": lightning, "conv": short_convolution, "rg_lru": rg_lru,
}
