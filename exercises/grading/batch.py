"""Grade many submissions at once: what is new, who runs where, what is kept."""

import hashlib
import queue
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from grading import choose, report, runner, variants
from grading import reference as references
from grading.match import match
from grading.reference import Reference
from grading.sandbox import Limits, Sandbox
from grading.score import NotGraded, score
from grading.submissions import Notebook, Submission, find, notebook_name, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How to grade."""

    exercises: Path
    out: Path
    limits: Limits
    mechanisms: Sequence[str]
    jobs: int
    again: bool = False
    only: str | None = None
    student: re.Pattern | None = None      # see submissions.named
    points_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A submission that is to be graded, or that cannot be, and why."""

    submission: Submission
    notebook: str
    parsed: Notebook | None
    problem: str = ""


def grade(batch: Batch, path: Path) -> int:
    """Grade every submission below a path and print a line for each; returns how many could not be graded."""
    known = references.names(batch.exercises)
    if batch.only and batch.only not in known:
        raise ValueError(f"no notebook {batch.only!r}; known: {', '.join(known)}")
    found = find(path, known, batch.student)
    tasks = list(unique([task for submission in found for task in sort(submission, known, batch.only)]))
    if not tasks:
        raise ValueError(f"{path} holds no notebook to grade")
    refs = {name: references.load(batch.exercises, name) for name in {task.notebook for task in tasks if task.parsed}}
    fresh = [task for task in tasks if batch.again or not done_before(batch, task, refs)]
    start, failed = time.monotonic(), 0
    for number, result in enumerate(run_all(batch, path, fresh, refs), start=1):
        report.save(batch.out, result, batch.points_only)
        failed += result["status"] != "graded"
        print(f"[{number}/{len(fresh)}] {line(result)}", flush=True)
    if fresh:
        minutes = (time.monotonic() - start) / 60
        print(f"{len(fresh)} submissions in {minutes * 60:.0f} s, {len(fresh) / minutes:.0f} a minute")
    return failed


def done_before(batch: Batch, task: Task, refs: dict[str, Reference]) -> bool:
    """Say so when neither a submission nor the reference has changed since it was graded."""
    old = report.load(report.result_path(batch.out, task.notebook, task.submission.student))
    same = bool(task.parsed) and old.get("key") == key(task, refs[task.notebook])
    if same:
        print(f"{task.submission.place}: as before, {old['points']} of {old['max_points']}")
    return same


def sort(submission: Submission, known: Sequence[str], only: str | None) -> Iterator[Task]:
    """The task of a submission; none when it is another notebook than the wanted one."""
    try:
        if submission.problem:
            raise ValueError(submission.problem)
        parsed = parse(submission.data)
    except ValueError as error:
        yield Task(submission=submission, notebook=only or "", parsed=None, problem=str(error))
        return
    notebook = notebook_name(parsed, submission.place, known) or only or ""
    if not notebook:
        yield Task(submission=submission, notebook="", parsed=None, problem="cannot tell which notebook this is")
    elif only in (None, notebook):
        yield Task(submission=submission, notebook=notebook, parsed=parsed)


def unique(tasks: list[Task]) -> Iterator[Task]:
    """One task for each student and notebook: the only file, or the only one of that name, or in `exercises`."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((report.safe(task.submission.student), task.notebook), []).append(task)
    for group in groups.values():
        good = [task for task in group if task.parsed] or group[:1]
        exact = [task for task in good if Path(task.submission.place).stem == task.notebook]
        at_home = [task for task in exact if Path(task.submission.place).parent.name == "exercises"]
        only = next((tasks for tasks in (good, exact, at_home) if len(tasks) == 1), None)
        if only:
            yield only[0]
        else:
            places = ", ".join(task.submission.place for task in good[:4])
            yield Task(submission=good[0].submission, notebook=good[0].notebook, parsed=None,
                       problem=f"several files for one notebook of one student, keep one: {places}")


def key(task: Task, reference: Reference) -> str:
    """Equal for a submission and a reference that have not changed."""
    text = f"{hashlib.sha256(task.submission.data).hexdigest()} {task.submission.student} {reference.digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def run_all(batch: Batch, path: Path, tasks: list[Task], refs: dict[str, Reference]) -> Iterator[dict]:
    """The results of some tasks, in the order in which they are ready."""
    stage = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        sandbox = None
        if any(task.parsed for task in tasks):
            choose.prepare(stage)
            threads = max(choose.cores() // batch.jobs, 1)
            secret = [batch.exercises / "source", batch.exercises.parent / "solutions", path]
            sandbox = choose.choose(stage, secret, batch.limits, threads, batch.mechanisms)
            print(f"sandbox: {sandbox.describe()}")
            print("".join(f"  not {reason}\n" for reason in sandbox.refused * (not sandbox.protected)), end="")
        own = own_numbers(batch, tasks, refs)
        slots: queue.Queue[int] = queue.Queue()
        for slot in range(batch.jobs):
            slots.put(slot)

        def one(number: int, task: Task) -> dict:
            slot = slots.get()
            try:
                return result(task, refs.get(task.notebook), own, sandbox, slot, stage / f"s{number}")
            finally:
                slots.put(slot)

        pool = ThreadPoolExecutor(batch.jobs)
        try:
            for done in as_completed([pool.submit(one, number, task) for number, task in enumerate(tasks)]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)     # stopped from outside: finish what runs, begin nothing new
    finally:
        runner.remove(stage)


def own_numbers(batch: Batch, tasks: list[Task], refs: dict[str, Reference]) -> dict[str, dict[str, dict[str, str]]]:
    """Notebook -> student -> what hidden checks print with the numbers of that student."""
    found = {}
    for name, reference in refs.items():
        students = {task.submission.student for task in tasks if task.notebook == name and task.parsed}
        if students and any(exercise.variant for exercise in reference.exercises):
            found[name] = variants.outputs(batch.exercises / "source" / f"{name}.ipynb", students)
    return found


def result(task: Task, reference: Reference | None, own: dict, sandbox: Sandbox | None, slot: int,
           folder: Path) -> dict:
    """The result of one submission, as it is kept."""
    submission, start = task.submission, time.monotonic()
    kept = {"student": submission.student, "notebook": task.notebook, "place": submission.place, "key": "",
            "status": "not graded", "problem": task.problem, "points": 0, "max_points": 0, "exercises": {}, "notes": [],
            "release": "", "sandbox": "", "protected": False, "seconds": 0.0, "code_seconds": 0.0}
    if not (task.parsed and reference and sandbox):
        return kept
    folder.mkdir(mode=0o711)
    kept |= {"release": task.parsed.release, "max_points": reference.points,
             "sandbox": sandbox.describe(), "protected": sandbox.protected}
    expected = reference.expected() | own.get(task.notebook, {}).get(submission.student, {})
    try:
        answers = match(reference, task.parsed, submission.student)
        kept["notes"] = list(answers.notes)
        scored = score(reference, answers, submission.student, expected, sandbox, slot, folder)
    except NotGraded as error:
        return kept | {"problem": str(error)}
    except Exception as error:     # one submission, whatever it does, must not end the grading of the others
        return kept | {"problem": f"the grader failed on it: {type(error).__name__}: {error}"[:300]}
    return kept | {"key": key(task, reference), "status": "graded", "exercises": scored.exercises,
                   "points": sum(exercise["points"] for exercise in scored.exercises.values()),
                   "seconds": round(time.monotonic() - start, 2), "code_seconds": round(scored.code_s, 2)}


def line(result: dict) -> str:
    """The line of progress of one submission."""
    notes = f"  ({'; '.join(result['notes'])})" if result["notes"] else ""
    if result["status"] != "graded":
        return f"{result['place']}: NOT GRADED: {result['problem']}{notes}"
    mark = "" if result["protected"] else " UNPROTECTED"
    return f"{result['place']}: {result['points']} of {result['max_points']} in {result['seconds']:.1f} s{mark}{notes}"
