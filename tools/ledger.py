"""The page that lists every claim of the two sources with its verdict, the chapter that settles it and a value.

ledger.csv is the data: row, claim (in our words), verdict, chapter, value (text that stands in that chapter),
note. Rows whose chapter is not written yet have no verdict. `tools/tables.py` writes ledger.md from it.
"""

import csv
import re
from collections.abc import Mapping

import notebooks
from mdtable import table
from settings import ROOT

ROWS = [*(f"A{n}" for n in range(1, 61)), *(f"B{n}" for n in range(1, 33))]
VERDICTS = ("reproduced", "qualified", "corrected")


def rows() -> list[dict[str, str]]:
    """The rows of ledger.csv, in order."""
    with open(ROOT / "ledger.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def chapter_texts() -> dict[str, str]:
    """Number of a chapter -> its text and code."""
    return {path.name[:2]: "\n".join(cell.source for cell in notebooks.read(path).cells)
            for path in notebooks.chapters()}


def problems(found: list[dict[str, str]], texts: Mapping[str, str]) -> list[str]:
    """Everything wrong with the rows: one missing or twice, no verdict, a value that its chapter does not have."""
    names = [row["row"] for row in found]
    said = [f"{name}: {names.count(name)} rows" for name in ROWS if names.count(name) != 1]
    said += [f"{name}: no such row" for name in names if name not in ROWS]
    for row in found:
        if row["chapter"] and row["chapter"] not in texts:
            said.append(f"{row['row']}: there is no chapter {row['chapter']}")
        elif row["chapter"] and row["verdict"] not in VERDICTS:
            said.append(f"{row['row']}: verdict {row['verdict']!r} is none of {', '.join(VERDICTS)}")
        elif row["verdict"] and not row["chapter"]:
            said.append(f"{row['row']}: a verdict without a chapter")
        elif row["value"] not in texts.get(row["chapter"], ""):
            said.append(f"{row['row']}: {row['value']!r} does not stand in chapter {row['chapter']}")
    return said


def page() -> str:
    """The page: counts, and a table for each source."""
    found = rows()
    counts = {verdict: sum(row["verdict"] == verdict for row in found) for verdict in VERDICTS}
    open_rows = [row["row"] for row in found if not row["chapter"]]
    return f"""# Ledger of the sources

Every claim of the two sources that this book started from, in our words.
*A* is the article {{cite}}`tensoreconomics2025`.
*B* is a reader's notes on the bottlenecks chapter of {{cite}}`kiely2026`.
Of {len(found)} claims, {counts["reproduced"]} are reproduced, {counts["qualified"]} need a condition, \
{counts["corrected"]} are corrected{_later(open_rows)}.
The value stands in the chapter, where the code computes it or a source is cited.
[The errata](errata.md) say what is wrong, and by what factor.

## The article

{table(["", "claim", "verdict, chapter, value"], [_shown(row) for row in found if row["row"][0] == "A"], left=3)}
## The notes on the book

{table(["", "claim", "verdict, chapter, value"], [_shown(row) for row in found if row["row"][0] == "B"], left=3)}"""


def _later(names: list[str]) -> str:
    return f", and {len(names)} ({', '.join(names)}) concern chapters that are not written yet" if names else ""


def _shown(row: Mapping[str, str]) -> list[str]:
    page = next((path.name for path in notebooks.chapters() if path.name[:2] == row["chapter"]), "")
    value = re.sub(r"(?<=\d) (?=\S+$)", "\u00a0", row["value"])
    settled = [row["verdict"], f"[{row['chapter']}](chapters/{page})" if page else "", value]
    return [row["row"], row["claim"], "<br>".join(filter(None, (" · ".join(filter(None, settled)), row["note"])))]
