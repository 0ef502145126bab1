"""Write the tables that are computed: blocks of some pages, and pages that are nothing else.

python tools/tables.py            write the computed parts of README.md, for_teachers.md and peers.md, and whole
                                  pages: accelerators.md, models.md, accuracy.md, ledger.md
python tools/tables.py --check    exit 1 if one of them is not what `econ` computes now

In the first three only the blocks between "<!-- computed: NAME -->" and "<!-- end -->" are written.
"""

import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ledger  # noqa: E402
import notebooks  # noqa: E402
import peer_page  # noqa: E402
import release  # noqa: E402
from grading import parts  # noqa: E402
from mdtable import table  # noqa: E402

import econ  # noqa: E402
from econ.names import DATA  # noqa: E402
from econ.units import fmt  # noqa: E402

BLOCK = re.compile(r"(<!-- computed: (\w+) -->\n).*?(<!-- end -->)", re.S)
SHOWN = (("llama-3.1-8b", "h100-sxm", 1), ("llama-3.3-70b", "h100-sxm", 4), ("qwen3-30b-a3b", "h100-sxm", 1),
         ("gpt-oss-120b", "h100-sxm", 1), ("deepseek-v3", "h200-sxm", 8))


def answers() -> str:
    """What the README shows first: a few models, what they hold, and how fast they can be at best."""
    rows = []
    for name, gpu, n in SHOWN:
        m, d = econ.load_model(name), econ.Deployment(name, gpu, n_gpus=n)
        rows.append([name, f"{n} x {gpu}", fmt(m.n_params, "B params"), fmt(m.weight_bytes(), "GB"),
                     fmt(m.kv_bytes_per_token(), "kB"), fmt(d.prefill(prompt=2048).time_s, "ms"),
                     fmt(d.decode(context=2048).time_s, "ms"), f"{d.memory(context=8192).max_batch:,}"])
    return table(["model", "on", "parameters", "weights as published", "cache per token", "2,048-token prompt, at best",
                  "one more token, at best", "sequences of 8,192 tokens that fit"], rows, left=2)


def profile() -> str:
    """How far off the fitted profile is, in one sentence each for what was fitted and what was left out."""
    fitted = econ.load_profile("vllm-h100-llama70b-2025-03").fitted
    median, mean = (fmt(fitted[f"held_out_{kind}_error_frac"], "%", 2) for kind in ("median", "mean"))
    return (f"The profile named above was fitted to {fitted['kept']} published runs of one engine "
            f"({fitted['engine']}).\nOn input lengths left out of the fit it is {median} off in the median and {mean} "
            "in the mean. It says nothing about other engines.\n")


SCHEMES = ("inside", "gpu", "model", "gpu and model", "source")
QUANTITIES = {"batch1": ("batch-1 decode, llama.cpp", "llama.cpp"), "tpot": ("time per output token", "general"),
              "throughput": ("throughput", "general"), "ttft": ("time to the first token", "general")}


def errors(schemes=SCHEMES) -> str:
    """Median and mean error of the general profiles by what was left out of the fit."""
    rows = []
    for key, (label, name) in QUANTITIES.items():
        fitted = econ.load_profile(name).fitted
        found, (low, high) = fitted["errors"][key], fitted["interval"][key]
        cells = [f"{found[s][1]:.1f}\u00a0/\u00a0{found[s][2]:.1f}" if s in found else "" for s in schemes]
        rows.append([label, f"{found['inside'][0]:,}", *cells, f"{low:.2f} to {high:.2f}"])
    heads = [{"inside": "in the fit", "source": "its source and engine"}.get(s, f"its {s.upper() if s == 'gpu' else s}")
             .replace("gpu and model", "its GPU and its model").replace("its its", "its") for s in schemes]
    return table(["predicted", "rows", *heads, "80 % interval, times the prediction"], rows)


NAMES = {"roofline": "the roofline alone", "one constant": "one fitted constant times it",
         "two constants": "two: a share of each ceiling"}


def simpler() -> str:
    """Errors of simpler models on the same rows beside the profile's, the worse of GPU and model left out."""
    rows = []
    for key, (label, name) in QUANTITIES.items():
        fitted = econ.load_profile(name).fitted
        own = [max(fitted["errors"][key][s][i] for s in ("gpu", "model")) for i in (1, 2)]
        found = [*(fitted["baselines"][key][n] for n in NAMES), own]
        rows.append([label, *(f"{median:.1f}\u00a0/\u00a0{mean:.1f}" for median, mean in found)])
    return table(["predicted", *NAMES.values(), "the profile"], rows)


def accuracy() -> str:
    """The README's short form of the table: what is left out is the row's GPU, or its model."""
    return errors(("gpu", "model"))


def accuracy_page() -> str:
    """How far off the general profiles are, on what they were fitted to and on what they were not."""
    general, local = econ.load_profile("general"), econ.load_profile("llama.cpp")
    counts, late = (general.fitted["rows"][kind] for kind in ("tpot", "ttft"))
    inside = general.fitted["coverage"]
    seen = [share for shares in inside.values() for share in shares[:3]]
    held, unseen = f"{min(seen):.0f} to {max(seen):.0f} %", [shares[3] for shares in inside.values()]
    new_engine = f"{min(unseen):.0f} to {max(unseen):.0f} %"
    low, high = general.fitted["interval_of_unseen_engines"]["ttft"]
    names = {"flop_frac": "share of peak FLOP/s", "weight_frac": "share of memory bandwidth",
             "link_frac": "share of the link, one way", "collective_s": "s a collective and doubling of GPUs",
             "expert_s": "s an expert of a token and routed layer", "sequence_s": "s a running sequence and step",
             "expert_prefill_frac": "share of peak, experts of a lone prompt",
             "burst_frac": "of half the other prompts, read first",
             "first_token_steps": "decode steps before the first token"}
    constants = table(["constant", "value", "meaning"], [[f"`{n}`", f"{getattr(general, n):.3g}", m]
                                                         for n, m in names.items()], left=3)
    return f"""# Accuracy

How far the profiles `general` and `llama.cpp` are from published measurements.
A profile turns the floor into a prediction with a few constants.
Errors are |predicted / measured - 1| in percent, median / mean.
*Its GPU* means that the constants were fitted without any row of the GPU that is predicted, and so on.

{errors()}
*Its source and engine* leaves out every row of the engine; what the same publisher says of other engines stays.
A GPU that is left out may have relatives in the fit: H100, H200 and GH200 share a chip.
So all of Hopper was left out too, then all of B200, B300 and their Grace forms.
Time per output token is then {errors_of(general, "tpot", "generation")} off.
Throughput is {errors_of(general, "throughput", "generation")} off.
The first token is {errors_of(general, "ttft", "generation")} off.

The interval is where 80 % of the measured values lie, when neither model nor GPU was in the fit.
Each combination of model, GPU, source and engine counts the same for it, however many rows it has.
Of the single rows left out of the fit it holds {held}.
For llama.cpp it comes from the rows with the GPU left out or with the model left out, whichever are further off.
An engine that the profile does not know gets a wider one: {low:.2f} to {high:.2f} times for the first token.
Of the rows of engines left out of the fit it holds {new_engine}.

Of {counts[0]:,} rows of the time per output token, {sum(counts[1:])} are left out by rules.
`tools/fit_general.py` states them.
Most are loads that the cache cannot hold.
The other {sum(counts[2:])} are left out for what was measured, such as a series that is faster with more clients.
With all of them back, and the GPU left out, the errors are {errors_of(general, "tpot", "gpu, no rule")}.
Of {late[0]:,} rows of the time to the first token, {sum(late[1:])} are left out, {sum(late[2:])} for what was measured.
With them back the errors are {errors_of(general, "ttft", "gpu, no rule")}.
While this was built, {general.fitted["forms_compared"]} variants of the formulas were looked at on these same rows.
That flatters the table: expect worse on hardware that is not in it.

## Against simpler models

The same rows, and constants fitted to the rest in the same way.
Each cell is the worse of the GPU and the model left out.
The roofline gives every pass the longer of its FLOPs at the peak and its bytes at full bandwidth.
The constants of the simpler models are fitted for each quantity on its own, which favours them.
The profile's are shared.

{simpler()}
## The constants

One set for all models, GPUs and servers.
A constant is what makes the formula fit, not a fact about a GPU.
The times of reading and of arithmetic are added, as if they did not overlap: that fits better than the longer alone.
The shorter of the two counts as overhead, so that a step is still the longer plus communication plus overhead.
A prompt in a full engine shares its pass with others, but is never faster than its own pass at full rates.

{constants}
`first_token_steps` is an engine's own where the engine is known.
llama.cpp has {local.weight_frac:.3g} of the bandwidth and {local.layer_s:.3g} s a layer.
Cards with stacked memory and Metal have constants of their own.
Its rate of reading prompts is one share of the peak.
That is {errors_of(local, "prefill")} off even on the rows it was fitted to.
The rates of these rows reach from a tenth of the peak to more than all of it, by card, format and number of cards.
No single term explained that.

No profile adds memory for activations or graphs to `Deployment.memory`.
In published start logs they differ more than twofold between two versions of one engine on the same model.

## Predict your own table

```
python tools/accuracy.py FILE.csv --out predictions.csv
```

The file has the columns of the tables in `econ/data/measured`.
The values may be missing; where they are given, errors are printed by metric, source, engine and GPU.
`predictions.csv` has a line for each row: the prediction in the row's unit, its 80 % interval, and the profile.
`reason` says why a row is refused, `unseen` which of model and GPU the profile was not fitted to.
"""


def errors_of(profile, quantity: str, scheme: str = "inside") -> str:
    """Median and mean error of a profile in percent."""
    _, median, mean = profile.fitted["errors"][quantity][scheme]
    return f"{median:.1f} / {mean:.1f}"


def _cell(value, unit: str) -> str:
    """A bare number for a column whose head names the unit: at most four digits, no trailing zeros."""
    number = "" if value is None else fmt(value, unit, 4).split(" ")[0]
    return number.rstrip("0").rstrip(".") if "." in number else number


def accelerator_page() -> str:
    """Every accelerator with its dense peaks, memory, link and how its figures were read."""
    rows = []
    for name in econ.accelerators():
        g = econ.load_accelerator(name)
        wide = g.peaks.get("bf16", g.peaks.get("fp16"))
        rows.append([name, *(_cell(peak, "TFLOP/s") for peak in (wide, g.peaks.get("fp8"), g.peaks.get("fp4"))),
                     _cell(g.hbm_bytes_per_s, "GB/s"), _cell(g.printed_bytes, "GB"),
                     _cell(g.link and g.link.bytes_per_s_each_way, "GB/s"), _cell(g.tdp_w, "W"),
                     _cell(wide and round(wide / g.hbm_bytes_per_s), "FLOP/B"),
                     ", ".join(sorted(set(g.provenance.values())))])
    head = ["accelerator", "bf16 or fp16, TFLOP/s", "fp8, TFLOP/s", "fp4, TFLOP/s", "memory, GB/s", "capacity, GB",
            "link each way, GB/s", "TDP, W", "ridge, FLOP/B", "figures read from"]
    return f"""# Accelerators

All peaks are dense.
A link is bytes per second each way.
Capacity is what the maker prints, in units of 1e9 B; what software sees differs a little and stands in the data.
*maker* means that the maker's own document was read, *secondary* that others quote it.
*unverified* means that no document was read.
The ridge is the peak of the second column over the bandwidth.
An empty cell means that no figure was found.

{table(head, rows)}
Each row is one file in `econ/data/accelerators`, with its sources and with notes where documents disagree.
"""


def model_page() -> str:
    """Every shipped model with its size, cache and the config it was read from."""
    rows = []
    with open(DATA / "models" / "sources.csv", encoding="utf-8", newline="") as file:
        sources = {row["name"]: row for row in csv.DictReader(file)}
    for name in econ.models():
        m = econ.load_model(name)
        rows.append([name, _cell(m.n_params, "B params"), _cell(m.n_active_params, "B params"), str(len(m.layers)),
                     _cell(m.weight_bytes(), "GB"), _cell(m.kv_bytes_per_token(), "kB"),
                     f"{m.max_context:,}" if m.max_context else "", sources[name]["hub_id"]])
    head = ["model", "parameters, billions", "active, billions", "layers", "weights as published, GB",
            "cache per token, kB", "longest context, tokens", "config of"]
    return f"""# Models

Every number is computed from the model's `config.json`, which ships in `econ/data/models`.
A few are not the published file itself but were put together from other published documents.
The notes in `sources.csv` say which, and from what.
*Active* counts both vocabulary tables.
*Cache per token* is what the next token adds while every window is still open, in the cache's published format.

{table(head, rows)}
Where each config was read stands in `econ/data/models/sources.csv`.
"""


def exercises() -> str:
    """The notebooks of exercises: how many of each level, what they are worth, how long they take."""
    rows = []
    for path in release.sources():
        nb = notebooks.read(path)
        found = parts.exercises(nb)
        title = nb.cells[0].source.splitlines()[0].removeprefix("# Exercises ")
        levels = [str(sum(exercise.level == level for exercise in found)) for level in "ABC"]
        rows.append([title, *levels, *(str(sum(getattr(exercise, name) for exercise in found))
                                       for name in ("points", "minutes"))])
    return table(["notebook", "A", "B", "C", "points", "minutes"], rows)


def downloads() -> str:
    """A link to the notebook of each chapter's exercises, for a reader of the rendered book."""
    return " ·\n".join(f"{{download}}`{path.stem[:2]} <exercises/{path.name}>`" for path in release.sources()) + "\n"


BLOCKS = {"downloads": downloads, "answers": answers, "profile": profile, "accuracy": accuracy, "exercises": exercises,
          **peer_page.BLOCKS}
FILLED = ("README.md", "for_students.md", "for_teachers.md", "peers.md")


def pages() -> dict[Path, str]:
    """What every generated file should contain."""
    whole = {"accelerators.md": accelerator_page(), "models.md": model_page(), "accuracy.md": accuracy_page(),
             "ledger.md": ledger.page()}
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILLED}
    filled = {name: BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[3], text)
              for name, text in texts.items()}
    return {ROOT / name: text for name, text in (filled | whole).items()}


def main(argv: list[str]) -> int:
    """Write the pages, or with --check name those that are out of date."""
    stale = {path: text for path, text in pages().items()
             if not path.exists() or path.read_text(encoding="utf-8") != text}
    if "--check" in argv:
        lines = [f"{path.name} is out of date: run python tools/tables.py" for path in stale]
        print("\n".join(lines) or "Every table is current.")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote {', '.join(path.name for path in stale) or 'nothing: every table is current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
