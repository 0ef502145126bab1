"""The command line: will it fit, how fast, what does it cost, which GPUs.

econ fit | time | cost | compare | models | gpus | measure, each with --json and --help.
Exit status: 0 done (fit: it fits), 1 it does not fit, 2 bad input.
"""

import argparse
import json
import math
import sys
import textwrap
from dataclasses import asdict
from typing import Any

import econ

from .choose import compare, prices
from .config import load_model, models
from .cost import ALLOCATIONS, Deployment
from .errors import DoesNotFit
from .hardware import accelerators, load_accelerator
from .profiles import profiles
from .units import GIB, fmt

WIDTH = 100  # columns of what is printed


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, or one JSON object."""

    def error(self, message):
        raise _Usage(f"{message}; see {self.prog} --help")


class _Usage(ValueError):
    pass


def parser() -> argparse.ArgumentParser:
    """The arguments of every subcommand."""
    top = _Parser(
        prog="econ",
        description="Where the cost of a generated token comes from.",
        epilog="MODEL is a name from `econ models` or the path of a config.json.",
    )
    top.add_argument("--version", action="version", version=f"econ {econ.__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")
    fit = _command(commands, "fit", "does a batch fit, and what would still fit beside it")
    _deployment(fit)
    fit.add_argument("--context", type=int, default=8192, help="tokens of each sequence (default 8192)")
    fit.add_argument("--batch", type=int, default=1, help="sequences of each replica (default 1)")
    time = _command(commands, "time", "how long a prompt, a token and a whole request take")
    _deployment(time)
    _lengths(time)
    time.add_argument("--batch", type=int, default=1, help="equal requests at once (default 1)")
    cost = _command(commands, "cost", "dollars per million tokens of a steady load")
    _deployment(cost)
    _lengths(cost)
    cost.add_argument("--concurrency", type=int, default=1, help="clients at once (default 1)")
    cost.add_argument(
        "--usd-per-gpu-hour", type=float, help="what one GPU costs (default: median of the shipped prices)"
    )
    cost.add_argument("--utilisation", type=float, default=1.0, help="share of the hours that are busy (default 1)")
    cost.add_argument("--allocation", choices=ALLOCATIONS, default="time", help="how cost is split (default time)")
    choose = _command(commands, "compare", "which GPUs, how many, which TP: cheapest first")
    choose.add_argument("model", metavar="MODEL")
    _lengths(choose)
    _formats(choose)
    choose.add_argument("--slo-ttft", type=float, default=math.inf, help="limit on the first token, seconds")
    choose.add_argument("--slo-tpot", type=float, default=math.inf, help="limit on each further token, seconds")
    choose.add_argument("--top", type=int, default=20, help="rows to print (default 20; JSON has all)")
    _command(commands, "models", "the models that ship with the package")
    _command(commands, "gpus", "the accelerators that ship with the package")
    _command(commands, "measure", "this machine's two ceilings (needs torch)")
    return top


def _command(commands, name: str, text: str):
    made = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def _deployment(made) -> None:
    made.add_argument("model", metavar="MODEL")
    made.add_argument("--gpu", required=True, help="an accelerator from `econ gpus`, or a .toml file of your own")
    made.add_argument("-n", "--n-gpus", type=int, default=1, help="GPUs in all (default 1)")
    for name, text in (
        ("tp", "tensor-parallel slices (default: all GPUs)"),
        ("pp", "pipeline stages"),
        ("dp", "replicas"),
        ("ep", "GPUs that a layer's experts are spread over"),
    ):
        made.add_argument(f"--{name}", type=int, default=None if name == "tp" else 1, help=text)
    _formats(made)
    made.add_argument("--link", type=float, help="bytes per second each way between GPUs (default: the datasheet's)")


def _formats(made) -> None:
    made.add_argument("--weights", help="weights recipe, such as bf16, fp8, int4 (default: as published)")
    made.add_argument("--kv", help="cache dtype, such as bf16 or fp8 (default: as published)")
    made.add_argument("--profile", default="ideal", help=f"one of {', '.join(profiles())} (default ideal)")
    made.add_argument("--gpu-mem-frac", type=float, default=0.9, help="share of GPU memory in use (default 0.9)")


def _lengths(made) -> None:
    made.add_argument("--prompt", type=int, required=True, help="tokens in")
    made.add_argument("--output", type=int, required=True, help="tokens out")


def _made(a) -> Deployment:
    return Deployment(
        a.model,
        a.gpu,
        n_gpus=a.n_gpus,
        tp=a.tp,
        pp=a.pp,
        dp=a.dp,
        ep=a.ep,
        weights=a.weights,
        kv=a.kv,
        link=a.link,
        profile=a.profile,
        gpu_mem_frac=a.gpu_mem_frac,
    )


def _assumed(d: Deployment) -> list[str]:
    fitted = d.profile.fitted
    speed = (
        "the floor: full peak and bandwidth, no communication; nothing real is faster"
        if not fitted
        else f"profile {d.profile.name}, {fitted['engine']}, held-out error {fitted['held_out_median_error_frac']:.1%} median"
    )
    return [
        f"weights {d.weights or 'as published'}",
        f"cache {d.kv or d.model.cache_dtype}",
        f"tp {d.tp} pp {d.pp} dp {d.dp}",
        f"{d.gpu_mem_frac:.0%} of GPU memory",
        speed,
    ]


def _fit(a) -> tuple[Any, list[str], list, int]:
    d = _made(a)
    b = d.memory(a.batch, a.context)
    gib = lambda value: fmt(value, "GB", 4) + f"  ({value / GIB:,.2f} GiB)"  # noqa: E731
    rows = [
        ("usable on each GPU", gib(b.budget_bytes)),
        ("weights", gib(b.weight_bytes)),
        (f"cache needed, {a.batch:,} x {a.context:,} tokens", gib(b.kv_bytes)),
        ("cache reserved by an engine", gib(b.kv_reserved_bytes)),
        ("recurrent state", gib(b.state_bytes)),
        ("free" if b.fits else "short by", gib(abs(b.free_bytes))),
        ("fits", "yes" if b.fits else "no"),
        ("largest batch at this context", f"{b.max_batch:,}"),
        ("longest context at this batch", f"{b.max_context:,}"),
    ]
    return asdict(b), _assumed(d), rows, 0 if b.fits else 1


def _time(a) -> tuple[Any, list[str], list, int]:
    d = _made(a)
    r, p, s = d.request(a.batch, a.prompt, a.output), d.prefill(a.batch, a.prompt), d.decode(a.batch, a.prompt)
    rows = [
        ("time to first token", fmt(r.ttft_s, "ms")),
        ("time per further token", fmt(r.tpot_s, "ms")),
        ("whole request", fmt(r.total_s, "s")),
        ("output tokens per second", fmt(r.output_tokens_per_s, "tok/s")),
        ("prefill is bound by", f"{p.bound}; {p.mfu_frac:.1%} of the FLOP/s, {p.mbu_frac:.1%} of the bandwidth in use"),
        ("decode is bound by", f"{s.bound}; {s.mfu_frac:.2%} of the FLOP/s, {s.mbu_frac:.1%} of the bandwidth in use"),
    ]
    return {**asdict(r), "prefill": asdict(p), "decode": asdict(s)}, _assumed(d), rows, 0


def _cost(a) -> tuple[Any, list[str], list, int]:
    d = _made(a)
    price, where = a.usd_per_gpu_hour, "given"
    if price is None:
        if d.accelerator.name not in prices():
            raise ValueError(f"no shipped price for {d.accelerator.name}; give --usd-per-gpu-hour")
        row = prices()[d.accelerator.name]
        price, where = row.usd_per_gpu_hour, f"median of {row.rows} listings up to {row.newest[:10]}"
    c = d.cost(price, a.concurrency, a.prompt, a.output, a.utilisation, a.allocation)
    v = d.serve(a.concurrency, a.prompt, a.output)
    rows = [
        ("per million input tokens", fmt(c.usd_per_mtok_input, "$")),
        ("per million output tokens", fmt(c.usd_per_mtok_output, "$")),
        ("per million cached input tokens", fmt(c.usd_per_mtok_cached_input, "$")),
        ("per million tokens, blended", fmt(c.usd_per_mtok_blended, "$")),
        ("per request", fmt(c.usd_per_request, "$")),
        ("per hour", fmt(c.usd_per_hour, "$")),
        ("output tokens per second", fmt(v.output_tokens_per_s, "tok/s")),
        ("running, limited by", f"{v.running_batch:,.6g}, {v.limited_by}"),
    ]
    assumed = [
        f"${price:g} per GPU-hour, {where}",
        f"{a.utilisation:.0%} busy",
        f"allocation by {a.allocation}",
        *_assumed(d),
    ]
    return {**asdict(c), "load": asdict(v)}, assumed, rows, 0


def _compare(a) -> tuple[Any, list[str], list, int]:
    rows = compare(
        a.model,
        a.prompt,
        a.output,
        a.slo_ttft,
        a.slo_tpot,
        weights=a.weights,
        kv=a.kv,
        profile=a.profile,
        gpu_mem_frac=a.gpu_mem_frac,
    )
    if not rows:
        raise DoesNotFit(
            f"no accelerator in counts of 1 to 8 holds {load_model(a.model).name} within these limits; "
            "loosen them, shorten the context, or choose smaller weights"
        )
    head = ("gpu", "n", "tp", "TTFT", "TPOT", "tok/s", "running", "$/h", "$/M tokens")
    lines = [head] + [
        (
            r.accelerator,
            str(r.n_gpus),
            str(r.tp),
            fmt(r.ttft_s, "ms"),
            fmt(r.tpot_s, "ms"),
            fmt(r.output_tokens_per_s, "tok/s").removesuffix(" tok/s"),
            f"{r.running_batch:,.6g}",
            _usd(r.usd_per_hour),
            _usd(r.usd_per_mtok_blended),
        )
        for r in rows[: a.top]
    ]
    assumed = [
        f"prices: medians of listings up to {max(p.newest[:10] for p in prices().values())}, unpriced last",
        f"weights {a.weights or 'as published'}",
        f"profile {a.profile}",
        "highest load without a queue",
    ]
    return [asdict(r) for r in rows], assumed, lines, 0


def _usd(value) -> str:
    return "-" if value is None else fmt(value, "$")


def _models(a) -> tuple[Any, list[str], list, int]:
    found = [load_model(name) for name in models()]
    head = [("model", "parameters", "active", "cache per token", "longest context")]
    rows = [
        (
            m.name,
            fmt(m.n_params, "B params"),
            fmt(m.n_active_params, "B params"),
            fmt(m.kv_bytes_per_token(), "kB"),
            f"{m.max_context:,}" if m.max_context else "-",
        )
        for m in found
    ]
    result = [
        {
            "name": m.name,
            "n_params": m.n_params,
            "n_active_params": m.n_active_params,
            "kv_bytes_per_token": m.kv_bytes_per_token(),
            "max_context": m.max_context,
        }
        for m in found
    ]
    return result, ["active parameters count both vocabulary tables"], head + rows, 0


def _gpus(a) -> tuple[Any, list[str], list, int]:
    found = [load_accelerator(name) for name in accelerators()]
    head = [("gpu", "bf16 or fp16", "fp8", "memory", "capacity", "figures")]
    rows = [
        (
            g.name,
            *(
                fmt(p, "TFLOP/s", 4) if p else "-"
                for p in (g.peaks.get("bf16", g.peaks.get("fp16")), g.peaks.get("fp8"))
            ),
            fmt(g.hbm_bytes_per_s, "GB/s", 4),
            fmt(g.printed_bytes, "GB") if g.printed_bytes else "-",
            ",".join(sorted(set(g.provenance.values()))),
        )
        for g in found
    ]
    result = [
        {
            "name": g.name,
            "peaks": dict(g.peaks),
            "hbm_bytes_per_s": g.hbm_bytes_per_s,
            "printed_bytes": g.printed_bytes,
            "visible_bytes": g.visible_bytes,
            "provenance": g.provenance,
        }
        for g in found
    ]
    return result, ["peaks are dense"], head + rows, 0


def _measure(a) -> tuple[Any, list[str], list, int]:
    try:
        from .kernels.machine import measure
    except ImportError as error:
        raise ValueError(f"econ measure needs torch ({error}); install it with: pip install torch") from None
    found = measure()
    rows = [(f"matrix products, {name}", fmt(rate, "GFLOP/s")) for name, rate in found.peak_flop_per_s.items()]
    rows += [("memory, plain read", fmt(found.stream_bytes_per_s, "GB/s"))]
    rows += [(f"memory, weights in {name}", fmt(rate, "GB/s")) for name, rate in found.gemv_bytes_per_s.items()]
    return asdict(found), [f"{found.name}, {found.device}, torch {found.torch_version}"], rows, 0


_RUN = {
    "fit": _fit,
    "time": _time,
    "cost": _cost,
    "compare": _compare,
    "models": _models,
    "gpus": _gpus,
    "measure": _measure,
}


def table(rows: list) -> str:
    """Rows as aligned text, the first column to the left.

    >>> print(table([("a", "1"), ("bcd", "22")]))
    a     1
    bcd  22
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    as_json = "--json" in argv
    try:
        a = parser().parse_args(argv)
        result, assumed, rows, status = _RUN[a.command](a)
    except ValueError as error:
        status = 1 if isinstance(error, DoesNotFit) else 2
        name = "UsageError" if isinstance(error, _Usage) else type(error).__name__
        print(
            json.dumps({"error": name, "message": str(error)}) if as_json else f"econ: {error}",
            file=sys.stdout if as_json else sys.stderr,
        )
        return status
    if as_json:
        inputs = {k: v for k, v in vars(a).items() if k not in ("json", "command")}
        print(
            json.dumps(
                {"econ": econ.__version__, "inputs": _finite(inputs), "assumptions": assumed, "result": _finite(result)}
            )
        )
    else:
        print(table(rows))
        print(textwrap.fill("assumed: " + "; ".join(assumed), WIDTH, subsequent_indent="  "))
    return status


def _finite(value):
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
