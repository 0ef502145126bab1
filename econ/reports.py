"""Is my number normal? An engine's log or a benchmark's output, explained from the model and the GPU it names."""

import re
import textwrap
from dataclasses import dataclass
from typing import Any

from .accounts import budget, count_cache, token_bytes, weigh
from .benches import bench_json, json_values, serving_text
from .errors import check_type
from .findings import CLOSE, Draft, gib, seconds
from .llamabench import llama_bench
from .noted import notes
from .pace import judge
from .readers import engine_log, surroundings
from .running import GPUS, POOL, describe
from .scan import cleaned
from .statlines import stat_lines
from .subject import Subject, identify
from .units import fmt, shown

WIDTH = 100
VERDICTS = ("impossible", "slow", "incomplete", "normal")  # the first that a finding has is the report's
ASK = {
    "model": "a line `model: NAME` of econ.models(), or the model's config.json pasted below the log",
    "GPU": "a line `gpu: NAME` of econ.accelerators(), or `bandwidth: 936 GB/s`",
    "format of the weights": "a line `weights: bf16` (or fp8, int4, q4_k_m, ...)",
    "concurrency": "a line `concurrency: 64`: how many requests ran at once",
    GPUS: "a line `tp: 1`: how many GPUs split each layer",
    POOL: "a line `kv_tokens: 151792`, or the start log that prints it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a text says, checked. Sizes in bytes, times in seconds.

    `source` names the format, `facts` holds what was read, `phases` each measured speed against its floor, `residuals`
    each printed size or step split into named terms, `reasons` the findings behind the verdict, `missing` what the
    text does not say, `notes` what the numbers mean, `advice` what to try.
    """

    source: str
    facts: dict
    phases: tuple
    residuals: tuple
    verdict: str
    reasons: tuple
    missing: tuple
    notes: tuple
    advice: tuple

    def __str__(self) -> str:
        parts = [f"{self.source}: {self.verdict}"]
        parts += [_wrapped(line) for line in self.reasons]
        parts += [_wrapped(_shown(r)) for r in self.residuals]
        parts += [_wrapped(f"note: {line}") for line in self.notes]
        parts += [
            _wrapped(f"missing: {what}" + (f"; give {ASK[what]}" if what in ASK else "")) for what in self.missing
        ]
        parts += [_wrapped(f"try: {line}") for line in self.advice]
        return "\n".join(parts)


def explain(text: str) -> Report:
    """What an engine's log or a benchmark's output means, and whether its numbers are normal.

    Reads start logs of vLLM, SGLang, TensorRT-LLM and llama.cpp, the lines that a running vLLM or SGLang prints,
    results of `vllm bench serve`, SGLang's serving benchmark, trtllm-bench and llama-bench, and notes of the form
    `key: value` that add what a log does not say (model, gpu, tp, weights, batch, concurrency, ...). The verdict is
    "impossible" (more than the bytes, FLOPs or memory allow), "slow" (below the usual share of the floor), "incomplete"
    (`missing` says what to add) or "normal". An input that the text does not state is never made up.
    Raises ValueError for what is not a text.

    >>> r = explain("model: llama-2-7b\\ngpu: a10\\nweights: fp16\\ncontext: 300\\ntpot: 27 ms")
    >>> r.verdict, round(r.phases[0].roofline_frac, 2)
    ('normal', 0.83)
    """
    check_type("text", text, str, "the text of a log")
    text = cleaned(text)
    source, facts, runs, values = _read(text)
    draft = Draft(facts)
    if "engine" in facts and re.search(r"\d ?(GB|MB)\b", text):
        draft.notes.append("where the engine prints GB or MB it means GiB or MiB")
    if "left_out" in facts:
        draft.notes.append(f"only the last model of the table is judged; left out: {shown(facts['left_out'])}")
    s = identify(draft, values)
    weigh(draft, s)
    count_cache(draft, s)
    budget(draft, s)
    describe(draft, runs)
    judge(draft, s, runs)
    _claims(draft, s)
    return _report(source, draft, s)


def _read(text: str) -> tuple[str, dict, list, list]:
    """The facts and runs of every format that the text holds; a log's own lines win over notes."""
    values = json_values(text)
    read = [bench_json(values), serving_text(text), llama_bench(text), engine_log(text), stat_lines(text), notes(text)]
    names = [name for name, _, _ in read if name]
    facts: dict[str, Any] = {}
    for _, more, _ in read:
        facts = {**more, **facts}
    facts = {**surroundings(text), **facts}
    noted = read[-1][1]
    if "model" in noted and noted["model"] != facts["model"]:
        facts |= {"model": noted["model"], "printed_model": facts["model"]}
    facts |= {k: noted[k] for k in ("gpu", "weights", "kv_dtype") if k in noted}
    if read[3][0]:
        facts["engine"] = read[3][0]
    runs = [run for _, _, some in read for run in some]
    clients = facts.get("concurrency")
    for run in runs:
        if run["phase"] == "load" and "concurrency" not in run and clients:
            run["concurrency"] = clients
    return (" and ".join(names[:2]) or "unknown"), facts, runs, values


def _claims(draft: Draft, s: Subject) -> None:
    """Numbers that must agree with each other: cache bytes of a token, a price and a rate, MFU and FLOP/s."""
    facts = draft.facts
    if "kv_bytes_per_token" in facts and s.model and s.kv_known:
        _agree(draft, "cache bytes of a token", facts["kv_bytes_per_token"], token_bytes(s), "B")
    price, rate = facts.get("usd_per_gpu_hour"), facts.get("throughput")
    if "usd_per_mtok" in facts and price and rate:
        _agree(
            draft,
            "dollars per million tokens",
            facts["usd_per_mtok"],
            price * facts.get("n_gpus", 1) / rate / 3600 * 1e6,
            "$",
        )
    if "mfu" in facts and "flop_rate" in facts and s.accelerator:
        peak = s.accelerator.peaks.get("bf16") or s.accelerator.peaks.get("fp16")
        if peak:
            _agree(draft, "share of the dense bf16 peak", facts["mfu"], facts["flop_rate"] / peak, "%")


def _agree(draft: Draft, what: str, given: float, computed: float, unit: str) -> None:
    said = f"{what}: {fmt(given, unit, 4)} given, {fmt(computed, unit, 4)} computed"
    close = abs(given - computed) <= CLOSE * abs(computed)
    draft.findings.append(("normal", said) if close else ("impossible", f"{said}: the numbers contradict each other"))


def _report(source: str, draft: Draft, s: Subject) -> Report:
    found = {verdict for verdict, _ in draft.findings}
    if draft.missing or not draft.findings:
        found.add("incomplete")
    if not draft.findings and not draft.missing:
        _ask(draft, s)
    verdict = next((v for v in VERDICTS if v in found), "incomplete")
    order = sorted(draft.findings, key=lambda f: VERDICTS.index(f[0]))
    names = {"model": s.model.name} if s.model else {}
    return Report(
        source=source,
        facts={**draft.facts, **names},
        phases=tuple(draft.phases),
        residuals=tuple(draft.residuals),
        verdict=verdict,
        reasons=tuple(dict.fromkeys(f"{v}: {said}" for v, said in order)),
        missing=tuple(draft.missing),
        notes=tuple(draft.notes),
        advice=tuple(dict.fromkeys(draft.advice)),
    )


def _ask(draft: Draft, s: Subject) -> None:
    if s.model is None:
        draft.lacks("model")
    if s.accelerator is None:
        draft.lacks("GPU")
    draft.lacks("a measured speed or size in a known format")


def _wrapped(text: str) -> str:
    return textwrap.fill("".join(c if c.isprintable() else "?" for c in text), WIDTH, subsequent_indent="  ")


def _shown(r) -> str:
    show = gib if r.unit == "B" else seconds
    terms = "; ".join(f"{name} {show(value)}" for name, value in r.terms.items())
    return f"{r.of}: {show(r.printed)} = {terms}; without a name {show(r.unnamed)} ({r.unnamed_frac:+.1%})"
