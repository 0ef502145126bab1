"""Grade exercise notebooks that students hand in.

python exercises/grade.py release 05_kv_cache FOLDER     copy what students receive, and say what it is worth
python exercises/grade.py grade SUBMISSIONS --out OUT    grade a folder or a zip of notebooks
python exercises/grade.py report OUT                     write the tables again and print a summary of the class

A student's own cells and outputs prove nothing, so only the answer cells are taken. They run inside the
reference, in a sandbox, and nbval compares what graded checks print, outside of it.

Exit codes: 0 everything graded, 1 something could not be graded, 2 the command was not understood.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from grading import batch, reference, report  # noqa: E402
from grading.sandbox import MECHANISMS, Limits  # noqa: E402

HERE = Path(__file__).resolve().parent


def one_group(pattern: str) -> re.Pattern:
    """A regular expression of one group."""
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{pattern!r} is no regular expression: {error}") from None
    if found.groups != 1:
        raise argparse.ArgumentTypeError(f"{pattern!r} needs one pair of parentheses, as in 'kv-cache-(.+)'")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="grade.py", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--exercises", type=Path, default=HERE, help="folder with source/ and releases.json")
    commands = top.add_subparsers(dest="command", required=True)
    release = commands.add_parser("release", help="copy what students receive")
    release.add_argument("notebook")
    release.add_argument("folder", type=Path)
    grade = commands.add_parser("grade", help="grade a folder or a zip of notebooks")
    grade.add_argument("submissions", type=Path)
    grade.add_argument("--out", type=Path, required=True, help="folder for results; results kept there are not redone")
    grade.add_argument("--student", metavar="REGEX", type=one_group, help="the student in a longer name, as a "
                       "group: 'kv-cache-(.+)' finds ada in kv-cache-ada")
    grade.add_argument("--notebook", help="grade only this notebook")
    grade.add_argument("--points-only", action="store_true", help="feedback without any text from a student's code")
    grade.add_argument("--again", action="store_true", help="grade also what has not changed")
    grade.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="submissions at a time")
    grade.add_argument("--sandbox", choices=("auto", *MECHANISMS), default="auto")
    grade.add_argument("--cell-seconds", type=int, default=Limits().cell_s, metavar="S")
    grade.add_argument("--total-seconds", type=int, default=Limits().total_s, metavar="S")
    grade.add_argument("--memory-mb", type=int, default=Limits().memory_bytes >> 20, metavar="MB")
    commands.add_parser("report", help="tables and a summary").add_argument("out", type=Path)
    return top


def release_command(options: argparse.Namespace) -> int:
    """Copy one release."""
    found = reference.load(options.exercises, options.notebook)
    given = options.exercises / f"{options.notebook}.ipynb"
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(given, options.folder)
    print(f"{options.folder / given.name}: release {found.release}, {found.points} points")
    for exercise in found.exercises:
        worth = f"{exercise.points:>2} points {exercise.minutes:>3} minutes"
        print(f"  {exercise.name} {exercise.level} {worth}  {exercise.title}")
    return 0


def grade_command(options: argparse.Namespace) -> int:
    """Grade submissions."""
    limits = Limits(cell_s=options.cell_seconds, total_s=options.total_seconds, memory_bytes=options.memory_mb << 20)
    wanted = MECHANISMS if options.sandbox == "auto" else (options.sandbox,)
    job = batch.Batch(exercises=options.exercises, out=options.out, limits=limits, mechanisms=wanted,
                      jobs=max(options.jobs, 1), again=options.again, only=options.notebook,
                      student=options.student, points_only=options.points_only)
    failed = batch.grade(job, options.submissions)
    report.write_tables(options.out)
    return 1 if failed else 0


def report_command(options: argparse.Namespace) -> int:
    """Write the tables again and print the summary."""
    results = report.kept(options.out)
    if not results:
        raise ValueError(f"{options.out} holds no results: run grade.py grade first")
    report.write_tables(options.out)
    print(report.summary(results))
    return 1 if any(result["status"] != "graded" for result in results) else 0


def main(argv: list[str]) -> int:
    """Run one command."""
    options = parser().parse_args(argv)
    commands = {"release": release_command, "grade": grade_command, "report": report_command}
    try:
        return commands[options.command](options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"grade.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
