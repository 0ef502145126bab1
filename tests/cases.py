"""Questions that people asked in public, one econ call for each row of data/cases.csv.

CALLS give the value of a row, CLAIMS the verdict on one, SHARES how much of the floor a measurement reaches.
ENGINES_OWN holds what an engine printed about itself and nothing can derive, MISSING what cannot be worked out and
the fact that would be needed, ELSEWHERE what is not about a model on a GPU.
"""

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path

from econ import Deployment, Profile, forward, load_accelerator, load_model, time_on
from econ.cost import usd_per_mtok
from econ.market import ApiPrice
from econ.memory import BLOCK_TOKENS, kv_bytes_per_gpu, kv_reserved_bytes_per_gpu, memory, weight_bytes_per_gpu
from econ.work import Split

GIB, MIB = 2**30, 2**20
Key = tuple[str, str]

with open(Path(__file__).parent / "data" / "cases.csv", encoding="utf-8") as file:
    ROWS = {(row["id"], row["metric"]): row for row in csv.DictReader(file)}


# Memory. TP shards a GPU's part; a pool is filled in whole blocks.
def kv(name, tokens, dtype="fp16", unit=1):
    return load_model(name).kv_cache_bytes(tokens, dtype=dtype) / unit


def pool(name, blocks, unit, tp=1):
    return blocks * kv_reserved_bytes_per_gpu(load_model(name), BLOCK_TOKENS, split=Split(tp=tp)) / unit


def tokens_in(name, pool_bytes, dtype="fp16", tp=1):
    block = kv_reserved_bytes_per_gpu(load_model(name), BLOCK_TOKENS, 1, dtype, Split(tp=tp))
    return BLOCK_TOKENS * (pool_bytes // block)


def logged(case: str, metric: str) -> float:
    return float(ROWS[case, metric]["true_value"])


def left_over(name, usable_gib, activation_gib, other_gib, weights="bf16", tp=1, rope_positions=131_072):
    """Room that an engine leaves for the cache, beside weights, a table of cos and sin, activations and its own."""
    taken = activation_gib * GIB + rope_positions * 128 * 2, other_gib * GIB
    m = memory(load_model(name), usable_gib * GIB, batch=0, weights=weights, split=Split(tp=tp),
               activation_bytes=taken[0], overhead_bytes=taken[1])
    return m.free_bytes / GIB


def k20_pool(peak: str) -> float:
    activations = logged("K20", peak) - logged("K20", "weights")
    return left_over("llama-3.1-8b", 0.9 * logged("K20", "usable_mem"), activations, logged("K20", "non_torch"))


LLAMA_30B = dict(model_type="llama", num_hidden_layers=60, num_attention_heads=52, hidden_size=6656,
                 intermediate_size=17_920, vocab_size=32_000)
# Geometry as a public training script gives it: github.com/THUDM/slime, scripts/models/qwen3-235B-A22B.sh
QWEN3_235B = dict(model_type="qwen3_moe", num_hidden_layers=94, hidden_size=4096, num_attention_heads=64,
                  num_key_value_heads=4, head_dim=128, intermediate_size=12_288, moe_intermediate_size=1536,
                  num_experts=128, num_experts_per_tok=8, vocab_size=151_936, tie_word_embeddings=False)
QWEN3_4B = dict(model_type="qwen3", num_hidden_layers=36, hidden_size=2560, num_attention_heads=32,
                num_key_value_heads=8, head_dim=128, intermediate_size=9728, vocab_size=151_936,
                tie_word_embeddings=True)
API = ApiPrice(provider="API", model="", date="", usd_per_mtok_input=1.0, usd_per_mtok_output=1.0,
               usd_per_mtok_cached_input=0.1)  # a bill of $480, half of it input, and 90 % off what is cached
CALLS: dict[Key, Callable[[], float]] = {
    ("K01", "kv_pool_bytes"): lambda: kv("llama-2-7b", 132_608),
    ("K02", "kv_size"): lambda: kv("llama-2-70b", 2048, unit=MIB),
    ("K03", "kv_size"): lambda: kv(LLAMA_30B, 512, "fp32", MIB),
    ("K06", "kv_size"): lambda: kv("deepseek-r1", 32_768, unit=MIB),
    ("K07", "kv_size"): lambda: kv("mistral-7b-v0.3", 4 * 8096, unit=MIB),
    ("K10", "kv_bytes_per_token"): lambda: load_model("gpt-oss-120b").kv_bytes_per_token("bf16"),
    ("K10", "kv_tokens"): lambda: tokens_in("gpt-oss-120b", 5.38 * GIB),
    ("K15", "kv_bytes_per_token"): lambda: load_model("qwen3-32b").kv_bytes_per_token("bf16"),
    ("K17", "kv_needed_per_gpu"): lambda: kv_reserved_bytes_per_gpu(
        load_model("llama-4-scout-17b-16e"), 1_048_576, split=Split(tp=8)) / GIB,
    ("K18", "kv_needed"): lambda: kv("llama-3.1-8b", 131_072, unit=GIB),
    ("K18", "max_len_est"): lambda: 256 * (0.71 * GIB // kv("llama-3.1-8b", 256)),  # this engine's blocks hold 256
    ("K19", "kv_needed"): lambda: kv("qwen3-30b-a3b", 221_000, "fp8", GIB),
    ("K19", "kv_tokens@10.55GiB"): lambda: tokens_in("qwen3-30b-a3b", 10.55 * GIB, "fp8"),
    ("K19", "max_len@5.59GiB"): lambda: tokens_in("qwen3-30b-a3b", 5.59 * GIB, "fp8"),
    ("K20", "weights"): lambda: (load_model("llama-3.1-8b").weight_bytes("bf16") + 131_072 * 128 * 2) / GIB,
    ("K20", "kv_pool@20k"): lambda: k20_pool("peak_torch@20k"),
    ("K20", "gpu_blocks@20k"): lambda: tokens_in("llama-3.1-8b", k20_pool("peak_torch@20k") * GIB) / BLOCK_TOKENS,
    ("K20", "gpu_blocks@29k"): lambda: tokens_in("llama-3.1-8b", k20_pool("peak_torch@29k") * GIB) / BLOCK_TOKENS,
    ("K20", "max_conc@20k"): lambda: tokens_in("llama-3.1-8b", 3.81 * GIB) / 20_000,
    ("K21", "sglang_tokens"): lambda: 2 * 8.23 * GIB / kv_bytes_per_gpu(load_model(QWEN3_235B), 1, split=Split(tp=4)),
    ("K21", "sglang_K_size"): lambda: kv_bytes_per_gpu(load_model(QWEN3_235B), 367_404, split=Split(tp=4)) / 2 / GIB,
    ("K23", "kv_pool"): lambda: pool(QWEN3_4B, 5385, MIB),
    ("K26", "budget"): lambda: 0.9 * 15.77,  # of the GPU's 15.77 GiB
    ("K26", "weights_per_gpu"): lambda: weight_bytes_per_gpu(load_model("llama-3.1-8b"), "fp16", Split(tp=2)) / GIB,
    ("K26", "kv_pool"): lambda: left_over("llama-3.1-8b", 0.9 * 15.77, logged("K26", "activation"),
                                          logged("K26", "non_torch"), "fp16", tp=2),
    ("K26", "gpu_blocks"): lambda: tokens_in("llama-3.1-8b", 3.76 * GIB, tp=2) / BLOCK_TOKENS,
    ("K26", "max_conc"): lambda: tokens_in("llama-3.1-8b", 3.76 * GIB, tp=2) / 40_000,
    ("K27", "weights"): lambda: load_model("qwen2.5-7b").weight_bytes("int4") / GIB,
    ("K27", "kv_pool"): lambda: left_over("qwen2.5-7b", 0.7 * 8, logged("K27", "activation"), 0.03, "int4",
                                          rope_positions=32_768),
    ("K30", "file_bytes"): lambda: load_model("gpt-oss-120b").weight_bytes(),
    ("K31", "tokens_229_blocks"): lambda: 229 * BLOCK_TOKENS,
    ("K31", "tokens_378_blocks"): lambda: 378 * BLOCK_TOKENS,
    ("K37", "kv_3000_tokens"): lambda: kv("llama-3.1-70b", 3000) / 1e9,
    ("K39", "kv_bytes_per_token"): lambda: load_model("deepseek-r1").kv_bytes_per_token("bf16"),
    ("K41", "kv_bytes_per_token"): lambda: load_model("deepseek-v3").kv_bytes_per_token("bf16"),
    ("K48", "params"): lambda: load_model("llama-3.1-70b").n_params,
    ("K48", "weights"): lambda: load_model("llama-3.1-70b").weight_bytes("bf16") / GIB,
    ("K49", "file_size"): lambda: load_model("llama-3.1-70b").weight_bytes("q4_0") / GIB,
    ("K49", "bpw"): lambda: 8 * load_model("llama-3.1-70b").weight_bytes("q4_0") / load_model("llama-3.1-70b").n_params,
    ("K50", "weights"): lambda: load_model("llama-3.1-70b").weight_bytes("fp16") / 1e9,
    ("K52", "kv_pool"): lambda: kv("llama-2-7b", 21_275, unit=MIB),  # the engine's "MB" are MiB
    ("P21", "nvlink_unidir_line"): lambda: load_accelerator("h100-sxm").link.bytes_per_s_each_way / 1e9,
    ("P22", "mfu"): lambda: 100 * 420e12 / load_accelerator("h200-sxm").flop_per_s("bf16"),  # 420 TFLOP/s reported
    # Prices: dollars an hour and tokens a second of the page or thread; for C03 and C06 those that give its result.
    ("C01", "usd_per_M_output"): lambda: usd_per_mtok(2.836, logged("C01", "out_tput")),
    ("C01", "usd_per_M_total"): lambda: usd_per_mtok(2.836, logged("C01", "out_tput") + logged("C01", "in_tput")),
    ("C03", "usd_per_M@10%"): lambda: usd_per_mtok(2.50, 700, utilisation_frac=0.1),
    ("C05", "usd_per_M"): lambda: usd_per_mtok(2.50, 300),
    ("C06", "range_low"): lambda: usd_per_mtok(2.00, 1500),
    ("C06", "range_high"): lambda: usd_per_mtok(3.00, 500),
    ("C07", "savings_if_half_input"): lambda: API.usd_per_request(240e6, 240e6) - API.usd_per_request(240e6, 240e6, 1),
}
MISSING: dict[Key, str] = {  # the fact that is not in the row
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
ENGINES_OWN: set[Key] = {
    ("K20", "usable_mem"), ("K20", "non_torch"), ("K20", "peak_torch@20k"), ("K20", "peak_torch@29k"),
    ("K23", "usable_total"), ("K23", "used_after_weights"), ("K23", "peak_non_kv"), ("K26", "activation"),
    ("K26", "non_torch"), ("K27", "activation"), ("K51", "cuda_graph_mem"), ("K53", "activation_8B_v0.19"),
    ("K53", "activation_Qwen3-14B_v0.16"), ("K53", "activation_Qwen3-14B_v0.17"), ("K53", "non_torch_TP1"),
    ("K53", "non_torch_TP2+"), ("P21", "nvlink_unidir_eff"), ("P21", "busbw_allreduce_nvls")}
ELSEWHERE: dict[Key, str] = {
    ("K53", "weights_mae"): "a mean over 57 runs of another tool", ("K53", "kv_pool_err"): "the same",
    **{("P16", metric): "the error of another tool" for metric in (
        "e2e_err_qwen3-14b_tp2", "e2e_err_llama2-70b_tp4", "e2e_err_llama2-7b_tp1", "ttft_err_llama2-7b_tp4")},
    **{("P25", metric): "no model, no GPU" for metric in ("b1", "b3", "b30", "b256")},
    ("C01", "gpu_hour"): "a list price", ("C01", "out_tput"): "used by the two prices above it",
    ("C01", "in_tput"): "the same", ("C02", "formula"): "a question without numbers",
    ("C06", "breakeven_util"): "the page's rate is not in the row",
    **{(f"T0{i}", "qualitative"): "about notebooks and graders" for i in range(1, 9)}}


# Times. The share of the floor that a measurement reaches: floor time over measured time.
def step_s(name, gpu, batch=1, context=0, n=1, **formats) -> float:
    """A decode step's floor on n GPUs taken as one, whether or not the model fits."""
    return time_on(forward(load_model(name), batch, 1, context, **formats), load_accelerator(gpu), n=n).time_s


A100 = dataclasses.replace(load_accelerator("a100-sxm-80"), visible_bytes=10**12)  # beside the point here
A6000 = dataclasses.replace(load_accelerator("a40"), name="rtx-a6000", hbm_bytes_per_s=768e9)
LLAMA_7B = Deployment("llama-2-7b", A100)
TWO_CONSTANTS = Deployment("llama-2-7b", A100, profile=Profile(name="two", weight_frac=0.8, kv_frac=0.8, flop_frac=0.6))


def batch_rate(d: Deployment, metric: str) -> float:
    """Output tokens per second of a static batch, from a name such as B32_128_2048."""
    batch, prompt, output = (int(part) for part in metric[1:].split("_"))
    return d.request(batch, prompt, output).output_tokens_per_s


def prefill_share(tokens_per_s: float, n: int) -> float:
    flops = forward(load_model("mistral-7b-v0.1"), logits="none").flops
    return tokens_per_s * flops / n / load_accelerator("a100-sxm-80").flop_per_s("bf16")


SHARES: dict[Key, Callable[[float], float]] = {  # of the measured value
    ("P02", "tpot"): lambda ms: 1e3 * step_s("llama-2-7b", "a10", 1, 300) / ms,
    ("P03", "decode"): lambda rate: rate * step_s("llama-2-7b", "rtx-4090", 1, 200),
    ("P04", "decode_eager"): lambda rate: rate * step_s("llama-2-7b", "a100-sxm-80", 1, 200, weights="int8"),
    ("P04", "decode_compiled"): lambda rate: rate * step_s("llama-2-7b", "a100-sxm-80", 1, 200, weights="int8"),
    ("P06", "decode"): lambda rate: rate * step_s("llama-2-70b", "a100-sxm-40", weights="int4"),
    **{("P09", f"tpot_tp{n}"): lambda ms, n=n: 1e3 * step_s("qwen2.5-32b", "a100-sxm-80", 1, 200, n) / ms
       for n in (2, 4, 8)},
    ("P10", "tput_tp1"): lambda rate: prefill_share(rate, 1), ("P10", "tput_tp8"): lambda rate: prefill_share(rate, 8),
    ("P11", "tpot"): lambda ms: 1e3 * step_s("deepseek-r1", "h100-sxm", 1, 4000, 8, weights="int4") / ms,
    ("P14", "tpot_mixtral"): lambda ms: 1e3 * step_s("mixtral-8x7b-v0.1", A6000, weights="int4") / ms,
    ("P14", "tpot_mistral"): lambda ms: 1e3 * step_s("mistral-7b-v0.3", A6000, weights="int4") / ms,
    **{("P15", name): lambda rate, name=name: rate / batch_rate(LLAMA_7B, name)
       for name in ("B256_128_128", "B32_128_2048", "B32_2048_128", "B16_2048_2048")},
    ("P15", "ttft_2048"): lambda ms: 1e3 * LLAMA_7B.prefill(1, 2048).time_s / ms,
    ("P15", "ttft_128"): lambda ms: 1e3 * LLAMA_7B.prefill(1, 128).time_s / ms,
    ("P18", "max_tput"): lambda rate: rate / Deployment(
        "llama-3.1-405b", "h100-sxm", n_gpus=8, weights="fp8").serve(10**4, 128, 1024).output_tokens_per_s,
    ("P21", "busbw_allgather"): lambda gb: gb * 1e9 / load_accelerator("h100-sxm").link.bytes_per_s_each_way,
    ("P23", "decode"): lambda rate: rate * step_s("qwen3.5-27b", "rtx-4090", weights="q4_k_m"),
    **{("P26", f"p{n}"): lambda rate, n=n: rate / n * step_s(QWEN3_4B, "rtx-4090", n, weights="fp8")
       for n in (1, 4, 16)},
}


# Claims.
def verdict(claimed: float, here: float, most: float | None = None) -> str:
    """"impossible" beyond a physical limit, else "right" within 2 % of what econ gives, or "wrong"."""
    if most is not None and claimed > most:
        return "impossible"
    return "right" if abs(claimed / here - 1) <= 0.02 else "wrong"


def energy_mwh(concurrency: int) -> float:
    """Milliwatt-hours per output token at full power."""
    return Deployment("mistral-7b-v0.1", "a100-sxm-80").cost(1, concurrency, 100, 100).joules_per_output_token / 3.6


def tokens_for(usd_per_hour: float, usd: float) -> float:
    return usd_per_mtok(usd_per_hour, 1) / usd  # tokens a second that this price needs


CLAIMS: dict[Key, Callable[[float], str]] = {  # of the claimed value
    ("K14", "kv_per_token"): lambda kib: verdict(kib, load_model("qwen3-30b-a3b").kv_bytes_per_token("bf16") / 1024),
    ("K14", "tokens_in_16GiB"): lambda n: verdict(n, tokens_in("qwen3-30b-a3b", 16 * GIB)),
    ("K34", "vllm_blocks_claimed"): lambda n: verdict(
        n, logged("K34", "trtllm_tokens") / BLOCK_TOKENS,
        most=tokens_in("llama-2-7b", load_accelerator("a10").memory_bytes) / BLOCK_TOKENS),
    ("K50", "tool_estimate"): lambda gb: verdict(gb, CALLS["K50", "weights"]()),
    ("P18", "blog_tput"): lambda rate: verdict(rate, logged("P18", "max_tput")),  # of the same servers, output alone
    ("P19", "decode"): lambda rate: verdict(rate, 40e9 / load_model("llama-3.1-8b").weight_bytes("fp32")),
    ("P22", "mfu_claimed"): lambda share: verdict(share, CALLS["P22", "mfu"]()),
    ("P23", "old_tool"): lambda rate: verdict(rate, logged("P23", "decode")),  # of the same card, measured
    ("C03", "usd_per_M@100%"): lambda usd: verdict(usd, usd_per_mtok(2.50, 700)),
    ("C05", "claimed"): lambda usd: verdict(  # as tokens a second, against the arithmetic of an 8B in 16 bits
        tokens_for(2.50, usd), 300, most=989e12 / forward(load_model("llama-3.1-8b")).flops),
    ("C07", "savings_claimed"): lambda usd: verdict(usd, CALLS["C07", "savings_if_half_input"]()),
    ("C10", "mWh_per_token"): lambda mwh: verdict(mwh, min(max(mwh, energy_mwh(10**6)), energy_mwh(1))),
}
