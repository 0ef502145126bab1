"""What hidden checks print for each student where inputs differ; run as a program, so that grading stays light.

python variants.py NOTEBOOK_FILE < STUDENTS      STUDENTS is a JSON list; prints {student: {cell id: text}}

It runs the source's own solutions and nothing of any student.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat

HERE = Path(__file__).resolve().parent


def outputs(path: Path, students: Iterable[str]) -> dict[str, dict[str, str]]:
    """Student -> hidden check -> its text, for the exercises with numbers of a student's own.

    Raises RuntimeError when the source's own solution fails.
    """
    done = subprocess.run([sys.executable, "-P", str(HERE / "variants.py"), str(path)], capture_output=True,
                          input=json.dumps(sorted(students)), text=True)
    if done.returncode:
        raise RuntimeError(f"{path.name}: its solutions fail: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(path: Path) -> None:
    """Print the outputs for every student named on standard input."""
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
    from grading import parts, trial

    nb = nbformat.read(path, as_version=4)
    found: dict[str, dict[str, str]] = {}
    for student in json.load(sys.stdin):
        found[student] = {}
        for exercise in parts.exercises(nb):
            answer = exercise.one("answer")
            if exercise.variant and answer:
                texts = trial.attempt(nb, exercise, answer.source, student).hidden
                ids = [cell.id for cell in exercise.cells["hidden"]]
                found[student] |= {key: text + "\n" for key, text in zip(ids, texts, strict=True)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
