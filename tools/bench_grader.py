"""How many submissions the grader takes a minute, and what each costs beyond the student's own code.

python tools/bench_grader.py                            200 submissions to the first notebook, on all cores
python tools/bench_grader.py --n 20 --notebook 05_kv_cache -j 1

A third of the submissions is right, a third wrong, a third untouched. The grader's share of a submission is its
wall time less the time that its cells ran; CPU time, which other programs do not disturb, is printed next to it.
"""

import argparse
import contextlib
import io
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from settings import ROOT

sys.path.insert(0, str(ROOT / "exercises"))

from grading import batch, choose, parts, reference, report  # noqa: E402
from grading.sandbox import MECHANISMS, Limits  # noqa: E402


def submission(ref: reference.Reference, number: int) -> nbformat.NotebookNode:
    """The release, its answers right, wrong or untouched by turns."""
    nb = parts.release(ref.source, ref.notebook)
    kind = ("answer", "wrong", "")[number % 3]
    sources = {f"{e.grade_id}_answer": e.cells[kind][0].source for e in ref.exercises if kind}
    for cell in nb.cells:
        cell.source = sources.get(cell.id, cell.source)
    return nb


def cpu_s() -> float:
    """CPU seconds of this process and of every one it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(argv: list[str]) -> int:
    """Grade made-up submissions and print what that took; exit 1 if one was not graded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--notebook", default=reference.names(ROOT / "exercises")[0])
    parser.add_argument("-j", "--jobs", type=int, default=choose.cores())
    options = parser.parse_args(argv)
    ref = reference.load(ROOT / "exercises", options.notebook)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "in")
        folder.mkdir()
        for number in range(options.n):
            nbformat.write(submission(ref, number), folder / f"student-{number:03d}.ipynb")
        job = batch.Batch(exercises=ROOT / "exercises", out=Path(name, "out"), limits=Limits(), mechanisms=MECHANISMS,
                          jobs=options.jobs)
        start, start_cpu = time.monotonic(), cpu_s()
        with contextlib.redirect_stdout(io.StringIO()):
            failed = batch.grade(job, folder)
        wall_s, used_s, results = time.monotonic() - start, cpu_s() - start_cpu, report.kept(job.out)
    own_s = sorted(result["seconds"] - result["code_seconds"] for result in results)
    print(f"{len(results)} submissions to {ref.notebook}, {options.jobs} at a time, {results[0]['sandbox']}")
    print(f"{60 * len(results) / wall_s:.0f} a minute; {used_s / len(results):.2f} s of CPU time each")
    print(f"beyond the cells: median {own_s[len(own_s) // 2]:.2f} s, longest {own_s[-1]:.2f} s; "
          f"load {os.getloadavg()[0]:.1f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
