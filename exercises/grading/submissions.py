"""Submissions in a folder or a zip: whose they are, and their cells. Nothing of them is written to disk or run.

The student's id comes from the path, because a notebook can claim any name: SUBMISSIONS/ADA/... belongs to ADA,
SUBMISSIONS/ADA.ipynb and SUBMISSIONS/05_kv_cache_ADA.ipynb too. A folder that wraps everything does not count.
"""

import json
import os
import re
import stat
import unicodedata
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import nbformat

FILE_BYTES = 20 << 20
CELL_CHARS = 200_000
MAX_CELLS = 5_000
STUDENT_BYTES, LEAST_BYTES = 64 << 20, 64 << 10     # all files of a student, and what each counts at least
HIDDEN = ("__MACOSX",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One notebook file: where it stood, whose it is, and its bytes or why there are none."""

    place: str
    student: str
    data: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell as far as grading needs it."""

    code: bool
    cell_id: str
    grade_id: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """A submitted notebook that could be read."""

    cells: tuple[Cell, ...]
    release: str
    notebook: str
    notes: tuple[str, ...]


Entry = tuple[PurePosixPath, str, Callable[[], bytes]]    # path, what is wrong with it, how to read it


def find(path: Path, notebooks: Sequence[str], pattern: re.Pattern | None = None) -> list[Submission]:
    """Every notebook in a folder or a zip, by place; ValueError when it is neither."""
    if path.is_dir():
        entries = list(_in_folder(path))
    elif zipfile.is_zipfile(path):
        entries = list(_in_zip(path))
    else:
        raise ValueError(f"{path} is neither a folder nor a zip of submissions")
    entries.sort(key=lambda entry: str(entry[0]))
    students = [named(student, pattern) for student in _students([at for at, _, _ in entries], path.stem, notebooks)]
    found, used = [], Counter[str]()
    for (at, problem, read), student in zip(entries, students, strict=True):
        too_much = f"more than {STUDENT_BYTES >> 20} MB of one student" * (used[student] > STUDENT_BYTES)
        found.append(_read(printable(str(at)), printable(student), problem or too_much, read))
        used[student] += max(len(found[-1].data), LEAST_BYTES)
    return found


def _students(paths: Sequence[PurePosixPath], wrapper: str, notebooks: Sequence[str]) -> list[str]:
    """Whose each file is; folders that wrap everything are left out, unless they are all that names a student."""
    depth = 0
    while len(paths) > 1 and all(len(path.parts) > depth + 1 for path in paths) and len(
            {path.parts[depth] for path in paths}) == 1:
        depth += 1
    inner = [student_of(PurePosixPath(*path.parts[depth:]), "", notebooks) for path in paths]
    return inner if all(inner) else [student_of(path, wrapper, notebooks) for path in paths]


def student_of(path: PurePosixPath, wrapper: str, notebooks: Sequence[str]) -> str:
    """Whose file a path below the submissions is.

    >>> paths = "ada/05_kv_cache.ipynb", "ada.ipynb", "05_kv_cache_ada.ipynb", "05_kv_cache.ipynb"
    >>> [student_of(PurePosixPath(path), "hand-ins", ["05_kv_cache"]) for path in paths]
    ['ada', 'ada', 'ada', 'hand-ins']
    """
    if len(path.parts) > 1:
        return path.parts[0]
    name = path.stem
    for notebook in notebooks:
        name = name.replace(notebook, "")
    return name.strip("_-. ") or wrapper


def _read(place: str, student: str, problem: str, read: Callable[[], bytes]) -> Submission:
    data = b""
    if not problem:
        try:
            data = read()
        except (OSError, RuntimeError, ValueError, NotImplementedError, zipfile.BadZipFile, EOFError) as error:
            problem = f"cannot be read: {error}"
    if len(data) > FILE_BYTES:
        data, problem = b"", f"larger than {FILE_BYTES >> 20} MB"
    return Submission(place=place, student=student, data=data, problem=problem)


def _wanted(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") and part not in ("..", ".") or part in HIDDEN for part in path.parts)
    return not hidden and path.suffix.lower() in (".ipynb", ".zip")


def _in_folder(folder: Path) -> Iterator[Entry]:
    for at, _, names in os.walk(folder):    # does not follow links
        for name in names:
            path = Path(at, name)
            relative = PurePosixPath(path.relative_to(folder).as_posix())
            if _wanted(relative):
                yield relative, _file_problem(path), partial(_read_file, path)


def _file_problem(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "is a link, not a file"
    if not stat.S_ISREG(mode):
        return "is no ordinary file"
    return "is a zip inside the submissions: unpack it first" if path.suffix.lower() == ".zip" else ""


def _read_file(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read(FILE_BYTES + 1)


def _in_zip(path: Path) -> Iterator[Entry]:
    archive = zipfile.ZipFile(path)
    seen: set[str] = set()
    for info in archive.infolist():
        at = PurePosixPath(info.filename)
        if _wanted(at) and not info.is_dir():
            problem = _entry_problem(info, at) or "stands twice in the zip" * (info.filename in seen)
            seen.add(info.filename)
            yield at, problem, partial(_read_entry, archive, info)


def _entry_problem(info: zipfile.ZipInfo, at: PurePosixPath) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link, not a file"
    if at.is_absolute() or ".." in at.parts or "\\" in info.filename:
        return "has a path that leaves the zip"
    if info.file_size > FILE_BYTES:
        return f"larger than {FILE_BYTES >> 20} MB"
    return "is a zip inside the zip: unpack it first" if at.suffix.lower() == ".zip" else ""


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        return file.read(FILE_BYTES + 1)     # stops there, whatever size the entry claims


def named(student: str, pattern: re.Pattern | None) -> str:
    """What the group of a pattern finds in a name, or the name.

    >>> named("kv-cache-ada", re.compile("kv-cache-(.+)")), named("kv-cache-ada", None)
    ('ada', 'kv-cache-ada')
    """
    found = pattern.search(student) if pattern else None
    return found[1] if found and found[1] else student


def printable(text: str) -> str:
    """A name as one line, composed as keyboards write it; whatever cannot be printed becomes a question mark.

    >>> printable("ada\\n\\x1b[31m.ipynb"), printable("Jose\\u0301")
    ('ada??[31m.ipynb', 'José')
    """
    return "".join(c if c.isprintable() else "?" for c in unicodedata.normalize("NFC", text))


def text_only(text: str) -> str:
    """A text that can be written: half characters, which JSON may hold, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parse(data: bytes) -> Notebook:
    """The cells of a notebook file; ValueError says in one line why it cannot be graded."""
    try:
        raw = json.loads(text_only(json.dumps(json.loads(data), ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {str(error)[:100]}") from None
    if not isinstance(raw, dict):
        raise ValueError("is not a notebook: its JSON is no object")
    notes: list[str] = []
    if raw.get("nbformat") != 4:
        notes.append(f"nbformat {str(raw.get('nbformat'))[:20]}, converted to 4")
        raw = _converted(raw)
    cells, metadata = raw.get("cells"), _dict(raw.get("metadata"))
    if not isinstance(cells, list) or len(cells) > MAX_CELLS:
        raise ValueError(f"is not a notebook: no list of cells, or more than {MAX_CELLS:,}")
    language = _dict(metadata.get("kernelspec")).get("language") or _dict(metadata.get("language_info")).get("name")
    if language not in (None, "python"):
        notes.append(f"its kernel is {str(language)[:20]!r}; graded as Python")
    econ = _dict(metadata.get("econ"))
    found = tuple(_cell(cell, notes) for cell in cells if isinstance(cell, dict))
    return Notebook(cells=found, release=str(econ.get("release", "")), notebook=str(econ.get("notebook", "")),
                    notes=tuple(notes))


def _converted(raw: dict) -> dict:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nbformat.convert(nbformat.from_dict(raw), 4)
    except Exception as error:    # nbformat raises whatever it stumbles on
        raise ValueError(f"is not a notebook that can be converted: {type(error).__name__}") from None


def _cell(cell: dict, notes: list[str]) -> Cell:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    source = source if isinstance(source, str) else ""
    grade_id = str(_dict(_dict(cell.get("metadata")).get("nbgrader")).get("grade_id", ""))
    cell_id = str(cell.get("id", ""))
    if len(source) > CELL_CHARS:
        notes.append(f"a cell of {len(source):,} characters was left out ({(grade_id or cell_id)[:40] or 'no id'})")
        source = ""
    return Cell(code=cell.get("cell_type") == "code", cell_id=cell_id, grade_id=grade_id, source=source)


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def notebook_name(parsed: Notebook, place: str, notebooks: Sequence[str]) -> str:
    """Which notebook a submission is: by its metadata, else its path, else the ids of its cells; or empty."""
    if parsed.notebook in notebooks:
        return parsed.notebook
    by_path = [name for name in notebooks if name in place]
    if by_path:
        return by_path[0]
    ids = " ".join(f"{cell.grade_id} {cell.cell_id} {cell.source[:80] * (not cell.code)}" for cell in parsed.cells)
    count = {name: len(re.findall(rf"\bex{name[:2]}_\d|### {name[:2]}\.\d", ids)) for name in notebooks}
    best = max(count, key=lambda name: count[name], default="")
    return best if best and count[best] else ""
