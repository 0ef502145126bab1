"""What benchmarks print: the serving benchmarks of vLLM, SGLang and TensorRT-LLM, as text and as JSON.

Each reader gives the facts a text states and the runs it holds. A run has a phase (prefill, decode, load) and
what was measured, in seconds and tokens. Means are over requests, as the benchmark prints them.
"""

import json
import re

from .llamabench import bench_rows, plain
from .scan import compiled, found, known_gpu

SERVING = compiled(
    ("completed", r"Successful requests: {1,40}<n>", "last"),
    ("concurrency", r"Maximum request concurrency: {1,40}<n>", "last"),
    ("concurrency", r"Max request concurrency: {1,40}<n>", "last"),
    ("in_flight", r"\nConcurrency: {1,40}<n>", "last"),
    ("duration_s", r"Benchmark duration \(s\): {1,40}<n>", "last"),
    ("input_tokens", r"Total input tokens: {1,40}<n>", "last"),
    ("output_tokens", r"Total generated tokens: {1,40}<n>", "last"),
    ("requests_per_s", r"Request throughput \(req/s\): {1,40}<n>", "last"),
    ("output_tokens_per_s", r"Output token throughput \(tok/s\): {1,40}<n>", "last"),
    ("total_tokens_per_s", r"Total [Tt]oken throughput \(tok/s\): {1,40}<n>", "last"),
    ("ttft_ms", r"Mean TTFT \(ms\): {1,40}<n>", "last"),
    ("tpot_ms", r"Mean TPOT \(ms\): {1,40}<n>", "last"),
    ("tpot_ms", r"Mean ITL \(ms\): {1,40}<n>", "last"),
    ("request_rate", r"(?:Traffic request rate|Request rate configured \(RPS\)): {1,40}<n>", "last"),
)
TRTLLM_BENCH = compiled(
    ("model", r"Model:\s{1,10}(\S{1,200})\s", "text"),
    ("dtype", r"\nDtype:\s{1,10}(\w{1,20})\s", "last"),
    ("kv_dtype", r"KV Cache Dtype:\s{1,10}(\w{1,20})\s", "last"),
    ("quantization", r"Quantization:\s{1,10}(\w{1,20})\s", "last"),
    ("version", r"TensorRT-LLM Version:\s{1,10}(\S{1,30})\s", "text"),
    ("tp", r"TP Size:\s{1,10}<n>", "last"),
    ("pp", r"PP Size:\s{1,10}<n>", "last"),
    ("completed", r"Number of requests:\s{1,20}<n>", "last"),
    ("concurrency", r"Number of concurrent requests:\s{1,20}<n>", "last"),
    ("concurrency", r"\nConcurrency:\s{1,20}<n>", "last"),
    ("prompt", r"Average Input Length \(tokens\):\s{1,20}<n>", "last"),
    ("output", r"Average Output Length \(tokens\):\s{1,20}<n>", "last"),
    ("requests_per_s", r"Request Throughput \(req/sec\):\s{1,20}<n>", "last"),
    ("output_tokens_per_s", r"Total Output Throughput \(tokens/sec\):\s{1,20}<n>", "last"),
    ("output_tokens_per_s", r"\nToken Throughput \(tokens/sec\):\s{1,20}<n>", "last"),
    ("ttft_ms", r"Average time-to-first-token \[TTFT\] \(ms\):\s{1,20}<n>", "last"),
    ("tpot_ms", r"Average time-per-output-token \[TPOT\] \(ms\):\s{1,20}<n>", "last"),
)
JSON_KEYS = {
    "model_id": "model",
    "model": "model",
    "completed": "completed",
    "max_concurrency": "concurrency",
    "duration": "duration_s",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "mean_ttft_ms": "ttft_ms",
    "total_token_throughput": "total_tokens_per_s",
    "mean_tpot_ms": "tpot_ms",
    "concurrency": "in_flight",
    "request_rate": "request_rate",
    "tensor_parallel_size": "tp",
    "tp": "tp",
    "gpu": "gpu",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_dtype",
    "vllm_version": "version",
}


def serving_text(text: str) -> tuple[str | None, dict, list[dict]]:
    """The table that `vllm bench serve` and SGLang's serving benchmark print, and trtllm-bench's report."""
    facts, source = found(text, SERVING), "serving benchmark"
    if "ttft_ms" not in facts and "output_tokens_per_s" not in facts:
        facts, source = found(text, TRTLLM_BENCH), "trtllm-bench"
    if "output_tokens_per_s" not in facts and "tpot_ms" not in facts:
        return None, {}, []
    if facts.get("quantization") == "None":
        facts["quantization"] = None
    return source, facts, _load(facts)


def _load(facts: dict) -> list[dict]:
    """One run under load, its lengths the means over requests and its clients by Little's law where not printed."""
    run = {
        "phase": "load",
        **{k: facts[k] for k in ("output_tokens_per_s", "requests_per_s", "request_rate") if k in facts},
    }
    n = facts.get("completed") or 0
    for total, mean in (("input_tokens", "prompt"), ("output_tokens", "output")):
        if facts.get(mean, 0) > 0:
            run[mean] = facts[mean]
        elif n > 0 and facts.get(total, 0) > 0:
            run[mean] = facts[total] / n
    for key in ("ttft", "tpot"):
        if (facts.get(f"{key}_ms") or 0) > 0:
            run[f"{key}_s"] = facts[f"{key}_ms"] / 1e3
    clients = facts.get("concurrency") or facts.get("in_flight")
    if clients is None and {"requests_per_s", "ttft_s", "tpot_s", "output"} <= set(run):
        clients = max(run["requests_per_s"] * (run["ttft_s"] + max(run["output"] - 1, 0) * run["tpot_s"]), 1.0)
        run["clients_by"] = "Little's law: requests per second x mean time of one"
    return [run | ({"concurrency": clients} if clients else {})]


def json_values(text: str) -> list:
    """Every JSON object or list that starts a line, at most 20 tries; NaN and infinities become None."""
    decoder, values, at = json.JSONDecoder(parse_constant=lambda name: None), [], 0
    for _ in range(20):
        match = re.compile(r"^[ \t]{0,8}(?=[{\[])", re.M).search(text, at)
        if not match:
            break
        try:
            value, at = decoder.raw_decode(text, match.end())
            values.append(value)
        except (ValueError, RecursionError):
            at = text.find("\n", match.end()) + 1 or len(text)
    return values


def bench_json(values: list) -> tuple[str | None, dict, list[dict]]:
    """The result files of `vllm bench serve` and of llama-bench (-o json). The last serving result counts."""
    rows = [row for v in values for row in (v if isinstance(v, list) else [v]) if isinstance(row, dict)]
    bench = [row for row in rows if "avg_ts" in row and "n_prompt" in row]
    if bench:
        return "llama-bench", *bench_rows(bench)
    served = [row for row in rows if "output_throughput" in row or "mean_tpot_ms" in row]
    if not served:
        return None, {}, []
    facts = {fact: v for key, fact in JSON_KEYS.items() if (v := plain(served[-1].get(key))) is not None}
    for key in ("model", "gpu", "dtype"):
        if not isinstance(facts.get(key, ""), str):
            del facts[key]
    numbers = {
        k: v
        for k, v in facts.items()
        if k in ("model", "gpu", "dtype", "quantization", "kv_dtype", "version") or not isinstance(v, str)
    }
    if "gpu" in numbers:
        numbers["gpu"] = known_gpu(numbers["gpu"]) or numbers["gpu"]
    return "serving benchmark", numbers, _load(numbers)
