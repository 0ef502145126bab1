"""Published configs are read exactly, and what is not understood is refused in one line.

The values are those of a reference implementation built without data: tests/data/configs/truth.csv.
"""

import csv
import json
import math
from pathlib import Path

import pytest

from econ import ConfigError, forward, load_model
from econ.families import FAMILIES, SYNONYMS

pytestmark = pytest.mark.core

DATA = Path(__file__).parent / "data"
CONFIGS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DATA / "configs").glob("*.json")}
with open(DATA / "configs" / "truth.csv", encoding="utf-8") as file:
    TRUTH = [(row["model"].replace("/", "__"), row["quantity"], float(row["value"])) for row in csv.DictReader(file)
             if row["quantity"].endswith(("_meta", "_S64", "_S8192", "_cache", "64", "8192"))]


def routed(m):
    return sum(n * sum(t.n_params for t in layer.tensors if t.copies > 1) for layer, n in m.layer_kinds)


def held(m, tokens):
    """Cache elements as the reference keeps them: a window less the token that is being computed."""
    return sum(n * a.cache_elements * (tokens if a.window is None else min(tokens, a.window - 1))
               for a, n in m.attention_kinds)


MEASURES = {
    "params_total_meta": lambda m: m.n_params,
    "params_active_meta": lambda m: m.n_active_params,
    "params_embed_meta": lambda m: m.n_embedding_params,
    "params_routed_experts_meta": routed,
    "lm_head_tied_meta": lambda m: int(m.tied),
    "kv_elements_per_token_hf_cache_S64": lambda m: m.kv_cache_bytes(64, dtype="bf16") / 128,
    "kv_layers_hf_cache": lambda m: sum(n for a, n in m.attention_kinds if a.keeps_cache),
    "kv_elements_total_hf_cache_S8192": lambda m: held(m, 8192),
    "flops_prefill64": lambda m: forward(m, new_tokens=64, causal=False, logits="all").flops,
    "flops_prefill8192": lambda m: forward(m, new_tokens=8192, causal=False, logits="all").flops,
    "flops_decode_ctx64": lambda m: forward(m, new_tokens=1, context=64, causal=False, logits="all").flops,
}


def test_no_published_config_is_refused():
    assert len(CONFIGS) == 72
    for config in CONFIGS.values():
        load_model(config)


@pytest.mark.parametrize("model, quantity, value", TRUTH, ids=lambda v: v if isinstance(v, str) else "")
def test_published_configs_are_exact(model, quantity, value):
    assert MEASURES[quantity](load_model(CONFIGS[model])) == value


# Absent, null, nested.
LLAMA = CONFIGS["meta-llama__Meta-Llama-3.1-8B"]


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


def test_null_differs_from_absent():
    lite = CONFIGS["deepseek-ai__DeepSeek-V2-Lite"]
    assert lite["q_lora_rank"] is None
    assert load_model(without(lite, "q_lora_rank")).n_params - load_model(lite).n_params == 42_508_800


def test_an_absent_window_is_the_class_default_and_a_null_one_is_none():
    mistral = without(CONFIGS["mistralai__Mistral-7B-v0.1"], "sliding_window_size")
    assert load_model(mistral).attention_kinds[0][0].window == 4096
    assert load_model({**mistral, "sliding_window": None}).attention_kinds[0][0].window is None


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                                 "vocab_size", "model_type"])
def test_a_missing_size_is_refused_and_named(key):
    with pytest.raises(ConfigError, match=key):
        load_model(without(LLAMA, key))


def test_a_nested_config_may_leave_sizes_to_its_class():
    m = load_model({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert m.n_params == 6_738_415_616 + 2 * 64 * 4096  # the class's default is the 7B
    assert m.max_context == 2048


def test_the_nested_model_wins_and_falls_back_key_by_key():
    text = without(LLAMA, "num_hidden_layers", "tie_word_embeddings")
    m = load_model({"model_type": "llava", "num_hidden_layers": 3, "tie_word_embeddings": True, "hidden_size": 1,
                    "vision_config": {"num_hidden_layers": 99, "num_key_value_heads": 1}, "text_config": text})
    assert (len(m.layers), m.hidden, m.kv_heads, m.tied) == (3, 4096, 8, True)


def test_older_spellings_are_read():
    old = {"model_type": "llama", "n_layer": 32, "n_embd": 4096, "n_head": 32, "num_kv_heads": 8, "ffn_dim": 14336,
           "padded_vocab_size": 128256}
    assert load_model(old).n_params == load_model(LLAMA).n_params


def test_one_layer_may_have_values_of_its_own():
    one = load_model({**LLAMA, "per_layer_config": {"03": {"num_key_value_heads": 2, "intermediate_size": 7168}}})
    assert load_model(LLAMA).n_params - one.n_params == 6 * 2 * 128 * 4096 + 3 * 7168 * 4096
    assert [layer.attention.kv_heads for layer in one.layers[2:5]] == [8, 2, 8]


# Recurrent state: sizes by hand from the papers' definitions.
@pytest.mark.parametrize("model, state, conv", [
    ("state-spaces__mamba-2.8b-hf", 64 * 5120 * 16, 64 * 5120 * 3),
    ("mistralai__Mamba-Codestral-7B-v0.1", 64 * 128 * 64 * 128, 64 * (8192 + 2 * 8 * 128) * 3),
    ("ai21labs__Jamba-v0.1", 28 * 8192 * 16, 28 * 8192 * 3),
    ("Qwen__Qwen3-Next-80B-A3B-Instruct", 36 * 32 * 128 * 128, 36 * (2 * 16 * 128 + 32 * 128) * 3),
    ("tiiuae__Falcon-H1-0.5B-Base", 36 * 24 * 64 * 128, 36 * (1536 + 2 * 128) * 3),
    ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 23 * 64 * 64 * 128, 23 * (4096 + 2 * 8 * 128) * 3),
])
def test_recurrent_state(model, state, conv):
    m = load_model(CONFIGS[model])
    wide = {"fp32": 4, "bf16": 2, "fp16": 2}[m.dtype]
    assert m.state_bytes(batch=3) == 3 * (4 * state + wide * conv)
    halved = load_model({**CONFIGS[model], "mamba_ssm_cache_dtype": "bfloat16"})
    assert halved.state_bytes() == 2 * state + wide * conv


def test_a_recurrence_costs_the_same_at_any_context():
    m = load_model(CONFIGS["state-spaces__mamba-2.8b-hf"])
    assert m.kv_bytes_per_token() == 0 == m.kv_cache_bytes(10**6)
    assert forward(m, context=10).flops == forward(m, context=10**6).flops
    assert forward(m, context=10).state_bytes == 2 * m.state_bytes()


def test_sparse_attention_reads_what_it_chooses_and_the_whole_index():
    m = load_model(CONFIGS["zai-org__GLM-5"])
    assert m.kv_bytes_per_token("bf16") == 2 * 78 * (512 + 64 + 128)
    near, far = (forward(m, context=tokens) for tokens in (2048, 200_000))
    assert near.kv_read_bytes == 2 * 78 * (576 + 128) * 2048
    assert far.kv_read_bytes == 2 * 78 * (576 * 2048 + 128 * 200_000)
    index = [op for op in far.operators if op.name == "index"]
    assert [op.flops for op in index] == [78 * 2 * 32 * 129 * 200_001]


def test_layers_that_share_a_cache_keep_none():
    m = load_model({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}})
    assert [a.keeps_cache for a in (layer.attention for layer in m.layers)] == [True] * 20 + [False] * 15
    assert m.kv_bytes_per_token("bf16") == 20 * 2 * 2 * 256 * 2
    assert forward(m, context=100).kv_read_bytes == 35 * 2 * 2 * 256 * 2 * 100  # every layer reads one


# Quantised checkpoints.
def quantised(config, **spec):
    return load_model({**config, "quantization_config": spec})


def compressed(targets=("Linear",), **weights):
    group = {"targets": list(targets), "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


ROWS, COLS = 8192, 28672  # the 70B's down_proj
BIG = CONFIGS["meta-llama__Meta-Llama-3.1-70B"]


@pytest.mark.parametrize("spec, matrix_bytes", [
    ({"quant_method": "fp8"}, ROWS * COLS + 4),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ROWS * COLS + 4 * 64 * 224),
    ({"quant_method": "fbgemm_fp8"}, ROWS * COLS + 4 * ROWS),
    ({"quant_method": "mxfp4"}, ROWS * COLS * 17 // 32),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, ROWS * COLS // 2 + ROWS * COLS // 128 * 20 // 8),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ROWS * COLS + ROWS * 24 // 8),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ROWS * COLS // 2 + ROWS * COLS // 64 * 4),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ROWS * COLS + 4 * ROWS),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ROWS * COLS // 2 + ROWS * COLS // 16 + 4),
    ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, ROWS * COLS + 4),
    (compressed(num_bits=4, type="int", group_size=128, symmetric=True), ROWS * COLS // 2 + ROWS * COLS // 128 * 2),
    (compressed(num_bits=8, type="float", strategy="channel"), ROWS * COLS + 2 * ROWS),
])
def test_stored_bytes_of_a_matrix(spec, matrix_bytes):
    m = quantised(BIG, **spec)
    down = next(t for t in m.layers[0].tensors if t.name == "mlp.down_proj")
    assert down.shape == (ROWS, COLS)
    assert m.format_of(down, "published").bytes(down.shape) == matrix_bytes
    assert m.format_of(m.head, "published").name == "bf16"


@pytest.mark.parametrize("patterns, left_alone", [
    (["lm_head"], 0), (["model.layers.0.mlp.down_proj"], 1), (["model.layers.0.self_attn"], 4),
    (["re:.*layers\\.0\\.self_attn.*"], 4), (["model.layers.0.self_attn*"], 4), (["re:.*down_proj"], 80),
    (["down_proj"], 80), (["self_attn"], 320), (["model.layers.7.self_attn.qkv_proj"], 3), (["layers.1"], 7),
    (["model.layers.1."], 0), (["gate"], 0), (["re:model.layers.[01].mlp.(gate|up)_proj"], 4)])
def test_modules_that_a_checkpoint_leaves_alone(patterns, left_alone):
    m = quantised(BIG, quant_method="fp8", modules_to_not_convert=patterns)
    assert sum(t.role == "linear" and not t.quantized for layer in m.layers for t in layer.tensors) == left_alone
    assert quantised(BIG, quant_method="fp8").weight_bytes() <= m.weight_bytes() <= load_model(BIG).weight_bytes()


MOE = CONFIGS["deepseek-ai__DeepSeek-V2-Lite"]  # 26 of 27 layers have 64 routed experts and shared ones


@pytest.mark.parametrize("spec, left_alone", [
    (dict(quant_method="fp8", ignore=["re:.*shared_experts.*"]), {"mlp.shared_expert": 26 * 3}),
    (dict(quant_method="fp8", ignore=["model.layers.1.mlp.shared_experts.down_proj"]), {"mlp.shared_expert": 1}),
    (dict(quant_method="fp8", ignore=["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]), {"mlp": 3}),  # layer 0 is dense
    (dict(quant_method="fp8", ignore=["re:.*self_attn\\.kv_a_proj_with_mqa$"]), {"self_attn": 27}),
    (dict(quant_method="fp8", ignore=["re:.*mlp\\.shared_experts$"]), {}),  # no linear layer has that name
    (dict(quant_method="fp8", ignore=["re:.*mlp\\.experts\\.\\d+\\.down_proj"]), {"mlp.experts": 26}),
    (dict(quant_method="gptq", dynamic={"lm_head": {}, "-:.*attn.*": {}, "-:.*shared_expert.*": {}}),
     {"self_attn": 27 * 4, "mlp.shared_expert": 26 * 3}),
    (compressed(num_bits=4, type="int", group_size=32), {}),
    (compressed(["re:.*mlp\\.experts.*"], num_bits=4, type="int", group_size=32),
     {"self_attn": 27 * 4, "mlp": 3, "mlp.shared_expert": 26 * 3}),
])
def test_published_names_of_modules(spec, left_alone):
    counted = {}
    for layer in quantised(MOE, **spec).layers:
        for t in layer.tensors:
            if t.role in ("linear", "expert") and not t.quantized:
                block = t.name.rpartition(".")[0]
                counted[block] = counted.get(block, 0) + 1
    assert counted == left_alone


@pytest.mark.parametrize("spec, complaint", [
    (compressed(["LlamaAttention"], num_bits=8, type="int"), "targets has 'LlamaAttention'"),
    ({"quant_method": "gptq", "dynamic": {".*down.*": {"bits": 8}}}, "dynamic stores"),
    ({"quant_method": "gptq", "lm_head": True}, "lm_head=true"), ({"quant_method": "gptq", "group_size": True}, "True"),
    ({"quant_method": "quark"}, "quant_method 'quark'"), ({"quant_method": ["awq"]}, "quant_method"),
    ({"quant_method": "awq", "bits": 5}, "bits=5"), ({"quant_method": "awq", "group_size": 0}, "group_size=0"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "mixed_precision"),
    ({"quant_method": "compressed-tensors"}, "config_groups"), ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    ({"quant_method": "fp8", "ignore": ["re:(a+)+$"]}, "repeats a repetition"),
    ({"quant_method": "fp8", "ignore": ["re:("]}, "regular expression"),
    ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore is a str"),
    ({"quant_method": "compressed-tensors", "config_groups": {
        "a": {"weights": {"num_bits": 8, "type": "float"}}, "b": {"weights": {"num_bits": 4, "type": "int"}}}},
     "2 formats"),
])
def test_a_quantisation_that_is_not_understood_is_refused(spec, complaint):
    with pytest.raises(ConfigError, match=complaint):
        quantised(BIG, **spec)


def test_the_cache_dtype_of_a_quantised_checkpoint():
    fp8 = quantised(BIG, quant_method="modelopt", quant_algo="FP8", kv_cache_quant_algo="FP8")
    assert fp8.cache_dtype == "fp8" and fp8.kv_bytes_per_token() == 163_840
    assert quantised(BIG, quant_method="modelopt", quant_algo="FP8").kv_bytes_per_token() == 327_680


# What changes the arithmetic and is not implemented.
@pytest.mark.parametrize("changes, complaint", [
    ({"model_type": "nemotron-nas"}, "model_type 'nemotron-nas'"), ({"model_type": "zamba2"}, "model_type 'zamba2'"),
    ({"model_type": None}, "no model_type"), ({"model_type": ["llama"]}, "no model_type"),
    ({"block_configs": [{}, {}]}, "block_configs"), ({"num_local_experts": 8}, "num_local_experts"),
    ({"kv_lora_rank": 512}, "kv_lora_rank"), ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
    ({"sliding_window": 4096}, "sliding_window"), ({"compress_ratios": [4]}, "compress_ratios"),
    ({"layer_types": ["full_attention"] * 31}, "layer_types"), ({"layer_types": ["sparse"] * 32}, "layer_types"),
    ({"layer_types": ["linear_attention"] * 32}, "layer_types"), ({"use_qk_norm": True}, "use_qk_norm"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "no language-model head"),
    ({"architectures": ["LlamaForRewardModel"]}, "no language-model head"),
    ({"per_layer_config": {"40": {"head_dim": 1}, "x": {}}}, "per_layer_config"),
    ({"per_layer_config": {"0": {"skip": ["attention"]}}}, "skip"), ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
    ({"num_attention_heads": 30}, "head_dim"), ({"num_key_value_heads": 5}, "num_key_value_heads=5"),
    ({"hidden_size": "4096"}, "hidden_size"), ({"hidden_size": -1}, "hidden_size"), ({"vocab_size": 0}, "vocab_size"),
    ({"vocab_size": math.nan}, "vocab_size"), ({"intermediate_size": math.inf}, "intermediate_size"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"), ({"hidden_size": 10**30}, "hidden_size"),
    ({"num_hidden_layers": 3.5}, "num_hidden_layers"), ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({"text_config": [1]}, "text_config"), ({"text_config": "llama"}, "text_config"),
])
def test_one_line_says_what_is_wrong(changes, complaint):
    with pytest.raises(ConfigError, match=complaint) as refused:
        load_model({**LLAMA, **changes})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_an_infinite_number_where_it_does_not_matter_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, math.inf]}), encoding="utf-8")
    assert "Infinity" in path.read_text(encoding="utf-8")
    assert load_model(path).n_params == load_model(LLAMA).n_params


def test_every_spelling_leads_to_a_family():
    assert set(SYNONYMS.values()) <= set(FAMILIES)
