"""The tables of chapters in intro.md and README.md, held against _toc.yml and the notebooks.

python tools/contents.py            write the minutes of each chapter into intro.md
python tools/contents.py --check    exit 1 if a chapter is missing, misplaced, misnamed or has other minutes

A row of intro.md is "| {doc}`chapters/01_topic` | question | minutes | runs on |", one of README.md
"| 01 | [Title](chapters/01_topic.ipynb) | question |". Everything but the minutes is written by hand.
"""

import re
import sys

import book
import notebooks
from settings import ROOT

WORDS_PER_MINUTE = 200
FOLDED = ("hide", "remove")   # tags of cells that a reader does not see at first
INTRO_ROW = re.compile(r"^\| \{doc\}`(chapters/\w+)` \| [^|]+ \| *(\d*) \| [^|]+ \|$", re.M)
README_ROW = re.compile(r"^\| (\d\d) \| \[([^]]+)\]\((chapters/\w+)\.ipynb\) \| [^|]+ \|$", re.M)


def chapters() -> list[str]:
    """The chapters of _toc.yml, in order, without suffix."""
    return [page for page in book.pages(ROOT) if page.startswith("chapters/")]


def chapter(page: str):
    """The notebook of a page."""
    return notebooks.read(ROOT / f"{page}.ipynb")


def minutes(nb) -> int:
    """Reading time: 200 words a minute and a minute for each visible code cell, to the nearest five minutes."""
    words = sum(len(cell.source.split()) for cell in nb.cells if cell.cell_type == "markdown")
    cells = sum(not any(tag.startswith(FOLDED) for tag in notebooks.tags(cell)) for cell in notebooks.code_cells(nb))
    return 5 * round((words / WORDS_PER_MINUTE + cells) / 5)


def heading(nb) -> str:
    """The first line of a chapter, "01 · Title"."""
    return nb.cells[0].source.splitlines()[0].removeprefix("# ")


def with_minutes(intro: str) -> str:
    """intro.md with the minutes of every chapter that it lists."""
    def row(found: re.Match[str]) -> str:
        start, end = found.start(2) - found.start(), found.end(2) - found.start()
        return found[0][:start] + str(minutes(chapter(found[1]))) + found[0][end:]
    return INTRO_ROW.sub(row, intro)


def problems(intro: str, readme: str) -> list[str]:
    """Everything in the two tables that differs from _toc.yml or the notebooks, one line each."""
    found = []
    if [page for page, _ in INTRO_ROW.findall(intro)] != chapters():
        found.append("intro.md does not list the chapters of _toc.yml, each once and in order")
    if [page for *_, page in README_ROW.findall(readme)] != chapters():
        found.append("README.md does not list the chapters of _toc.yml, each once and in order")
    for number, title, page in README_ROW.findall(readme):
        if f"{number} · {title}" != heading(chapter(page)):
            found.append(f'README.md calls {page} "{title}", its heading is "{heading(chapter(page))}"')
    if with_minutes(intro) != intro:
        found.append("intro.md has other minutes than the notebooks: run tools/contents.py")
    return found


def main(argv: list[str]) -> int:
    """Write the minutes, or with --check only name what is wrong."""
    path = ROOT / "intro.md"
    if "--check" not in argv:
        path.write_text(with_minutes(path.read_text(encoding="utf-8")), encoding="utf-8")
    found = problems(path.read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8"))
    print("\n".join(found) or "The tables of chapters are current.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
