"""Fit the general profile, one set of constants for all models, GPUs and servers, and that of llama.cpp.

python tools/fit_general.py            fit and write (under a minute)
python tools/fit_general.py --check    exit 1 if the file is not what the fit gives now

Data: decode_batch1.csv, serving_throughput.csv and latency.csv under econ/data/measured. Forms: those of
`Deployment.serve` and `decode`, which name every constant. Time per output token and throughput are fitted together,
then the time to the first token with those constants kept, then llama.cpp alone. Errors are logarithms; a row counts
1 / sqrt(rows of its model, GPU, engine and quantity). Rules, stated before looking at what is left:

1. No arrival rates, no static runs of one token: other questions.
2. A load that the cache cannot hold is left out of the times: the running batch is not known.
3. A series whose time per token falls by more than 20 % while its clients increase is left out: other settings changed.
4. A row faster than 0.9 of the bandwidth allows is left out.
5. A time to the first token above half a cycle is left out: the engine queues.

Rules 3 to 5 look at the measured value, so errors are given with and without all five.
"""

import csv
import math
import sys
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import baselines  # noqa: E402
import robust  # noqa: E402
import rows  # noqa: E402
from heldout import coverage, held_out, interval, summary, wider  # noqa: E402
from rows import DATA, Question  # noqa: E402

from econ.profiles import IDEAL  # noqa: E402

FILES = ("decode_batch1.csv", "serving_throughput.csv", "latency.csv")
JOINT = ("flop_frac", "weight_frac", "link_frac", "collective_s", "expert_s", "sequence_s")
JOINT_START = np.array([0.6, 0.8, 0.5, 10e-6, 7e-6, 7e-6])
START = replace(IDEAL, name="start", kv_frac=0.8, overlap=False, **dict(zip(JOINT, JOINT_START, strict=True)))
FIRST = ("expert_prefill_frac", "burst_frac", *rows.SERVERS)
FIRST_START = np.array([0.12, 0.1, 5.0, 15.0, 12.0])
LOCAL_START = np.array([0.85, 0.5, 100e-6, 180e-6, 100e-6])  # weights, on HBM; a layer, under Metal; a hand-over
SCHEMES = ("gpu", "model", "source", "gpu and model", "generation")
GENERATIONS = {"hopper": ("h100", "h200", "h800", "h20", "gh200"), "blackwell": ("b200", "b300", "gb200", "gb300")}
# Looked at and not all kept: the larger of compute and memory or their sum; the queue in or out of the time to the
# first token, with the cache counted at full or at mean length; the hand-over between GPUs; GGUF's own formats; the
# sequences of other pipeline groups; rows weighed by the cells they fill, equally, or all cells alike; the cache as a
# share of free memory, in two sizes; uneven routing, in three degrees; measured GEMM rates by precision and by GPU; a
# prompt that shares a pass bounded by its floor, by one pass a cycle, or by both.
FORMS_COMPARED = 22


@dataclass(frozen=True, slots=True)
class Known:
    """A calibration row: the question, the published value, and the groups it belongs to."""

    q: Question
    value: float
    series: tuple
    row_id: str

    @property
    def groups(self) -> dict[str, str]:
        d, host = self.q.deployment, self.series[0]
        gpu = d.accelerator.name
        generation = next((name for name, some in GENERATIONS.items() if gpu.startswith(some)), gpu)
        return {"gpu": gpu, "model": d.model.name, "source": f"{host} {self.q.engine}", "generation": generation}

    @property
    def cell(self) -> tuple:
        return (*self.groups.values(), self.q.kind)


@lru_cache(maxsize=1)
def known() -> list[Known]:
    """Every calibration row that can be predicted."""
    found = []
    for name in FILES:
        with open(DATA / "measured" / name, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                try:
                    q = rows.question(row)
                    rows.answer(q)
                except ValueError:
                    continue
                series = (row["source_url"].split("/blob")[0], *(row[k] for k in (
                    "engine_version", "gpu", "n_gpus", "tp", "ep_dp", "model", "weight_dtype", "isl", "osl")))
                found.append(Known(q, float(row["value"]), series, row["row_id"]))
    return found


@cache
def passes(d, batch: float, new: float, context: float) -> tuple:
    """What one pass costs, by constant: seconds of FLOPs, of bytes and on the wire, and counts of the overheads."""
    probe = lambda **constants: replace(d, profile=replace(IDEAL, name="probe", **constants))  # noqa: E731
    compute, memory, *_ = replace(d, profile=IDEAL)._pass(batch, new, context)
    wire = 0.0 if d.profile.link_frac is None else probe(link_frac=1.0)._wire_s(batch * new)
    return (compute, memory, wire, probe(collective_s=1.0)._comm_s(batch * new),
            probe(expert_s=1.0)._overhead_s(batch, new, context),
            probe(sequence_s=1.0)._overhead_s(batch, new, context), d._expert_compute_s(new))


def table(some: list[Known]) -> dict:
    """Columns of numbers for served rows: the decode step, the prompt's pass, and the load."""
    step, prompt, load = [], [], []
    for k in some:
        q, d = k.q, k.q.deployment
        v = d.serve(q.concurrency, q.prompt, q.output)
        replicas = min(q.concurrency, d.dp)
        running = v.running_batch / replicas
        groups = min(max(running, 1), d.pp)
        *rest, sequences, experts = passes(d, running / groups, 1, q.prompt + q.output / 2)
        step.append((*rest, sequences + d.pp * (running - running / groups), experts))
        prompt.append(passes(d, 1, q.prompt, 0))
        load.append((running, groups, q.output, replicas, q.scale,
                     ("ttft", "tpot", "throughput").index(q.kind), engine_index(q.engine)))
    return {"step": np.array(step).T, "prompt": np.array(prompt).T, "load": np.array(load).T,
            "value": np.array([k.value for k in some])}


def engine_index(engine: str) -> int:
    return rows.SERVERS.index(engine) if engine in rows.SERVERS else -1


def pass_s(x: np.ndarray, part: np.ndarray) -> np.ndarray:
    flops, memory, wire, collectives, experts, sequences, _ = part
    overheads = x[3] * collectives + x[4] * experts + x[5] * sequences
    return flops / x[0] + memory / x[1] + wire / x[2] + overheads


def predict(x: np.ndarray, first: np.ndarray, t: dict) -> np.ndarray:
    """Each row's number in its unit: what `Deployment.serve` computes, for all at once; no queue, as in rows.py."""
    running, groups, output, replicas, scale, kind, engine = t["load"]
    step, prompt = pass_s(x, t["step"]), pass_s(x, t["prompt"])
    flops, memory, wire, *_, experts = t["prompt"]
    cycle = running * np.maximum(flops / x[0] + wire / x[2], memory) / groups + (output - 1) * step
    tpot = step + running * prompt / groups / np.maximum(output - 1, 1)
    alone = (flops - experts) / x[0] + experts / first[0] + memory / x[1] + wire / x[2]
    steps = np.append(first[2:], default_steps(first))[engine.astype(int)]
    ttft = alone * (1 + first[1] * np.maximum(running - 1, 0) / 2) + steps * tpot
    return scale * np.choose(kind.astype(int), [ttft, tpot, replicas * running * output / cycle])


def default_steps(first: np.ndarray) -> float:
    """For an engine never seen: between those that were."""
    return float(np.exp(np.log(first[2:]).mean()))


def pick(t: dict, keep: np.ndarray) -> dict:
    return {name: column[..., keep] for name, column in t.items()}


def fit_served(t: dict, weights: np.ndarray, keep: np.ndarray, engines_out=(),
               start=(JOINT_START, FIRST_START)) -> tuple:
    """The shared constants, then those of the time to the first token."""
    kind = t["load"][5]
    joint, late = keep & (kind > 0), keep & (kind == 0)
    a, b = pick(t, joint), pick(t, late)
    x = robust.fit(lambda x: predict(x, FIRST_START, a), start[0], a["value"], weights[joint])
    first = robust.fit(lambda y: predict(x, y, b), start[1], b["value"], weights[late])
    for i, engine in enumerate(rows.SERVERS):
        if engine in engines_out or not (b["load"][6] == i).any():
            others = [first[2 + j] for j, e in enumerate(rows.SERVERS) if j != i and e not in engines_out]
            first[2 + i] = float(np.exp(np.mean(np.log(others))))
    return x, first


def local_table(some: list[Known]) -> dict:
    """The same for llama.cpp and its like at batch 1: bytes, layers, kind of device."""
    columns = []
    for k in some:
        q, d = k.q, k.q.deployment
        part = passes(d, q.concurrency, 1, q.prompt + q.output / 2)
        columns.append((part[0], part[1], len(d.model.layers), d.profile.name.endswith("/hbm"),
                        d.profile.name.endswith("/metal"), part[3], q.scale * q.concurrency))
    return {"part": np.array(columns, float).T, "value": np.array([k.value for k in some])}


def predict_local(x: np.ndarray, t: dict) -> np.ndarray:
    _, memory, layers, hbm, metal, hops, scale = t["part"]
    return scale / (memory / np.where(hbm > 0, x[1], x[0]) + layers * np.where(metal > 0, x[3], x[2]) + x[4] * hops)


def rules(some: list[Known]) -> np.ndarray:
    """The number of the first rule above that leaves a row out, 0 for none."""
    falls, found = falling(some), []
    for k in some:
        q, d = k.q, k.q.deployment
        if q.at_rate or q.output <= 1:
            found.append(1)
            continue
        floor = replace(d, profile=IDEAL).serve(q.concurrency, q.prompt, q.output)
        start = replace(d, profile=START).serve(q.concurrency, q.prompt, q.output)
        found.append(2 if q.kind != "throughput" and floor.queued > 0 else
                     3 if q.kind != "throughput" and k.series in falls else
                     4 if q.kind == "tpot" and floor.decode_s > 0.9 * k.value / q.scale else
                     5 if q.kind == "ttft" and k.value / q.scale > start.cycle_s / 2 else 0)
    return np.array(found)


def falling(some: list[Known]) -> set:
    """Series in which the time per token falls by more than 20 % while clients increase."""
    series: dict = {}
    for k in some:
        if k.q.kind == "tpot":
            series.setdefault(k.series, []).append((k.q.concurrency, k.value))
    fall = lambda points: any(b[1] < 0.8 * a[1] and b[0] > a[0] for a, b in zip(points, points[1:]))  # noqa: E731, B905
    return {name for name, points in series.items() if fall(sorted(points))}


@lru_cache(maxsize=1)
def served_fit() -> dict:
    """Constants, errors and intervals of served rows."""
    some = [k for k in known() if k.q.kind in ("ttft", "tpot", "throughput")]
    dropped = rules(some)
    everything = [k for k, rule in zip(some, dropped, strict=True) if rule != 1]
    dropped = dropped[dropped != 1]
    t, cells, kept = table(everything), [k.cell for k in everything], dropped == 0
    weights, kinds = robust.cell_weights(cells), np.array([k.q.kind for k in everything])

    x, first = fit_served(t, weights, kept)

    def fit(train, engines):
        return fit_served(t, weights, kept & train, engines, (x, first))

    def apply(constants, test):
        part = pick(t, test)
        return np.log(predict(*constants, part) / part["value"])

    inside = apply((x, first), np.ones(len(kept), bool))
    out = {scheme: held_out(everything, scheme, fit, apply) for scheme in SCHEMES}
    result = {"x": x, "first": first, "known": everything, "baselines": {}, "out": out, "dropped": dropped,
              **{name: {} for name in ("rows", "errors", "interval", "wide", "coverage")}}
    for kind in ("tpot", "throughput", "ttft"):
        mine, every = kept & (kinds == kind), kinds == kind
        result["rows"][kind] = [int(every.sum()), *(int((every & (dropped == rule)).sum()) for rule in range(2, 6))]
        result["errors"][kind] = {"inside": summary(inside[mine]), **{s: summary(out[s][mine]) for s in SCHEMES},
                                  "gpu, no rule": summary(out["gpu"][every])}
        own = [c for c, m in zip(cells, mine, strict=True) if m]
        usual = result["interval"][kind] = interval(out["gpu and model"][mine], own)
        wide = result["wide"][kind] = wider(usual, interval(out["source"][mine], own))
        result["coverage"][kind] = [*(coverage(out[s][mine], *usual) for s in ("gpu", "model", "gpu and model")),
                                    coverage(out["source"][mine], *wide)]
        ours = [k for k, m in zip(everything, mine, strict=True) if m]
        result["baselines"][kind] = baselines.errors(baselines.served, pick, pick(t, mine), ours, weights[mine])
    return result


@lru_cache(maxsize=1)
def local_fit() -> dict:
    """The same for llama.cpp at batch 1, and its share of the peak in prefill."""
    every = [k for k in known() if k.q.deployment.profile.name.startswith(rows.LOCAL)]
    some = [k for k in every if k.q.kind == "decode" and k.q.concurrency == 1]
    t, cells = local_table(some), [k.cell for k in some]
    weights = robust.cell_weights(cells)

    def fit(train, engines=()):
        return robust.fit(lambda x: predict_local(x, pick(t, train)), LOCAL_START, t["value"][train], weights[train])

    def apply(x, test):
        return np.log(predict_local(x, pick(t, test)) / t["value"][test])

    x = fit(np.ones(len(some), bool))
    out = {s: held_out(some, s, fit, apply) for s in ("gpu", "model")}
    widest = out["model"] if np.abs(out["model"]).mean() > np.abs(out["gpu"]).mean() else out["gpu"]
    prompts = [k for k in every if k.q.kind == "prefill"]
    reached = np.array([k.value / rows.answer(replace(k.q, deployment=replace(k.q.deployment, profile=IDEAL)))
                        for k in prompts])
    shares = robust.cell_weights([k.cell for k in prompts]) ** 2
    share = math.exp(robust.weighted_quantile(np.log(reached), shares, 0.5))
    spread = [round(math.exp(robust.weighted_quantile(np.log(reached / share), shares, q)), 3) for q in (0.1, 0.9)]
    errors = {"inside": summary(apply(x, np.ones(len(some), bool))), **{s: summary(e) for s, e in out.items()}}
    return {"x": x, "baselines": {"batch1": baselines.errors(baselines.local, pick, t, some, weights)},
            "errors": {"batch1": errors, "prefill": {"inside": summary(np.log(share / reached))}},
            "interval": {"batch1": interval(widest, cells), "prefill": spread}, "share": share, "known": some,
            "out": out, "dropped": np.zeros(len(some), int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row under the fits that did not see its group: log(predicted / measured) by what was left out."""

    known: Known
    gpu: float
    model: float
    rule: int  # that leaves it out of the fit, 0 for none


def left_out() -> dict[str, LeftOut]:
    """Every fitted or ruled-out row by its row_id."""
    return {k.row_id: LeftOut(known=k, gpu=float(gpu), model=float(model), rule=int(rule))
            for fit in (served_fit(), local_fit())
            for k, gpu, model, rule in zip(fit["known"], fit["out"]["gpu"], fit["out"]["model"], fit["dropped"],
                                           strict=True)}


def lines(values: dict) -> str:
    return "\n".join(f"{name} = {text(value)}" for name, value in values.items())


def text(value) -> str:
    return str(value) if isinstance(value, list | int) else f"{value:.3g}"


def general_text(served: dict) -> str:
    """The general profile as TOML."""
    flop, weight, link, *overheads = served["x"]
    shared = {"flop_frac": flop, "weight_frac": weight, "kv_frac": weight, "link_frac": link,
              **dict(zip(JOINT[3:], overheads, strict=True)),
              "expert_prefill_frac": served["first"][0], "burst_frac": served["first"][1],
              "first_token_steps": default_steps(served["first"])}
    steps = dict(zip(rows.SERVERS, served["first"][2:], strict=True))
    variants = [f"[variants.{name}]\nfirst_token_steps = {text(value)}\n" for name, value in steps.items()]
    return f"""# Written by tools/fit_general.py, which says how. Do not edit.
# A constant is what makes the formula fit, not a fact about a GPU: collective_s and expert_s also hold skew, launches
# and small shards, first_token_steps the queue of a benchmark at its start.

[constants]
{lines(shared)}
overlap = false
prompts_share_passes = true

{chr(10).join(variants)}
{fitted(served["known"], "vLLM, SGLang and TensorRT-LLM, 2023 to 2026", served)}
[fitted.interval_of_unseen_engines]
{lines(served["wide"])}

[fitted.rows]  # all, then left out by rules 2, 3, 4, 5
{lines(served["rows"])}

[fitted.coverage]  # % of rows inside the interval, left out by gpu, model, both, source and engine
{lines(served["coverage"])}
"""


def local_text(local: dict) -> str:
    """The profile of llama.cpp as TOML."""
    usual, stacked, layer, metal, hop = local["x"]
    fixed = {"weight_frac": usual, "kv_frac": usual, "flop_frac": local["share"], "layer_s": layer, "collective_s": hop}
    return f"""# Written by tools/fit_general.py, which says how. Do not edit.
# collective_s is the hand-over of one GPU to the next where layers are split. "hbm" are cards with stacked memory: old
# kernels, not a limit of the cards.

[constants]
{lines(fixed)}

[variants.hbm]
{lines({"weight_frac": stacked, "kv_frac": stacked})}

[variants.metal]
layer_s = {text(metal)}

{fitted(local["known"], "llama.cpp, 2023 to 2025, batch 1", local)}"""


def fitted(some: list[Known], engine: str, result: dict) -> str:
    """Data, groups, intervals and errors of a fit as TOML."""
    seen = {key: sorted({k.groups[key] for k in some}) for key in ("gpu", "model")}
    main_error = max(result["errors"].get("tpot", result["errors"].get("batch1"))[s][1] for s in ("gpu", "model"))
    tables = [f"[fitted.errors.{kind}]  # rows, median %, mean %\n" + lines({f'"{s}"': e for s, e in errors.items()})
              for kind, errors in result["errors"].items()]
    simpler = [f"[fitted.baselines.{kind}]  # median %, mean %: the worse of GPU and model left out\n"
               + lines({f'"{name}"': e for name, e in errors.items()}) for kind, errors in result["baselines"].items()]
    return f"""[fitted]
data = {list(FILES)!r}
date = "2026-04"
engine = "{engine}"
forms_compared = {FORMS_COMPARED}
accelerators = {seen["gpu"]!r}
models = {seen["model"]!r}
held_out_median_error_frac = {main_error / 100:.3f}

[fitted.interval]  # 80 %: factors on a prediction
{lines(result["interval"])}

{(chr(10) * 2).join(tables)}

{(chr(10) * 2).join(simpler)}
""".replace("'", '"')


def main(argv: list[str]) -> int:
    """Write the profiles, or with --check compare."""
    new = {"general": general_text(served_fit()), rows.LOCAL: local_text(local_fit())}
    paths = {name: DATA / "profiles" / f"{name}.toml" for name in new}
    if "--check" in argv:
        now = {name: path.read_text(encoding="utf-8") if path.exists() else "" for name, path in paths.items()}
        old = [name for name in new if now[name] != new[name]]
        print(f"{', '.join(old)}: out of date, run python tools/fit_general.py" if old else "The profiles are current.")
        return 1 if old else 0
    for name, path in paths.items():
        path.write_text(new[name], encoding="utf-8")
        print(new[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
