"""The page on other estimators, from what tools/peers.py stored and what `econ` computes now. Used by tools/tables.py.
"""

import csv
import math
import re
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from mdtable import table

import econ

STORE = Path(__file__).resolve().parent.parent / "tests" / "data" / "peers"
TASK = (("llama-3.1-8b", 1), ("llama-3.1-8b", 4), ("llama-3.1-70b", 4))
STEPS = (("prefill", 1), ("decode", 1), ("decode", 32), ("decode", 256))
CONTEXT = 2048
NAMES = {"aiconfigurator": "AIC", "genz": "GenZ", "llm_analysis": "llm-analysis", "llm_flops": "llm-flops",
         "llm_sizer": "llm-sizer", "hf_mem": "hf-mem", "llm-viewer": "LLM-Viewer", "infersim": "InferSim"}
VARIANTS = {"SOL": "its roofline", "tensorrt-llm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}
SCHEMES = ("gpu", "model")
QUANTITIES = {"tpot": "Time per output token", "throughput": "Throughput", "ttft": "Time to the first token",
              "batch1": "Batch-1 decode under llama.cpp"}
FEW = 10  # rows: below this an error says nothing
GROUPS = (("aiconfigurator", "GenZ", "InferSim"), ("llm-analysis", "LLM-Viewer", "mlsysim"),
          ("ridgepoint", "servcalc", "BLIS"))


@cache
def stored(name: str) -> list[dict]:
    """The lines of a file of the store."""
    with open(STORE / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shown(row: dict) -> str:
    """A peer's name in a table, with its variant."""
    name, variant = NAMES.get(row["peer"], row["peer"]), row["variant"]
    return name + (f", {VARIANTS.get(variant, variant)}" if variant else "")


def number(seconds: float) -> str:
    """Milliseconds with four digits.

    >>> number(0.025), number(0.00114)
    ('25.00', '1.140')
    """
    return f"{1e3 * seconds:#.4g}".rstrip(".")


def deployed(model: str, tp: int, profile: str = "ideal"):
    """A deployment with all of the memory, which a batch of 256 needs."""
    return econ.Deployment(model, "h100-sxm", n_gpus=tp, profile=profile, gpu_mem_frac=1.0)


def own_steps(model: str, tp: int, profile: str) -> list[float]:
    """Seconds of the four steps by a profile of `econ`."""
    d = deployed(model, tp, profile)
    return [d.prefill(b, CONTEXT).time_s if ask == "prefill" else d.decode(b, CONTEXT).time_s for ask, b in STEPS]


def peer_steps(model: str, tp: int) -> dict[str, list[dict]]:
    """What each peer says to the four steps; peers that say nothing are left out."""
    cases = {f"{model} tp{tp} {ask} b{batch}": i for i, (ask, batch) in enumerate(STEPS)}
    found: dict[str, list[dict]] = {}
    for row in stored("results.csv") + stored("earlier.csv"):
        if row["case"] in cases and row["peer"] != "econ":
            found.setdefault(shown(row), [{}] * len(STEPS))[cases[row["case"]]] = row
    return {name: rows for name, rows in found.items() if any(row.get("value") for row in rows)}


def steps(model: str, tp: int) -> str:
    """Milliseconds of the same steps by every estimator. A time below the floor is marked."""
    floors = own_steps(model, tp, "ideal")
    lines = [["**the floor**", *(f"**{number(s)}**" for s in floors)],
             ["`econ`, fitted", *(number(s) for s in own_steps(model, tp, "general/vllm"))]]
    for name, rows in peer_steps(model, tp).items():
        cells = []
        for row, floor in zip(rows, floors, strict=True):
            seconds = float(row["value"]) if row.get("value") else 0.0
            cells.append("–" if not seconds else number(seconds) + ("!" if seconds < floor else ""))
        lines.append([name, *cells])
    return table(["ms", "prompt", "1", "32", "256"], lines)


def memory() -> str:
    """Weights and cache by every peer that counts them."""
    asked = [("llama-3.1-8b", 1, "weight_bytes"), ("llama-3.1-70b", 4, "weight_bytes"),
             ("llama-3.1-8b", 1, "kv_bytes")]
    exact = [getattr(deployed(model, tp).memory(256, CONTEXT), key) for model, tp, key in asked]
    places = {(f"{model} tp{tp} memory b256", key): i for i, (model, tp, key) in enumerate(asked)}
    found: dict[str, list[str]] = {}
    for row in stored("results.csv"):
        at = places.get((row["case"], row["quantity"]))
        if at is not None and row["value"] and row["peer"] != "econ" and row["variant"] in ("", "vllm"):
            found.setdefault(NAMES.get(row["peer"], row["peer"]), ["–"] * len(asked))[at] = f"{_gb(row['value'])}"
    lines = [["**exact**", *(f"**{_gb(size)}**" for size in exact)], *([name, *cells] for name, cells in found.items())]
    return table(["GB", "8B weights", "70B weights, a GPU of 4", "8B cache"], lines)


def _gb(size) -> str:
    return f"{float(size) / 1e9:#.4g}"


@cache
def left_out() -> dict:
    """Errors of `econ` by row_id, the row's group left out of the fit. Takes some ten seconds."""
    import fit_general

    return fit_general.left_out()


def kind(entry) -> str:
    return entry.known.q.kind if entry.known.q.kind != "decode" else "batch1"


def pairs(peer: str) -> dict[str, list[tuple]]:
    """By quantity: each published row that both answer, as (left-out errors of econ, the peer's error), logarithms."""
    found: dict[str, list[tuple]] = {name: [] for name in QUANTITIES}
    for row in stored("results.csv"):
        entry = left_out().get(row["case"]) if row["peer"] == peer and row["value"] else None
        if entry is None:
            continue
        q, value = entry.known.q, float(row["value"])
        predicted = q.concurrency / value if q.kind == "decode" else value
        found[kind(entry)].append((entry, math.log(predicted * q.scale / entry.known.value)))
    return found


def summary(errors: list[float]) -> tuple[float, float]:
    """Median and mean of |predicted / measured - 1| in per cent."""
    size = [abs(math.expm1(e)) for e in errors]
    return 100 * statistics.median(size), 100 * statistics.fmean(size)


def compared(found: list[tuple]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The peer's errors and those of `econ`, the worse of GPU and model left out, on the same rows."""
    own = [summary([getattr(entry, scheme) for entry, _ in found]) for scheme in SCHEMES]
    return summary([error for _, error in found]), (max(m for m, _ in own), max(m for _, m in own))


def cell(errors: tuple[float, float]) -> str:
    return f"{errors[0]:.1f}\u00a0/\u00a0{errors[1]:.1f}"


def same_rows(quantity: str, rules: bool = True) -> str:
    """Errors of each peer beside those of `econ` on the published rows that both answer."""
    lines = []
    for peer in dict.fromkeys(row["peer"] for row in stored("packages.csv")):
        found = [pair for pair in pairs(peer)[quantity] if not (rules and pair[0].rule)]
        if len(found) >= FEW:
            theirs, ours = compared(found)
            lines.append([NAMES.get(peer, peer), str(len(found)), cell(theirs), cell(ours)])
    return table(["estimator", "rows", "its error", "`econ`"], lines) if lines else "No peer answers enough rows.\n"


def by_engine(peer: str = "aiconfigurator", quantity: str = "tpot") -> str:
    """The strongest peer by engine: where its kernel times help."""
    found: dict[str, list[tuple]] = {}
    for pair in pairs(peer)[quantity]:
        if not pair[0].rule:
            found.setdefault(pair[0].known.q.engine, []).append(pair)
    names = {**VARIANTS, "other": "others"}
    lines = [[names[engine], str(len(some)), *map(cell, compared(some))] for engine, some in sorted(found.items())]
    return table(["engine", "rows", NAMES[peer], "`econ`"], lines)


def sentence(peer: str = "aiconfigurator") -> str:
    """The README's comparison with the strongest peer."""
    version = next(row["version"] for row in stored("packages.csv") if row["peer"] == peer)
    found = {q: [pair for pair in pairs(peer)[q] if not pair[0].rule] for q in ("tpot", "throughput", "ttft")}
    parts = []
    for quantity, some in found.items():
        theirs, ours = compared(some)
        parts.append(f"{QUANTITIES[quantity].lower()} {cell(theirs)} against {cell(ours)} on {len(some)} rows")
    return (f"The strongest other estimator that we could run is {peer} {version}, which knows measured times of "
            f"kernels.\nIts errors against ours, on published rows that both answer: {'; '.join(parts)}.\n")


def features(group: tuple[str, ...]) -> str:
    """What each estimator covers."""
    names = [*group, "econ"]
    lines, part = [], ""
    for row in stored("features.csv"):
        *head, feature = row["feature"].split(" | ")
        if head and head[0] != part:
            part = head[0]
            lines.append([f"**{part}**", *[""] * len(names)])
        lines.append([feature, *("" if row[name] == "no" else row[name] for name in names)])
    return table(["", *(NAMES.get(name, name) for name in names)], lines, left=len(names) + 1)


def packages() -> str:
    """Versions, sizes and times of what was installed."""
    def ms(text):
        return "–" if not text else f"{1e3 * float(text):,.0f}" if float(text) >= 0.01 else f"{1e3 * float(text):.2g}"

    return table(["package", "version", "MB", "first call, s", "next, ms"], [
        [row["package"], row["version"], row["environment_mb"], row["first_call_s"] or "–", ms(row["median_call_s"])]
        for row in stored("packages.csv")])


def refusals() -> str:
    """Why a peer says nothing to the common task, in its own words."""
    found = dict.fromkeys((shown(row), re.sub(r"^\w+: |:$", "", row["reason"])) for row in
                          stored("results.csv") + stored("earlier.csv")
                          if row["reason"] and " tp" in row["case"] and "memory only" not in row["reason"])
    return table(["estimator", "it says"], [list(pair) for pair in found], left=2)


def ran() -> str:
    """When and how the stored results came about."""
    lines = stored("packages.csv")
    dates = sorted({row["date"] for row in lines})
    every = max(int(row["every"]) for row in lines)
    return (f"The packages ran on {' to '.join(dict.fromkeys((dates[0], dates[-1])))} under Python "
            f"{lines[0]['python']}, in the newest versions that PyPI had, with their default settings.\n" +
            (f"aiconfigurator is slower than the rest: of the published settings under load it got one in {every}.\n"
             if every > 1 else ""))


BLOCKS: dict[str, Callable[[], str]] = {
    "ran": ran, "refusals": refusals, "memory": memory, "engines": by_engine, "packages": packages, "peers": sentence,
    "tpot_every_row": partial(same_rows, "tpot", rules=False),
    **{name: partial(same_rows, name) for name in QUANTITIES},
    **{f"steps_{i}": partial(steps, *task) for i, task in enumerate(TASK, 1)},
    **{f"features_{i}": partial(features, group) for i, group in enumerate(GROUPS, 1)}}
