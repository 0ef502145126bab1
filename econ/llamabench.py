"""The tables of llama-bench: markdown, CSV, and the rows of its JSON."""

import csv
import io
import math
import re

from .scan import LARGEST, SIZE, known_gpu, number, size

_CSV = "build_commit,"


def plain(value):
    """A JSON value as a fact: finite numbers and short texts, numbers written as texts included."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST and math.isfinite(value) else None
    if not isinstance(value, str) or not 0 < len(value) <= 200 or value in ("inf", "nan", "None"):
        return None
    return value if (n := number(value)) is None else n


def llama_bench(text: str) -> tuple[str | None, dict, list[dict]]:
    """The tables of llama-bench in markdown and CSV."""
    start = text.find(_CSV)
    if start >= 0 and "avg_ts" in text[start : start + 4000]:
        whole = _whole_rows(text[start : start + 10**6])
        return ("llama-bench", *bench_rows(whole)) if whole else (None, {}, [])
    head, rows = None, []
    for line in re.findall(r"^ {0,4}\|([^\n]{10,600})\| *$", text, re.M)[:2000]:
        cells = [cell.strip() for cell in line.split("|")]
        if "t/s" in cells and "test" in cells:
            head = cells
        elif head and len(cells) == len(head) and not set(line) <= set("-:| "):
            rows.append(dict(zip(head, cells, strict=True)))
    return ("llama-bench", *bench_rows([_from_table(row) for row in rows])) if rows else (None, {}, [])


def _whole_rows(text: str) -> list[dict]:
    """The rows of a CSV that have all their cells; none where it is not a CSV."""
    try:
        return [row for row in csv.DictReader(io.StringIO(text)) if None not in row and None not in row.values()]
    except csv.Error:
        return []


def _from_table(row: dict) -> dict:
    """A row of the markdown table under the names that the JSON has."""
    tests = dict(re.findall(r"(pp|tg)(\d{1,7})", row["test"]))
    sized = re.fullmatch(SIZE, row.get("size", ""))
    billions = re.fullmatch(r"([\d.]{1,12}) B", row.get("params", ""))
    depth = re.search(r"@ d(\d{1,7})", row["test"])
    return {
        "model_type": row.get("model"),
        "model_size": size(*sized.groups()) if sized else None,
        "n_params_billion": number(billions[1]) if billions else None,
        "n_depth": depth[1] if depth else 0,
        "n_prompt": tests.get("pp", 0),
        "n_gen": tests.get("tg", 0),
        "type_k": row.get("type_k", "f16"),
        "avg_ts": row["t/s"].split()[0] if row["t/s"].split() else "",
    }


def bench_rows(rows: list[dict]) -> tuple[dict, list[dict]]:
    """Facts of the last model in the rows, and one run for each of its tests of one kind of token."""
    last, runs, others = rows[-1], [], {}
    for row in rows:
        speed, prompt, new, depth = (plain(row.get(k)) for k in ("avg_ts", "n_prompt", "n_gen", "n_depth"))
        if _which(row) != _which(last):
            others[_which(row)] = str(row.get("model_filename") or row.get("model_type"))
            continue
        if not isinstance(speed, int | float) or speed <= 0:
            continue
        if isinstance(new, int) and new > 0 and not prompt:
            runs.append({"phase": "decode", "batch": 1, "context": new / 2 + _count(depth), "time_s": 1 / speed})
        elif isinstance(prompt, int) and prompt > 0 and not new:
            runs.append(
                {"phase": "prefill", "batch": 1, "prompt": prompt, "context": _count(depth), "time_s": prompt / speed}
            )
    facts = {
        "file_type": last.get("model_type"),
        "file_bytes": plain(last.get("model_size")),
        "model_file": last.get("model_filename"),
        "n_params_billion": last.get("n_params_billion"),
        "kv_dtype": last.get("type_k"),
        "left_out": ", ".join(others.values())[:200],
        "gpu": known_gpu(str(last.get("gpu_info") or "").split(",")[0].strip()),
    }
    n = plain(last.get("model_n_params"))
    if isinstance(n, int | float) and n > 0:
        facts["n_params_billion"] = n / 1e9
    numbers = ("file_bytes", "n_params_billion")
    return {k: v for k, v in facts.items() if isinstance(v, int | float if k in numbers else str) and v != ""}, runs


def _which(row: dict) -> tuple:
    """What tells one model of a table from another: its type alone may be shared."""
    return tuple(str(row.get(k)) for k in ("model_type", "model_size", "n_params_billion", "model_n_params"))


def _count(value) -> int:
    return value if isinstance(value, int) and value > 0 else 0
