"""How fast econ answers, in CPU time: what it promises, what it takes here, and each as a ratio within this run.

python tools/bench.py            print the table; exit 1 if a promise is not kept
python tools/bench.py --points N with N points a sweep instead of 1,000,000

CPU time leaves out what other programs do at the same time, but not how fast this processor is.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import econ  # noqa: E402

PROFILE = econ.Profile(name="bench", flop_frac=0.6, weight_frac=0.7, kv_frac=0.7, link_frac=0.5, collective_s=1e-5)
SWEPT = (("llama-3.3-70b", "h100-sxm", 4, None), ("llama-3.1-8b", "h100-sxm", 1, None),
         ("deepseek-v3", "h200-sxm", 8, "fp8"), ("gpt-oss-20b", "h100-sxm", 1, None))
FIELDS = ("usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_cached_input", "usd_per_mtok_blended",
          "usd_per_request", "joules_per_output_token")
START = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured time and the time that was promised, in seconds."""

    name: str
    took_s: float
    promised_s: float


def best_s(call: Callable[[], object], repeats: int = 5, loops: int = 1) -> float:
    """CPU seconds of one call, the best of a few."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(loops):
            call()
        times.append((time.process_time() - start) / loops)
    return min(times)


def import_s() -> float:
    """CPU seconds of `import econ` in a new interpreter, compiled files at hand."""
    code = [sys.executable, "-c", START.format("import econ")]
    runs = (subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(5))
    return min(map(float, runs))


def sweep(n: int) -> tuple[list[econ.Deployment], list[tuple]]:
    """A few deployments with random (USD per GPU-hour, concurrency, prompt, output) points, n in all."""
    rng = np.random.default_rng(1)
    placed = [econ.Deployment(m, g, n_gpus=gpus, weights=w, profile=PROFILE) for m, g, gpus, w in SWEPT]
    size = n // len(placed)
    points = [(rng.uniform(1, 5, size), rng.integers(1, 300, size), rng.integers(1, 8000, size),
               rng.integers(1, 2000, size)) for _ in placed]
    return placed, points


def worst_error(placed: list[econ.Deployment], points: list[tuple], samples: int = 200) -> float:
    """The largest relative difference between array and scalar calls, over a sample of the points."""
    worst = 0.0
    for d, columns in zip(placed, points, strict=True):
        many, every = d.cost(*columns), max(len(columns[0]) // samples, 1)
        for i in range(0, len(columns[0]), every):
            one = d.cost(*(column[i] for column in columns))
            worst = max(worst, *(abs(getattr(many, f)[i] / getattr(one, f) - 1) if getattr(one, f) else
                                 abs(getattr(many, f)[i]) for f in FIELDS))
    return worst


def measure(n: int) -> tuple[list[Result], float]:
    """All results, and the worst difference between array and scalar calls."""
    placed, points = sweep(n)
    d, compared = placed[0], econ.load_model("llama-3.3-70b")
    ideal = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    calls = [
        ("decode, one number", lambda: ideal.decode(8, 2048), 100e-6, 1, 200),
        ("request of 300 tokens, one number", lambda: ideal.request(8, 2048, 300), 1e-3, 1, 50),
        ("cost, one number", lambda: d.cost(2.5, 64, 2048, 300), 1e-3, 1, 50),
        ("cost, each point of an array", lambda: [p.cost(*c) for p, c in zip(placed, points, strict=True)], 1e-6, n, 1),
        ("compare all GPUs, counts and TP", lambda: econ.compare(compared, 2048, 300, 1.0, 0.05), 1.0, 1, 1)]
    results = [Result(name="import econ", took_s=import_s(), promised_s=50e-3)]
    for name, call, promised_s, parts, loops in calls:
        results.append(Result(name=name, took_s=best_s(call, 3, loops) / parts, promised_s=promised_s))
    return results, worst_error(placed, points)


def main(argv: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000_000)
    results, error = measure(parser.parse_args(argv).points)
    unit = next(r.took_s for r in results if r.name.startswith("decode"))
    print(f"{'':36}{'here':>12}{'promised':>12}{'in decodes':>12}")
    for r in results:
        here, promised = (econ.fmt(s, "us" if s < 1e-3 else "ms") for s in (r.took_s, r.promised_s))
        print(f"{r.name:36}{here:>12}{promised:>12}{r.took_s / unit:>12,.4g}")
    print(f"arrays against single numbers: largest relative difference {error:.1e}")
    kept = error <= 1e-12 and all(r.took_s <= r.promised_s for r in results)
    print("All promises are kept." if kept else "A promise is not kept on this machine.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
