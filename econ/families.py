"""What a model family's code fixes and its config.json does not say: one row a family, data only.

A new family is one row here. A row starts from the Llama layout (two RMSNorms, gated MLP, no biases, untied
head) and states what differs. A string value names the config key that decides; its default follows "=".

norm         "rms" or "layer" (LayerNorm with bias) or "layer_nobias"
norms        full-width norms in a layer           qk_norm      None, "head" (head_dim), "full" (whole projection)
qkv_bias o_bias mlp_bias head_bias                 tie          class default of tie_word_embeddings
gated        three MLP matrices instead of two     positions    learned position table: (config key, extra rows)
window       which layers slide, if layer_types does not say: see `econ.config._windows`
moe          how routed layers are laid out: see `econ.config._is_routed`
defaults     values of keys that a config may leave out
reject       keys that change the arithmetic and are not implemented: (key, value) that must not hold
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The fixed choices of one model family; see the module's docstring for the columns."""

    norm: str = "rms"
    norms: int = 2
    final_norm: bool = True
    embed_norm: bool = False
    qk_norm: str | None = None
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool = False
    gated: bool = True
    tie: bool = False
    positions: tuple[str, int] | None = None
    window: str = "none"
    moe: str = "none"
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    mla: bool = False
    defaults: dict = field(default_factory=dict)
    reject: tuple[tuple[str, object], ...] = ()


_GPT = dict(norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False)
_QWEN_MOE = dict(moe="step", defaults={"decoder_sparse_step": 1, "mlp_only_layers": []}, window="max_window_layers")
_DEEPSEEK = dict(mla=True, moe="first_dense", qkv_bias="attention_bias=false", o_bias="attention_bias=false")

FAMILIES = {
    "llama": Family(qkv_bias="attention_bias=false", o_bias="attention_bias=false", mlp_bias="mlp_bias=false"),
    "mistral": Family(window="all", defaults={"num_key_value_heads": 8}),
    "mixtral": Family(window="all", moe="all", defaults={"num_key_value_heads": 8}),
    "qwen2": Family(qkv_bias=True, window="max_window_layers", defaults={"use_sliding_window": False}),
    "qwen3": Family(qkv_bias="attention_bias=false", o_bias="attention_bias=false", qk_norm="head",
                    window="max_window_layers", defaults={"use_sliding_window": False, "head_dim": 128}),
    "qwen2_moe": Family(qkv_bias=True, shared_gate=True, **_QWEN_MOE),
    "qwen3_moe": Family(qkv_bias="attention_bias=false", o_bias="attention_bias=false", qk_norm="head", **_QWEN_MOE),
    "smollm3": Family(qkv_bias="attention_bias=false", o_bias="attention_bias=false", mlp_bias="mlp_bias=false",
                      tie=True, defaults={"use_sliding_window": False, "num_key_value_heads": 4}),
    "gemma": Family(tie=True, defaults={"head_dim": 256}),
    "gemma2": Family(tie=True, norms=4, window="even", defaults={"head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": Family(tie=True, norms=4, qk_norm="head", window="pattern",
                          defaults={"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                                    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}),
    "phi3": Family(window="all"),
    "phi": Family(**_GPT, norms=1, head_bias=True),
    "stablelm": Family(norm="layer", qkv_bias="use_qkv_bias=false",
                       reject=(("qk_layernorm", True), ("use_parallel_residual", True))),
    "olmo2": Family(qk_norm="full", qkv_bias="attention_bias=false", o_bias="attention_bias=false"),
    "cohere": Family(norm="layer_nobias", norms=1, tie=True, qkv_bias="attention_bias=false",
                     o_bias="attention_bias=false", reject=(("use_qk_norm", True),)),
    "starcoder2": Family(norm="layer", qkv_bias="use_bias=true", o_bias="use_bias=true", mlp_bias="use_bias=true",
                         gated=False, tie=True, window="all", defaults={"num_key_value_heads": 2},
                         reject=(("norm_type", "rms_norm"), ("mlp_type", "gated"))),
    "gpt2": Family(**_GPT, tie=True, positions=("n_positions", 0), reject=(("add_cross_attention", True),)),
    "opt": Family(**_GPT, tie=True, positions=("max_position_embeddings", 2),
                  reject=(("do_layer_norm_before", False), ("enable_bias", False), ("layer_norm_elementwise_affine", False),
                          ("_remove_final_layer_norm", True))),
    "bloom": Family(**_GPT, tie=True, embed_norm=True),
    "gpt_neox": Family(norm="layer", qkv_bias="attention_bias=true", o_bias="attention_bias=true", mlp_bias=True,
                       gated=False),
    "gptj": Family(norm="layer", norms=1, mlp_bias=True, gated=False, head_bias=True),
    "falcon": Family(norm="layer", norms=1, tie=True, gated=False, qkv_bias="bias=false", o_bias="bias=false",
                     mlp_bias="bias=false"),
    "internlm2": Family(qkv_bias="bias=false", o_bias="bias=false", defaults={"num_key_value_heads": 32}),
    "baichuan": Family(),
    "chatglm": Family(qkv_bias="add_qkv_bias=true", o_bias="add_bias_linear=false", mlp_bias="add_bias_linear=false"),
    "mimo": Family(qkv_bias="attention_bias=true", window="max_window_layers", defaults={"use_sliding_window": False}),
    "minicpm": Family(moe="all", tie=True),
    "minicpm3": Family(mla=True, tie=True, defaults={"v_head_dim": 64}),
    "granitemoe": Family(moe="all", tie=True, qkv_bias="attention_bias=false", o_bias="attention_bias=false"),
    "deepseek_v2": Family(**_DEEPSEEK, defaults={"q_lora_rank": 1536, "v_head_dim": 128, "first_k_dense_replace": 0,
                                                 "moe_layer_freq": 1}),
    "deepseek_v3": Family(**_DEEPSEEK,
                          defaults={"q_lora_rank": 1536, "v_head_dim": 128, "first_k_dense_replace": 3,
                                    "moe_layer_freq": 1}),
    "glm4_moe": Family(moe="first_dense", qkv_bias="attention_bias=false", qk_norm="use_qk_norm=false",
                       defaults={"moe_layer_freq": 1, "first_k_dense_replace": 1, "head_dim": 128}),
    "gpt_oss": Family(moe="all", qkv_bias="attention_bias=true", o_bias="attention_bias=true", router_bias=True,
                      expert_bias=True, sinks=True, window="layer_types",
                      defaults={"head_dim": 64, "sliding_window": 128}),
    "minimax_m2": Family(moe="all", qk_norm="full", reject=(("attn_type_list", True),)),
    "llama4_text": Family(moe="interleave", window="chunk",
                          qkv_bias="attention_bias=false", o_bias="attention_bias=false",
                          defaults={"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "head_dim": 128}),
}

# Other spellings of model_type, each with keys it sets.
SYNONYMS = {
    "phi-msft": "phi", "gemma3": "gemma3_text", "llama4": "llama4_text", "qwen2_5_vl": "qwen2", "kimi_k2": "deepseek_v3",
    "mistral3": "mistral",
}
