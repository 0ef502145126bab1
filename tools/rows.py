"""Read one row of a benchmark table: which deployment, which load, which number is asked for.

A row has the columns of econ/data/measured/{decode_batch1,serving_throughput,latency}.csv; its `value` is never read.
What a row leaves open is filled by the rules in this file, one function each.
"""

import math
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import econ  # noqa: E402
from econ.config import _read_json, read_config  # noqa: E402
from econ.hardware import Source  # noqa: E402
from econ.names import DATA  # noqa: E402
from econ.precision import Format  # noqa: E402
from econ.profiles import llama_cpp  # noqa: E402

PROFILE, LOCAL = "general", "llama.cpp"
MAX_RUNNING = 2_048  # sequences a replica: the default limit of engines at maximum throughput
MEMORY_FRACS = (0.9, 0.97)  # of a GPU: the default, then what a run that fits no other way must have used
FREE_FRAC = 0.9  # TensorRT-LLM: of the memory that weights leave free, its documented default for the cache
NOMINAL_FRAC = 0.9  # InferenceX draws lengths between 0.8 and 1 of the nominal ones
UBATCH_TOKENS = 512  # llama.cpp reads prompts in pieces of this size, which layer-split GPUs work on at once
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "tensorrt-llm", "tensorrt": "tensorrt-llm",
           "llama.cpp": "llama.cpp", "llama-bench": "llama.cpp", "ollama": "llama.cpp", "exllama": "llama.cpp",
           "mlc": "llama.cpp"}  # the last two: single-user engines of the same kind
SERVERS = ("vllm", "sglang", "tensorrt-llm")
WEIGHTS = {"f16": "fp16", "fp16": "fp16", "bf16": "bf16", "f32": "fp32", "fp32": "fp32", "fp8": "fp8", "int8": "int8",
           "int4": "int4", "int4-g32": "int4", "awq": "int4", "gptq": "int4", "nvfp4": "nvfp4", "fp4": "nvfp4",
           "mxfp4": "mxfp4", "q8_0": "q8_0", "q4_0": "q4_0", "q4_k_m": "q4_k_m"}
# Bits of a weight, scales included, as the blocks of these formats are declared.
GGUF_BITS = {"q2_k": 2.625, "q3_k": 3.4375, "q4_1": 5.0, "q4_k": 4.5, "q5_0": 5.5, "q5_1": 6.0, "q5_k": 5.5,
             "q6_k": 6.5625, "iq4_xs": 4.25, "iq4_nl": 4.5}
ENDINGS = r"-(fp8|fp4|nvfp4|bf16|awq|gptq|instruct|chat|it|base|hf|thinking|[0-9]{4}|v[0-9.]+)$"
KINDS = {"ttft_ms": ("ttft", 1e3), "tpot_ms": ("tpot", 1e3), "itl_ms": ("tpot", 1e3), "ttft_s": ("ttft", 1),
         "tpot_s": ("tpot", 1), "decode_tok_s": ("decode", 1), "prefill_tok_s": ("prefill", 1),
         "output_tok_s_total": ("throughput", 1), "output_tok_s_per_gpu": ("throughput", 0)}  # 0: over n_gpus


class Refused(ValueError):
    """A row that cannot be predicted, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row, understood: a deployment under a load, and what is asked of it in which unit."""

    kind: str  # ttft, tpot, throughput, decode or prefill
    deployment: econ.Deployment
    engine: str
    concurrency: float  # of the whole deployment; where requests arrive at a rate, that rate
    at_rate: bool
    prompt: float
    output: float
    scale: float  # of the unit the row uses, per second or token/s

    def interval(self, found: float) -> tuple[float, float]:
        """The 80 % interval around a prediction. A server's rate of one pass has that of the time nearest to it."""
        profile = self.deployment.profile
        near = {"decode": "tpot", "prefill": "ttft"}.get(self.kind)
        if near is None or profile.name.startswith(LOCAL):
            return profile.interval("batch1" if self.kind == "decode" else self.kind, found)
        low, high = profile.interval(near, 1 / found)
        return 1 / high, 1 / low


def question(row: dict) -> Question:
    """What a row asks. Raises Refused, or an econ error, where that cannot be known."""
    kind, scale = _kind(row)
    engine, gpu = engine_of(row), _text(row, "gpu")
    n = whole(row, "n_gpus") or (1 if engine == LOCAL else None)
    if n is None:
        given = _text(row, "n_gpus")
        raise Refused(f"n_gpus is {repr(given[:40]) if given else 'blank'}: how many GPUs served this is not known")
    if not gpu:
        raise Refused("gpu is blank")
    tp, pp, dp, ep = degrees(row, engine, n)
    accelerator = accelerator_of(gpu, number(row, "device_bw_gbs"), kind)
    model = model_of(_text(row, "model"), _text(row, "weight_dtype"), engine)
    weights, kv = weights_of(model, _text(row, "weight_dtype")), kv_of(row, engine)
    concurrency, at_rate = load_of(row, dp)
    prompt, output = lengths_of(row, kind)
    profile = profile_of(engine, gpu, tp)
    d = deployment(model, accelerator, n, tp, pp, dp, ep, weights, kv, profile, prompt + output, kind,
                   free_frac_of(row, engine))
    return Question(kind=kind, deployment=d, engine=engine, concurrency=concurrency, at_rate=at_rate, prompt=prompt,
                    output=output, scale=scale or 1 / n)


def answer(q: Question) -> float:
    """The prediction, in the row's unit."""
    d = q.deployment
    if q.kind == "prefill":
        together = min(d.pp, math.ceil(q.prompt / UBATCH_TOKENS)) if d.profile.name.startswith(LOCAL) else 1
        return q.scale * q.concurrency * q.prompt * together / d.prefill(q.concurrency, q.prompt).time_s
    if q.kind == "decode":
        return q.scale * q.concurrency / d.decode(q.concurrency / d.dp, q.prompt + q.output / 2).time_s
    if q.kind == "ttft" and q.output <= 1:  # a static batch: no engine steps
        return q.scale * d.prefill(q.concurrency / d.dp, q.prompt).time_s
    v = served(q)
    queue = 0.0 if q.at_rate else v.queued * v.cycle_s / v.running_batch  # published runs show next to none of it
    return q.scale * {"ttft": v.ttft_s - queue, "tpot": v.tpot_s, "throughput": v.output_tokens_per_s}[q.kind]


def served(q: Question):
    """The load in steady state; beyond saturation, the full engine."""
    d = q.deployment
    if not q.at_rate:
        return d.serve(q.concurrency, q.prompt, q.output)
    full = d.serve(d.dp * MAX_RUNNING, q.prompt, q.output)
    if q.concurrency >= full.requests_per_s:
        return d.serve(full.running_batch, q.prompt, q.output)
    return d.at_rate(q.concurrency, q.prompt, q.output)


def _text(row: dict, key: str) -> str:
    value = row.get(key)
    return value.strip() if isinstance(value, str) else ""


def number(row: dict, key: str) -> float | None:
    """A positive number in a column, or None where it is blank, no number, or not finite."""
    try:
        value = float(_text(row, key))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def whole(row: dict, key: str) -> int | None:
    """A whole number of at least 1 in a column, or None."""
    value = number(row, key)
    return int(value) if value and value >= 1 and value == int(value) else None


def _kind(row: dict) -> tuple[str, float]:
    metric = _text(row, "metric")
    if metric not in KINDS:
        raise Refused(f"metric {metric[:40]!r} is not one of {', '.join(KINDS)}")
    return KINDS[metric]


def engine_of(row: dict) -> str:
    """The engine's family by its name, or "other"."""
    name = _text(row, "engine_version").lower()
    return next((family for word, family in ENGINES.items() if word in name), "other")


def profile_of(engine: str, gpu: str, tp: int) -> str:
    """The general profile, in an engine's variant; that of llama.cpp, by the kind of device, where layers are split."""
    if engine == LOCAL and tp == 1:
        return llama_cpp(gpu)
    return f"{PROFILE}/{engine}" if engine in SERVERS else PROFILE


def degrees(row: dict, engine: str, n: int) -> tuple[int, int, int, int]:
    """tp, pp, dp and ep. Attention that is data-parallel spreads the experts over all GPUs, whole copies do not."""
    if engine == LOCAL and whole(row, "tp") != n:
        return 1, n, 1, 1  # layers are split, GPUs work one after the other
    pp = whole(row, "pp") or 1
    pp = pp if n % pp == 0 else 1
    rest, layout = n // pp, _text(row, "ep_dp").lower()
    found = re.search(r"adp(\d+)|(?<![a-z])dp(\d+)", layout)
    if not found and "attn-dp" not in layout:
        tp = whole(row, "tp") or rest
        copies = rest // tp if rest % tp == 0 else 1  # fewer GPUs share a layer than there are: whole copies
        return rest // copies, pp, copies, 1
    dp = min(int(found.group(1) or found.group(2)), rest) if found else rest
    dp = dp if dp > 0 and rest % dp == 0 else 1
    return rest // dp, pp, dp, rest if dp > 1 else 1


@lru_cache(maxsize=512)
def accelerator_of(name: str, bandwidth_gbs: float | None, kind: str):
    """The GPU of the registry; at batch 1 a device is known well enough by its bandwidth."""
    for tried in spellings(name):
        try:
            return econ.load_accelerator(tried)
        except econ.UnknownName:
            continue
    if not bandwidth_gbs or kind != "decode":
        return econ.load_accelerator(name)  # raises, with the nearest names
    source = Source(provenance="unverified", title="the row itself")
    return econ.Accelerator(
        name=name, printed_name=name, vendor="", hbm_bytes_per_s=1e9 * bandwidth_gbs, printed_bytes=None,
        visible_bytes=None, link=None, tdp_w=None, sources={"memory": source}, notes="", peaks={})


def spellings(name: str) -> list[str]:
    """A GPU's name as given, then without the vendor, the socket's number, "GB", the size and the form factor."""
    found = [name]
    for pattern, new in ((r"^(nvidia|amd|intel)[-_ ]+", ""), (r"^(geforce|instinct|tesla)[-_ ]+", ""),
                         (r"sxm\d", "sxm"), (r"(\d+)[-_ ]?gb\b", r"\1"), (r"[-_ ]\d{2,3}$", ""), (r"[-_ ]sxm$", "")):
        found.append(re.sub(pattern, new, found[-1], flags=re.I))
    return found


@lru_cache(maxsize=256)
def model_of(name: str, weight_dtype: str, engine: str):
    """The model; one published wide or in fp8 and served in fp4 keeps some layers wide, as its fp4 checkpoints do."""
    model = replace(econ.load_model(spelled(name)), max_context=None)  # benchmarks run beyond a model's limit
    if engine == LOCAL and model.published and model.published.name == "mxfp4":
        return replace(model, dtype="q8_0")  # GGUF files keep in 8 bits what the checkpoint has in 16
    block = gguf_format(weight_dtype)
    if block:
        return replace(model, published=block, dtype="q6_k")  # such files keep the head in q6_k
    fp4 = weight_dtype.lower() in ("fp4", "nvfp4")
    experts_only = model.name.startswith(("qwen3.5", "qwen3-next"))
    latent = any(a.latent for a, _ in model.attention_kinds)
    if not ((fp4 and (latent or experts_only)) or (weight_dtype == "int4" and model.name.startswith("kimi"))):
        return model
    ignore = ["re:.*self_attn.*", "re:.*linear_attn.*"] + (["re:.*shared_expert.*"] if experts_only else [])
    spec = {"quant_method": "modelopt", "quant_algo": "NVFP4" if fp4 else "W4A16_AWQ", "ignore": ignore}
    config = {**_read_json(DATA / "models" / f"{model.name}.json"), "quantization_config": spec}
    return replace(read_config(config, name=model.name), max_context=None)


def gguf_format(dtype: str) -> Format | None:
    """A GGUF block format that is no recipe of `econ`, every matrix alike; None for any other dtype."""
    base = re.sub(r"_(s|m|l|xl)$", "", dtype.lower())
    if base not in GGUF_BITS or dtype.lower() in WEIGHTS:
        return None
    return Format(name=base, bits=GGUF_BITS[base])


def spelled(name: str) -> str:
    """A model's name as the registry spells it, where a common ending is all that differs."""
    if not name:
        raise Refused("model is blank")
    tried = name
    for _ in range(3):
        try:
            return econ.load_model(tried).name
        except econ.UnknownName:
            tried = re.sub(ENDINGS, "", re.sub(r"[\s_]+", "-", tried), flags=re.I)
    return econ.load_model(name).name


def weights_of(model, dtype: str) -> str | None:
    """The recipe; None where the checkpoint as published is that format already. Unstated: bf16, as presumed."""
    name = dtype.lower().split()[0] if dtype else "unstated"
    if name.startswith("unstated"):
        return "bf16"
    if gguf_format(name):
        return None
    recipe = WEIGHTS.get(name) or WEIGHTS.get(name.replace("-", "_"))
    if recipe is None:
        raise Refused(f"weight_dtype {dtype[:40]!r} is not one of {', '.join(WEIGHTS)}")
    bits = {"fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4, "mxfp4": 4}.get(recipe)
    return None if model.published and bits == model.published.bits else recipe


def kv_of(row: dict, engine: str) -> str:
    """The cache's dtype; unstated, fp8 under TensorRT-LLM with weights of at most 8 bits, else bf16."""
    name, weights = _text(row, "kv_dtype").lower(), _text(row, "weight_dtype").lower()
    if name.startswith(("fp8", "f8")):
        return "fp8"
    if name.startswith(("q8", "int8")):
        return "int8"
    if name:
        return "bf16"
    return "fp8" if engine == "tensorrt-llm" and weights in ("fp8", "fp4", "nvfp4") else "bf16"


def free_frac_of(row: dict, engine: str) -> float | None:
    """The cache's share of the memory that weights leave free; None for engines that take a share of all memory."""
    if engine != "tensorrt-llm":
        return None
    noted = re.search(r"free_gpu_mem\w*_fraction (?:up to )?(0\.\d+)", _text(row, "notes"))
    return float(noted.group(1)) if noted else FREE_FRAC


def load_of(row: dict, dp: int) -> tuple[float, bool]:
    """Clients, or requests a second. "max throughput": every request at once, up to the engine's limit."""
    text = _text(row, "batch_or_concurrency").lower()
    if text.startswith("qps") and "inf" not in text:
        rate = number({"x": text[3:]}, "x")
        if not rate:
            raise Refused(f"batch_or_concurrency {text[:40]!r} is no rate")
        return rate, True
    if "max" in text or "inf" in text:
        limit = re.search(r"num_requests=(\d+)", _text(row, "notes"))
        return min(int(limit.group(1)) if limit else MAX_RUNNING * dp, MAX_RUNNING * dp), False
    clients = number(row, "batch_or_concurrency")
    if not clients or clients < 1:
        raise Refused(f"batch_or_concurrency {text[:40]!r} is not a number of clients, a rate or a maximum")
    return clients, False


def lengths_of(row: dict, kind: str) -> tuple[float, float]:
    """Prompt and output tokens."""
    prompt, output = number(row, "isl"), number(row, "osl")
    if prompt is None or (output is None and kind != "prefill"):
        raise Refused(f"{'isl' if prompt is None else 'osl'} is blank or not a number")
    output = output or 0
    if kind in ("throughput", "tpot", "ttft") and (prompt < 1 or output < 1):
        raise Refused(f"isl={prompt:g} and osl={output:g}: a served request has at least one token of each")
    if kind == "prefill" and prompt < 1:
        raise Refused("isl is 0: no prompt to read")
    if "inferencex" in (_text(row, "notes") + _text(row, "source_url")).lower():
        return max(prompt * NOMINAL_FRAC, 1), max(output * NOMINAL_FRAC, 1)
    return prompt, output


@lru_cache(maxsize=4096)
def deployment(model, accelerator, n, tp, pp, dp, ep, weights, kv, profile, tokens, kind, free_frac=None):
    """The deployment; its memory is the default share of a GPU, or more where nothing fits otherwise."""
    if kind in ("decode", "prefill") and accelerator.visible_bytes is None and accelerator.printed_bytes is None:
        accelerator = replace(accelerator, printed_bytes=2**49)  # sold in several sizes: large enough, as it ran
    if kind == "decode" and not accelerator.peaks:  # no matrix rate is printed: one that does not bind at batch 1
        accelerator = replace(accelerator, peaks={"bf16": 100 * accelerator.hbm_bytes_per_s})
    common = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "weights": weights, "kv": kv, "profile": profile,
              "max_running": MAX_RUNNING}
    if ep > 1 and not any(t.role == "expert" for layer, _ in model.layer_kinds for t in layer.tensors):
        common["ep"] = 1
    for frac in MEMORY_FRACS:
        d = econ.Deployment(model, accelerator, n, gpu_mem_frac=frac, **common)
        if d.memory(1, tokens).fits:
            break
    return d if free_frac is None else of_free_memory(d, free_frac)


def of_free_memory(d, free_frac: float):
    """The deployment with `free_frac` of the memory that its weights leave free for the cache."""
    held = d.memory().weight_bytes / d.accelerator.memory_bytes
    return replace(d, gpu_mem_frac=held + free_frac * (1 - held)) if held < max(MEMORY_FRACS) else d
