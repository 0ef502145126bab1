"""How fast against the floor: the share of the roofline in each phase, and whether that share is usual.

The floor is physics. Where normal ends is a judgement, stated here once: a decode step may take 1 / 0.4 of its floor
and a prefill 1 / 0.2, plus time to start kernels, collectives and experts. The rows of tests/data/cases.csv that
people asked about fall on the side of these lines that their answers name.
"""

import math
from dataclasses import dataclass

from .findings import Draft, residual, seconds
from .memory import kv_reserved_bytes_per_gpu, weight_bytes_per_gpu
from .parallel import collectives
from .precision import GGUF
from .subject import Subject
from .units import fmt
from .work import forward

DECODE_SHARE, PREFILL_SHARE = 0.4, 0.2  # of the floor's rate: less is slow
LAYER_S, COLLECTIVE_S, EXPERT_S, SEQUENCE_S = 30e-6, 20e-6, 7e-6, 7e-6  # allowed on top, each layer, all-reduce, ...
LINK_SHARE = 0.6
FASTER = 1.02  # a measured time may be this much below the floor: printed digits are few


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One measured phase against its floor, in seconds (a link: bytes per second). A share above 1 cannot be."""

    name: str
    measured: float
    floor: float
    roofline_frac: float
    bound: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The terms of one pass at full rates, and the time beyond which it is slow. Seconds."""

    weight_s: float
    kv_s: float
    compute_s: float
    slow_s: float
    share: float = DECODE_SHARE

    @property
    def time_s(self) -> float:
        """The longer of reading and computing."""
        return max(self.weight_s + self.kv_s, self.compute_s)


def floor(s: Subject, batch, new_tokens, context) -> Floor:
    """The floor of one pass: all bytes once at full bandwidth or all FLOPs at the peak, stages one after the other."""
    assert s.model and s.accelerator
    g, share = s.accelerator, DECODE_SHARE if new_tokens == 1 else PREFILL_SHARE
    wide = g.peaks.get("bf16") or g.peaks.get("fp16") or math.inf
    if s.weights in GGUF:  # these kernels multiply in int8 where the GPU can
        wide = max(wide, g.peaks.get("int8", 0.0))
    works = [forward(p, batch, new_tokens, context, weights=s.weights, kv=s.kv, split=s.split) for p in s.parts]
    weight_s = sum(w.weight_bytes for w in works) * s.weight_scale / g.hbm_bytes_per_s
    kv_s = sum(w.bytes - w.weight_bytes for w in works) * s.kv_scale / g.hbm_bytes_per_s
    compute_s = sum(n / (g.peaks.get(rate) or wide) for w in works for rate, n in w.flops_by_rate.items())
    found = Floor(weight_s=weight_s, kv_s=kv_s, compute_s=compute_s, slow_s=0.0)
    slow_s = found.time_s / share + _starting_s(s, batch, new_tokens)
    return Floor(weight_s=weight_s, kv_s=kv_s, compute_s=compute_s, slow_s=slow_s, share=share)


def _starting_s(s: Subject, batch, new_tokens) -> float:
    """What starting kernels, collectives and experts may take."""
    assert s.model
    sends = sum(c.count * math.log2(c.n) for c in collectives(s.model, batch, new_tokens, s.tp, s.pp, s.ep))
    experts = sum(
        n * max((t.used for t in layer.tensors if t.role == "expert"), default=0) for layer, n in s.model.layer_kinds
    )
    return LAYER_S * len(s.model.layers) + COLLECTIVE_S * sends + EXPERT_S * experts + SEQUENCE_S * batch


def judge(draft: Draft, s: Subject, runs: list[dict]) -> None:
    """Every run against its floor; what is missing for that is named."""
    for run in runs[:200]:
        if run["phase"] == "link":
            _link(draft, s, run)
            continue
        needs = {
            "model": s.model,
            "GPU": s.accelerator,
            "format of the weights": s.weights_known or None,
            "cache dtype": s.kv_known or None,
        }
        lacking = [name for name, value in needs.items() if value is None]
        if lacking:
            draft.lacks(*lacking)
        elif run["phase"] == "load":
            _load(draft, s, run)
        else:
            _pass(draft, s, run)


def _pass(draft: Draft, s: Subject, run: dict) -> None:
    decoding = run["phase"] == "decode"
    f = floor(s, run["batch"], 1 if decoding else run["prompt"], run.get("context", 0))
    name = f"decode, batch {run['batch']:g}" if decoding else f"prefill, {run['prompt']:,} tokens"
    _compare(draft, s, name, run["time_s"], f)
    if decoding:
        terms = (
            {"weights": f.weight_s, "cache": f.kv_s} if f.compute_s <= f.weight_s + f.kv_s else {"FLOPs": f.compute_s}
        )
        rest = run["time_s"] - sum(terms.values())
        usual = _starting_s(s, run["batch"], 1)
        if rest > 0:
            terms["starting kernels, collectives and experts: at most"] = min(usual, rest)
        draft.residuals.append(residual(name, run["time_s"], "s", terms))


def _compare(draft: Draft, s: Subject, name: str, time_s: float, f: Floor) -> None:
    share = f.time_s / time_s
    bound = "compute" if f.compute_s > f.weight_s + f.kv_s else "memory"
    verdict = "impossible" if share > FASTER else "slow" if time_s > f.slow_s else "normal"
    said = f"{name}: {seconds(time_s)} against a floor of {seconds(f.time_s)}, {_percent(share)} of the {bound} bound"
    if verdict == "impossible" and time_s * FASTER >= f.weight_s + f.kv_s and _eight_bit(s):
        verdict = "normal"
        said += ": more than the bf16 rate, as these kernels multiply in int8"
    elif verdict == "impossible" and "speculative" in draft.facts:
        verdict = "incomplete"
        draft.lacks("tokens accepted in a speculative step")
    elif verdict == "impossible":
        said += ": faster than the bytes and FLOPs allow"
        draft.advice.append("see whether the rate is of several streams, of input tokens or of cached prompts")
    elif verdict == "slow":
        said += f"; up to {seconds(f.slow_s)} is usual"
        draft.advice += _slow_advice(draft, s, name)
    draft.phases.append(
        Phase(name=name, measured=time_s, floor=f.time_s, roofline_frac=share, bound=bound, verdict=verdict)
    )
    draft.findings.append((verdict, said))


def _eight_bit(s: Subject) -> bool:
    """Whether GGUF kernels, whose int8 rate is not known here, may do the products."""
    return s.weights in GGUF or s.weight_scale != 1


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %") if share < 10 else f"{share:,.0f} times"


def _slow_advice(draft: Draft, s: Subject, name: str) -> list[str]:
    assert s.model
    on_gpu, in_all = draft.facts.get("layers_on_gpu"), draft.facts.get("layers_in_all")
    advice = []
    if on_gpu is not None and in_all and on_gpu < in_all:
        advice.append(f"{int(in_all - on_gpu)} of {int(in_all)} layers run on the CPU: offload all of them")
    if s.tp > 1 and s.accelerator and (s.accelerator.printed_bytes or 0) > 1.2 * s.model.weight_bytes(s.weights):
        advice.append(f"the model fits one GPU: {s.tp} replicas serve more than tp {s.tp}")
    if name.startswith("decode"):
        advice.append("CUDA graphs or a compiled step, and kernels that read these weights at full speed")
    if not name.startswith("prefill"):
        advice.append("a queue: look for a limit on running sequences, and count the requests that wait")
    return advice


def _load(draft: Draft, s: Subject, run: dict) -> None:
    """A serving benchmark: the step between two tokens, the throughput, and the first token where nobody waits."""
    lacking = [what for what in ("concurrency", "prompt", "output") if not run.get(what)]
    if lacking:
        draft.lacks(*(f"{what}{' of the requests' if what != 'concurrency' else ''}" for what in lacking))
        return
    prompt, output = run["prompt"], run["output"]
    running = max(min(run["concurrency"] / s.dp, _holds(s, draft, prompt + output)), 1.0)
    p, t = floor(s, 1, prompt, 0), floor(s, running, 1, prompt + output / 2)
    rate = run.get("request_rate")
    open_loop = isinstance(rate, int | float) and rate > 0
    if "tpot_s" in run and output > 1:
        wait = running / (output - 1)
        slow_s = t.slow_s + wait * p.slow_s
        _compare(
            draft,
            s,
            f"token of {running:.4g} running",
            run["tpot_s"],
            Floor(weight_s=t.weight_s, kv_s=t.kv_s, compute_s=t.compute_s, slow_s=slow_s),
        )
    if run.get("output_tokens_per_s") and not open_loop:
        cycle = (output - 1) * t.time_s + running * p.time_s
        slow = (output - 1) * t.slow_s + running * p.slow_s
        measured = s.dp * running * output / run["output_tokens_per_s"]
        best = Floor(
            weight_s=(output - 1) * t.time_s if measured < cycle else cycle, kv_s=0.0, compute_s=0.0, slow_s=slow
        )
        _compare(draft, s, f"cycle of {running:.4g} requests", measured, best)
    if run.get("output_tokens_per_s"):
        rate = run["output_tokens_per_s"]
        draft.notes.append(
            f"{rate:,.4g} tok/s of output, all requests together: {rate / run['concurrency']:,.3g} for each; with the "
            f"input counted it would be {rate * (1 + prompt / output):,.4g}"
        )
    if "ttft_s" in run:
        if running < 1.5:
            _compare(draft, s, "first token", run["ttft_s"], p)
        else:
            draft.notes.append(
                f"the first token takes {seconds(run['ttft_s'])}; a prompt alone {seconds(p.time_s)} at least: "
                "the rest is waiting for others and lower efficiency"
            )


def _holds(s: Subject, draft: Draft, tokens) -> float:
    """Sequences that the cache can hold: by the printed pool, or by the memory of the GPU."""
    held = draft.facts.get("kv_tokens")
    if held:
        return max(held / tokens, 1.0)
    if s.accelerator is None or not (s.accelerator.visible_bytes or s.accelerator.printed_bytes):
        return math.inf
    weights = max(weight_bytes_per_gpu(p, s.weights, s.split) for p in s.parts) * s.weight_scale
    each = max(kv_reserved_bytes_per_gpu(p, tokens, 1, s.kv, s.split) for p in s.parts) * s.kv_scale
    return max((s.accelerator.memory_bytes - weights) / max(each, 1), 1.0)


def _link(draft: Draft, s: Subject, run: dict) -> None:
    if s.accelerator is None or s.accelerator.link is None:
        draft.lacks("GPU with a known link")
        return
    line = s.accelerator.link.bytes_per_s_each_way
    share = run["bytes_per_s"] / line
    verdict = "impossible" if share > 1.1 else "normal" if share >= LINK_SHARE else "slow"
    draft.phases.append(
        Phase(name="link", measured=run["bytes_per_s"], floor=line, roofline_frac=share, bound="link", verdict=verdict)
    )
    draft.findings.append(
        (
            verdict,
            f"link: {fmt(run['bytes_per_s'], 'GB/s')}, {_percent(share)} of {fmt(line, 'GB/s')} each way; "
            "datasheets print both ways together",
        )
    )
