"""Fit the constants of a profile to published runs and write data/profiles/NAME.toml.

python tools/fit_profiles.py            fit and write
python tools/fit_profiles.py --check    exit 1 if the file is not what the fit gives now

The runs: Llama-3.3-70B in bf16 on four H100 under vLLM, TP 4, March 2025 (econ/data/measured). Each is B equal
requests of S tokens in and n out, submitted together. Four constants:

    T = FLOPs / (peak * flop_frac) + (n - 1) * (weights / (bw * weight_frac) + cache / (bw * kv_frac) + late)

`late` is paid by steps beyond 8,000 tokens of context, where the runs show a jump. Least squares of relative errors.
Rule, stated before looking at what is left: exact repeats count once, and a run more than 35 % off the fit is
dropped, the fit repeated until none is; all that are dropped are slow. Communication is inside the constants.
"""

import csv
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import econ  # noqa: E402
from econ.names import DATA  # noqa: E402

OUTLIER_FRAC = 0.35
LATE_TOKENS = 8_000
NAME = "vllm-h100-llama70b-2025-03"


def runs() -> list[dict]:
    """The 70B's rows, repeats once, as numbers."""
    with open(DATA / "measured" / "llama_vllm_h100_2025.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "llama-3.3-70b"]
    keys = ("batch", "mean_input_tokens", "mean_output_tokens", "elapsed_s")
    unique = {tuple(float(row[k]) for k in keys) for row in rows}
    return [dict(zip(keys, values, strict=True)) for values in sorted(unique)]


def terms(rows: list[dict]) -> np.ndarray:
    """Seconds of each term at full speed, a row a run: prefill, weights, cache, and the count of late steps."""
    d = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    m, bandwidth = d.model, 4 * d.accelerator.hbm_bytes_per_s
    batch, prompt, output = (
        np.array([r[k] for r in rows]) for k in ("batch", "mean_input_tokens", "mean_output_tokens")
    )
    prefill = econ.forward(m, batch=batch, new_tokens=prompt).flops / (4 * d.accelerator.flop_per_s("bf16"))
    steps, context = output - 1, prompt + output / 2
    cache = batch * context * m.kv_bytes_per_token() / bandwidth
    weights = m.streamed_weight_bytes() / bandwidth
    return np.stack([prefill, steps * weights, steps * cache, steps * (context > LATE_TOKENS)], axis=1)


def fit(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """The four factors, and which rows were kept."""
    design, measured = terms(rows), np.array([r["elapsed_s"] for r in rows])
    kept = np.ones(len(rows), bool)
    while True:
        relative = design[kept] / measured[kept, None]
        factors = np.linalg.lstsq(relative, np.ones(kept.sum()), rcond=None)[0]
        good = np.abs(design @ factors / measured - 1) <= OUTLIER_FRAC
        if (good == kept).all():
            return factors, kept
        kept = good


def errors(factors: np.ndarray, rows: list[dict]) -> np.ndarray:
    """Predicted over measured time, minus one."""
    return terms(rows) @ factors / np.array([r["elapsed_s"] for r in rows]) - 1


def held_out(rows: list[dict]) -> np.ndarray:
    """Errors on rows of input lengths that their fit did not see: five folds of whole lengths."""
    lengths = sorted({r["mean_input_tokens"] for r in rows})
    found = []
    for fold in range(5):
        out = set(lengths[fold::5])
        factors, _ = fit([r for r in rows if r["mean_input_tokens"] not in out])
        found.append(errors(factors, [r for r in rows if r["mean_input_tokens"] in out]))
    return np.concatenate(found)


def profile_text() -> str:
    """The profile as TOML."""
    rows = runs()
    factors, kept = fit(rows)
    prefill, weights, cache, late = factors
    left_out = np.abs(held_out([r for r, keep in zip(rows, kept, strict=True) if keep]))
    every = np.abs(held_out(rows))
    inside = np.abs(errors(factors, rows)[kept])
    return f"""# Written by tools/fit_profiles.py, which says how. Do not edit.
# Effective constants: they hold communication, sampling and scheduling of that engine at that time.

[constants]
flop_frac = {1 / prefill:.4f}
weight_frac = {1 / weights:.4f}
kv_frac = {1 / cache:.4f}
long_context_s = {late:.6f}
long_context_tokens = {LATE_TOKENS}

[fitted]
data = "llama_vllm_h100_2025.csv"
source = "tensoreconomics2025"
engine = "vLLM, March 2025, TP 4, bf16, requests submitted together"
model = "llama-3.3-70b"
accelerator = "h100-sxm"
date = "2025-03"
rows = {len(rows)}
kept = {int(kept.sum())}
median_error_frac = {np.median(inside):.4f}
mean_error_frac = {inside.mean():.4f}
held_out = "five folds of whole input lengths, of the rows kept; every_row: of all, stalled runs too"
held_out_median_error_frac = {np.median(left_out):.4f}
held_out_mean_error_frac = {left_out.mean():.4f}
held_out_p80_error_frac = {np.quantile(left_out, 0.8):.4f}
every_row_median_error_frac = {np.median(every):.4f}
every_row_mean_error_frac = {every.mean():.4f}
every_row_p80_error_frac = {np.quantile(every, 0.8):.4f}
"""


def main(argv: list[str]) -> int:
    """Write the profile, or with --check compare."""
    path, text = DATA / "profiles" / f"{NAME}.toml", profile_text()
    if "--check" in argv:
        current = path.exists() and path.read_text(encoding="utf-8") == text
        print("The profile is current." if current else f"{path.name} is out of date: run python tools/fit_profiles.py")
        return 0 if current else 1
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
