"""What tools/peers.py runs inside a peer's own environment: one function a peer, that asks it one question.

PEER_PYTHON tools/peer_calls.py NAME < cases.jsonl > answers.jsonl

A case has `ask` (prefill, decode, memory or served), model (a registry name), config (a folder with its config.json),
gpu, weights, kv, engine, tp, pp, dp, ep, batch (of a replica), prompt, output. An answer maps quantities to numbers in
s, B and token/s. A peer that cannot answer raises, and its message is the result. Peers keep their default settings.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import time
import warnings

MIB, GIB = 2**20, 2**30


def known(table, key, what):
    """What a peer calls something, where its own list has it."""
    if key not in table:
        raise ValueError(f"{what} not in its list")
    return table[key]


def one_gpu(case):
    if case["tp"] * case["pp"] * case["dp"] > 1:
        raise ValueError("prices one GPU only")


def served(step):
    """Composes served load from single passes, as `econ` does, for a peer that prices nothing else."""
    @functools.wraps(step)
    def ask(case):
        if case["ask"] != "served":
            return step(case)
        if case["pp"] > 1:
            raise ValueError("a pipeline under load is not composed here")
        running, steps = case["batch"], case["output"] - 1
        read = step({**case, "ask": "prefill", "batch": 1})["time_s"]
        write = step({**case, "ask": "decode", "prompt": case["prompt"] + case["output"] // 2})["time_s"]
        cycle = running * read + steps * write
        return {"tpot_s": write + running * read / steps, "ttft_s": read,
                "output_tokens_per_s": case["dp"] * running * case["output"] / cycle}
    return ask


AIC_SYSTEM = {"h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm", "gb200": "gb200",
              "a100-sxm-80": "a100_sxm", "l40s": "l40s", "rtx-pro-6000-se": "rtx_pro_6000_server"}
AIC_BACKEND = {"tensorrt-llm": "trtllm", "vllm": "vllm", "sglang": "sglang"}
AIC_FP4 = {"deepseek-r1": "nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3": "nvidia/DeepSeek-V3.1-NVFP4",
           "kimi-k2.5": "nvidia/Kimi-K2.5-NVFP4", "minimax-m2.5": "nvidia/MiniMax-M2.5-NVFP4",
           "qwen3.5-397b-a17b": "nvidia/Qwen3.5-397B-A17B-NVFP4"}  # fp4 checkpoints with layers left wide
AIC_RECIPES = {"fp8": (("fp8", "fp8"), ("fp8_block", "fp8_block")), "nvfp4": (("nvfp4", "nvfp4"),),
               "fp16": (("bfloat16", "bfloat16"),), "bf16": (("bfloat16", "bfloat16"),)}  # of products and of experts
AIC_MXFP4 = ((None, "w4a8_mxfp4_mxfp8"),)  # on Blackwell, where activations of 8 bits are the usual choice
AS_PUBLISHED = ((None, None),)
AIC_MODES = {"prefill": ("static_ctx", 1), "decode": ("static_gen", 2), "memory": ("static_gen", 2)}


def aic_estimate(case, mode, output):
    """The first recipe for which it has kernel times."""
    from aiconfigurator.cli.api import cli_estimate

    own = AIC_FP4.get(case["model"]) if case["weights"] == "nvfp4" else None
    recipes = AS_PUBLISHED if own else AIC_RECIPES.get(case["weights"], AS_PUBLISHED)
    if case["weights"] == "mxfp4" and "b200" in case["gpu"]:
        recipes = AIC_MXFP4
    for products, experts in recipes:
        try:
            return cli_estimate(
                own or case["config"], known(AIC_SYSTEM, case["gpu"], "GPU"), mode=mode, isl=case["prompt"], osl=output,
                backend_name=known(AIC_BACKEND, case["engine"], "engine"), batch_size=case["batch"],
                database_mode=case["mode"], tp_size=case["tp"], pp_size=case["pp"], attention_dp_size=case["dp"],
                moe_tp_size=case["tp"] * case["dp"] // case["ep"], moe_ep_size=case["ep"], gemm_quant_mode=products,
                moe_quant_mode=experts, kvcache_quant_mode=case["kv"].replace("bf16", "bfloat16"))
        except Exception as error:
            failure = error
    raise failure


def aiconfigurator(case):
    mode, output = AIC_MODES.get(case["ask"], ("agg", case["output"]))
    found = aic_estimate(case, mode, output)
    if case["ask"] == "memory":
        parts = found.summary.get_memory()
        return {"weight_bytes": parts["weights"] * GIB, "kv_bytes": parts["kvcache"] * GIB}
    if case["ask"] != "served":
        return {"time_s": (found.ttft or found.tpot) / 1e3}
    return {"tpot_s": found.tpot / 1e3, "ttft_s": found.ttft / 1e3, "output_tokens_per_s": found.raw["tokens/s"]}


GENZ_MODEL = {"llama-3.1-8b": "meta-llama/Llama-3.1-8B", "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
              "llama-2-7b": "meta-llama/Llama-2-7B", "llama-2-13b": "meta-llama/Llama-2-13B",
              "llama-2-70b": "meta-llama/Llama-2-70B", "mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B",
              "mixtral-8x22b-v0.1": "mistralai/Mixtral-8x22B"}
GENZ_SYSTEM = {"h100-sxm": "H100_GPU", "a100-sxm-80": "A100_80GB_GPU"}


@served
def genz(case):
    from GenZ import decode_moddeling, prefill_moddeling

    setting = {"model": known(GENZ_MODEL, case["model"], "model"), "batch_size": case["batch"],
               "system_name": known(GENZ_SYSTEM, case["gpu"], "GPU"), "input_tokens": case["prompt"],
               "tensor_parallel": case["tp"], "bits": case["weights"].replace("fp16", "bf16")}
    if case["ask"] == "prefill":
        return {"time_s": prefill_moddeling(**setting)["Latency"] / 1e3}
    found = decode_moddeling(**setting, Bb=1)
    if case["ask"] == "memory":
        table = found["summary_table"].iloc[0]
        return {"weight_bytes": table["Total Weights (MB)"] * MIB, "kv_bytes": table["KV Cache (MB)"] * MIB}
    return {"time_s": found["Latency"] / 1e3}


ANALYSIS_GPU = {"h100-sxm": "h100-sxm-80gb", "a100-sxm-80": "a100-sxm-80gb"}
ANALYSIS_DTYPE = {"bf16": "w16a16e16", "fp16": "w16a16e16", "f16": "w16a16e16"}


@served
def llm_analysis(case):
    from llm_analysis import config as own
    from llm_analysis.analysis import LLMAnalysis

    with open(os.path.join(case["config"], "config.json")) as file:
        config = json.load(file)
    shape = own.ModelConfig(
        name=case["model"], num_layers=config["num_hidden_layers"], n_head=config["num_attention_heads"],
        hidden_dim=config["hidden_size"], vocab_size=config["vocab_size"], ffn_embed_dim=config["intermediate_size"],
        num_key_value_heads=config["num_key_value_heads"], max_seq_len=config["max_position_embeddings"])
    found = LLMAnalysis(
        shape, own.get_gpu_config_by_name(known(ANALYSIS_GPU, case["gpu"], "GPU")),
        own.get_dtype_config_by_name(known(ANALYSIS_DTYPE, case["weights"], "weight format")),
        own.ParallelismConfig(tp_size=case["tp"])).inference(
            batch_size_per_gpu=case["batch"], seq_len=case["prompt"], num_tokens_to_generate=2)
    return {"time_s": found["prefill_latency" if case["ask"] == "prefill" else "decode_latency"],
            "weight_bytes": found["weight_memory_per_gpu"], "kv_bytes": found["kv_cache_memory_per_gpu"]}


FLOPS_MODEL = {"llama-3.1-8b": "meta-llama/Llama-3.1-8B", "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
               "llama-2-7b": "meta-llama/Llama-2-7b-hf", "llama-2-13b": "meta-llama/Llama-2-13b-hf",
               "llama-2-70b": "meta-llama/Llama-2-70b-hf", "mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B-v0.1",
               "mixtral-8x22b-v0.1": "mistralai/Mixtral-8x22B-v0.1"}
FLOPS_GPU = {"h100-sxm": "H100-SXM", "h200-sxm": "H200-SXM", "a100-sxm-80": "A100-80GB-SXM", "l40s": "L40S",
             "rtx-3090": "RTX3090", "rtx-4090": "RTX4090"}
FLOPS_DTYPE = {"bf16": "bf16", "fp16": "fp16", "f16": "fp16", "fp8": "fp8", "int8": "int8", "int4": "int4"}


@served
def llm_flops(case):
    import llmflops

    if case["ask"] == "decode":
        one_gpu(case)  # its decode step ignores tensor parallelism
    found = llmflops.estimate(
        known(FLOPS_MODEL, case["model"], "model"), batch_size=case["batch"], sequence_length=case["prompt"],
        precision=known(FLOPS_DTYPE, case["weights"], "weight format"), gpu=known(FLOPS_GPU, case["gpu"], "GPU"),
        parallelism={"tensor_parallel": case["tp"]}, allow_hf_fetch=False).to_dict()["details"]
    if case["ask"] == "memory":
        return {"weight_bytes": found["memory"]["weights"] / case["tp"],
                "kv_bytes": found["memory"]["kv_cache"] / case["tp"]}
    if case["ask"] == "prefill":
        return {"time_s": (found["parallelism"] if case["tp"] > 1 else found["performance"])["prefill_latency_s"]}
    return {"time_s": found["performance"]["decode_latency_per_token_s"]}


MLSYSIM_MODEL = {"llama-3.1-8b": "Llama3_8B", "llama-3.1-70b": "Llama3_70B", "llama-2-7b": "Llama2_7B",
                 "llama-2-13b": "Llama2_13B", "llama-2-70b": "Llama2_70B", "mixtral-8x7b-v0.1": "Mixtral_8x7B"}
MLSYSIM_GPU = {"h100-sxm": "H100", "h200-sxm": "H200", "a100-sxm-80": "A100", "b200": "B200"}
MLSYSIM_DTYPE = {"bf16": "fp16", "fp16": "fp16", "f16": "fp16", "fp8": "fp8", "int8": "int8", "int4": "int4"}


@served
def mlsysim(case):
    from mlsysim import Hardware, Models
    from mlsysim.engine.solvers.serving import ServingModel

    one_gpu(case)
    found = ServingModel().solve(
        getattr(Models.Language, known(MLSYSIM_MODEL, case["model"], "model")),
        getattr(Hardware.Cloud, known(MLSYSIM_GPU, case["gpu"], "GPU")), seq_len=case["prompt"],
        batch_size=case["batch"], precision=known(MLSYSIM_DTYPE, case["weights"], "weight format"))
    if not found.feasible and case["ask"] != "memory":
        raise ValueError("; ".join(found.constraint_trace))
    return {"time_s": (found.ttft if case["ask"] == "prefill" else found.itl).to("s").magnitude,
            "weight_bytes": found.model_weights_size.to("byte").magnitude,
            "kv_bytes": found.kv_cache_size.to("byte").magnitude}


RIDGE_MODEL = {"llama-3.1-8b": "llama-3-8b", "llama-3.1-70b": "llama-3-70b", "llama-2-7b": "llama-2-7b"}
RIDGE_GPU = {"h100-sxm": "h100-80gb", "h200-sxm": "h200-141gb", "a100-sxm-80": "a100-80gb", "l40s": "l40s-48gb",
             "rtx-3090": "rtx3090-24gb", "rtx-4090": "rtx4090-24gb", "rtx-5090": "rtx5090-32gb"}


def ridgepoint(case):
    import ridgepoint

    if case["pp"] > 1 or (case["ask"] == "decode" and case["batch"] > 1):
        raise ValueError("prices decode at batch 1, on tensor parallel GPUs")
    if case["ask"] == "served":
        raise ValueError("prices no load")
    found = json.loads(ridgepoint.fit(
        known(RIDGE_MODEL, case["model"], "model"), known(RIDGE_GPU, case["gpu"], "GPU"), count=case["tp"],
        engine="llamacpp" if case["engine"] == "llama.cpp" else "vllm", kv_cache_dtype="fp16", ctx=case["prompt"],
        dtype={"f16": "fp16"}.get(case["weights"], case["weights"]), prompt=case["prompt"], as_json=True))
    if case["ask"] == "memory":
        return {"weight_bytes": found["memory"]["weights_bytes"]["best"] / case["tp"],
                "kv_bytes": found["capacity"]["bytes_per_seq"] * case["batch"] / case["tp"]}
    speed = found["speed"]
    return {"time_s": speed["ttft_s"]["best"] if case["ask"] == "prefill" else 1 / speed["decode_tok_s"]["best"]}


SERVCALC_GPU = {"h100-sxm": "H100 80GB", "h200-sxm": "H200", "a100-sxm-80": "A100 80GB", "l40s": "L40S", "b200": "B200",
                "rtx-3070": "RTX 3070", "rtx-3090": "RTX 3090", "rtx-3090-ti": "RTX 3090 Ti",
                "rtx-4070-ti": "RTX 4070 Ti", "rtx-4090": "RTX 4090", "rtx-5070": "RTX 5070"}
SERVCALC_WEIGHTS = {"bf16": None, "fp16": None, "f16": None, "fp8": "fp8", "q4_0": "gguf_q4_0", "int4": "gptq",
                    "q4_k_m": "gguf_q4_k_m", "q8_0": "gguf_q8_0"}


def servcalc(case):
    from servcalc import Workload, estimate, profiles

    one_gpu(case)
    weights = known(SERVCALC_WEIGHTS, case["weights"], "weight format")
    bits = {"kv_bits": 8} if case["kv"] == "fp8" else {}
    if case["engine"] == "llama.cpp":
        profile = profiles.ollama(num_parallel=1, num_ctx=case["prompt"] + 2, quant=weights)
    elif case["ask"] == "served":
        profile = profiles.vllm(quant=weights, max_seqs=None, **bits)
    else:
        profile = profiles.hf(quant=weights)  # one static batch
    output = case["output"] if case["ask"] == "served" else 2
    found = estimate(os.path.join(case["config"], "config.json"), known(SERVCALC_GPU, case["gpu"], "GPU"),
                     workload=Workload(prompt_len=case["prompt"], gen_len=output, concurrency=(case["batch"],)),
                     profile=profile)
    point = found.points[0]
    if case["ask"] == "memory":
        return {"weight_bytes": found.weight_bytes,
                "kv_bytes": found.kv_bytes_per_token * case["prompt"] * case["batch"]}
    if point.infeasible_reason == "memory":
        raise ValueError("does not fit: memory")
    if case["ask"] == "served":
        return {"tpot_s": point.itl_ms.mid / 1e3, "ttft_s": point.ttft_ms.mid / 1e3,
                "output_tokens_per_s": point.total_tok_s.mid}
    return {"time_s": (point.ttft_ms if case["ask"] == "prefill" else point.itl_ms).mid / 1e3}


def vramcalc(case):
    from vramcalc import estimate

    one_gpu(case)
    if case["ask"] != "memory":
        raise ValueError("prices memory only")
    found = estimate(os.path.join(case["config"], "config.json"), batch=case["batch"], seq_len=case["prompt"])
    return {"weight_bytes": found.weights, "kv_bytes": found.kv_cache}


def llm_sizer(case):
    from llm_sizer.catalog import resolve_model, resolve_quant
    from llm_sizer.sizing import estimate_vram

    if case["ask"] != "memory":
        raise ValueError("prices memory only")
    found = estimate_vram(resolve_model(case["model"]), resolve_quant(case["weights"]), case["prompt"], case["batch"])
    return {"weight_bytes": found.weights_bytes / case["tp"], "kv_bytes": found.kv_cache_bytes / case["tp"]}


def hf_mem(case):
    import asyncio

    from hf_mem.run import arun

    if case["ask"] != "memory":
        raise ValueError("prices memory only")
    found = asyncio.run(arun(model_id="meta-llama/" + case["model"]))
    return {"weight_bytes": found.weights}


def econ(case):
    """This package itself, for the times of its own calls."""
    import econ

    d = econ.Deployment(case["model"], case["gpu"], n_gpus=case["tp"], gpu_mem_frac=1.0)
    if case["ask"] == "memory":
        found = d.memory(case["batch"], case["prompt"])
        return {"weight_bytes": found.weight_bytes, "kv_bytes": found.kv_bytes}
    return {"time_s": getattr(d, case["ask"])(case["batch"], case["prompt"]).time_s}


PEERS = (aiconfigurator, genz, llm_analysis, llm_flops, mlsysim, ridgepoint, servcalc, vramcalc, llm_sizer, hf_mem,
         econ)


def answer(ask, case):
    """The answer or the reason why there is none, and the seconds it took."""
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = {key: float(value) for key, value in ask(case).items()}
        result = {"found": found}
    except BaseException as error:  # some peers exit
        result = {"reason": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {**result, "seconds": time.perf_counter() - start}


def main(argv):
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    ask = next(peer for peer in PEERS if peer.__name__ == argv[0])
    for line in sys.stdin:
        print(json.dumps(answer(ask, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
