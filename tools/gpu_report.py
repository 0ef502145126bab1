"""Measure this machine at the sizes the book talks about, beside what `econ` predicts for it.

python tools/gpu_report.py                  on a GPU, a few minutes; without one, small sizes on the CPU
python tools/gpu_report.py --out FILE       where to write the JSON (gpu_report.json)
python tools/gpu_report.py --small          small sizes on a GPU too
python tools/gpu_report.py --processes 2    all-reduces among so many processes (default: one a GPU)

Conditions, then ceilings, one linear layer, the steps of a Llama, attention, all-reduces; the fields are in
econ/data/measured/README.md. A part that fails (too little memory, a kernel this GPU lacks) is named under
`skipped`, and the rest goes on.
"""

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import torch  # noqa: E402
from gpu_rows import LARGE, SMALL, Bench, Job, Pair, Row, all_reduces, attentions, ceilings, linear, model_steps  # noqa: E402

import econ  # noqa: E402
from econ.kernels._setup import pick_device  # noqa: E402

SMI = {"driver": "driver_version", "sm_mhz": "clocks.sm", "sm_max_mhz": "clocks.max.sm", "memory_mhz": "clocks.mem",
       "memory_max_mhz": "clocks.max.mem", "power_limit_w": "power.limit"}


def measure(small: bool = False, processes: int | None = None) -> Row:
    """The whole report as plain data."""
    started, device = time.perf_counter(), pick_device()
    on_gpu = device.type == "cuda"
    gpus = torch.cuda.device_count() if on_gpu else 0
    bench = Bench(device, LARGE if on_gpu and not small else SMALL)
    state, skipped = smi() if on_gpu else dict.fromkeys(SMI), list[Row]()
    report: Row = {"ceilings": ceilings(bench), "linear": collect(linear(bench), skipped)}
    pair = Pair(bench)
    report["llama"] = {"model": pair.name, "n_params": pair.tensors.n_params,
                       "steps": collect(model_steps(bench, pair), skipped)}
    del pair
    report["attention"] = collect(attentions(bench), skipped)
    report["all_reduce"] = collect(all_reduces(bench, gpus if processes is None else processes), skipped)
    return {"conditions": conditions(bench, gpus, started) | state, **report, "skipped": skipped}


def collect(jobs: Iterable[Job], skipped: list[Row]) -> list[Row]:
    """The rows of all jobs; a job that fails leaves a line in `skipped` instead."""
    rows: list[Row] = []
    for what, job in jobs:
        try:
            rows += job()
            print(f"measured {what}", file=sys.stderr)
        except (RuntimeError, ValueError) as error:  # CUDA's out-of-memory is a RuntimeError
            skipped.append({"what": what, "why": (str(error).splitlines() or [type(error).__name__])[0][:160]})
            print("skipped {what}: {why}".format(**skipped[-1]), file=sys.stderr)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return rows


def conditions(bench: Bench, gpus: int, started: float) -> Row:
    """What the numbers hold for."""
    found = bench.machine
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "device": found.device, "name": found.name,
            "accelerator": bench.datasheet and bench.datasheet.name, "sizes": bench.sizes.name, "n_gpus": gpus,
            "memory_bytes": found.memory_bytes, "model_dtype": bench.model_dtype, "cpu_threads": found.threads,
            "econ": econ.__version__, "torch": found.torch_version, "cuda": torch.version.cuda,
            "python": platform.python_version(), "system": platform.system(),
            "seconds": time.perf_counter() - started}


def smi() -> Row:
    """Driver, clocks and power limit of the first GPU right after the ceilings; None for what nobody tells."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI.values())}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(SMI)
    values = dict(zip(SMI, (value.strip() for value in told.splitlines()[0].split(",")), strict=True))
    return {name: value if name == "driver" else _number(value) for name, value in values.items()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def rounded(value: Any) -> Any:
    """The same data with numbers to five significant digits; counts stay whole.

    >>> rounded({"s": [0.123456789, 1234567, None]})
    {'s': [0.12346, 1234567, None]}
    """
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def table(report: Row) -> str:
    """A line a row, for a person: measured, then measured over predicted."""
    named = [(row["name"], row) for row in report["ceilings"]]
    named += [(f"linear, batch {row['batch']}", row) for row in report["linear"]]
    named += [("{phase} {batch} x {tokens}, {launch}".format(**row), row) for row in report["llama"]["steps"]]
    named += [(f"{row['kernel']} attention, {row['tokens']}", row) for row in report["attention"]]
    named += [(f"all-reduce of {row['size_bytes']} B", row) for fit in report["all_reduce"] for row in fit["times"]]
    lines = [f"{'':32}{'measured':>12}   measured / predicted"]
    for name, row in named:
        ratios = ", ".join(f"{key} {value:.3g}" for key, value in row["ratio"].items() if value)
        lines.append(f"{name:32}{row['measured']:>12.4g} {row.get('unit', 's'):7}{ratios}")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Measure, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description="Measure this machine and compare with econ's predictions.")
    parser.add_argument("--out", type=Path, default=Path("gpu_report.json"), metavar="FILE")
    parser.add_argument("--small", action="store_true", help="small sizes on a GPU too")
    parser.add_argument("--processes", type=int, metavar="N", help="all-reduces among N (default: one a GPU)")
    args = parser.parse_args(argv)
    report = rounded(measure(args.small, args.processes))
    args.out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print("{name} ({device}), {sizes} sizes, {seconds:.0f} s".format(**report["conditions"]))
    print(table(report))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
