"""Build the book: run the notebooks, build strictly, verify that every page came out, say where to open it.

python tools/book.py
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import notebooks
from settings import ROOT

BUILD = ROOT / "_build"
HTML = BUILD / "html"
CELL = re.compile(r"Cell.*?In\[(\d+)\]")
ERROR = re.compile(r"^(\w[\w.]*: .*|\w*(?:Error|Exit|Interrupt))$", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def pages(root: Path = ROOT) -> list[str]:
    """Every page of _toc.yml, without suffix, in order."""
    toc = (root / "_toc.yml").read_text(encoding="utf-8")
    return re.findall(r"(?m)^\s*(?:- )?(?:root|file):\s*(\S+)", toc)


def missing_pages() -> list[str]:
    """Pages of _toc.yml that have no HTML."""
    return [page for page in pages() if not (HTML / f"{page}.html").is_file()]


def forget_outdated_runs() -> None:
    """Drop the cached runs of the notebooks when the package or its data has changed since."""
    digest = hashlib.sha256()
    files = [*(ROOT / "econ").rglob("*"), *ROOT.glob("*.csv"), ROOT / "requirements.txt"]
    for path in sorted(path for path in files if path.is_file() and "__pycache__" not in path.parts):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    stamp = BUILD / "econ.sha256"
    if not stamp.is_file() or stamp.read_text() != digest.hexdigest():
        shutil.rmtree(BUILD / ".jupyter_cache", ignore_errors=True)
        BUILD.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


def build() -> tuple[int, str]:
    """Run jupyter-book, showing its progress up to a traceback; returns its exit status and its output."""
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "-W", "--keep-going"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=os.environ | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"})
    lines: list[str] = []
    assert process.stdout
    for line in process.stdout:
        lines.append(COLOUR.sub("", line))
        if not any(seen.startswith("Traceback (most recent call last)") for seen in lines):
            print(lines[-1], end="", flush=True)
    return process.wait(), "".join(lines)


def explain(output: str) -> str:
    """What stopped a build: a notebook's cell and its error, or the warnings, or the end of the output."""
    failed = re.search(r"ExecutionError: (\S+\.ipynb)", output)
    cell = CELL.search(output)
    if failed and cell:
        path = Path(failed[1])
        code = [(i, c.source) for i, c in enumerate(notebooks.read(path).cells, 1) if c.cell_type == "code"]
        number, source = code[int(cell[1]) - 1]
        error = ERROR.findall(output[cell.end():].split("The above exception was")[0]) or ["see above"]
        return notebooks.describe_failure(path.relative_to(ROOT), number, source, error[-1])
    output = re.sub(r"(\.ipynb):(\d+)(\d{4}):", lambda m: f"{m[1]}: cell {m[2]} line {int(m[3])}:", output)
    warnings = [line for line in output.splitlines() if "WARNING:" in line or "ERROR:" in line]
    return "\n".join(warnings or output.splitlines()[-15:])


def main() -> int:
    """Build and verify; exit 1 and say why when anything is wrong."""
    start = time.monotonic()
    print("==> building the book; a first build runs every notebook", flush=True)
    forget_outdated_runs()
    status, output = build()
    if status:
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)   # or the next build would not warn again
        print(f"\nThe book was not built:\n{explain(output)}", file=sys.stderr)
        return 1
    if missing := missing_pages():
        print(f"\nThese pages of _toc.yml did not come out: {', '.join(missing)}", file=sys.stderr)
        return 1
    print(f"\n{len(pages())} pages in {time.monotonic() - start:.0f} s.")
    print(f"Open {(HTML / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
