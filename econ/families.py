"""What a model family's code fixes and its config.json does not say: one row a family, data only.

A row starts from the Llama layout (two RMSNorms, gated MLP, no biases, full attention) and states what differs.
What a config may leave out stands in data/defaults.json; a row's own `defaults` come on top of it.
A column that is a string names the config key that decides. Rules and extra weights: `econ.rules`.

norm          "rms", "layer" (LayerNorm with bias), "layer_nobias" or "none" (no weights)
norms         full-width norms in a layer           final_norm, embed_norm   outside the layers
qk_norm       "head" (head_dim), "full" (whole projection), "heads" (every head its own), "head_bias"; qk_norm_if
qkv_bias o_bias mlp_bias head_bias router_bias expert_bias
q_gate        q_proj is twice as wide: half of it gates the output
gated         three MLP matrices instead of two     positions     learned position table: (config key, extra rows)
attention     "gqa", "mla" or "none" (its weights stand in `extras`)
split_heads   head_dim is always hidden / heads     shared_kv     key: so many last layers read an earlier cache
k_is_v        key: layers without a window have no v_proj
mixer         rule: what mixes tokens in a layer    recurrent     which recurrence linear_attention layers have
only          the only mixers that the family's code has
last_full     the last layer sees everything, whatever is listed
mlp           rule: dense, sparse or none           one_part      a layer has a mixer or an MLP, not both
dense expert  an MLP's width: a quantity, a product, or a function
expert_input  key: experts work in a narrower space than the model
shared        (quantity, "width" or "count"): the shared expert; shared_gate: a 1 x hidden gate on it
beside        routed layers have the dense MLP too  fewest_experts   so many experts are none
per_layer     function: what one layer overrides    lists         keys that may be a list, one entry a layer
extras, outer further weights of a layer, of the model
spellings     the family's own names of a quantity  flatten       nested objects whose keys count as the model's
reject        keys that change the arithmetic and are not implemented: (key, value that must not hold)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as like

from . import rules as r
from .rules import Extra, extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The fixed choices of one model family; see the module's docstring for the columns."""

    norm: str = "rms"
    norms: int | Callable = 2
    final_norm: bool | Callable = True
    embed_norm: bool = False
    qk_norm: str | None = None
    qk_norm_if: bool | str = True
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    router_bias: bool = False
    expert_bias: bool = False
    q_gate: bool = False
    gated: bool = True
    positions: tuple[str, int] | None = None
    attention: str = "gqa"
    split_heads: bool = False
    shared_kv: str | None = None
    k_is_v: str | None = None
    mixer: r.Rule = r.FULL
    recurrent: str | None = None
    only: tuple[str, ...] = ()
    last_full: bool = False
    mlp: r.Rule = r.DENSE
    one_part: bool = False
    dense: str | Callable = "ffn"
    expert: str | Callable = "moe_intermediate_size"
    expert_input: str | None = None
    shared: tuple[str, str] | None = None
    shared_gate: bool = False
    beside: bool = False
    fewest_experts: int = 0
    per_layer: Callable | None = None
    lists: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    outer: tuple[Extra, ...] = ()
    spellings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flatten: tuple[str, ...] = ()
    defaults: dict[str, object] = field(default_factory=dict)
    reject: tuple[tuple[str, object], ...] = ()


def _falcon_norms(keys) -> int:
    if not keys.flag("parallel_attn"):
        return 2
    both = keys.optional("num_ln_in_parallel_attn")
    return 2 if both == 2 or (both is None and keys.flag("new_decoder_architecture")) else 1


def _lfm2_width(keys) -> int:
    width = keys.integer("ffn")
    if not keys.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if keys.raw("block_ffn_dim_multiplier") is None:
        return width
    step = keys.integer("block_multiple_of")
    return -(-int(keys.number("block_ffn_dim_multiplier") * width) // step) * step


def _cohere2_moe_width(keys) -> int:
    return keys.optional("prefix_dense_intermediate_size") or keys.integer("ffn")


def _hunyuan_expert(keys) -> int:
    return keys.optional("moe_intermediate_size") or keys.integer("ffn")


def _gemma4_layer(keys, kind: str, shared: bool) -> dict:
    layer = {}
    if kind == "full_attention":
        layer["head_dim"] = keys.integer("global_head_dim", default=512)
        if keys.flag("attention_k_eq_v") and keys.raw("num_global_key_value_heads") is not None:
            layer["num_key_value_heads"] = keys.integer("num_global_key_value_heads")
    if shared and keys.flag("use_double_wide_mlp"):
        layer["intermediate_size"] = 2 * keys.integer("ffn")
    return layer


def _mimo_layer(keys, kind: str, shared: bool) -> dict:
    if kind != "sliding_attention":
        return {}
    own = {key: keys.optional(f"swa_{key}") for key in ("num_attention_heads", "head_dim", "v_head_dim")}
    own["num_key_value_heads"] = keys.optional("swa_num_key_value_heads") or 2 * keys.integer("kv_heads")
    return {key: value for key, value in own.items() if value is not None}


def _jetmoe_layer(keys, kind: str, shared: bool) -> dict:
    return {"num_attention_heads": keys.integer("kv_heads") * keys.integer("top_k")}


def _step_layer(keys, kind: str, shared: bool) -> dict:
    heads = keys.optional("num_sliding_attention_heads")
    heads = heads or keys.mapping("attention_other_setting").get("num_attention_heads")
    return {"num_attention_heads": heads} if kind == "sliding_attention" and heads else {}


def _latent_bias(keys) -> bool:
    return keys.flag("mlp_bias") and bool(keys.raw("moe_latent_size"))


def _projects(keys) -> bool:
    return (keys.optional("word_embed_proj_dim") or keys.integer("hidden")) != keys.integer("hidden")


_COUNT = ("shared_experts", "count")
_WIDTH = ("shared_expert_intermediate_size", "width")
_SINKS = (extra("self_attn.sinks", "heads"),)
_OUTPUT_GATE = extra("self_attn.gate_proj", "heads*v_dim", "hidden")
_HEAD_GATE = extra("self_attn.g_proj", "heads", "hidden")
_CORRECTION = extra("mlp.gate.e_score_correction_bias", "experts", on="sparse")
_PLE = "hidden_size_per_layer_input"
_PER_LAYER_INPUT = (
    extra("per_layer_input_gate", _PLE, "hidden", on="all", when=_PLE),
    extra("per_layer_projection", "hidden", _PLE, on="all", when=_PLE),
    extra("post_per_layer_input_norm", "hidden", on="all", when=_PLE),
)
_PER_LAYER_TABLES = (
    extra("embed_tokens_per_layer", "vocab_size_per_layer_input", f"layers*{_PLE}", when=_PLE),
    extra("per_layer_model_projection", f"layers*{_PLE}", "hidden", when=_PLE),
    extra("per_layer_projection_norm", _PLE, when=_PLE),
)
_INDEXED = ("indexed_attention", "shared_index_attention")
_INDEXER = (
    extra("self_attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank", on="indexed_attention", whole=True),
    extra("self_attn.indexer.wk", "index_head_dim", "hidden", on="indexed_attention", whole=True),
    extra("self_attn.indexer.k_norm", "index_head_dim", on="indexed_attention"),
    extra("self_attn.indexer.k_norm.bias", "index_head_dim", on="indexed_attention"),
    extra("self_attn.indexer.weights_proj", "index_n_heads", "hidden", on="indexed_attention", whole=True, plain=True),
)
_ALTUP = (
    extra("altup.correct_output_scale", "hidden", on="all"),
    extra("altup.correction_coefs", "altup_num_inputs", "altup_num_inputs", on="all", whole=True),
    extra("altup.prediction_coefs", "altup_num_inputs*altup_num_inputs", "altup_num_inputs", on="all", whole=True),
    extra("altup.modality_router", "altup_num_inputs", "hidden", on="all", whole=True),
    extra("altup.router_norm", "hidden", on="all"),
    extra("laurel.linear_left", "laurel_rank", "hidden", on="all"),
    extra("laurel.linear_right", "hidden", "laurel_rank", on="all"),
    extra("laurel.post_laurel_norm", "hidden", on="all"),
)

# Rows that others start from.
_PLAIN = Family()
_BIASED = Family(qkv_bias="attention_bias", o_bias="attention_bias")
_LLAMA = like(_BIASED, mlp_bias="mlp_bias")
_ERNIE = Family(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias")
_WINDOWED = Family(mixer=r.SLIDING)
_QWEN2 = Family(qkv_bias=True, mixer=r.late_windows)
_QWEN3 = like(_BIASED, qk_norm="head")
_QWEN3_MOE = like(_QWEN3, mlp=r.stepped)
_GEMMA3 = like(_QWEN3, norms=4)
_COHERE = like(_BIASED, norm="layer_nobias", norms=1)
_GLM = Family(qkv_bias="attention_bias", norms=4)
_GLM_MOE = Family(qkv_bias="attention_bias", mlp=r.deepseek(1), shared=_COUNT)
_MIXTURE = like(_BIASED, mlp=r.SPARSE, expert="ffn")
_GPT = Family(norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, split_heads=True)
_GPTJ = like(_GPT, qkv_bias=False, o_bias=False, norms=1, head_bias=True)
_PHI = like(_GPT, norms=1, head_bias=True, qk_norm="head_bias", qk_norm_if="qk_layernorm", split_heads=False)
_DEEPSEEK = like(_BIASED, attention="mla", mlp=r.deepseek(3), shared=_COUNT, reject=(("use_mla", False),))
_MAMBA = Family(attention="none", norms=1, mixer=r.LINEAR, mlp=r.NO_MLP, recurrent="mamba")
_MINIMAX = Family(mixer=r.every(2, 0, rest="linear_attention"), recurrent="lightning", mlp=r.SPARSE, expert="ffn",
                  reject=(("shared_intermediate_size", bool),))
_DELTA = like(_BIASED, mixer=r.every("full_attention_interval", rest="linear_attention"), recurrent="gated_delta_net",
              q_gate=True, qk_norm="head", defaults={"full_attention_interval": 4})
_DELTA_MOE = like(_DELTA, mlp=r.SPARSE, shared=_WIDTH, shared_gate=True)
_LFM2 = Family(recurrent="conv", qk_norm="head")
_GEMMA4 = like(
    _GEMMA3, mixer=r.every(6), last_full=True, shared_kv="num_kv_shared_layers", k_is_v="attention_k_eq_v",
    per_layer=_gemma4_layer, reject=(("use_bidirectional_attention", "all"),))

FAMILIES = {
    # Llama and its kin
    "llama": _LLAMA, "exaone": _LLAMA,
    "granite": _LLAMA, "granite4_vision_text": _LLAMA, "granite_docling_text": _LLAMA,
    "internlm3": like(_LLAMA, spellings={"attention_bias": ("qkv_bias",), "mlp_bias": ("bias",)}),
    "iquestcoder": like(_LLAMA, reject=(("use_sliding_window", bool), ("clip_qkv", bool))),
    "granite_swa": like(_LLAMA, mixer=r.every(4, 0), extras=_SINKS),
    "helium": like(_LLAMA, o_bias=False, split_heads=True),
    "emu3_text_model": like(_LLAMA, o_bias=False),
    "hyperclovax": like(_LLAMA, norms=lambda keys: 4 if keys.flag("use_post_norm") else 2),
    "cwm": Family(mlp_bias="mlp_bias", mixer=r.every(4, 0)),
    "arcee": like(_LLAMA, gated=False),
    "seed_oss": like(_LLAMA, o_bias="attention_out_bias"),
    "smollm3": like(_LLAMA, mixer=r.no_rope("sliding_attention", inverse=True)),
    "apertus": like(_QWEN3, gated=False, extras=(
        extra("mlp.act_fn.alpha_p", "1", on="dense"), extra("mlp.act_fn.alpha_n", "1", on="dense"))),
    "bitnet": like(_BIASED, extras=(
        extra("self_attn.attn_sub_norm", "hidden"), extra("mlp.ffn_sub_norm", "ffn", on="dense"))),
    "jais2": like(_LLAMA, norm="layer", gated=False), "nemotron": like(_LLAMA, norm="layer", gated=False),
    "nanochat": like(_BIASED, norm="none", gated=False),
    "stablelm": Family(norm="layer", qkv_bias="use_qkv_bias", qk_norm="heads", qk_norm_if="qk_layernorm",
                       split_heads=True, norms=lambda keys: 1 if keys.flag("use_parallel_residual") else 2),
    "olmo": like(_BIASED, norm="none"),
    "olmo2": like(_BIASED, qk_norm="full"),
    "olmo3": like(_BIASED, qk_norm="full", mixer=r.every(4)),
    "exaone4": Family(qk_norm="head", mixer=r.every("sliding_window_pattern")),
    "hunyuan_v1_dense": _QWEN3, "hunyuan_vl_text": _QWEN3,
    "ernie4_5": _ERNIE, "paddleocr_vl_text": _ERNIE,
    "muse_glimmer_text": like(_BIASED, norms=4, extras=(_OUTPUT_GATE,),
                              mixer=r.full_if(lambda i, n: (n - 1 - i) % 4 == 0)),
    # Mistral
    "mistral": _WINDOWED, "ministral": _WINDOWED, "ministral3": _WINDOWED,
    "mixtral": like(_WINDOWED, mlp=r.SPARSE, expert="ffn"),
    # Qwen
    "qwen": Family(qkv_bias=True, dense="ffn//2"),
    "qwen2": _QWEN2, **{f"qwen{kind}_text": like(_QWEN2, split_heads=True) for kind in ("2_vl", "2_5_vl", "2_5_omni")},
    "qwen2_moe": Family(qkv_bias="qkv_bias", mixer=r.early_windows, mlp=r.stepped, shared=_WIDTH, shared_gate=True),
    "qwen3": like(_QWEN3, mixer=r.late_windows), "qwen3_vl_text": _QWEN3,
    "qwen3_moe": like(_QWEN3_MOE, mixer=r.SLIDING), "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe_text": like(_QWEN3_MOE, mixer=r.SLIDING),
    "qwen3_next": like(_DELTA_MOE, mlp=r.stepped),
    "qwen3_5_text": _DELTA, "qwen3_5_moe_text": _DELTA_MOE,
    # Gemma
    "gemma": _BIASED, "vaultgemma": like(_BIASED, mixer=r.every(2)), "gemma2": like(_BIASED, norms=4, mixer=r.every(2)),
    "gemma3_text": like(_GEMMA3, mixer=r.every("sliding_window_pattern"), defaults={"sliding_window_pattern": 6},
                        reject=(("use_bidirectional_attention", bool),)),
    "gemma3n_text": like(
        _GEMMA3, mixer=r.every(5), shared_kv="num_kv_shared_layers", lists=("intermediate_size",),
        extras=_ALTUP + _PER_LAYER_INPUT, outer=(
            *_PER_LAYER_TABLES, extra("altup_projections", "altup_others*hidden", "hidden"),
            extra("altup_unembed_projections", "altup_others*hidden", "hidden"))),
    "gemma4_text": like(
        _GEMMA4, mlp=lambda keys, i, n: "sparse" if keys.flag("enable_moe_block") else "dense", beside=True,
        outer=_PER_LAYER_TABLES, extras=(
            *_PER_LAYER_INPUT, extra("router.scale", "hidden", on="sparse"),
            extra("router.per_expert_scale", "experts", on="sparse"),
            *(extra(f"{name}_feedforward_layernorm_{i}", "hidden", on="sparse")
              for name, i in (("post", 1), ("post", 2), ("pre", 2))))),
    "gemma4_unified_text": _GEMMA4,
    # Phi
    "phi": _PHI, "phi3": _WINDOWED, "phi4_multimodal": _WINDOWED,
    "phi-msft": like(_PHI, defaults={"intermediate_size": None}),
    "phimoe": like(_MIXTURE, mixer=r.SLIDING, norm="layer", head_bias="lm_head_bias"),
    # Cohere
    "cohere": like(_COHERE, qk_norm="heads", qk_norm_if="use_qk_norm"),
    "cohere2": like(_COHERE, mixer=r.every("sliding_window_pattern"), split_heads=True,
                    defaults={"sliding_window_pattern": 4}),
    "cohere_compass_text": like(_COHERE, split_heads=True),
    "cohere2_moe": like(_COHERE, mixer=r.cohere2_moe_mixer, mlp=r.from_layer("first_k_dense_replace"), expert="ffn",
                        dense=_cohere2_moe_width, shared=_COUNT, defaults={"first_k_dense_replace": 0}),
    # GPT-2 and its kin
    "gpt2": like(_GPT, positions=("n_positions", 0), reject=(("add_cross_attention", bool),)),
    "gpt_bigcode": like(_GPT, positions=("n_positions", 0), reject=(("add_cross_attention", bool),)),
    "openai-gpt": like(_GPT, positions=("n_positions", 0), final_norm=False),
    "gpt_neo": like(_GPT, qkv_bias=False, positions=("max_position_embeddings", 0), mixer=r.gpt_neo_mixer,
                    spellings={"heads": ("num_heads",), "sliding_window": ("window_size",)}),
    "gpt_neox": like(_GPT, qkv_bias="attention_bias", o_bias="attention_bias"),
    "gptj": _GPTJ, "codegen": _GPTJ,
    "bloom": like(_GPT, embed_norm=True),
    "opt": like(
        _GPT, qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias",
        positions=("max_position_embeddings", 2), reject=(("layer_norm_elementwise_affine", False),),
        final_norm=lambda keys: keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm"),
        outer=(extra("project_in", "hidden", "word_embed_proj_dim", when=_projects),
               extra("project_out", "word_embed_proj_dim", "hidden", when=_projects))),
    "xglm": like(_GPT, spellings={"heads": ("attention_heads",)}, reject=(("add_cross_attention", bool),)),
    "biogpt": like(_GPT, positions=("max_position_embeddings", 2)),
    "persimmon": like(_GPT, qk_norm="head_bias", qk_norm_if="qk_layernorm"),
    "starcoder2": like(_ERNIE, norm="layer", gated=False, mixer=r.SLIDING,
                       reject=(("norm_type", "rms_norm"), ("mlp_type", "gated"))),
    "falcon": like(_GPT, norms=_falcon_norms, qkv_bias="bias", o_bias="bias", mlp_bias="bias"),
    "mpt": Family(norm="layer_nobias", gated=False, split_heads=True, dense="4*hidden", flatten=("attn_config",),
                  reject=(("no_bias", False), ("alibi", False), ("qk_ln", bool), ("expansion_ratio", lambda x: x != 4),
                          ("attn_type", lambda x: x != "multihead_attention"))),
    # Experts over grouped-query attention
    "dbrx": Family(norm="layer_nobias", mlp=r.SPARSE, expert="ffn", split_heads=True,
                   flatten=("attn_config", "ffn_config"), spellings={"kv_heads": ("kv_n_heads",)},
                   defaults={"kv_n_heads": 1, "ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}),
    "gpt_oss": like(_MIXTURE, mixer=r.every(2), router_bias=True, expert_bias=True, extras=_SINKS),
    "llama4_text": like(_MIXTURE, mixer=r.no_rope("chunked_attention"), mlp=r.interleaved,
                        dense="intermediate_size_mlp", shared=("ffn", "width")),
    "olmoe": like(_MIXTURE, qk_norm="full", split_heads=True), "flex_olmo": like(_MIXTURE, qk_norm="full"),
    "granitemoe": _MIXTURE,
    "granitemoeshared": like(_MIXTURE, shared=("shared_intermediate_size", "width")),
    "granitemoe_swa": like(_MIXTURE, mixer=r.every(4, 0), extras=_SINKS, shared=("shared_intermediate_size", "width")),
    "jetmoe": Family(
        attention="none", mlp=r.SPARSE, expert="ffn", per_layer=_jetmoe_layer, extras=(
            extra("self_attn.kv_proj", "2*kv_heads*head_dim", "hidden"),
            extra("self_attn.experts.input_linear", "kv_heads*head_dim", "hidden", routed=True),
            extra("self_attn.experts.output_linear", "hidden", "kv_heads*head_dim", routed=True),
            extra("self_attn.experts.router", "experts", "hidden", whole=True),
            extra("self_attn.experts.bias", "hidden"), extra("mlp.bias", "hidden", on="sparse"))),
    "aria_text": like(_MIXTURE, mlp_bias="mlp_bias", shared=_COUNT),
    "dots1": like(_QWEN3, mixer=r.late_windows, mlp=r.deepseek(0), shared=_COUNT),
    "glm": like(_GLM, norms=2), "glm4": _GLM, "glm_ocr_text": like(_GLM, qkv_bias=False),
    "glm4v_text": like(_GLM, qkv_bias=True, split_heads=True),
    "glm4_moe": like(_GLM_MOE, qk_norm="head", qk_norm_if="use_qk_norm"), "glm4v_moe_text": _GLM_MOE,
    "sarvam_moe": like(_GLM_MOE, qk_norm="head", qk_norm_if="use_qk_norm",
                       spellings={"attention_bias": ("use_qkv_bias",)}),
    "solar_open": like(_GLM_MOE, mlp=r.SPARSE),
    "ernie4_5_moe": like(_ERNIE, head_bias="use_bias", mlp=r.ranged, shared=_COUNT, extras=(_CORRECTION,)),
    "exaone_moe": Family(qk_norm="head", mixer=r.every("sliding_window_pattern"), shared=_COUNT,
                         mlp=r.from_layer("first_k_dense_replace")),
    "hunyuan_v1_moe": like(_MIXTURE, qk_norm="head", expert=_hunyuan_expert, shared=("num_shared_expert", "count"),
                           lists=("moe_topk", "moe_intermediate_size", "num_shared_expert"),
                           defaults={"num_shared_expert": 1}),
    "hy_v3": like(_LLAMA, qk_norm="head", mlp=r.from_layer(1), shared=_COUNT),
    "minimax_m2": Family(qk_norm="full", mlp=r.SPARSE, expert="ffn",
                         reject=(("shared_intermediate_size", bool), ("use_qk_norm", False))),
    "minimax_m3_vl_text": Family(qk_norm="head", mlp=r.SPARSE, expert="ffn", dense="dense_intermediate_size",
                                 shared=("shared_intermediate_size", "width"),
                                 reject=(("sparse_attention_config", bool), ("moe_layer_freq", bool))),
    "mimo_v2_flash": Family(qkv_bias="attention_bias", mixer=r.full_if(lambda i, n: i == 0 or (i + 1) % 6 == 0),
                            mlp=r.deepseek(1), per_layer=_mimo_layer,
                            extras=(extra("self_attn.sinks", "heads", on="sliding_attention"),)),
    "afmoe": like(_GEMMA3, mixer=r.every("global_attn_every_n_layers"), mlp=r.from_layer("num_dense_layers"),
                  shared=_COUNT, extras=(_OUTPUT_GATE, extra("mlp.expert_bias", "experts", on="sparse"))),
    "beam": like(_GEMMA3, mixer=r.full_if(lambda i, n: (i + 1) % 6 == 0 or i == n - 1), mlp=r.from_layer(3),
                 extras=(_OUTPUT_GATE, extra("self_attn.gate_bias", "heads"))),
    "flint": like(_QWEN3_MOE, mixer=r.full_if(lambda i, n: i < 2 or i % 4 == 1 or i == n - 1), shared=_WIDTH,
                  extras=_SINKS, defaults={"mlp_only_layers": [0, 1]}),
    "kolibri1": Family(norms=4, qk_norm="head", mixer=r.every(5), mlp=r.SPARSE, shared=_WIDTH),
    "laguna": like(_QWEN3, mlp=r.from_layer(1), shared=_WIDTH, lists=("num_attention_heads_per_layer",),
                   spellings={"heads": ("num_attention_heads_per_layer",)}, extras=(_HEAD_GATE, _CORRECTION),
                   reject=(("gating", lambda value: value not in (True, "per-head")),)),
    "step3p5": like(_LLAMA, qk_norm="head", mlp=r.step_mlp, shared=("share_expert_dim", "width"), per_layer=_step_layer,
                    extras=(_HEAD_GATE,), reject=(("num_local_experts", bool),),
                    spellings={"kv_heads": ("num_attention_groups",), "experts": ("n_routed_experts",),
                               "share_expert_dim": ("share_expert_dim", "share_expert_dims")}),
    "mellum": like(_QWEN3, mlp=r.SPARSE),
    # Latent attention
    "deepseek_v2": like(_DEEPSEEK, mlp=r.deepseek(0), mlp_bias="mlp_bias"),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": like(_DEEPSEEK, mixer=r.always("indexed_attention"), only=_INDEXED, extras=_INDEXER),
    "glm_moe_dsa": like(_DEEPSEEK, mixer=r.glm_index, only=_INDEXED, extras=_INDEXER),
    "glm4_moe_lite": like(_DEEPSEEK, mlp=r.deepseek(1),
                          spellings={"qk_rope_head_dim": ("qk_rope_head_dim", "head_dim")}),
    "mistral4": like(_DEEPSEEK, mlp=r.deepseek(0)),
    "axk1": like(_DEEPSEEK, mlp=r.deepseek(1), extras=(extra("mlp.post_mlp_layernorm", "hidden", on="sparse"),)),
    "sarvam_mla": like(_DEEPSEEK, mlp=r.deepseek(1)),
    "minicpm3": like(_LLAMA, attention="mla"), "youtu": like(_BIASED, attention="mla"),
    # Recurrences, alone and beside attention
    "mamba": _MAMBA, "falcon_mamba": _MAMBA, "mamba2": like(_MAMBA, recurrent="mamba2"),
    "jamba": Family(mixer=r.every("attn_layer_period", "attn_layer_offset", rest="linear_attention"), recurrent="jamba",
                    mlp=r.every("expert_layer_period", "expert_layer_offset", hit="sparse", rest="dense"), expert="ffn",
                    fewest_experts=1),
    "bamba": like(_LLAMA, mixer=r.inside("attn_layer_indices"), recurrent="bamba"),
    "granitemoehybrid": like(_MIXTURE, mixer=r.LINEAR, recurrent="bamba", dense="shared_intermediate_size",
                             shared=("shared_intermediate_size", "width")),
    "falcon_h1": like(_LLAMA, mixer=r.always("hybrid"), recurrent="falcon_h1", reject=(("attn_layer_indices", bool),)),
    "nemotron_h": Family(
        norms=1, one_part=True, gated=False, mlp_bias="mlp_bias", recurrent="nemotron_h", mixer=r.always("none"),
        mlp=r.NO_MLP, shared=("moe_shared_expert_intermediate_size", "width"), expert_input="moe_latent_size",
        reject=(("tie_word_embeddings", True),), extras=(
            extra("mlp.fc1_latent_proj", "moe_latent_size", "hidden", on="sparse", when="moe_latent_size"),
            extra("mlp.fc2_latent_proj", "hidden", "moe_latent_size", on="sparse", when="moe_latent_size"),
            extra("mlp.fc1_latent_proj.bias", "moe_latent_size", on="sparse", when=_latent_bias),
            extra("mlp.fc2_latent_proj.bias", "hidden", on="sparse", when=_latent_bias))),
    "minimax": _MINIMAX, "minimax_text_01": _MINIMAX,
    "lfm2": like(_LFM2, dense=_lfm2_width, spellings={"ffn": ("block_ff_dim",)},
                 mixer=r.inside("full_attn_idxs", rest="conv", absent="full_attention")),
    "lfm2_moe": like(_LFM2, mixer=r.always("unlisted"), mlp=r.from_layer("num_dense_layers")),
    "lfm3": like(_LFM2, qkv_bias="attention_bias", o_bias="attention_bias",
                 norms=lambda keys: 4 if keys.flag("use_sandwich_norm") else 2,
                 extras=(_HEAD_GATE._replace(when="use_attention_gate"),), mixer=r.lfm3_mixer),
    "lara_mini": like(_QWEN3, recurrent="gated_delta_net", mlp=r.SPARSE, shared=_WIDTH, mixer=r.cycle(
        "linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")),
    "olmo_hybrid": like(_BIASED, qk_norm="full", recurrent="gated_delta_net",
                        mixer=r.every(4, rest="linear_attention")),
    "kimi_linear": like(_DEEPSEEK, recurrent="kimi_delta", mixer=r.kimi_mixer,
                        mlp=r.from_layer("first_k_dense_replace"), flatten=("linear_attn_config",),
                        defaults={"first_k_dense_replace": 1},
                        reject=(*_DEEPSEEK.reject, ("tie_word_embeddings", True))),
    "bailing_hybrid": like(
        _DEEPSEEK, recurrent="kimi_delta_full", mixer=r.every("layer_group_size", rest="linear_attention"),
        mlp=r.from_layer("first_k_dense_replace"), extras=(_HEAD_GATE._replace(on="full_attention"),),
        spellings={"linear_head_dim": ("head_dim",), "linear_conv_kernel_dim": ("short_conv_kernel_size",)},
        reject=(*_DEEPSEEK.reject, ("tie_word_embeddings", True))),
    "recurrent_gemma": Family(
        qkv_bias="attention_bias", o_bias=True, mlp_bias=True, recurrent="rg_lru", dense="ffn//2", split_heads=True,
        spellings={"sliding_window": ("attention_window_size",)},
        mixer=r.listed("block_types", {"recurrent": "linear_attention", "attention": "sliding_attention"})),
    # Families whose code ships with the checkpoint; their defaults are those of that code
    "internlm2": Family(qkv_bias="bias", o_bias="bias", defaults={"bias": True}),
    "baichuan": _PLAIN,
    "chatglm": Family(qkv_bias="add_qkv_bias", o_bias="add_bias_linear", mlp_bias="add_bias_linear",
                      reject=(("rmsnorm", False), ("post_layer_norm", False))),
    "mimo": Family(qkv_bias="attention_bias", mixer=r.late_windows,
                   defaults={"use_sliding_window": False, "sliding_window": None}),
    "minicpm": Family(mlp=r.SPARSE, expert="ffn", defaults={"tie_word_embeddings": True}),
    "deepseek": like(_BIASED, mlp=r.deepseek(0), shared=_COUNT),
}

# Other spellings of model_type, and the text model of those that also see or hear.
SYNONYMS = {
    "apertus1p5": "apertus", "apertus1p5_text": "apertus", "kimi_k2": "deepseek_v3", "minimax_m1": "minimax_text_01",
    "gpt-sw3": "gpt2",
    **{kind: "llama" for kind in (
        "deepseek_vl", "idefics3", "janus", "llava", "llava_next", "llava_next_video", "perception_lm", "smolvlm",
        "video_llava", "vipllava", "voxtral")},
    **{kind: "qwen2" for kind in (
        "audioflamingo3", "fast_vlm", "got_ocr2", "internvl", "llava_onevision", "musicflamingo", "ovis2",
        "qwen2_audio", "vibevoice", "video_llama_3")},
    **{kind: "qwen3" for kind in ("lighton_ocr", "qianfan_ocr", "qwen3_asr")},
    **{kind: f"{kind}_text" for kind in (
        "aria", "cohere_compass", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm4v", "glm4v_moe",
        "glm_ocr", "granite4_vision", "granite_docling", "hunyuan_vl", "llama4", "minimax_m3_vl", "muse_glimmer",
        "paddleocr_vl", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe",
        "qwen3_5", "qwen3_5_moe")},
    "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "cosmos3_omni": "qwen3_vl_text", "paligemma": "gemma", "shieldgemma2": "gemma3_text", "aya_vision": "cohere2",
    "cohere2_vision": "cohere2", "glm46v": "glm4v_text", "mistral3": "mistral", "idefics2": "mistral",
    "exaone4_5": "exaone4", "granite_speech": "granite", "hyperclovax_vision_v2": "hyperclovax",
    "kimi_k25": "deepseek_v3", "lfm2_vl": "lfm2", "lfm3_vl": "lfm3", "nemotron_h_omni": "nemotron_h",
    "step3p7": "step3p5", "emu3": "emu3_text_model",
}
