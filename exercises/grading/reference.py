"""The reference of a notebook: its source, what its hidden checks print, and what students received."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading import parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One source notebook, ready to take answers."""

    notebook: str
    source: NotebookNode
    exercises: tuple[parts.Exercise, ...]
    editions: Mapping[str, Mapping[str, str]]      # release id -> exercise -> its digest, of this notebook

    @property
    def release(self) -> str:
        """The id of the current edition."""
        return parts.release_id(self.source)

    @property
    def digest(self) -> str:
        """Changes with anything that a grade depends on, expected outputs included."""
        return hashlib.sha256(nbformat.writes(self.source).encode()).hexdigest()[:16]

    @property
    def points(self) -> int:
        """Full marks."""
        return sum(exercise.points for exercise in self.exercises)

    def changed_since(self, release: str) -> list[str]:
        """The exercises that differ between an older known release and this one."""
        then = self.editions.get(release, {})
        return [exercise.name for exercise in self.exercises if then.get(exercise.name) != exercise.digest()]

    def expected(self) -> dict[str, str]:
        """Hidden check -> what it prints, as stored in the source."""
        return {cell.id: stored(cell) for exercise in self.exercises for cell in exercise.cells.get("hidden", [])}


def load(exercises: Path, notebook: str) -> Reference:
    """The reference of exercises/source/NOTEBOOK.ipynb; ValueError when there is none or it was not run."""
    path = exercises / "source" / f"{notebook}.ipynb"
    if not path.is_file():
        known = ", ".join(names(exercises)) or "none"
        raise ValueError(f"no notebook {notebook!r} in {path.parent}; known: {known}")
    source = nbformat.read(path, as_version=4)
    editions = json.loads((exercises / "releases.json").read_text(encoding="utf-8"))
    own = {key: row["exercises"] for key, row in editions.items() if row["notebook"] == notebook}
    return Reference(notebook=notebook, source=source, exercises=tuple(parts.exercises(source)), editions=own)


def names(exercises: Path) -> list[str]:
    """Every notebook that has a source."""
    return sorted(path.stem for path in (exercises / "source").glob("*.ipynb"))


def stored(cell: NotebookNode) -> str:
    """The one text that a hidden check printed; ValueError when the source holds anything else."""
    outputs = cell.get("outputs", [])
    if len(outputs) != 1 or outputs[0].get("name") != "stdout" or not outputs[0].text.strip():
        raise ValueError(f"{cell.id} must store one printed text: run tools/release.py run on its source")
    return outputs[0].text


def grafted(reference: Reference, answers: Mapping[str, str], student: str, expected: Mapping[str, str],
            without: Sequence[str] = ()) -> str:
    """The text of the reference with a student's answers in place of solutions.

    `answers` maps exercises to sources; a missing one, or one named in `without`, leaves the stub. Only hidden
    checks keep an output, so nbval compares those and nothing else.
    """
    nb = nbformat.v4.new_notebook()
    replaced = {f"{e.grade_id}_answer": e.stub() if e.name in without else
                answers.get(e.name, e.stub()) for e in reference.exercises}
    for cell in reference.source.cells:
        part = parts.part_of(cell)
        if cell.cell_type == "code" and part not in parts.NOT_RUN:
            text = {"student": f"STUDENT = {student!r}"}.get(part) or replaced.get(cell.id, cell.source)
            nb.cells.append(_code(cell.id, parts.without_expected(text), expected.get(cell.id)))
    return nbformat.writes(nb)


def _code(cell_id: str, source: str, expected: str | None) -> NotebookNode:
    cell = nbformat.v4.new_code_cell(source, id=cell_id)
    if expected is not None:
        cell.execution_count = 1
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=expected)]
    return cell
