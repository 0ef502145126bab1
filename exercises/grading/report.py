"""What a teacher and a student read: JSON for each submission, CSV and a summary for a class, Markdown feedback."""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def safe(name: str) -> str:
    """A file name for a student's id; ids that need changing get a few digits of their hash.

    >>> safe("ada"), safe("../ada")
    ('ada', 'ada-60088279')
    """
    plain = re.sub(r"[^\w.@+-]+", "", name).lstrip(".-").encode()[:80].decode(errors="ignore")
    return plain if plain == name else f"{plain or 'student'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def result_path(out: Path, notebook: str, student: str) -> Path:
    """Where the result of one submission is kept."""
    return out / "json" / (notebook or "unknown") / f"{safe(student)}.json"


def load(path: Path) -> dict:
    """A kept result, or an empty one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def save(out: Path, result: dict, points_only: bool = False) -> None:
    """Keep a result and write the student's feedback."""
    path = result_path(out, result["notebook"], result["student"])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
    page = out / "feedback" / (result["notebook"] or "unknown") / f"{safe(result['student'])}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(feedback(result, points_only), encoding="utf-8")


def kept(out: Path) -> list[dict]:
    """Every kept result, by notebook and student."""
    return [result for path in sorted((out / "json").glob("*/*.json")) if (result := load(path))]


def feedback(result: dict, points_only: bool = False) -> str:
    """The page for one student, perhaps without what the student's code printed."""
    lines = [f"# {result['notebook'] or 'Your notebook'}: {result['student']}", ""]
    if result["status"] != "graded":
        return "\n".join([*lines, f"Not graded: {result['problem']}.", ""])
    lines += [f"**{result['points']} of {result['max_points']} points**", ""]
    for name, exercise in result["exercises"].items():
        right = sum(check["points"] == check["max_points"] for check in exercise["checks"].values())
        lines += [f"## {name} · {exercise['title']}: {exercise['points']} of {exercise['max_points']} points", "",
                  f"{right} of {len(exercise['checks'])} graded checks right.", ""]
        shown = [] if points_only else exercise["feedback"]
        lines += [*(f"    {line}" for line in shown), ""] if shown else []
    if result["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in result["notes"]), ""]
    return "\n".join(lines)


def write_tables(out: Path) -> list[Path]:
    """One CSV for each notebook: a row a student, a column an exercise."""
    results, written = kept(out), []
    for notebook in sorted({result["notebook"] for result in results}):
        rows = [result for result in results if result["notebook"] == notebook]
        names = sorted({name for row in rows for name in row.get("exercises", {})})
        path = out / f"{notebook or 'unknown'}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["student", "status", "points", "max_points", *names, "sandbox", "release", "notes"])
            table.writerows(map(_row, rows, [names] * len(rows)))
        written.append(path)
    return written


def _row(result: dict, names: Sequence[str]) -> list:
    points = [result.get("exercises", {}).get(name, {}).get("points", "") for name in names]
    notes = "; ".join([*result["notes"], *([result["problem"]] if result["problem"] else [])])
    row = [result["student"], result["status"], result["points"], result["max_points"], *points, result["sandbox"],
           result["release"], notes]
    return [_harmless(value) for value in row]


def _harmless(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def summary(results: Iterable[dict]) -> str:
    """A table of a class: for each exercise how much of its points was earned, in Markdown."""
    lines = []
    results = list(results)
    for notebook in sorted({result["notebook"] for result in results}):
        rows = [r for r in results if r["notebook"] == notebook]
        graded = [r for r in rows if r["status"] == "graded"]
        lines += [f"## {notebook or 'unknown'}: {len(graded)} graded, {len(rows) - len(graded)} not", ""]
        if not graded:
            continue
        lines += [f"Sandbox: {', '.join(sorted({r['sandbox'] for r in graded}))}.", "",
                  "| exercise | points | mean | full marks |", "|---|---|---|---|"]
        lines += [_summary_row(name, [r["exercises"][name] for r in graded if name in r["exercises"]])
                  for name in sorted({name for r in graded for name in r["exercises"]})]
        mean = sum(r["points"] for r in graded) / len(graded)
        lines += ["", f"Mean of all: {mean:.1f} of {graded[0]['max_points']} points.", ""]
    return "\n".join(lines)


def _summary_row(name: str, exercises: list[dict]) -> str:
    points, most = [e["points"] for e in exercises], exercises[0]["max_points"]
    full = sum(p == most for p in points) / len(points)
    return f"| {name} {exercises[0]['title']} | {most} | {sum(points) / len(points):.2f} | {full:.0%} |"
