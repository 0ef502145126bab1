"""What tools/gpu_report.py measures: jobs that each give rows of what was measured, predicted, and the ratio."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import econ
from econ.hardware import Accelerator
from econ.kernels import attention, machine, messages, meter, timing
from econ.kernels._setup import DTYPES
from econ.kernels.llama import Llama, attend
from econ.names import DATA
from econ.parallel import ring_all_reduce_s

Row = dict[str, Any]
Job = tuple[str, Callable[[], list[Row]]]  # what it is, for a person; and how to measure it
CONFIG_KEYS = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
               "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size",
               "vocab": "vocab_size", "tied": "tie_word_embeddings"}
CONFIG_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
SMALL_CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 6,
                "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
                "intermediate_size": 2816, "vocab_size": 8192, "tie_word_embeddings": False}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    name: str
    seconds: float  # for the ceilings
    batches: tuple[int, ...] | None  # of the linear layer; None for all that `machine` has
    models: tuple[str, ...]  # the first whose weights take at most half of the memory; none: the small one
    prompts: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]  # batch, context
    heads: int
    head_dim: int
    tokens: tuple[int, ...]  # of attention


SMALL = Sizes(name="small", seconds=2.0, batches=(1, 4, 16, 64, 256), models=(), prompts=(64, 192),
              decodes=((1, 256), (4, 256)), heads=8, head_dim=64, tokens=(256, 1024))
LARGE = Sizes(name="large", seconds=10.0, batches=None, models=("llama-3.1-8b", "llama-3.2-1b"),
              prompts=(512, 2048, 8192), decodes=tuple((batch, 2048) for batch in (1, 2, 4, 8, 16, 32, 64)),
              heads=32, head_dim=128, tokens=(1024, 4096, 16_384))


class Bench:
    """A device, its own ceilings, and its datasheet where the registry has it."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes = device, sizes
        self.machine = machine.measure(sizes.seconds, device)
        self.datasheet = registered(self.machine.name) if device.type == "cuda" else None
        peaks = self.machine.peak_flop_per_s
        fastest = max(peaks, key=lambda name: peaks[name])
        self.matmul_dtype = "bf16" if peaks["bf16"] >= 0.9 * peaks[fastest] else fastest
        self.model_dtype = self.matmul_dtype if device.type == "cuda" else "fp32"

    def timed(self, found: timing.Timing, dtype: str, flops: int, bytes_: int) -> Row:
        """A measured time beside what the roofline gives for the datasheet and for the rates measured here."""
        own = self.machine.as_accelerator()
        gemv = dataclasses.replace(own, hbm_bytes_per_s=self.machine.gemv_bytes_per_s[dtype])
        chips = {"datasheet": self.datasheet, "ceilings": own, "gemv": gemv}
        predicted = {name: _roofline_s(chip, dtype, flops, bytes_) for name, chip in chips.items()}
        return {"dtype": dtype, "flops": flops, "bytes": bytes_} | compared(
            found.median_s, found.spread_frac, predicted)


def _roofline_s(chip: Accelerator | None, dtype: str, flops: int, bytes_: int) -> float | None:
    if chip is None or dtype not in chip.peaks:
        return None
    return flops / econ.attainable_flop_per_s(flops / bytes_, chip.peaks[dtype], chip.hbm_bytes_per_s)


def compared(measured: float, spread_frac: float, predicted: dict[str, float | None]) -> Row:
    """A measured value, and its ratio to each prediction."""
    ratio = {name: value and measured / value for name, value in predicted.items()}
    return {"measured": measured, "spread_frac": spread_frac, "predicted": predicted, "ratio": ratio}


def registered(name: str) -> Accelerator | None:
    """The datasheet of a GPU by the name that its driver reports; None where the registry does not know it.

    >>> registered("NVIDIA H100 80GB HBM3").name, registered("Example 9000")
    ('h100-sxm', None)
    """
    try:
        return econ.load_accelerator(name)
    except econ.UnknownName:
        return None


def ceilings(bench: Bench) -> list[Row]:
    """The best rates of matrix products, of one long read, and of weights times one vector."""
    found, chip = bench.machine, bench.datasheet
    peaks, bandwidth = (chip.peaks, chip.hbm_bytes_per_s) if chip else ({}, None)
    rates = [(f"matmul {dtype}", "FLOP/s", rate, peaks.get(dtype)) for dtype, rate in found.peak_flop_per_s.items()]
    rates.append(("stream", "B/s", found.stream_bytes_per_s, bandwidth))
    rates += [(f"gemv {dtype}", "B/s", rate, bandwidth) for dtype, rate in found.gemv_bytes_per_s.items()]
    return [{"name": name, "unit": unit} | compared(rate, found.spread_frac[name], {"datasheet": printed})
            for name, unit, rate, printed in rates]


def linear(bench: Bench) -> Iterator[Job]:
    """One square linear layer at growing batch: the roofline."""
    def rows() -> list[Row]:
        points = machine.linear_sweep(bench.matmul_dtype, bench.sizes.batches, bench.device)
        times = [timing.Timing(median_s=p.time_s, spread_frac=p.spread_frac, runs=7) for p in points]
        return [{"batch": p.batch} | bench.timed(t, p.dtype, p.flops, p.bytes)
                for p, t in zip(points, times, strict=True)]

    yield "linear layer", rows


class Pair:
    """One Llama twice: as random tensors on the device, and as the config that `econ` reads."""

    def __init__(self, bench: Bench) -> None:
        half = (bench.machine.memory_bytes or 0) / 2
        fits = [name for name in bench.sizes.models if econ.load_model(name).weight_bytes("bf16") <= half]
        self.name = (*fits, *bench.sizes.models[-1:], "llama-small")[0]
        path = DATA / "models" / f"{self.name}.json"
        config: Row = json.loads(path.read_text(encoding="utf-8")) if bench.sizes.models else SMALL_CONFIG
        shape: Row = {ours: config[theirs] for ours, theirs in CONFIG_KEYS.items() if theirs in config}
        shape.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        self.tensors = Llama(**shape, dtype=bench.model_dtype, device=bench.device)
        self.formulas = econ.load_model(config | {"torch_dtype": CONFIG_DTYPES[bench.model_dtype]})


def model_steps(bench: Bench, pair: Pair) -> Iterator[Job]:
    """Prefill by prompt, decode by batch; on a GPU a decode step also as a recorded graph, free of the host."""
    launches = ("eager", "graph") if bench.device.type == "cuda" else ("eager",)
    for prompt in bench.sizes.prompts:
        yield f"prefill of {prompt}", partial(_prefill, bench, pair, prompt)
    for batch, context in bench.sizes.decodes:
        for launch in launches:
            yield f"decode of {batch} x {context}, {launch}", partial(_decode, bench, pair, batch, context, launch)


def _prefill(bench: Bench, pair: Pair, prompt: int) -> list[Row]:
    found = timing.time_prefill(pair.tensors, prompt, repeats=3)
    work = econ.forward(pair.formulas, new_tokens=prompt, kv=bench.model_dtype)
    return [{"phase": "prefill", "batch": 1, "tokens": prompt, "launch": "eager"}
            | bench.timed(found, bench.model_dtype, work.flops, work.bytes)]


def _decode(bench: Bench, pair: Pair, batch: int, context: int, launch: str) -> list[Row]:
    step = decode_step(pair.tensors, batch, context)
    found = timing.time_median(recorded(step) if launch == "graph" else step, 7, bench.device)
    work = econ.forward(pair.formulas, batch=batch, context=context, kv=bench.model_dtype)
    return [{"phase": "decode", "batch": batch, "tokens": context, "launch": launch}
            | bench.timed(found, bench.model_dtype, work.flops, work.bytes)]


def decode_step(model: Llama, batch: int, context: int) -> Callable[[], Any]:
    """A decode step that can be repeated: it forgets its own token first."""
    token = torch.zeros(batch, dtype=torch.int64, device=model.device)
    cache = model.new_cache(batch, context + 1)
    cache.kv.normal_()

    def step() -> None:
        cache.rewind(context)
        model.decode(token, cache)

    return step


def recorded(fn: Callable[[], Any]) -> Callable[[], Any]:
    """`fn` recorded once as a CUDA graph; a replay launches all its kernels at once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is recorded must have run before
        fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def attentions(bench: Bench) -> Iterator[Job]:
    """Causal attention of one sequence on itself: plain, tiled, and torch's own."""
    for tokens in bench.sizes.tokens:
        for name, kernel in (("naive", attention.naive), ("flash", attention.flash), ("torch", attend)):
            yield f"{name} attention of {tokens}", partial(_attention, bench, name, kernel, tokens)


def _attention(bench: Bench, name: str, kernel: Callable[..., torch.Tensor], tokens: int) -> list[Row]:
    """Plain attention computes every score and moves it twice out, twice in; the others need half and move none."""
    heads, dim, dtype, plain = bench.sizes.heads, bench.sizes.head_dim, bench.model_dtype, name == "naive"
    q, k, v = (torch.randn(1, heads, tokens, dim, device=bench.device).to(DTYPES[dtype]) for _ in range(3))
    found = timing.time_median(lambda: kernel(q, k, v), 5, bench.device)
    scores = tokens * tokens if plain else tokens * (tokens + 1) // 2
    moved = 4 * tokens * dim + (4 * tokens * tokens if plain else 0)  # elements of a head
    held = 2 * tokens * tokens + tokens * dim  # scores, weights and the output
    row = bench.timed(found, dtype, 4 * heads * dim * scores, heads * moved * q.itemsize)
    return [{"kernel": name, "tokens": tokens, "heads": heads, "head_dim": dim} | row | {
        "peak_bytes": peak_bytes(lambda: kernel(q, k, v), bench.device),
        "predicted_peak_bytes": heads * held * q.itemsize if plain else None}]


def peak_bytes(fn: Callable[[], Any], device: torch.device) -> int:
    """Most bytes alive while `fn` runs, beyond what was there before."""
    if device.type == "cpu":
        return meter.peak_live_bytes(fn)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    fn()
    return torch.cuda.max_memory_allocated(device) - before


def all_reduces(bench: Bench, n: int) -> Iterator[Job]:
    """Time of an all-reduce by size among `n` processes, beside a ring's bytes over the printed link."""
    def rows() -> list[Row]:
        fit = messages.measure_all_reduce(n)
        link = bench.datasheet and bench.datasheet.link
        speed = link.bytes_per_s_each_way if link and fit.backend == "nccl" else None
        constants = ("n", "backend", "alpha_s", "bytes_per_s", "alpha_spread_frac", "bytes_per_s_spread_frac",
                     "held_out_error_frac")
        times = [{"size_bytes": size} | compared(found.median_s, found.spread_frac, {
                     "datasheet": speed and ring_all_reduce_s(size, n, speed), "fit": fit.time_s(size)})
                 for size, found in zip(fit.sizes_bytes, fit.times, strict=True)]
        return [{name: getattr(fit, name) for name in constants} | {"times": times}]

    if n > 1:
        yield f"all-reduce among {n}", rows
