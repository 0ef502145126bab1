"""Ask the estimators that install from PyPI the questions that `econ` answers, each in an environment of its own.

python tools/peers.py --scratch DIR [--every N] [NAME ...]    install and run all peers, or those named
                                                              (about an hour in all; N thins the published rows)

Two sets of questions. The common task: Llama-3.1-8B and 70B in bf16 on H100 SXM, a prompt of 2,048 tokens, one decode
step at that context, and memory. Published rows: the tables in econ/data/measured, read by tools/rows.py, without
their values. Written to tests/data/peers: packages.csv and results.csv; the peers that are not run keep their rows.
DIR keeps the environments and all answers, so that a broken run goes on where it stopped. Not part of the tests.
"""

import argparse
import csv
import datetime
import json
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rows  # noqa: E402
from rows import DATA, ROOT  # noqa: E402

STORE = ROOT / "tests" / "data" / "peers"
TASK = (("llama-3.1-8b", 1), ("llama-3.1-8b", 4), ("llama-3.1-70b", 4))
STEPS = (("prefill", 1), ("decode", 1), ("decode", 32), ("decode", 256), ("memory", 256))
PACKAGES = {"aiconfigurator": "aiconfigurator", "genz": "genz-llm", "llm_analysis": "llm-analysis",
            "llm_flops": "llm-flops", "mlsysim": "mlsysim", "ridgepoint": "ridgepoint", "servcalc": "servcalc",
            "vramcalc": "vramcalc", "llm_sizer": "llm-sizer", "hf_mem": "hf-mem", "econ": "econ"}
MODES = {"aiconfigurator": (("SOL", "SOL", "tensorrt-llm"), ("tensorrt-llm", "SILICON", "tensorrt-llm"),
                            ("vllm", "SILICON", "vllm"), ("sglang", "SILICON", "sglang"))}  # of the common task
FILES = ("decode_batch1.csv", "serving_throughput.csv", "latency.csv")
QUANTITY = {"tpot": "tpot_s", "ttft": "ttft_s", "throughput": "output_tokens_per_s", "decode": "time_s"}
UNITS = {"time_s": "s", "tpot_s": "s", "ttft_s": "s", "output_tokens_per_s": "token/s", "weight_bytes": "B",
         "kv_bytes": "B"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question; `batch` is that of a replica, `config` a folder with the model's config.json."""

    ask: str  # prefill, decode, memory or served
    model: str
    config: str = ""
    gpu: str
    weights: str
    kv: str
    engine: str
    mode: str = "SILICON"
    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    batch: int
    prompt: int
    output: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of results.csv: a number, or the reason for its absence."""

    peer: str
    variant: str
    case: str
    quantity: str
    value: str
    unit: str
    reason: str


def common(peer: str) -> list[tuple[Case, str, str]]:
    """The common task: each case with its name and the peer's variant."""
    return [(Case(ask=ask, model=model, gpu="h100-sxm", weights="bf16", kv="bf16", engine=engine, mode=mode, tp=tp,
                  batch=batch, prompt=2048), f"{model} tp{tp} {ask} b{batch}", variant)
            for variant, mode, engine in MODES.get(peer, (("", "SILICON", "vllm"),))
            for model, tp in TASK for ask, batch in STEPS]


def thinned(found: list[tuple[Case, str, str]], every: int) -> list[tuple[Case, str, str]]:
    """One setting under load in so many, in the order of the files, with all its rows; single streams in full."""
    order = {case: i for i, case in enumerate(dict.fromkeys(case for case, *_ in found if case.ask == "served"))}
    return [entry for entry in found if order.get(entry[0], 0) % every == 0]


@cache
def published() -> list[tuple[Case, str, str]]:
    """Every row of the published tables that `econ` predicts: its case, its row_id and the quantity asked for."""
    found = []
    for name in FILES:
        with open(DATA / "measured" / name, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                try:
                    q = rows.question({**row, "value": ""})
                    if q.kind in QUANTITY and not q.at_rate:
                        found.append((of_row(row, q), row["row_id"], QUANTITY[q.kind]))
                except ValueError:
                    continue
    return found


def of_row(row: dict, q: rows.Question) -> Case:
    """A row's question in the terms of a case. At maximum throughput the batch is the one that `econ` says fits."""
    d, layout = q.deployment, re.search(r"moe_ep(\d+)", row["ep_dp"] or "")
    gpus, ep = d.tp * d.dp, int(layout[1]) if layout else d.ep
    published = d.model.published.name if d.model.published else "bf16"
    common = Case(ask="decode", model=d.model.name, gpu=d.accelerator.name, weights=d.weights or published, kv=d.kv,
                  engine=q.engine, tp=d.tp, pp=d.pp, dp=d.dp, ep=ep if ep > 0 and gpus % ep == 0 else 1,
                  batch=max(1, round(q.concurrency / d.dp)), prompt=round(q.prompt + q.output / 2))
    if q.kind == "decode":
        return replace(common, weights=row["weight_dtype"].lower())
    batch = rows.served(q).running_batch if q.kind == "throughput" else q.concurrency
    return replace(common, ask="served", batch=max(1, round(batch / d.dp)), prompt=round(q.prompt),
                   output=round(q.output))


def install(peer: str, scratch: Path) -> Path:
    """The python of the peer's environment, made where it does not exist."""
    home = scratch / peer
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        what = str(ROOT) if peer == "econ" else PACKAGES[peer]
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what], check=True)
        done.touch()
    return python


def configs(scratch: Path) -> Path:
    """A folder for each shipped model with its config.json, as peers expect it."""
    for path in (DATA / "models").glob("*.json"):
        folder = scratch / "configs" / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "config.json")
    return scratch / "configs"


def ask(peer: str, cases: list[Case], scratch: Path) -> dict[Case, dict]:
    """What the peer answers, by case. Answers are kept in the scratch folder as they come."""
    python, kept = install(peer, scratch), scratch / f"{peer}.jsonl"
    home = configs(scratch)
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    found = {Case(**entry["case"]): entry for entry in map(json.loads, lines)}
    todo = [case for case in dict.fromkeys(cases) if case not in found]
    questions = scratch / f"{peer}-cases.jsonl"
    questions.write_text("".join(json.dumps(asdict(replace(case, config=str(home / case.model)))) + "\n"
                                 for case in todo), encoding="utf-8")
    with open(questions) as given, open(kept, "a", encoding="utf-8") as file, subprocess.Popen(
            [python, ROOT / "tools" / "peer_calls.py", peer], text=True, stdin=given, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=scratch) as process:
        assert process.stdout
        for case, line in zip(todo, process.stdout, strict=False):
            found[case] = {"case": asdict(case), **json.loads(line)}
            file.write(json.dumps(found[case]) + "\n")
            file.flush()
    return found


def reason(text: str) -> str:
    """A peer's message without what differs from case to case or from machine to machine."""
    text = re.split(r"\s*(?:[{\[]| at /|, Weights| Required| on system|\. Supported)", text)[0]
    return re.sub(r"/\S*/", "", text)[:140].strip()


def results(peer: str, found: dict[Case, dict], rows_asked: list[tuple[Case, str, str]]) -> list[Result]:
    """The common task in full; of published rows the numbers, and the refusals counted by reason."""
    lines: list[Result] = []
    refused: dict[tuple[str, str], int] = {}
    for case, name, variant in common(peer):
        entry = found[case]
        wanted = ("weight_bytes", "kv_bytes") if case.ask == "memory" else ("time_s",)
        for quantity in wanted:
            lines.append(line(peer, variant, name, quantity, entry))
    for case, name, quantity in rows_asked:
        entry = found[case]
        if "found" in entry:
            lines.append(line(peer, "", name, quantity, entry))
        else:
            key = (quantity, reason(entry["reason"]))
            refused[key] = refused.get(key, 0) + 1
    return lines + [Result(peer=peer, variant="", case="published rows refused", quantity=quantity, value=str(count),
                           unit="rows", reason=why) for (quantity, why), count in sorted(refused.items())]


def line(peer: str, variant: str, name: str, quantity: str, entry: dict) -> Result:
    value = entry.get("found", {}).get(quantity)
    return Result(peer=peer, variant=variant, case=name, quantity=quantity, unit=UNITS[quantity],
                  value="" if value is None else f"{value:.5g}", reason=reason(entry.get("reason", "")))


def package(peer: str, found: dict[Case, dict], python: Path, every: int, rows_asked: int) -> dict:
    """One line of packages.csv: what ran, when, how large it is and how long a call took."""
    code = f"import importlib.metadata as m; print(m.version({PACKAGES[peer]!r}))"
    version = subprocess.run([python, "-c", code], text=True, capture_output=True, check=True).stdout.strip()
    files = (path for path in python.parents[1].rglob("*") if path.is_file() and not path.is_symlink())
    steps = [found[case] for case, _, _ in common(peer) if case.ask != "memory"]
    times = [entry["seconds"] for entry in steps if "found" in entry]
    return {"peer": peer, "package": PACKAGES[peer], "version": version, "date": datetime.date.today().isoformat(),
            "python": ".".join(map(str, sys.version_info[:2])), "every": every,
            "rows_asked": rows_asked,
            "environment_mb": round(sum(path.stat().st_size for path in files) / 1e6),
            "first_call_s": f"{times[0]:.2g}" if times else "",
            "median_call_s": f"{statistics.median(times):.2g}" if times else ""}


def read(name: str) -> list[dict]:
    path = STORE / name
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(name: str, new: list[dict], peer: str) -> None:
    """Replace a peer's lines in a file of the store."""
    order = list(PACKAGES)
    lines = sorted([row for row in read(name) if row["peer"] != peer] + new, key=lambda row: order.index(row["peer"]))
    STORE.mkdir(exist_ok=True)
    with open(STORE / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(new[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main(argv: list[str]) -> int:
    """Run peers and store what they say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(PACKAGES)}; all where none is named")
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for environments and answers, 2 GB")
    parser.add_argument("--every", type=int, default=1, help="ask one published setting in so many")
    args = parser.parse_args(argv)
    scratch = args.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    for peer in args.peers or PACKAGES:
        asked = [] if peer == "econ" else thinned(published(), args.every)
        cases = [case for case, *_ in common(peer) + asked]
        found = ask(peer, cases, scratch)
        if peer != "econ":  # of this package only the times of its calls are kept
            write("results.csv", [asdict(r) for r in results(peer, found, asked)], peer)
        write("packages.csv", [package(peer, found, install(peer, scratch), args.every, len(asked))], peer)
        answered = sum("found" in found[case] for case in cases)
        print(f"{peer}: {answered} of {len(cases)} questions answered", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
