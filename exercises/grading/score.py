"""From a submission to its points: graft, run, again without an exercise that ended the kernel, and count."""

import builtins
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grading import parts, runner
from grading.match import Answers
from grading.reference import Reference, grafted
from grading.sandbox import Limits, Sandbox

LINE_CHARS, LINES = 200, 6
WORD = re.compile(r"\w{3,}")
REASONS = {"timeout": "takes longer than {cell_s} s", "died": "ends the kernel or runs out of memory",
           "too much output": "prints too much", "memory": "uses more than {memory_mb} MB",
           "disk": "writes more than {disk_mb} MB",
           "time": "was not finished when the time of {total_s} s for the notebook was over",
           "files among its channels": "meddles with the kernel's channels", "too many results": "prints too much"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Exercise -> points, checks and feedback; and the seconds that cells ran, the grader's own time left out."""

    exercises: dict[str, dict]
    code_s: float


class NotGraded(RuntimeError):
    """The reference itself could not be run; nobody's answer is to blame."""


def score(reference: Reference, answers: Answers, student: str, expected: Mapping[str, str], sandbox: Sandbox,
          slot: int, folder: Path) -> Score:
    """What a submission earns. Raises NotGraded when the kernel or the set-up cells fail.

    An exercise that ends the kernel is left out, and the rest is run again, as long as the time allows.
    """
    stopped: dict[str, str] = {}     # exercise -> why the kernel did not survive it
    left_s, code_s = float(sandbox.limits.total_s), 0.0
    while True:
        at = folder / str(len(stopped))
        notebook = grafted(reference, answers.sources, student, expected, without=list(stopped))
        run = runner.run(sandbox, slot, notebook, at, left_s)
        runner.remove(at)
        left_s, code_s = left_s - run.seconds, code_s + sum(cell["seconds"] for cell in run.cells)
        culprit, why = blame(reference, run)
        if not culprit or culprit in stopped:
            break
        stopped[culprit] = why
        if left_s < 1:
            break
    secret, limits = hidden_words(reference, answers), sandbox.limits
    exercises = {e.name: count(e, run, e.name in stopped) | {
        "feedback": feedback(e, answers, run, stopped.get(e.name, ""), limits, secret)} for e in reference.exercises}
    return Score(exercises=exercises, code_s=code_s)


def blame(reference: Reference, run: runner.Run) -> tuple[str, str]:
    """The exercise whose cell ended the kernel or the run, and why; empty when all cells were run."""
    ids = [cell.id for cell in reference.source.cells if cell.cell_type == "code"
           and parts.part_of(cell) not in parts.NOT_RUN]
    owners = {cell.id: e.name for e in reference.exercises for cells in e.cells.values() for cell in cells}
    done = list(run.cells)
    first = next((ids.index(key) for key in ids if key.endswith("_answer")), len(ids))
    failed = next((cell for cell in done[:first] if cell["outcome"] != "passed"), None)
    if failed or len(done) < first:
        what = f"{failed['id']} {failed['outcome']}: {' '.join(failed['error'])}" if failed else run.stopped
        raise NotGraded(f"the reference does not start: {what or 'no kernel'}"[:300])
    dead = next((cell for cell in done if not cell["alive"]), None)
    if dead:
        return owners.get(dead["id"], ""), dead["outcome"]
    if len(done) < len(ids):
        return owners.get(ids[len(done)], ""), run.stopped or "died"
    full = next((cell for cell in done if cell["id"].endswith("_answer") and cell["error"][0] == "MemoryError"), None)
    if full:     # what it holds would starve the exercises after it
        return owners[full["id"]], "memory"
    return "", ""


def count(exercise: parts.Exercise, run: runner.Run, stopped: bool) -> dict:
    """Points of one exercise, check by check."""
    checks = {}
    for cell in exercise.cells["hidden"]:
        right = run.outcome(cell.id) == "passed" and not stopped
        worth = int(cell.metadata.econ.points)
        checks[cell.id] = {"points": worth * right, "max_points": worth}
    return {"title": exercise.title, "points": sum(check["points"] for check in checks.values()),
            "max_points": exercise.points, "checks": checks}


def feedback(exercise: parts.Exercise, answers: Answers, run: runner.Run, stopped: str, limits: Limits,
             secret: set[str]) -> list[str]:
    """What a student may read: the visible check's text and errors of the student's own code, no hidden check."""
    values = {"cell_s": limits.cell_s, "total_s": limits.total_s, "memory_mb": limits.memory_bytes >> 20,
              "disk_mb": limits.disk_bytes >> 20}
    if exercise.name not in answers.sources:
        return ["no answer cell was found"]
    if stopped:
        return [f"your code {REASONS.get(stopped, 'ends the kernel').format(**values)}; graded without this exercise"]
    slow = REASONS["timeout"].format(**values)
    cells = {part: [cell for c in exercise.cells[part] for cell in run.cells if cell["id"] == c.id]
             for part in ("answer", "check", "hidden")}
    lines = [line for cell in cells["answer"] for line in trouble(cell, slow, ": ".join(cell["error"]))]
    lines += [line for cell in cells["check"] for line in
              [*cell["text"].splitlines(), *trouble(cell, slow, ": ".join(cell["error"]))]]
    graded = {line for cell in cells["hidden"] for line in trouble(cell, slow, builtin_error(cell["error"][0]))}
    return [tidy(line, secret) for line in lines[:LINES]] + [f"in a graded check {line}" for line in sorted(graded)]


def trouble(cell: Mapping, slow: str, error: str) -> list[str]:
    """A line about a cell that raised or was too slow; none about any other."""
    if cell["outcome"] == "timeout":
        return [f"your code {slow}"]
    return [f"your code raises {error}"] if cell["outcome"] == "raised" else []


def hidden_words(reference: Reference, answers: Answers) -> set[str]:
    """Words and numbers that stand in hidden checks, and neither in what students received nor in these answers."""
    seen = [cell.source for cell in reference.source.cells if parts.part_of(cell) not in (*parts.SOURCE_ONLY, "answer")]
    hidden = [parts.without_expected(cell.source) for e in reference.exercises for cell in e.cells["hidden"]]
    return words(hidden) - words([*seen, *answers.sources.values()]) - set(dir(builtins))


def words(texts: Iterable[str]) -> set[str]:
    """Names and numbers of three characters and more."""
    return {word for text in texts for word in WORD.findall(text)}


def tidy(line: str, secret: set[str]) -> str:
    """One line of a student's kernel, short, printable and without a word of a hidden check."""
    line = "".join(c if c.isprintable() else " " for c in line)[:LINE_CHARS].strip()
    return "(a message that repeats part of a graded check is not shown)" if words([line]) & secret else line


def builtin_error(name: str) -> str:
    """The name of an exception, unless a student made it up: then it may say anything."""
    return name if isinstance(getattr(builtins, name, None), type) else "an exception of its own"
