"""Try answers that are our own, in this process: solutions, stubs, right and wrong answers of a source.

Fast and without any protection, so never for a student's answer: grading runs those in a kernel of their own.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from grading import parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What an answer printed and earned."""

    check: str
    hidden: tuple[str, ...]
    points: int


def setup(nb: NotebookNode, student: str = "your-id") -> dict:
    """The names that the cells outside of exercises define, but for the one that finds the package."""
    names: dict = {"__name__": "__main__"}
    for cell in nb.cells:
        if parts.part_of(cell) == "student":
            names["STUDENT"] = student
        elif cell.cell_type == "code" and not parts.part_of(cell) and "hide-cell" not in cell.metadata.get("tags", []):
            run(cell.source, names)
    return names


def run(source: str, names: dict) -> str:
    """Run one cell; returns what it printed, with the last line of an error in place of one."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, "<cell>", "exec"), names)
        except Exception as error:   # an answer may raise anything
            print(f"{type(error).__name__}: {error}")
    return out.getvalue().rstrip("\n")


def attempt(nb: NotebookNode, exercise: parts.Exercise, answer: str, student: str = "your-id") -> Trial:
    """Run one answer to one exercise, between the given cell and the checks of the source."""
    names = setup(nb, student)
    for cell in exercise.cells.get("given", []):
        run(cell.source, names)
    run(answer, names)
    check = "\n".join(run(cell.source, names) for cell in exercise.cells.get("check", []))
    hidden = exercise.cells.get("hidden", [])
    printed = tuple(run(cell.source, names) for cell in hidden)
    earned = sum(int(cell.metadata.econ.points) for cell, text in zip(hidden, printed, strict=True)
                 if text == parts.expected(cell))
    return Trial(check=check, hidden=printed, points=earned)


def problems(nb: NotebookNode) -> list[str]:
    """Every answer of a source that does not earn what it should, one line each."""
    return [f"{exercise.name}: {text}" for exercise in parts.exercises(nb) for text in _problems(nb, exercise)]


def _problems(nb: NotebookNode, exercise: parts.Exercise) -> Iterator[str]:
    answer = exercise.one("answer")
    assert answer
    for name, source in [("the solution", answer.source)] + [
            (f"right answer {cell.metadata.econ.get('name')!r}", cell.source) for cell in exercise.cells["right"]]:
        tried = attempt(nb, exercise, source)
        if tried.points != exercise.points or not tried.check.endswith("every check passed"):
            yield f"{name} earns {tried.points} of {exercise.points}: {tried.check!r}, {tried.hidden}"
    untouched = attempt(nb, exercise, exercise.stub())
    if untouched.points or not untouched.check.endswith("not answered yet"):
        yield f"the stub earns {untouched.points}: {untouched.check!r}, {untouched.hidden}"
    for cell in exercise.cells["wrong"]:
        tried = attempt(nb, exercise, cell.source)
        if tried.points == exercise.points or cell.metadata.econ.hint.lower() not in tried.check.lower():
            yield f"wrong answer {cell.metadata.econ.name!r} earns {tried.points}: {tried.check!r}, {tried.hidden}"
