"""Predict every row of a benchmark table, and say how far off the predictions are where values are given.

python tools/accuracy.py FILE.csv [--out predictions.csv] [--json]

FILE has the columns of econ/data/measured/{decode_batch1,serving_throughput,latency}.csv. A prediction never looks at
`value`, which may be blank or absent. Written to --out: row_id, predicted, low, high (80 %), profile, reason (why a row
is refused), unseen (which of model and GPU the profile was not fitted to). With values, errors are printed by metric,
source, engine and GPU. A bad row is refused with its reason; it stops nothing.
"""

import argparse
import csv
import io
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rows  # noqa: E402

csv.field_size_limit(2**24)
NEEDED = ("gpu", "n_gpus", "model", "batch_or_concurrency", "isl", "osl", "metric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row: the number in the row's unit and its 80 % interval, or the reason why there is none."""

    row_id: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    profile: str = ""
    reason: str = ""
    unseen: str = ""


def predict(row: dict) -> Prediction:
    """The prediction for one row, without its value."""
    blind = {key: cell for key, cell in row.items() if key != "value"}
    name = str(row.get("row_id") or "")
    try:
        q = rows.question(blind)
        found = float(rows.answer(q))
        profile = q.deployment.profile
        unseen = profile.unseen(q.deployment.model, q.deployment.accelerator)
        low, high = q.interval(found) if 0 < found < float("inf") else (None, None)
    except ValueError as error:
        return Prediction(row_id=name, reason=" ".join(str(error).split())[:300])
    except Exception as error:  # whatever a table may hold: one row less, not a crash
        return Prediction(row_id=name, reason=f"not understood: {type(error).__name__}: {error}"[:300])
    if not 0 < found < float("inf"):
        return Prediction(row_id=name, reason=f"no positive finite prediction: {found}")
    return Prediction(row_id=name, predicted=found, low=low, high=high, profile=profile.name, unseen=" ".join(unseen))


def read(path: Path) -> list[dict]:
    """The rows of a CSV file. Raises ValueError where it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace").replace("\0", "")
        table = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
        found = [dict(row) for row in table]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except csv.Error as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    lacking = [name for name in NEEDED if name not in (table.fieldnames or ())]
    if len(lacking) == len(NEEDED):
        raise ValueError(f"{path} has none of the columns {', '.join(NEEDED)}; separate them by commas, names first")
    if lacking:
        print(f"{path} has no column {', '.join(lacking)}: rows that need it are refused", file=sys.stderr)
    return found


def errors(pairs: list[tuple[dict, Prediction]]) -> dict:
    """Rows, refused, absolute percentage errors, bias and coverage of some rows with values."""
    valued = [(p, rows.number(row, "value")) for row, p in pairs]
    judged = [(p.low, p.predicted, p.high, value) for p, value in valued
              if value and p.predicted is not None and p.low is not None and p.high is not None]
    result = {"rows": len(pairs), "refused": sum(p.predicted is None for _, p in pairs)}
    if not judged:
        return result
    relative = [predicted / value - 1 for _, predicted, _, value in judged]
    size = [abs(e) for e in relative]
    inside = sum(low <= value <= high for low, _, high, value in judged)
    return {**result, "median_ape": 100 * statistics.median(size), "mean_ape": 100 * statistics.fmean(size),
            "bias": 100 * statistics.median(relative), "coverage": 100 * inside / len(judged)}


def source_of(row: dict) -> str:
    """Where a row was published: the site, and on GitHub the repository."""
    parts = urlsplit(row.get("source_url") or "")
    path = "/".join(parts.path.split("/")[:3]) if parts.netloc == "github.com" else ""
    return parts.netloc + path or "source not given"


GROUPS = {"metric": lambda row: row.get("metric") or "metric not given", "source": source_of,
          "engine": lambda row: rows.engine_of(row), "gpu": lambda row: row.get("gpu") or "GPU not given"}


def report(pairs: list[tuple[dict, Prediction]]) -> dict:
    """Errors of all rows and by group."""
    found: dict = {"all": {"all": errors(pairs)}}
    for name, key in GROUPS.items():
        split: dict = {}
        for row, p in pairs:
            split.setdefault(key(row), []).append((row, p))
        found[name] = {group: errors(some) for group, some in sorted(split.items())}
    return found


def lines(found: dict) -> str:
    """The report as aligned text."""
    head = ("", "rows", "refused", "median %", "mean %", "bias %", "in 80 %")
    text = []
    for name, groups in found.items():
        table = [(name, *head[1:])]
        for group, e in groups.items():
            shown = [f"{e[k]:.1f}" if k in e else "-" for k in ("median_ape", "mean_ape", "bias", "coverage")]
            table.append((group[:44], str(e["rows"]), str(e["refused"]), *shown))
        text += [f"{row[0]:<44}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in table] + [""]
    return "\n".join(text)


def write(path: Path, predictions: list[Prediction]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, Prediction.__annotations__)
        writer.writeheader()
        writer.writerows(asdict(p) for p in predictions)


def main(argv: list[str]) -> int:
    """Predict a file. Exit status 2 if it cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="write the predictions to this file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    try:
        table = read(args.file)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    pairs = [(row, predict(row)) for row in table]
    try:
        if args.out:
            write(args.out, [p for _, p in pairs])
    except OSError as error:
        print(f"cannot write {args.out}: {error.strerror}", file=sys.stderr)
        return 2
    found = report(pairs)
    if args.json:
        print(json.dumps({"predictions": [asdict(p) for _, p in pairs], "errors": found}, indent=1))
    else:
        print(lines(found))
        refused = sorted({p.reason for _, p in pairs if p.reason})
        print("\n".join(["Refused because:", *refused[:40]]) if refused else "No row is refused.")
        if not args.out:
            print("The predictions: --out FILE writes them, --json prints them.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
