"""A small exercise notebook of the tests' own, submissions to it, and one call that grades them."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import drafts
import nbformat
from grading import batch, choose, parts, report
from grading.sandbox import MECHANISMS, Limits
from settings import bootstrap_source

DRAFT = '''
# Toy
```{code-cell}
:part: student
STUDENT = "your-id"
```
```{code-cell}
import math
from econ.exercise import exercise, expect_value, expect_within, variant
```
### 99.1 · Cubes (A · 3 points · 5 minutes)

The sum of the first `n` cubes.
```{code-cell}
:part: answer
def cubes(n):
    ### BEGIN SOLUTION about 1 line
    return sum(i**3 for i in range(1, n + 1))
    ### END SOLUTION
```
```{code-cell}
:part: check
with exercise("99.1"):
    expect_value(cubes(3), 36, "three cubes", hints={14 / 36: "cubes, not squares"})
```
```{code-cell}
:part: hidden
:points: 1
# expected: 494209 | (37 x 38 / 2)^2 = 703^2
print(round(cubes(37)))
```
```{code-cell}
:part: hidden
:points: 2
# expected: 2927521 | (58 x 59 / 2)^2 = 1711^2
marker_of_the_hidden_check = 58
print(round(cubes(marker_of_the_hidden_check)))
```
### 99.2 · Your square (B · 2 points · 5 minutes · your own numbers)

The square of `side`.
```{code-cell}
:part: given
side = variant(STUDENT, "99.2").randrange(1_000, 10_000)
```
```{code-cell}
:part: answer
my_square = None
### BEGIN SOLUTION about 1 line
my_square = side**2
### END SOLUTION
```
```{code-cell}
:part: check
with exercise("99.2"):
    expect_within(my_square, 1e6, 1e8, "the square", slips={2 * side: "twice the side"})
```
```{code-cell}
:part: hidden
:points: 2
print(round(my_square))
```
### 99.3 · A power (C · 2 points · 5 minutes)

How many values do seven bits have?
```{code-cell}
:part: answer
values = None
### BEGIN SOLUTION about 1 line
values = 2**7
### END SOLUTION
```
```{code-cell}
:part: check
with exercise("99.3"):
    expect_within(values, 1, 1e6, "values")
```
```{code-cell}
:part: hidden
:points: 2
# expected: 7 | log2 of 128
print(round(math.log2(values)))
```
'''
NAME = "99_toy"
SOLUTIONS = {"99.1": "def cubes(n):\n    return sum(i**3 for i in range(1, n + 1))", "99.2": "my_square = side**2",
             "99.3": "values = 2**7"}
LIMITS = Limits(memory_bytes=700 << 20, cell_s=6, total_s=60, output_bytes=200_000)


def square_of(student: str) -> int:
    """What 99.2 should print for a student, without the notebook."""
    from econ.exercise import variant

    return variant(student, "99.2").randrange(1_000, 10_000) ** 2


def source():
    """The source notebook, its hidden checks with what they print by hand."""
    nb = nbformat.v4.new_notebook(cells=drafts.cells_of(DRAFT))
    nb.cells.insert(1, nbformat.v4.new_code_cell(bootstrap_source(), metadata={"tags": ["hide-cell"]}))
    for cell in parts.assign(nb).cells:
        if parts.part_of(cell) == "hidden":
            text = parts.expected(cell) or str(square_of("your-id"))
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text + "\n")]
    nb.metadata = nbformat.from_dict({"kernelspec": {"display_name": "Python 3", "language": "python",
                                                     "name": "python3"}})
    return nb


def write_course(folder: Path) -> Path:
    """A folder laid out like exercises/, with the toy in it; returns it."""
    nb = source()
    (folder / "source").mkdir(parents=True)
    (folder / "source").chmod(0o700)
    nbformat.write(nb, folder / "source" / f"{NAME}.ipynb")
    nbformat.write(parts.release(nb, NAME), folder / f"{NAME}.ipynb")
    rows = {exercise.name: exercise.digest() for exercise in parts.exercises(nb)}
    older = rows | {"99.3": "0123456789ab"}
    text = json.dumps({"aaaaaaaaaaaa": {"notebook": NAME, "exercises": older},
                       parts.release_id(nb): {"notebook": NAME, "exercises": rows}})
    (folder / "releases.json").write_text(text)
    return folder


def submission(answers: Mapping[str, str], student: str = "your-id"):
    """The release with some answers filled in."""
    nb = parts.release(source(), NAME)
    for cell in nb.cells:
        name = cell.metadata.get("econ", {}).get("exercise", "")
        if parts.part_of(cell) == "answer" and name in answers:
            cell.source = answers[name]
        if parts.part_of(cell) == "student":
            cell.source = f"STUDENT = {student!r}"
    return nb


def cell(nb, cell_id: str):
    """The cell of an id."""
    return next(c for c in nb.cells if c.id == cell_id)


@dataclass(frozen=True, slots=True)
class Graded:
    """What a batch left behind."""

    out: Path
    failed: int

    def result(self, student: str) -> dict:
        """The kept result of a student."""
        return next(r for r in report.kept(self.out) if r["student"] == student)

    def points(self, student: str) -> dict[str, int]:
        """Exercise -> points of a student."""
        return {name: e["points"] for name, e in self.result(student)["exercises"].items()}


def run_batch(course: Path, submissions: Path, out: Path, mechanisms=MECHANISMS, limits=LIMITS, jobs=None,
              again=False) -> Graded:
    """Grade a folder or a zip."""
    job = batch.Batch(exercises=course, out=out, limits=limits, mechanisms=mechanisms,
                      jobs=jobs or choose.cores(), again=again)
    return Graded(out, batch.grade(job, submissions))


def write_all(folder: Path, notebooks: Mapping[str, object]) -> Path:
    """Write submissions, a file a student; text is written as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for student, nb in notebooks.items():
        text = nb if isinstance(nb, str) else json.dumps(nb)
        (folder / f"{student}.ipynb").write_text(text, encoding="utf-8")
    return folder


def protection(course: Path) -> str:
    """The mechanism that protects on this machine, or an empty string; SANDBOX=name tries that one alone."""
    wanted = [os.environ["SANDBOX"]] if "SANDBOX" in os.environ else MECHANISMS
    with tempfile.TemporaryDirectory(prefix="grade-") as stage:
        choose.prepare(Path(stage))
        found = choose.choose(Path(stage), [course / "source"], LIMITS, 1, wanted)
    return found.mechanism if found.protected else ""
