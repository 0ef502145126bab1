"""What engines print when they start: vLLM, SGLang, TensorRT-LLM and llama.cpp, several versions of each.

One table of patterns for each engine. Every fact is in base units: bytes, tokens, seconds. Sizes are of one GPU.
"""

import re

from .scan import compiled, found, gpu_name, number

VLLM = compiled(
    ("version", r"engine \(v?(\d[\w.+]{0,30})\) with config", "text"),
    ("model", r"config: model='([^'\n]{1,200})'", "text"),
    ("model", r", model='([^'\n]{1,200})'", "text"),
    ("model", r"'model': '([^'\n]{1,200})'", "text"),
    ("model", r"'model_tag': '([^'\n]{1,200})'", "text"),
    ("dtype", r"dtype=torch\.(\w{1,20})[\s,)]", "last"),
    ("quantization", r"quantization=<word>", "last"),
    ("kv_dtype", r"kv_cache_dtype=<word>", "last"),
    ("max_model_len", r"max_seq_len=<n>", "last"),
    ("max_model_len", r"max_model_len'?[=:] ?<n>", "last"),
    ("max_model_len", r"max seq len \(<n>\)", "last"),
    ("tp", r"tensor_parallel_size'?[=:] ?<n>", "last"),
    ("pp", r"pipeline_parallel_size'?[=:] ?<n>", "last"),
    ("dp", r"data_parallel_size'?[=:] ?<n>", "last"),
    ("speculative", r"speculative_config=(?!None)(\S{1,40})", "last"),
    ("gpu_mem_frac", r"gpu_memory_utilization \(<n>\)", "last"),
    ("gpu_mem_frac", r"gpu_memory_utilization'?[=:] ?<n>", "last"),
    ("total_bytes", r"total_gpu_memory=<size>", "min"),
    ("total_bytes", r"total_gpu_memory \(<size>\)", "min"),
    ("weight_bytes", r"Model loading took <size>", "max"),
    ("weight_bytes", r"Loading model weights took <size>", "max"),
    ("weight_bytes", r"model weights take <size>", "max"),
    ("non_torch_bytes", r"non_torch_memory=<size>", "max"),
    ("non_torch_bytes", r"non_torch_memory takes <size>", "max"),
    ("peak_bytes", r"peak_torch_memory=<size>", "max"),
    ("activation_bytes", r"PyTorch activation peak memory takes <size>", "max"),
    ("kv_pool_bytes", r"Available KV cache memory: <size>", "min"),
    ("kv_pool_bytes", r"kv_cache_size=<size>", "min"),
    ("kv_pool_bytes", r"reserved for KV Cache is <size>", "min"),
    ("kv_pool_bytes", r"available KV cache memory \(<size>\)", "min"),
    ("kv_tokens", r"GPU KV cache size: <n> tokens", "min"),
    ("kv_tokens", r"stored in KV cache \(<n>\)", "min"),
    ("kv_blocks", r"# GPU blocks: <n>", "min"),
    ("kv_blocks", r"# CUDA blocks: <n>", "min"),
    ("block_tokens", r"block_size'?[=:] ?<n>", "last"),
    ("request_tokens", r"Maximum concurrency for <n> tokens per request", "last"),
    ("max_concurrency", r"tokens per request: <n>x", "last"),
    ("kv_needed_bytes", r"\(<size> KV cache is needed", "max"),
    ("fitting_tokens", r"estimated maximum model length is <n>", "last"),
    ("no_room", r"(No available memory for the cache blocks)", "last"),
    ("graph_bytes", r"Graph capturing finished in \d{1,6} secs?, took <size>", "max"),
    ("graph_bytes", r"CUDA graph pool memory: <size>", "max"),
    ("graph_bytes", r"CUDA graphs? .{0,60}took <size>", "max"),
)
SGLANG = compiled(
    ("model", r"model_path='([^'\n]{1,200})'", "text"),
    ("tp", r"tp_size=<n>", "last"),
    ("pp", r"pp_size=<n>", "last"),
    ("dp", r"dp_size=<n>", "last"),
    ("quantization", r"quantization=<word>", "last"),
    ("kv_dtype", r"kv_cache_dtype=<word>", "last"),
    ("gpu_mem_frac", r"mem_fraction_static=<n>", "last"),
    ("dtype", r"Load weight end\..{0,200}dtype=torch\.(\w{1,20})[\s,)]", "last"),
    ("weight_bytes", r"Load weight end\..{0,300}mem usage=<size>", "max"),
    ("k_bytes", r"K size: <size>", "min"),
    ("v_bytes", r"V size: <size>", "min"),
    ("kv_pool_bytes", r"KV size: <size>", "min"),
    ("kv_tokens", r"#tokens: <n>", "min"),
    ("kv_tokens", r"max_total_num_tokens=<n>", "min"),
    ("max_model_len", r"context_len=<n>", "last"),
    ("graph_bytes", r"Capture cuda graph end\..{0,200}mem usage=<size>", "max"),
)
TRTLLM = compiled(
    ("version", r"TensorRT-LLM version: (\d[\w.+]{0,30})\s", "text"),
    ("version", r"Engine version (\d[\w.+]{0,30})\s", "text"),
    ("weight_bytes", r"Loaded engine size: <size>", "max"),
    ("kv_tokens", r"Max tokens in paged KV cache: <n>", "min"),
    ("kv_tokens", r"for max tokens in paged KV cache \(<n>\)", "min"),
    ("kv_pool_bytes", r"\. Allocating <size>", "min"),
    ("kv_pool_bytes", r"Allocated <size> for max tokens in paged KV cache", "min"),
    ("block_tokens", r"Number of tokens per block: <n>", "last"),
    ("kv_blocks", r"Number of blocks in KV cache primary pool: <n>", "min"),
    ("total_bytes", r"paged kv cache: total: <size>", "min"),
    ("tp", r"tensor_parallel_size=<n>", "last"),
    ("max_model_len", r"maxSequenceLen: <n>", "last"),
)
LLAMACPP = compiled(
    ("model", r"general\.name {0,20}(?:str )?= {0,20}([^\n]{1,120})\n", "text"),
    ("model_file", r"loaded meta data .{0,80} from ([^\n]{1,200}?) \(version", "last"),
    ("file_bytes", r"model size {0,20}= {0,20}<size>", "last"),
    ("file_bytes", r"file size {0,20}= {0,20}<size>", "last"),
    ("file_type", r"file type {0,20}= {0,20}([^\n]{1,60})\n", "last"),
    ("file_type", r"model ftype {0,20}= {0,20}([^\n]{1,60})\n", "last"),
    ("n_params_billion", r"model params {0,20}= {0,20}<n> B", "last"),
    ("n_layer", r"n_layer {1,20}= {0,20}<n>\n", "last"),
    ("n_embd_k", r"n_embd_k_gqa {0,20}= {0,20}<n>\n", "last"),
    ("n_embd_v", r"n_embd_v_gqa {0,20}= {0,20}<n>\n", "last"),
    ("max_model_len", r"n_ctx {1,20}= {0,20}<n>\n", "last"),
    ("n_sequences", r"n_seq_max {0,20}= {0,20}<n>\n", "last"),
    ("kv_tokens", r"\( {0,20}<n> cells", "last"),
    ("kv_pool_bytes", r"llama_kv_cache\w{0,20}: size = {0,20}<size>", "last"),
    ("kv_pool_bytes", r"KV self size {0,4}= {0,20}<size>", "last"),
    ("kv_pool_bytes", r"kv self size {0,4}= {0,20}<size>", "last"),
    ("k_bytes", r", K \(\w{1,8}\): {0,20}<size>", "last"),
    ("v_bytes", r", V \(\w{1,8}\): {0,20}<size>", "last"),
    ("kv_dtype", r", K \((\w{1,8})\):", "last"),
    ("layers_on_gpu", r"offloaded <n>/\d{1,4} layers to GPU", "last"),
    ("layers_in_all", r"offloaded \d{1,4}/<n> layers to GPU", "last"),
    ("activation_bytes", r"CUDA0 compute buffer size = {0,20}<size>", "max"),
    ("devices", r"found <n> \w{1,10} devices", "last"),
)
_TIMED = re.compile(r"eval time {0,20}= {0,20}([\d.]{1,20}) ms / {0,20}(\d{1,9}) (?:tokens|runs)")
# Command lines, whichever program they start.
FLAGS = compiled(
    ("model", r"vllm serve ([^\s-]\S{0,200})\s", "text"),
    ("model", r"Namespace\([^\n]{0,2000}?\bmodel='([^'\n]{1,200})'", "text"),
    ("model", r"--model(?:-path)?[ =]<word>", "text"),
    ("tp", r"--tensor-parallel-size[ =]<n>", "last"),
    ("tp", r"--tp(?:-size)?[ =]<n>", "last"),
    ("pp", r"--pipeline-parallel-size[ =]<n>", "last"),
    ("max_model_len", r"--max-model-len[ =]<n>", "last"),
    ("gpu_mem_frac", r"--gpu-memory-utilization[ =]<n>", "last"),
    ("kv_dtype", r"--kv-cache-dtype[ =]<word>", "last"),
    ("quantization", r"--quantization[ =]<word>", "last"),
    ("concurrency", r"--max-concurrency[ =]<n>", "last"),
)
ENGINES = {"vllm log": VLLM, "sglang log": SGLANG, "tensorrt-llm log": TRTLLM, "llama.cpp log": LLAMACPP}
# Facts that only this engine's lines give: they say whose log it is.
OWN = {
    "weight_bytes",
    "kv_tokens",
    "kv_pool_bytes",
    "kv_blocks",
    "kv_needed_bytes",
    "k_bytes",
    "total_bytes",
    "peak_bytes",
    "file_bytes",
    "max_concurrency",
    "version",
    "no_room",
    "graph_bytes",
    "n_layer",
    "layers_on_gpu",
}


def engine_log(text: str) -> tuple[str | None, dict, list[dict]]:
    """Which engine's log it is, the facts it states, and the timings it holds.

    >>> engine_log("INFO 01-02 03:04:05 worker.py:1] # GPU blocks: 1,952, # CPU blocks: 2,048")[:2]
    ('vllm log', {'kv_blocks': 1952})
    """
    read = {name: found(_last_start(text) if name == "vllm log" else text, table) for name, table in ENGINES.items()}
    source = max(read, key=lambda name: len(OWN & set(read[name])))
    timings = _timings(text)
    if not OWN & set(read[source]) and not timings:
        return None, {}, []
    source = source if OWN & set(read[source]) else "llama.cpp log"
    facts = read[source]
    if facts.get("quantization") in ("None", "null"):
        facts["quantization"] = None
    return source, facts, timings


def surroundings(text: str) -> dict:
    """What any text may say around a log: command lines and the name that a driver gives the GPU."""
    facts = found(text, FLAGS)
    gpu = gpu_name(text)
    return {**facts, "gpu": gpu} if gpu else facts


def _last_start(text: str) -> str:
    """The part of the text after the last engine start, with the arguments printed just before it."""
    starts = [m.start() for m in re.finditer(r"Initializing an? (?:LLM|V1|V0)", text)]
    if len(starts) < 2:
        return text
    return text[text.rfind("\n", 0, starts[-1]) + 1 :]


def _timings(text: str) -> list[dict]:
    """Lines of llama.cpp that time the prompt and the tokens of one run."""
    runs, prompt = [], 0
    for match in _TIMED.finditer(text):
        time_ms, n = number(match[1]), int(match[2])
        if not time_ms or not n or time_ms <= 0:
            continue
        if text.endswith("prompt ", 0, match.start()):
            prompt = n
            runs.append({"phase": "prefill", "prompt": n, "batch": 1, "time_s": time_ms / 1e3})
        else:
            runs.append({"phase": "decode", "context": prompt + n / 2, "batch": 1, "time_s": time_ms / 1e3 / n})
    return runs
