"""How fast against the floor: the share of the roofline in each phase, and whether that share is usual."""

import math
from dataclasses import dataclass

from .findings import Draft, residual, seconds
from .floors import Floor, floor, starting_s
from .latency import Timed
from .memory import kv_reserved_bytes_per_gpu, weight_bytes_per_gpu
from .precision import GGUF
from .profiles import llama_cpp, load_profile
from .running import step
from .subject import Subject
from .units import fmt

LINK_SHARE = 0.6
MOST = 1e12  # tokens or requests of one run
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


def judge(draft: Draft, s: Subject, runs: list[dict]) -> None:
    """Every run against its floor; what is missing for that is named."""
    for run in filter(_possible, runs[:200]):
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
        elif run["phase"] == "serve":
            if (decoded := step(draft, s, run)) is not None:
                _pass(draft, s, decoded)
        else:
            _pass(draft, s, run)
    if any("not judged" in note for note in draft.notes) and not draft.phases:
        draft.lacks("FLOP/s of the GPU")


def _possible(run: dict) -> bool:
    """Whether the run's counts are numbers that requests can have."""
    counts = [run[k] for k in ("batch", "prompt", "context", "concurrency", "output") if k in run]
    return all(0 <= n <= MOST for n in counts) and run.get("batch", 1) > 0 and run.get("prompt", 1) > 0


def _pass(draft: Draft, s: Subject, run: dict) -> None:
    decoding = run["phase"] == "decode"
    f = floor(s, run["batch"], 1 if decoding else run["prompt"], run.get("context", 0))
    name = f"decode, batch {run['batch']:g}" if decoding else f"prefill, {run['prompt']:,} tokens"
    _compare(draft, s, name, run["time_s"], f, run.get("unsure", {}))
    if decoding:
        if "context" in run:
            _predict(draft, s, run["batch"], run["context"])
        terms = (
            {"weights": f.weight_s, "cache": f.kv_s} if f.compute_s <= f.weight_s + f.kv_s else {"FLOPs": f.compute_s}
        )
        rest = run["time_s"] - sum(terms.values())
        usual = starting_s(s, run["batch"], 1)
        if rest > 0:
            terms["starting kernels, collectives and experts: at most"] = min(usual, rest)
        draft.residuals.append(residual(name, run["time_s"], "s", terms))


def _predict(draft: Draft, s: Subject, batch, context) -> None:
    """What the profile fitted to published runs says of this step; nothing where it does not apply."""
    assert s.model and s.accelerator
    profile = load_profile(llama_cpp(s.accelerator.name) if "file_bytes" in draft.facts else "general")
    if s.weight_scale != 1 or s.kv_scale != 1:
        return
    try:
        n, degrees = s.tp * s.pp * s.dp, {"tp": s.tp, "pp": s.pp, "dp": s.dp, "ep": s.ep}
        d = Timed(s.model, s.accelerator, n_gpus=n, weights=s.weights, kv=s.kv, profile=profile, **degrees)
        time_s = d.decode(batch, context).time_s
    except ValueError:
        return
    error = fmt(profile.fitted["held_out_median_error_frac"], "%", 2)
    draft.notes.append(
        f"a step of batch {batch:g}: profile {profile.name}, fitted to published runs, predicts {seconds(time_s)}; "
        f"its median error on runs left out is {error}"
    )


def _compare(draft: Draft, s: Subject, name: str, time_s: float, f: Floor, unsure: dict | None = None) -> None:
    """Adds the verdict on one time; `unsure` names what is missing before a verdict may be given."""
    share = f.time_s / time_s
    bound = "compute" if f.compute_s > f.weight_s + f.kv_s else "memory"
    verdict = "impossible" if share > FASTER else "slow" if time_s > f.slow_s else "normal"
    if verdict == "normal" and f.slow_s == math.inf:
        draft.notes.append(f"{name}: {seconds(time_s)}; not judged, as the GPU's FLOP/s are not known")
        return
    said = f"{name}: {seconds(time_s)} against a floor of {seconds(f.time_s)}, {_percent(share)} of the {bound} bound"
    if verdict == "impossible" and time_s * FASTER >= f.weight_s + f.kv_s and _eight_bit(s):
        verdict = "normal"
        said += ": more than the bf16 rate, as these kernels multiply in int8"
    elif verdict == "impossible" and "speculative" in draft.facts:
        verdict = "incomplete"
        draft.lacks("tokens accepted in a speculative step")
    elif unsure and verdict in unsure:
        draft.lacks(unsure[verdict])
        verdict = "incomplete"
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


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


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
    if not name.startswith(("prefill", "decode")):
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
            f"{_count(rate)} tok/s of output, all requests together: {_count(rate / run['concurrency'])} for each; "
            f"with the input counted it would be {_count(rate * (1 + prompt / output))}"
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
