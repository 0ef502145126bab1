"""Find a student's answer cells in a notebook that any editor may have rewritten, and say what was odd."""

import ast
import builtins
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grading import parts
from grading.reference import Reference
from grading.submissions import Cell, Notebook

SECTION = re.compile(r"#{1,6}[ \t]*(\d\d\.\d+)\b")
STUDENT = re.compile(r"""(?m)^STUDENT\s*=\s*(["'])(.*?)\1""")
ANSWER_ID = re.compile(r"(ex\d\d_\d+)_answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Exercise -> source of its answer, and remarks for the student and the teacher."""

    sources: dict[str, str]
    notes: tuple[str, ...]


def plain(source: str) -> str:
    """A source without blanks at line ends and around it, to compare cells by."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


def tree(source: str) -> ast.Module:
    """The syntax tree of a cell, without IPython's % and ! lines; an empty one when it has none."""
    try:
        return ast.parse(re.sub(r"(?m)^[ \t]*[%!].*$", "", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def defined(source: str) -> set[str]:
    """The names that a cell defines at its top level."""
    names: set[str] = set()
    for node in tree(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names


def used(source: str) -> set[str]:
    """The names that a cell reads anywhere and binds nowhere."""
    nodes = list(ast.walk(tree(source)))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)} | defined(source)
    bound |= {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    bound |= {(a.asname or a.name).split(".")[0] for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))
              for a in n.names}
    return {n.id for n in nodes if isinstance(n, ast.Name)} - bound - set(dir(builtins))


def match(reference: Reference, submitted: Notebook, student: str) -> Answers:
    """Every answer that can be found, each by the surest of four ways: metadata, cell id, heading, names."""
    finder = Finder(reference, submitted)
    found = {exercise.name: finder.find(exercise) for exercise in reference.exercises}
    cells = {name: cell for name, cell in found.items() if cell}
    notes = [*submitted.notes, *release_notes(reference, submitted), *finder.notes, *order_notes(submitted, cells),
             *check_notes(reference, submitted), *student_notes(reference, submitted, student),
             *name_notes(reference, submitted, cells)]
    return Answers(sources={name: cell.source for name, cell in cells.items()}, notes=tuple(notes))


class Finder:
    """Looks for answer cells and remembers what it had to fall back on."""

    def __init__(self, reference: Reference, submitted: Notebook) -> None:
        self.reference = reference
        self.code = [cell for cell in submitted.cells if cell.code]
        self.ids = {f"{exercise.grade_id}_answer" for exercise in reference.exercises}
        self.free = [cell for cell in self.code if plain(cell.source) not in released(reference)
                     and not {cell.grade_id, cell.cell_id} & self.ids]
        self.sections = sections(submitted)
        self.notes: list[str] = []
        foreign = {found[1] for cell in self.code for found in [ANSWER_ID.fullmatch(cell.grade_id or cell.cell_id)]
                   if found and found[0] not in self.ids}
        if foreign:
            self.notes.append(f"ignored answers to exercises of another notebook: {', '.join(sorted(foreign)[:5])}")

    def find(self, exercise: parts.Exercise) -> Cell | None:
        """The answer cell of one exercise, or None."""
        wanted, stub = f"{exercise.grade_id}_answer", exercise.stub()
        names = defined(stub)
        ways: list[tuple[str, Callable[[], Iterable[Cell]]]] = [
            ("", lambda: [c for c in self.code if c.grade_id == wanted]),
            ("by its cell id, its metadata is lost", lambda: [c for c in self.code if c.cell_id == wanted]),
            ("by its heading, its metadata and id are lost",
             lambda: best(self.sections.get(exercise.name, []), self.free, names)),
            ("by the names it defines, its metadata, id and heading are lost",
             lambda: [c for c in self.free if names and names <= defined(c.source)])]
        for how, look in ways:
            cells = list(look())
            if cells:
                self.notes += [f"{exercise.name}: answer found {how}"] * bool(how)
                return self.choose(exercise, cells, stub)
        self.notes.append(f"{exercise.name}: no answer cell found")
        return None

    def choose(self, exercise: parts.Exercise, cells: list[Cell], stub: str) -> Cell:
        """Of several cells the last that is not the stub."""
        if len(cells) > 1:
            self.notes.append(f"{exercise.name}: {len(cells)} answer cells, graded the last one that was changed")
        changed = [cell for cell in cells if plain(cell.source) != plain(stub)]
        return (changed or cells)[-1]


def best(section: list[Cell], free: list[Cell], names: set[str]) -> list[Cell]:
    """The cells of a section that may be its answer: those that define what the stub does, else its last one."""
    inside = [cell for cell in section if cell in free]
    return [cell for cell in inside if names & defined(cell.source)] or inside[-1:]


def sections(submitted: Notebook) -> dict[str, list[Cell]]:
    """Exercise -> the code cells between its heading and the next."""
    found: dict[str, list[Cell]] = {}
    current: list[Cell] = []
    for cell in submitted.cells:
        heading = None if cell.code else SECTION.search(cell.source)
        if heading:
            current = found.setdefault(heading[1], [])
        elif cell.code:
            current.append(cell)
    return found


def released(reference: Reference) -> set[str]:
    """The sources that students received and should not have touched."""
    return {plain(cell.source) for cell in reference.source.cells
            if cell.cell_type == "code" and parts.part_of(cell) in ("", "given", "check")}


def release_notes(reference: Reference, submitted: Notebook) -> list[str]:
    """What there is to say about the edition."""
    release = submitted.release
    if release == reference.release:
        return []
    if release not in reference.editions:
        what = f"unknown release {release[:20]!r}" if release else "its release id is lost"
        return [f"{what}: graded as the current one"]
    changed = reference.changed_since(release)
    return [f"made from the older release {release}" + (f"; changed since: {', '.join(changed)}" if changed else "")]


def order_notes(submitted: Notebook, cells: dict[str, Cell]) -> list[str]:
    """Say so when answers stand in another order."""
    places = [submitted.cells.index(cell) for cell in cells.values()]
    return ["the answers stand in another order than in the release: graded in the release's order"] * (
        places != sorted(places))


def check_notes(reference: Reference, submitted: Notebook) -> list[str]:
    """Say so when a visible check was edited: the reference's own was used."""
    given = {c.id: plain(c.source) for c in reference.source.cells if parts.part_of(c) in ("check", "given")}
    edited = [c.grade_id for c in submitted.cells if c.grade_id in given and plain(c.source) != given[c.grade_id]]
    return [f"changed cells that are not yours, graded with the originals: {', '.join(edited[:5])}"] * bool(edited)


def student_notes(reference: Reference, submitted: Notebook, student: str) -> list[str]:
    """Say so when a notebook with numbers of a student's own names another student than its path."""
    variant = any(exercise.variant for exercise in reference.exercises)
    claims = [found[2] for cell in submitted.cells if cell.code for found in STUDENT.finditer(cell.source)]
    if not variant or not claims or claims[-1].strip().lower() == student.strip().lower():
        return []
    return [f"the notebook says STUDENT = {claims[-1][:40]!r}, its path says {student[:40]!r}: graded as the latter"]


def name_notes(reference: Reference, submitted: Notebook, cells: dict[str, Cell]) -> list[str]:
    """Say so when an answer uses a name that only a cell outside of the answers defines."""
    grafted = {name for source in released(reference) for name in defined(source)} | {"STUDENT"}
    grafted |= {name for cell in cells.values() for name in defined(cell.source)}
    outside = {name for cell in submitted.cells if cell.code and cell not in cells.values() for name in
               defined(cell.source)} - grafted
    notes = []
    for exercise, cell in cells.items():
        missing = sorted(used(cell.source) & outside)
        notes += [f"{exercise} uses {', '.join(missing[:5])}, defined only in a cell that is not graded: put imports "
                  "and helpers into the answer cell"] * bool(missing)
    return notes
