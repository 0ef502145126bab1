"""Exercises: from a source with solutions to what students receive.

python tools/release.py new exercises/source/02_topic.md       draft -> source notebook, not executed
python tools/release.py run exercises/source/02_topic.ipynb    execute, normalise and check a source in place
python tools/release.py draft exercises/source/02_topic.ipynb  source notebook -> draft on standard output
python tools/release.py try exercises/source/02_topic.ipynb    its solutions, stubs, right and wrong answers, tried
python tools/release.py                                        write every release and the pages of solutions
python tools/release.py --check                                say what is out of date, change nothing
python tools/release.py --nbgrader FOLDER                      write versions that nbgrader can generate and grade

A draft is Markdown as in tools/notebooks.py. A heading "### 02.1 · Title (A · 2 points · 5 minutes)" opens an
exercise ("· your own numbers" at its end says that inputs differ by student). The option ":part:" under a fence
says what a code cell is: student, given, answer, check, hidden (with ":points:"), wrong (with ":name:" and
":hint:") or right (with ":name:"). Ids and metadata follow from that.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import drafts
import nbformat
import notebooks
from nbformat import NotebookNode
from settings import ROOT

sys.path.insert(0, str(ROOT / "exercises"))

from grading import parts, trial  # noqa: E402

EXERCISES = ROOT / "exercises"
SOLUTIONS = ROOT / "solutions"
SOURCE = EXERCISES / "source"
RELEASES = EXERCISES / "releases.json"


def sources() -> list[Path]:
    """Every source notebook, in order."""
    return sorted(SOURCE.glob("*.ipynb"))


def normalise(nb: NotebookNode) -> NotebookNode:
    """A source in the one form that is kept: text outputs, metadata and ids from parts and places."""
    nb = parts.assign(notebooks.normalise(nb))
    for cell in nb.cells:
        if parts.part_of(cell) in parts.NOT_RUN:
            cell.outputs, cell.execution_count = [], None
    return nb


def write_source(path: Path) -> list[str]:
    """Write the source notebook of a draft."""
    nb = nbformat.v4.new_notebook(cells=drafts.cells_of(path.read_text(encoding="utf-8")))
    notebooks.write(normalise(nb), path.with_suffix(".ipynb"))
    return []


def run_source(path: Path) -> list[str]:
    """Execute a source with its solutions, without its wrong and other right answers."""
    nb = normalise(notebooks.read(path))
    run = nbformat.from_dict(nb)
    run.cells = [cell for cell in run.cells if parts.part_of(cell) not in parts.NOT_RUN]
    failed = notebooks.execute(run, path)
    if failed:
        return [failed]
    done = {cell.id: cell for cell in run.cells}
    nb.cells = [done.get(cell.id, cell) for cell in nb.cells]
    notebooks.write(normalise(nb), path)
    return source_problems(path)


def draft_source(path: Path) -> list[str]:
    """Print the draft of a source."""
    sys.stdout.write(drafts.text_of([cell for cell in notebooks.read(path).cells
                                     if not notebooks.is_bootstrap(cell)]))
    return []


def try_source(path: Path) -> list[str]:
    """Try every answer that a source knows: full marks for right ones, none for stubs, a hint for wrong ones."""
    return [f"{path.name}: {text}" for text in trial.problems(notebooks.read(path))]


def source_problems(path: Path) -> list[str]:
    """Everything in a source that breaks the format."""
    nb = notebooks.read(path)
    found = parts.problems(nb)
    if path.read_text(encoding="utf-8") != notebooks.render(normalise(notebooks.read(path))):
        found.append("not as `run` leaves it")
    return [f"{path.name}: {text}" for text in found]


def release_text(path: Path) -> str:
    """The notebook that students receive, as it stands on disk."""
    return notebooks.render(parts.release(notebooks.read(path), path.stem))


def solution_pages() -> dict[str, str]:
    """File name -> notebook, for each part of _toc.yml: its exercises, each with the solution and what checks print."""
    toc, pages = (ROOT / "_toc.yml").read_text(encoding="utf-8"), {}
    for caption, chapters in re.findall(r"- caption: (.+)\n    chapters:\n((?:      - file: chapters/\w+\n)+)", toc):
        names = re.findall(r"chapters/(\w+)", chapters)
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(
            f"# Solutions · {caption}\n\nThe exercises of chapters {names[0][:2]} to {names[-1][:2]}, "
            "each with one right answer and what the visible checks say about it.\nTry them first: they are the "
            "notebooks of the same names in the folder `exercises`.")])
        nb.cells += [cell for name in names if (SOURCE / f"{name}.ipynb").is_file()
                     for cell in solved(notebooks.read(SOURCE / f"{name}.ipynb"))]
        pages[f"{re.sub(r'[^a-z]+', '_', caption.lower())}.ipynb"] = notebooks.render(notebooks.normalise(nb))
    return pages


def solved(nb: NotebookNode) -> Iterator[NotebookNode]:
    """The cells of a source as a page of solutions shows them."""
    for number, cell in enumerate(nb.cells):
        part = parts.part_of(cell)
        if part in parts.SOURCE_ONLY or notebooks.is_bootstrap(cell):
            continue
        cell.metadata.pop("nbgrader", None)
        cell.metadata.pop("econ", None)
        if part == "answer":
            cell.source = re.sub(r"(?m)^( *### (BEGIN|END) SOLUTION.*|[\w, ]+ = None(, None)*)\n?", "", cell.source)
        if part == "check":
            cell.metadata["tags"] = ["hide-input"]
        if cell.cell_type == "markdown" and number == 0:
            cell.source = cell.source.splitlines()[0].replace("# Exercises ", "## ")
        yield cell


def editions() -> dict[str, dict]:
    """Release id -> its notebook and the digest of each exercise, for every edition ever released."""
    return json.loads(RELEASES.read_text(encoding="utf-8")) if RELEASES.is_file() else {}


def edition(path: Path) -> dict[str, dict]:
    """The current edition of one source, as a row of releases.json."""
    nb = notebooks.read(path)
    rows = {exercise.name: exercise.digest() for exercise in parts.exercises(nb)}
    return {parts.release_id(nb): {"notebook": path.stem, "exercises": rows}}


def release_all() -> list[str]:
    """Write every release and page of solutions, and add new editions to releases.json."""
    known = editions()
    for path in sources():
        notebooks.write(normalise(notebooks.read(path)), path)   # the first cell follows book.toml
        (EXERCISES / path.name).write_text(release_text(path), encoding="utf-8")
        known |= edition(path)
    RELEASES.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    SOLUTIONS.mkdir(exist_ok=True)
    for name, text in solution_pages().items():
        (SOLUTIONS / name).write_text(text, encoding="utf-8")
    return check_all()


def check_all() -> list[str]:
    """Name every source that breaks the format and every release that is not what its source gives."""
    found, known = [], editions()
    for path in sources():
        given = EXERCISES / path.name
        found += source_problems(path)
        if not given.is_file() or given.read_text(encoding="utf-8") != release_text(path):
            found.append(f"{given.name}: out of date, run tools/release.py")
        if not edition(path).keys() <= known.keys():
            found.append(f"releases.json: lacks the edition of {path.name}, run tools/release.py")
    for name, text in solution_pages().items():
        page = SOLUTIONS / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            found.append(f"solutions/{name}: out of date, run tools/release.py")
    extra = {path.name for path in EXERCISES.glob("*.ipynb")} - {path.name for path in sources()}
    return found + [f"{name}: has no source" for name in sorted(extra)]


def nbgrader_version(nb: NotebookNode) -> NotebookNode:
    """A source as nbgrader reads it: hidden checks as asserts on what they print, between its own marks."""
    nb = nbformat.from_dict(nb)
    nb.cells = [cell for cell in nb.cells if parts.part_of(cell) not in parts.NOT_RUN]
    for cell in nb.cells:
        if parts.part_of(cell) == "hidden":
            cell.source = _as_assert(parts.without_expected(cell.source), parts.printed(cell))
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if parts.part_of(cell) == "answer":
            cell.source = re.sub(r"### BEGIN SOLUTION.*", "### BEGIN SOLUTION", cell.source)
    return nb


def _as_assert(source: str, text: str) -> str:
    lines = ["### BEGIN HIDDEN TESTS", "import contextlib as _c, io as _i",
             "with _c.redirect_stdout(_i.StringIO()) as _out:", *(f"    {line}" for line in source.splitlines()),
             f"assert _out.getvalue().rstrip() == {text!r}", "### END HIDDEN TESTS", "print()"]
    return "\n".join(lines)


def write_nbgrader(folder: Path) -> list[str]:
    """Write the nbgrader version of every source into FOLDER/source/NOTEBOOK/."""
    for path in sources():
        target = folder / "source" / path.stem / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        notebooks.write(nbgrader_version(notebooks.read(path)), target)
    return []


def main(argv: list[str]) -> int:
    """Run one command; exit 1 if it had anything to say, 2 if it was not understood."""
    on_files = {"new": write_source, "run": run_source, "draft": draft_source, "try": try_source}
    if not argv:
        messages = release_all()
    elif argv == ["--check"]:
        messages = check_all()
    elif argv[0] == "--nbgrader" and len(argv) == 2:
        messages = write_nbgrader(Path(argv[1]))
    elif argv[0] in on_files and len(argv) > 1:
        messages = [message for name in argv[1:] for message in on_files[argv[0]](Path(name))]
    else:
        print(__doc__)
        return 2
    print("\n".join(messages), file=sys.stderr, end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
