"""Notebooks on disk: text outputs kept, images dropped, ids fixed, the first code cell from one template.

python tools/notebooks.py new chapters/02_topic.md         draft -> chapters/02_topic.ipynb, not executed
python tools/notebooks.py run chapters/02_topic.ipynb      execute from a clean kernel and normalise, in place
python tools/notebooks.py draft chapters/02_topic.ipynb    notebook -> draft on standard output
python tools/notebooks.py --check [FILES]                  verify the format; default: all chapters

A draft is Markdown. A fence "```{code-cell}" opens a code cell and "```" closes it; a line ":tags: [a, b]"
right below the opening gives its tags. A line "+++" splits the text around it into two Markdown cells:

    # A chapter
    Text of the first cell.
    +++
    Text of the second cell.
    ```{code-cell}
    :tags: [nbval-ignore-output]
    print("hello")
    ```

Leave the first code cell (it finds the package) out of a draft: every command writes it from
tools/settings.py. The draft is a way to write, not a source: only the notebook is kept in the repository.
"""

import ast
import re
import sys
from pathlib import Path

import drafts
import nbformat
from settings import ROOT, bootstrap_source

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
BOOTSTRAP_TAGS = ["hide-cell"]
KEPT_METADATA = ("tags", "nbgrader", "econ")
IGNORE = "nbval-ignore-output"
CHECKS = {"expect", "claim", "claim_between"}
MAX_BYTES = 400_000
MAX_IGNORED_FRAC = 0.25
FORBIDDEN = re.compile(r"\b(TODO|FIXME|XXX)\b|(?<![\w.])/(home|root|tmp|Users)/\w")


def chapters() -> list[Path]:
    """Every chapter, in order."""
    return sorted((ROOT / "chapters").glob("*.ipynb"))


def read(path: Path):
    """A notebook as nbformat 4."""
    return nbformat.read(path, as_version=4)


def render(nb) -> str:
    """The text of a notebook on disk."""
    return nbformat.writes(nb) + "\n"


def write(nb, path: Path) -> None:
    """Write a notebook."""
    path.write_text(render(nb), encoding="utf-8")


def code_cells(nb) -> list:
    """The code cells of a notebook, in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags(cell) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def syntax_tree(source: str) -> ast.Module:
    """The syntax tree of a cell, with IPython's % and ! lines blanked."""
    return ast.parse(re.sub(r"(?m)^\s*[%!].*$", "", source))


def call_name(node: ast.Call) -> str:
    """The name of the function that a call calls, without what stands before its last dot."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# Normalising

def is_bootstrap(cell) -> bool:
    """True for the code cell that finds the package."""
    return cell.cell_type == "code" and cell.source.startswith(bootstrap_source().splitlines()[0])


def set_bootstrap(nb):
    """Put the current first code cell in place of the old one, or in front of the first code cell."""
    cell = nbformat.v4.new_code_cell(bootstrap_source(), metadata={"tags": list(BOOTSTRAP_TAGS)})
    cell.execution_count = 1
    first = next((i for i, c in enumerate(nb.cells) if c.cell_type == "code"), len(nb.cells))
    replace = first < len(nb.cells) and is_bootstrap(nb.cells[first])
    nb.cells[first:first + replace] = [cell]
    return set_ids(nb)


def set_ids(nb):
    """Number the cells: ids are unique, valid, and change only where a cell is added or removed before."""
    for position, cell in enumerate(nb.cells, start=1):
        cell.id = f"cell-{position:03d}"
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def normalise(nb):
    """Apply every rule of the format that does not need a kernel."""
    set_bootstrap(nb)
    nb.metadata = nbformat.from_dict(KERNEL)
    for cell in nb.cells:
        kept = {key: value for key, value in cell.metadata.items() if key in KEPT_METADATA and value}
        cell.metadata = nbformat.from_dict(kept)
        cell.pop("attachments", None)
    for count, cell in enumerate(code_cells(nb), start=1):
        cell.execution_count = count if cell.execution_count else None
        cell.outputs = _merge_streams(filter(None, map(_text_output, cell.outputs)))
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return nb


def _text_output(output):
    """An output without images and widgets, or None if nothing is left."""
    if output.output_type in ("display_data", "execute_result"):
        data = {kind: value for kind, value in output.data.items() if _is_text(kind)}
        output.metadata, output.data = nbformat.from_dict({}), nbformat.from_dict(data)
        return output if data else None
    return output


def _merge_streams(outputs) -> list:
    """Streams of one name that follow each other as one: where a kernel cuts them depends on its timing."""
    merged: list = []
    for output in outputs:
        name = output.get("name")  # only streams have one
        if name and merged and merged[-1].get("name") == name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def _is_text(kind: str) -> bool:
    return not kind.startswith("image/") and "widget" not in kind


def execute(nb, path: Path) -> str:
    """Run every cell in a new kernel, in the notebook's folder; returns what failed, or an empty string."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    for cell in code_cells(nb):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(nb, timeout=600, kernel_name="python3", record_timing=False,
                            resources={"metadata": {"path": str(path.parent)}})
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        number = next(i for i, cell in reversed(list(enumerate(nb.cells, 1))) if cell.get("execution_count"))
        return describe_failure(path, number, nb.cells[number - 1].source, str(error))
    return ""


def describe_failure(path: Path, number: int, source: str, error: str) -> str:
    """The text that every tool prints when a cell fails: where, the head of its source, the error."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", error).rstrip().splitlines() or ["no message"]
    head = [f"    | {line}" for line in source.splitlines()[:6]]
    return "\n".join([f"{path}: cell {number} failed:", *head, f"    {plain[-1]}"])


# Checking

def bootstrap_problem(nb) -> str:
    """What is wrong with the first code cell, or an empty string."""
    first = next(iter(code_cells(nb)), None)
    if first is None or first.source != bootstrap_source() or tags(first) != BOOTSTRAP_TAGS:
        return "the first code cell differs from the template: run tools/settings.py"
    return ""


def problems(path: Path) -> list[str]:
    """Everything in a notebook file that breaks the format, one line each."""
    text, nb = path.read_text(encoding="utf-8"), read(path)
    found = [bootstrap_problem(nb)] if bootstrap_problem(nb) else []
    if text != render(normalise(read(path))):
        found.append("not as `run` leaves it (ids, metadata, kernelspec, images or widget state)")
    if len(text.encode()) > MAX_BYTES:
        found.append(f"{len(text.encode()):,} bytes; the limit is {MAX_BYTES:,}")
    found += [f"contains {hit[0]!r}" for hit in FORBIDDEN.finditer(text.replace("\\n", "\n"))]
    for i, cell in enumerate(nb.cells, start=1):
        found += [f"cell {i}: {problem}" for problem in cell_problems(cell)]
    ignored, n = sum(IGNORE in tags(cell) for cell in code_cells(nb)), len(code_cells(nb))
    if ignored > MAX_IGNORED_FRAC * n:
        found.append(f"{ignored} of {n} code cells are tagged {IGNORE}; at most a quarter may be")
    return found


def cell_problems(cell) -> list[str]:
    """Everything wrong with one cell."""
    if cell.cell_type != "code":
        return []
    found = [] if cell.execution_count else ["not executed: use the command `run`"]
    for output in cell.outputs:
        if output.output_type == "error" or output.get("name") == "stderr":
            found.append("stored an error or a warning (stderr)")
        figure = str(output.get("data", {}).get("text/plain", "")).startswith("<Figure size")
        if figure and cell.source.rstrip().splitlines()[-1].strip() != "plt.show()":
            found.append("draws a figure and does not end with plt.show()")
    if IGNORE in tags(cell) and not _checks_something(cell.source):
        found.append(f"tagged {IGNORE} and checks nothing: call expect() or claim_between(), or assert")
    return found


def _checks_something(source: str) -> bool:
    nodes = list(ast.walk(syntax_tree(source)))
    return any(isinstance(n, ast.Assert) or isinstance(n, ast.Call) and call_name(n) in CHECKS for n in nodes)


# Commands

def new_command(path: Path) -> list[str]:
    """Write the notebook of a draft."""
    nb = nbformat.v4.new_notebook(cells=drafts.cells_of(path.read_text(encoding="utf-8")))
    write(normalise(nb), path.with_suffix(".ipynb"))
    return []


def run_command(path: Path) -> list[str]:
    """Execute and normalise a notebook in place; a failing cell leaves the file as it was."""
    nb = normalise(read(path))
    failed = execute(nb, path)
    if failed:
        return [failed]
    write(normalise(nb), path)
    return check_command(path)


def draft_command(path: Path) -> list[str]:
    """Print the draft of a notebook."""
    sys.stdout.write(drafts.text_of([cell for cell in read(path).cells if not is_bootstrap(cell)]))
    return []


def check_command(path: Path) -> list[str]:
    """Name everything that breaks the format."""
    return [f"{path}: {line}" for line in problems(path)]


def main(argv: list[str]) -> int:
    """Run one command on every file given; exit 1 if it had anything to say, 2 if it was not understood."""
    commands = {"new": new_command, "run": run_command, "draft": draft_command, "--check": check_command}
    if not argv or argv[0] not in commands or (len(argv) == 1 and argv[0] != "--check"):
        print(__doc__)
        return 2
    files = [Path(name) for name in argv[1:]] or chapters()
    messages = [message for path in files for message in commands[argv[0]](path)]
    print("\n".join(messages), file=sys.stderr, end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
