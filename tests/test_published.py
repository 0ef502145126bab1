"""What engines, files and benchmarks printed, against econ: within 1 %, or named with the fact that is missing."""

import csv
import re
from pathlib import Path

import pytest

from econ import load_model
from econ.memory import BLOCK_TOKENS, kv_bytes_per_gpu, kv_reserved_bytes_per_gpu, memory, weight_bytes_per_gpu
from econ.precision import FORMATS
from econ.work import Split

pytestmark = pytest.mark.core

DATA = Path(__file__).parent / "data"
GIB, MIB = 2**30, 2**20


def table(path):
    with open(DATA / path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Files: whole GGUF files, as their publishers list them.
@pytest.mark.parametrize("row", table("gguf_sizes.csv"), ids=lambda row: row["published_as"])
def test_gguf_files(row):
    m, recipe = load_model(row["model"]), row["weights"]
    size = mixed_gguf_bytes(m) if "+" in recipe else m.weight_bytes(recipe)
    assert size / GIB == pytest.approx(float(row["file_gib"]), rel=5e-3)


def mixed_gguf_bytes(m):
    """gpt-oss files keep the experts in mxfp4, all other matrices and both tables in q8_0, vectors in fp32."""
    tensors = [t for layer in m.layers for t in layer.tensors] + list(m.outer)
    stored = [(t, "mxfp4" if t.role == "expert" else "q8_0" if len(t.shape) > 1 else "fp32") for t in tensors]
    return sum(t.copies * FORMATS[name].bytes(t.shape) for t, name in stored)


# Engine lines: one call a row of cases.csv. TP shards a GPU's part; a pool is filled in whole blocks.
def kv(name, tokens, dtype="fp16", unit=1):
    return load_model(name).kv_cache_bytes(tokens, dtype=dtype) / unit


def pool(name, blocks, unit, tp=1):
    return blocks * kv_reserved_bytes_per_gpu(load_model(name), BLOCK_TOKENS, split=Split(tp=tp)) / unit


def tokens_in(name, pool_bytes, dtype="fp16", tp=1):
    block = kv_reserved_bytes_per_gpu(load_model(name), BLOCK_TOKENS, 1, dtype, Split(tp=tp))
    return BLOCK_TOKENS * (pool_bytes // block)


LLAMA_30B = dict(model_type="llama", num_hidden_layers=60, num_attention_heads=52, hidden_size=6656,
                 intermediate_size=17_920, vocab_size=32_000)
# Geometry as a public training script gives it: github.com/THUDM/slime, scripts/models/qwen3-235B-A22B.sh
QWEN3_235B = dict(model_type="qwen3_moe", num_hidden_layers=94, hidden_size=4096, num_attention_heads=64,
                  num_key_value_heads=4, head_dim=128, intermediate_size=12_288, moe_intermediate_size=1536,
                  num_experts=128, num_experts_per_tok=8, vocab_size=151_936, tie_word_embeddings=False)
CALLS = {
    ("K01", "kv_pool_bytes"): lambda: kv("llama-2-7b", 132_608),
    ("K02", "kv_size"): lambda: kv("llama-2-70b", 2048, unit=MIB),
    ("K03", "kv_size"): lambda: kv(LLAMA_30B, 512, "fp32", MIB),
    ("K06", "kv_size"): lambda: kv("deepseek-r1", 32_768, unit=MIB),
    ("K07", "kv_size"): lambda: kv("mistral-7b-v0.3", 4 * 8096, unit=MIB),
    ("K10", "kv_bytes_per_token"): lambda: load_model("gpt-oss-120b").kv_bytes_per_token("bf16"),
    ("K10", "kv_tokens"): lambda: tokens_in("gpt-oss-120b", 5.38 * GIB),
    ("K17", "kv_needed_per_gpu"): lambda: kv_reserved_bytes_per_gpu(
        load_model("llama-4-scout-17b-16e"), 1_048_576, split=Split(tp=8)) / GIB,
    ("K18", "kv_needed"): lambda: kv("llama-3.1-8b", 131_072, unit=GIB),
    ("K18", "max_len_est"): lambda: 256 * (0.71 * GIB // kv("llama-3.1-8b", 256)),  # this engine's blocks hold 256
    ("K19", "kv_needed"): lambda: kv("qwen3-30b-a3b", 221_000, "fp8", GIB),
    ("K19", "kv_tokens@10.55GiB"): lambda: tokens_in("qwen3-30b-a3b", 10.55 * GIB, "fp8"),
    ("K19", "max_len@5.59GiB"): lambda: tokens_in("qwen3-30b-a3b", 5.59 * GIB, "fp8"),
    ("K20", "weights"): lambda: load_model("llama-3.1-8b").weight_bytes("bf16") / GIB,
    ("K20", "kv_pool@20k"): lambda: pool("llama-3.1-8b", 1952, GIB),
    ("K20", "gpu_blocks@20k"): lambda: tokens_in("llama-3.1-8b", 3.81 * GIB) / BLOCK_TOKENS,
    ("K20", "gpu_blocks@29k"): lambda: tokens_in("llama-3.1-8b", 2.89 * GIB) / BLOCK_TOKENS,
    ("K20", "max_conc@20k"): lambda: tokens_in("llama-3.1-8b", 3.81 * GIB) / 20_000,
    ("K21", "sglang_tokens"): lambda: 2 * 8.23 * GIB / kv_bytes_per_gpu(load_model(QWEN3_235B), 1, split=Split(tp=4)),
    ("K21", "sglang_K_size"): lambda: kv_bytes_per_gpu(load_model(QWEN3_235B), 367_404, split=Split(tp=4)) / 2 / GIB,
    ("K23", "kv_pool"): lambda: pool("qwen3-8b", 5385, MIB),  # Qwen3-4B has the cache of 8B: 36 layers, 8 heads of 128
    ("K26", "weights_per_gpu"): lambda: weight_bytes_per_gpu(load_model("llama-3.1-8b"), "fp16", Split(tp=2)) / GIB,
    ("K26", "kv_pool"): lambda: pool("llama-3.1-8b", 3852, GIB, tp=2),
    ("K26", "gpu_blocks"): lambda: tokens_in("llama-3.1-8b", 3.76 * GIB, tp=2) / BLOCK_TOKENS,
    ("K26", "max_conc"): lambda: tokens_in("llama-3.1-8b", 3.76 * GIB, tp=2) / 40_000,
    ("K27", "weights"): lambda: load_model("qwen2.5-7b").weight_bytes("int4") / GIB,
    ("K27", "kv_pool"): lambda: memory(  # a rope table of 32,768 positions counts among the engine's weights
        load_model("qwen2.5-7b"), 0.7 * 8 * GIB, batch=0, weights="int4", activation_bytes=1.42 * GIB,
        overhead_bytes=0.03 * GIB + 32_768 * 128 * 2).free_bytes / GIB,
    ("K30", "file_bytes"): lambda: load_model("gpt-oss-120b").weight_bytes(),
    ("K31", "tokens_229_blocks"): lambda: 229 * BLOCK_TOKENS,
    ("K31", "tokens_378_blocks"): lambda: 378 * BLOCK_TOKENS,
    ("K48", "params"): lambda: load_model("llama-3.1-70b").n_params,
    ("K48", "weights"): lambda: load_model("llama-3.1-70b").weight_bytes("bf16") / GIB,
    ("K49", "file_size"): lambda: load_model("llama-3.1-70b").weight_bytes("q4_0") / GIB,
    ("K49", "bpw"): lambda: 8 * load_model("llama-3.1-70b").weight_bytes("q4_0") / load_model("llama-3.1-70b").n_params,
    ("K52", "kv_pool"): lambda: kv("llama-2-7b", 21_275, unit=MIB),  # the engine's "MB" are MiB
}
MISSING = {  # the fact that is not in the row
    ("K21", "vllm_tokens"): "the pool is printed for one GPU, and the GPU with the smallest sizes it: 1.1 % apart",
    ("K21", "vllm_pool"): "the same",
    ("K30", "weights_loaded_v0.10"): "the kernel pads and repacks the experts by an amount that the version decides",
    ("K30", "weights_loaded_v0.14"): "the same", ("K30", "kv_pool"): "the same, and activations are not printed",
    ("K34", "trtllm_tokens"): "the size of the pool is not printed",
    ("K43", "kv_tokens"): "a hybrid whose page size the recurrent state decides; no published config of it here",
    ("K43", "pool_total"): "the same",
    ("K45", "pool@50k"): "no published config; compressed cache of a kind that is not implemented",
    ("K45", "pool@500k"): "the same", ("K46", "conc_TP8"): "the same", ("K46", "conc_DP8"): "the same",
}
OF_MEMORY = re.compile("kv_|(?<!used_after_)weights|tokens|pool|blocks|params|file|bpw|conc|max_len|K_size")
LOGGED = {(row["id"], row["metric"]): float(row["true_value"]) for row in table("cases.csv")
          if row["kind"] == "log" and OF_MEMORY.search(row["metric"])}


def test_every_logged_row_about_memory_has_a_call_or_a_reason():
    assert len(MISSING) <= 12
    assert set(LOGGED) == set(CALLS) | set(MISSING) and not set(CALLS) & set(MISSING)


@pytest.mark.parametrize("key", sorted(CALLS), ids="-".join)
def test_engine_lines(key):
    assert CALLS[key]() == pytest.approx(LOGGED[key], rel=0.01)


def test_most_engine_lines_are_exact():
    exact = [key for key, call in CALLS.items() if call() == pytest.approx(LOGGED[key], rel=5e-4)]
    assert len(exact) >= 20, sorted(set(CALLS) - set(exact))


# Reference lines: the right value where somebody asked and got a wrong one.
@pytest.mark.parametrize("case, metric, call", [
    ("K15", "kv_bytes_per_token", lambda: load_model("qwen3-32b").kv_bytes_per_token("bf16")),
    ("K37", "kv_3000_tokens", lambda: kv("llama-3.1-70b", 3000) / 1e9),
    ("K39", "kv_bytes_per_token", lambda: load_model("deepseek-r1").kv_bytes_per_token("bf16")),
    ("K41", "kv_bytes_per_token", lambda: load_model("deepseek-v3").kv_bytes_per_token("bf16")),
    ("K50", "weights", lambda: load_model("llama-3.1-70b").weight_bytes("fp16") / 1e9),
    ("K14", "kv_per_token", lambda: load_model("qwen3-30b-a3b").kv_bytes_per_token("bf16") / 1024),
    ("K14", "tokens_in_16GiB", lambda: tokens_in("qwen3-30b-a3b", 16 * GIB)),
])
def test_reference_lines(case, metric, call):
    (row,) = [row for row in table("cases.csv") if (row["id"], row["metric"]) == (case, metric)]
    assert call() == pytest.approx(float(row["true_value"]), rel=2e-3)


# Sizes that engines and files print, in the table of reference values.
@pytest.mark.parametrize("quantity, hub_id, call", [
    ("llamacpp_kv_MiB_ctx2048_f16", "mistralai/Mixtral-8x7B-v0.1", lambda: kv("mixtral-8x7b-v0.1", 2048, unit=MIB)),
    ("llamacpp_kv_MiB_ctx2048_f16", "meta-llama/Meta-Llama-3.1-8B", lambda: kv("llama-3.1-8b", 2048, unit=MIB)),
    ("llamacpp_kv_MiB_ctx2048_f16", "meta-llama/Meta-Llama-3.1-70B", lambda: kv("llama-3.1-70b", 2048, unit=MIB)),
    ("kv_bytes_ctx8192_fp16", "openai-community/gpt2", lambda: kv("gpt2", 8192)),
    ("vllm_model_loading_took_per_gpu_tp4", "Qwen/Qwen3-30B-A3B", lambda: weight_bytes_per_gpu(
        load_model("qwen3-30b-a3b"), "bf16", Split(tp=4, experts=4)) / GIB),
    ("kv_bytes_alloc_len8192_batch32_bf16_windowed", "openai/gpt-oss-20b", lambda: kv_bytes_per_gpu(
        load_model("gpt-oss-20b"), 8192, 32, "bf16") / GIB),
    ("kv_bytes_per_token_bf16_full_layers_only", "openai/gpt-oss-120b",
     lambda: load_model("gpt-oss-120b").kv_growth_bytes_per_token("bf16")),
])
def test_reference_table(quantity, hub_id, call):
    (row,) = [row for row in table("configs/truth.csv") if (row["model"], row["quantity"]) == (hub_id, quantity)]
    assert call() == pytest.approx(float(row["value"]), rel=1e-3)


def test_a_rope_table_explains_the_rest_of_a_logged_weight():
    """14.9888 GiB were printed: the weights, and cos and sin of 131,072 positions x 128, which engines keep beside."""
    m = load_model("llama-3.1-8b")
    assert (m.weight_bytes("bf16") + 131_072 * 128 * 2) / GIB == pytest.approx(14.9888, rel=1e-5)
