"""What the command line answers: each command's result for programs, rows for people, and what it took for granted."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .arrays import whole
from .choose import compare
from .config import load_model, models
from .cost import Deployment
from .errors import DoesNotFit
from .floors import DECODE_SHARE, PREFILL_SHARE
from .hardware import accelerators, load_accelerator
from .market import prices
from .profiles import load_profile
from .reports import explain
from .units import fmt, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command found: for programs, for people, and what it took for granted."""

    result: Any
    rows: list
    assumed: list[str]
    status: int = 0


NAMED = {"tpot": "times per token", "throughput": "throughputs", "ttft": "times to the first token",
         "batch1": "rates of one sequence", "prefill": "rates of one prompt"}


def _deployment(a) -> Deployment:
    return Deployment(a.model, a.gpu, n_gpus=a.n_gpus, tp=a.tp, pp=a.pp, dp=a.dp, ep=a.ep, weights=a.weights, kv=a.kv,
                      link=a.link, profile=a.profile, gpu_mem_frac=a.gpu_mem_frac, max_running=a.max_running)


def _placed(d: Deployment) -> str:
    return f"tp {d.tp} pp {d.pp} dp {d.dp} ep {d.ep}"


def _assumed(a, alone: bool = False) -> list[str]:
    """What an answer rests on. One request alone has no throughput and no time to the first token under load."""
    model, profile = load_model(a.model), load_profile(a.profile)
    speed = ["the floor: full peak and bandwidth, no communication; nothing real is faster"]
    if profile.fitted:
        error = fmt(profile.fitted["held_out_median_error_frac"], "%", 2)
        speed = [f"profile {profile.name}, fitted to {profile.fitted['engine']}, {profile.fitted['date']}",
                 f"held-out error {error} median"]
        speed += ["80 % of {} are {:.2f} to {:.2f} times this".format(NAMED[name], *profile.interval(name, 1))
                  for name in profile.fitted.get("interval", ()) if not (alone and name in ("throughput", "ttft"))]
        speed += ["the first token without the steps that a loaded server adds"] * bool(
            alone and profile.first_token_steps)
    return [f"weights {a.weights or 'as published'}", f"cache {a.kv or model.cache_dtype}",
            f"{fmt(a.gpu_mem_frac, '%')} of GPU memory", *speed]


def fit(a) -> Answer:
    """Does a batch fit, and what would still fit beside it: status 1 if not."""
    d = _deployment(a)
    b = d.memory(a.batch, a.context)
    sizes = [("usable on each GPU", b.budget_bytes), ("weights", b.weight_bytes),
             (f"cache needed, {a.batch:,} x {a.context:,} tokens", b.kv_bytes),
             ("cache reserved by an engine", b.kv_reserved_bytes), ("recurrent state", b.state_bytes),
             ("free" if b.fits else "short by", abs(b.free_bytes))]
    rows = [(name, fmt(size, "GB", 4), fmt(size, "GiB", 4)) for name, size in sizes]
    rows += [("fits", "yes" if b.fits else "no", ""), ("largest batch at this context", f"{b.max_batch:,}", ""),
             ("longest context at this batch", f"{b.max_context:,}", "")]
    return Answer(result=asdict(b), rows=rows, assumed=[_placed(d), *_assumed(a)], status=0 if b.fits else 1)


def time(a) -> Answer:
    """How long a prompt, a token and a whole request take."""
    d = _deployment(a)
    r, p = d.request(a.batch, a.prompt, a.output), d.prefill(a.batch, a.prompt)
    s = d.decode(a.batch, a.prompt if a.output > 1 else a.prompt - 1)
    rows = [("time to first token", fmt(r.ttft_s, "ms")), ("time per further token", fmt(r.tpot_s, "ms")),
            ("whole request", fmt(r.total_s, "s")), ("output tokens per second", fmt(r.output_tokens_per_s, "tok/s"))]
    for name, step in (("prefill", p), ("decode", s)):
        shares = f"{fmt(step.mfu_frac, '%')} of the FLOP/s, {fmt(step.mbu_frac, '%')} of the bandwidth"
        rows.append((f"{name}, bound by {step.bound}", shares))
    result = {**asdict(r), "prefill": asdict(p), "decode": asdict(s)}
    return Answer(result=result, rows=rows, assumed=[_placed(d), *_assumed(a, alone=True)])


def cost(a) -> Answer:
    """Dollars per million tokens of a steady load."""
    d = _deployment(a)
    price, source = a.usd_per_gpu_hour, "given"
    if price is None:
        if d.accelerator.name not in prices():
            raise ValueError(f"no shipped price for {d.accelerator.name}; give --usd-per-gpu-hour")
        row = prices()[d.accelerator.name]
        price, source = row.usd_per_gpu_hour, f"median of {row.rows} listings up to {row.newest}"
    c = d.cost(price, a.concurrency, a.prompt, a.output, a.utilisation, a.allocation)
    v = d.serve(a.concurrency, a.prompt, a.output)
    rows = [("per million input tokens", fmt(c.usd_per_mtok_input, "$")),
            ("per million output tokens", fmt(c.usd_per_mtok_output, "$")),
            ("per million cached input tokens", fmt(c.usd_per_mtok_cached_input, "$")),
            ("per million tokens, blended", fmt(c.usd_per_mtok_blended, "$")),
            ("per request", fmt(c.usd_per_request, "$")), ("per hour", fmt(c.usd_per_hour, "$")),
            ("time to first token", fmt(v.ttft_s, "ms")), ("time per further token", fmt(v.tpot_s, "ms")),
            ("output tokens per second", fmt(v.output_tokens_per_s, "tok/s")),
            (f"running, limited by {v.limited_by}", f"{v.running_batch:,.10g}"), ("queued", f"{v.queued:,.10g}")]
    assumed = [f"{fmt(price, '$')} per GPU-hour, {source}", f"{fmt(a.utilisation, '%')} busy",
               f"allocation by {a.allocation}", _placed(d), *_assumed(a)]
    return Answer(result={**asdict(c), "load": asdict(v)}, rows=rows, assumed=assumed)


def choose(a) -> Answer:
    """Which GPUs, how many, which TP: cheapest first."""
    shown = whole("top", a.top)
    found = compare(a.model, a.prompt, a.output, a.slo_ttft, a.slo_tpot, weights=a.weights, kv=a.kv, profile=a.profile,
                    gpu_mem_frac=a.gpu_mem_frac, max_running=a.max_running)
    if not found:
        raise DoesNotFit(f"no accelerator in counts of 1 to 8 holds {load_model(a.model).name} within these limits; "
                         "loosen them, shorten the context, or choose smaller weights")
    usd = lambda value: "-" if value is None else fmt(value, "$")  # noqa: E731
    rows = [("gpu", "n", "tp", "TTFT", "TPOT", "tok/s", "running", "$/h", "$/M tokens")] + [
        (r.accelerator, str(r.n_gpus), str(r.tp), fmt(r.ttft_s, "ms"), fmt(r.tpot_s, "ms"),
         fmt(r.output_tokens_per_s, ""), f"{r.running_batch:,.10g}", usd(r.usd_per_hour), usd(r.usd_per_mtok_blended))
        for r in found[:shown]]
    newest = max(price.newest for price in prices().values())
    assumed = [f"prices: medians of listings up to {newest}, unpriced last", "highest load without a queue",
               *_assumed(a)]
    return Answer(result=[asdict(r) for r in found], rows=rows, assumed=assumed)


def list_models(a) -> Answer:
    """The models that ship with the package."""
    found = [load_model(name) for name in models()]
    rows = [("model", "parameters", "active", "cache per token", "longest context")] + [
        (m.name, fmt(m.n_params, "B params").removesuffix(" params"),
         fmt(m.n_active_params, "B params").removesuffix(" params"), fmt(m.kv_bytes_per_token(), "kB"),
         f"{m.max_context:,}" if m.max_context else "-") for m in found]
    result = [{"name": m.name, "n_params": m.n_params, "n_active_params": m.n_active_params,
               "kv_bytes_per_token": m.kv_bytes_per_token(), "max_context": m.max_context} for m in found]
    return Answer(result=result, rows=rows, assumed=["active parameters count both vocabulary tables"])


def list_gpus(a) -> Answer:
    """The accelerators that ship with the package."""
    found = [load_accelerator(name) for name in accelerators()]
    rate = lambda peak: fmt(peak, "TFLOP/s", 4) if peak else "-"  # noqa: E731
    rows = [("gpu", "16 bit", "fp8", "memory", "capacity", "figures")] + [
        (g.name, rate(g.peaks.get("bf16") or g.peaks.get("fp16")), rate(g.peaks.get("fp8")),
         fmt(g.hbm_bytes_per_s, "GB/s", 4), fmt(g.printed_bytes, "GB") if g.printed_bytes else "-",
         ",".join(sorted(set(g.provenance.values())))) for g in found]
    result = [{"name": g.name, "peaks": dict(g.peaks), "hbm_bytes_per_s": g.hbm_bytes_per_s, "tdp_w": g.tdp_w,
               "printed_bytes": g.printed_bytes, "visible_bytes": g.visible_bytes, "provenance": g.provenance}
              for g in found]
    return Answer(result=result, rows=rows, assumed=["peaks are dense"])


def explained(a) -> Answer:
    """An engine's log or a benchmark's output, explained; "-" reads the standard input."""
    report = explain(_read(a.file))
    rows = [(line,) for line in str(report).splitlines()]
    slow = (f"slow is below {fmt(DECODE_SHARE, '%')} of the bound in decode and {fmt(PREFILL_SHARE, '%')} in prefill, "
            "after time to start kernels and collectives")
    return Answer(result=asdict(report), rows=rows, assumed=["GB is 1e9 bytes, GiB 2**30", slow])


def _read(file: str) -> str:
    """The text of a file in UTF-8 or UTF-16; bytes that are neither become question marks."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {shown(file)}: {getattr(error, 'strerror', None) or error}") from None
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8", "replace")


def ceilings(a) -> Answer:
    """This machine's two ceilings, measured."""
    try:
        from .kernels.machine import measure
    except ImportError as error:
        raise ValueError(f"econ measure needs torch ({error}); install it with: pip install torch") from None
    found = measure()
    rows = [(f"matrix products, {name}", fmt(rate, "GFLOP/s")) for name, rate in found.peak_flop_per_s.items()]
    rows += [("memory, plain read", fmt(found.stream_bytes_per_s, "GB/s"))]
    rows += [(f"memory, weights in {name}", fmt(rate, "GB/s")) for name, rate in found.gemv_bytes_per_s.items()]
    machine = f"{found.name}, {found.device}, {found.threads} threads, torch {found.torch_version}"
    return Answer(result=asdict(found), rows=rows, assumed=[machine])
