"""The parts of an exercise notebook: which cell is what, and how a source becomes what students receive.

A source holds, for each exercise, in order: its text, perhaps the inputs it is given, the answer cell with the
solution marked in it, a visible check, hidden checks that only print, named wrong answers and other right ones.
Everything about a cell follows from its part and its place, so nothing is numbered by hand.
"""

import hashlib
import re
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode

ONCE = ("answer", "check", "given")
NOT_RUN = ("wrong", "right")     # answers to try, in the source alone: no run of the notebook has them
SOURCE_ONLY = ("hidden", *NOT_RUN)
PARTS = ("student", "text", *ONCE, *SOURCE_ONLY)
HEADING = re.compile(r"### (?P<name>\d\d\.\d+) · (?P<title>.+) \((?P<level>[ABC]) · (?P<points>\d+) points?"
                     r" · (?P<minutes>\d+) minutes(?P<variant> · your own numbers)?\)")
SOLUTION = re.compile(r"(?m)^(?P<indent>[ ]*)### BEGIN SOLUTION (?P<size>about \d+ lines?)\n"
                      r"(?:.*\n)*?[ ]*### END SOLUTION[ ]*(?:\n|\Z)")
EXPECTED = re.compile(r"(?m)^# expected: (?P<text>.*?) \| (?P<why>.+)\n?")


class FormatError(ValueError):
    """A source notebook that breaks the format; the message names the exercise."""


@dataclass(slots=True, kw_only=True)
class Exercise:
    """One exercise of a source: what its heading says, and its cells by part."""

    name: str
    title: str
    level: str
    points: int
    minutes: int
    variant: bool
    cells: dict[str, list[NotebookNode]] = field(default_factory=dict)

    @property
    def grade_id(self) -> str:
        """The id of its text cell, and the beginning of the ids of its other cells.

        >>> Exercise(name="05.2", title="", level="A", points=1, minutes=1, variant=False).grade_id
        'ex05_2'
        """
        return "ex" + self.name.replace(".", "_")

    def one(self, part: str) -> NotebookNode | None:
        """Its only cell of a part, or None."""
        found = self.cells.get(part, [])
        return found[0] if found else None

    def digest(self) -> str:
        """Twelve hex digits that change when anything a grade depends on changes."""
        graded = [cell.source for part in ("text", "given", "check", "hidden") for cell in self.cells.get(part, [])]
        return digest([*graded, self.stub()])

    def stub(self) -> str:
        """Its answer cell as students receive it; empty where it has none."""
        answer = self.one("answer")
        return stub(answer.source, self.name) if answer else ""


def digest(texts: list[str]) -> str:
    """Twelve hex digits of the SHA-256 of some texts.

    >>> digest(["a", "b"]) == digest(["ab"])
    False
    """
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def part_of(cell: NotebookNode) -> str:
    """The part that a cell's metadata names, or an empty string."""
    return cell.metadata.get("econ", {}).get("part", "")


def exercises(nb: NotebookNode) -> list[Exercise]:
    """Every exercise of a source, in order; raises FormatError for a cell that belongs to none."""
    found: list[Exercise] = []
    for cell in nb.cells:
        heading = HEADING.match(cell.source) if cell.cell_type == "markdown" else None
        part = "text" if heading else part_of(cell)
        if heading:
            values: dict = heading.groupdict()
            found.append(Exercise(**values | {"points": int(values["points"]), "minutes": int(values["minutes"]),
                                              "variant": bool(values["variant"])}))
        if part in ("", "student"):
            continue
        if part not in PARTS or not found:
            raise FormatError(f"a cell of part {part!r} stands before the first exercise, or is no part of one")
        found[-1].cells.setdefault(part, []).append(cell)
    return found


def assign(nb: NotebookNode) -> NotebookNode:
    """Write ids and metadata of every cell of a source from its part and its place, in place."""
    for position, cell in enumerate(nb.cells, start=1):
        cell.id = f"cell-{position:03d}"
        if part_of(cell) == "student":
            cell.id = "student"
            cell.metadata["nbgrader"] = _nbgrader("student", solution=False, locked=False)
    for exercise in exercises(nb):
        for part, cells in exercise.cells.items():
            for number, cell in enumerate(cells, start=1):
                _assign(exercise, part, cell, "" if part in ONCE else f"_{number}")
    return nb


def _assign(exercise: Exercise, part: str, cell: NotebookNode, suffix: str) -> None:
    cell.id = exercise.grade_id if part == "text" else f"{exercise.grade_id}_{part}{suffix}"
    kept = {key: value for key, value in cell.metadata.get("econ", {}).items() if key in ("name", "hint", "points")}
    cell.metadata["econ"] = nbformat.from_dict({"part": part, "exercise": exercise.name} | kept)
    if part not in NOT_RUN:
        points = int(kept["points"]) if part == "hidden" else None
        answer = part == "answer"
        cell.metadata["nbgrader"] = _nbgrader(cell.id, solution=answer, locked=not answer, points=points)


def _nbgrader(grade_id: str, *, solution: bool, locked: bool, points: int | None = None) -> NotebookNode:
    values = {"schema_version": 3, "grade_id": grade_id, "grade": points is not None, "solution": solution,
              "locked": locked, "task": False}
    return nbformat.from_dict(values | ({} if points is None else {"points": points}))


def stub(source: str, name: str) -> str:
    """An answer cell without its solution.

    >>> print(stub("def f(x):\\n    ### BEGIN SOLUTION about 1 line\\n    return x\\n    ### END SOLUTION", "05.2"))
    def f(x):
        # Your code here, about 1 line.
        raise NotImplementedError("05.2 is not answered yet")
    """
    def replace(found: re.Match) -> str:
        indent = found["indent"]
        lines = [f"{indent}# Your code here, {found['size']}."]
        if indent:
            lines.append(f'{indent}raise NotImplementedError("{name} is not answered yet")')
        return "\n".join(lines) + "\n"

    return SOLUTION.sub(replace, source).rstrip("\n")


def expected(cell: NotebookNode) -> str:
    """What a hidden check should print, as written by hand in its comments: one line each."""
    return "\n".join(found["text"] for found in EXPECTED.finditer(cell.source))


def without_expected(source: str) -> str:
    """A hidden check as it may be shown to a student's kernel: without what it should print.

    >>> without_expected("# expected: 4 | 2 x 2\\nprint(f(2))")
    'print(f(2))'
    """
    return EXPECTED.sub("", source)


def printed(cell: NotebookNode) -> str:
    """The text that a cell printed when it was last run."""
    return "".join(o.text for o in cell.get("outputs", []) if o.get("name") == "stdout").rstrip("\n")


def release_id(nb: NotebookNode) -> str:
    """Twelve hex digits that name this edition of a source."""
    return digest([exercise.digest() for exercise in exercises(nb)])


def release(nb: NotebookNode, notebook: str) -> NotebookNode:
    """What students receive: stubs for solutions, no hidden check, no wrong or right answer, no output."""
    given = nbformat.from_dict(nb)
    names = {cell.id: exercise.name for exercise in exercises(given) for cell in exercise.cells.get("answer", [])}
    given.cells = [cell for cell in given.cells if part_of(cell) not in SOURCE_ONLY]
    for cell in given.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if cell.id in names:
            cell.source = stub(cell.source, names[cell.id])
    given.metadata["econ"] = {"release": release_id(nb), "notebook": notebook}
    return given


def problems(nb: NotebookNode) -> list[str]:
    """Everything in an executed source that breaks the format, one line each."""
    found = []
    for exercise in exercises(nb):
        found += [f"{exercise.name}: {text}" for text in _exercise_problems(exercise)]
    return found


def _exercise_problems(exercise: Exercise) -> list[str]:
    cells = exercise.cells
    found = [f"one {part} cell is needed, not {len(cells.get(part, []))}" for part in ("answer", "check")
             if len(cells.get(part, [])) != 1]
    found += [f"at least one {part} cell is needed" for part in SOURCE_ONLY if part not in cells]
    if any(len(cells.get(part, [])) > 1 for part in ("given", "text")):
        found.append("one text and one given cell at most")
    points = sum(int(cell.metadata.econ.get("points", 0)) for cell in cells.get("hidden", []))
    if points != exercise.points:
        found.append(f"the heading says {exercise.points} points, its hidden checks have {points}")
    answer = exercise.one("answer")
    if answer and not SOLUTION.search(answer.source):
        found.append("the answer cell marks no solution (### BEGIN SOLUTION about N lines ... ### END SOLUTION)")
    found += [f"{cell.id}: printed {printed(cell)!r}, the comment expects {expected(cell)!r}"
              for cell in cells.get("hidden", []) if printed(cell) != expected(cell)]
    found += [f"{cell.id}: a wrong answer needs a name and a hint" for cell in cells.get("wrong", [])
              if not {"name", "hint"} <= set(cell.metadata.econ)]
    return found
