"""Exercises: releases are what their sources give, and every answer that a source knows earns what it should."""

import re

import nbformat
import notebooks
import pytest
import release
from grading import parts, trial

SOURCES = release.sources()
STUDENTS = ("ada", "Grace.Hopper@example.org", *(f"s{number}" for number in range(1000, 1008)))


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem, scope="module")
def source(request):
    """One source notebook."""
    return notebooks.read(request.param)


def test_sources_and_releases_are_up_to_date():
    assert release.check_all() == []


def test_every_answer_earns_what_it_should(source):
    assert trial.problems(source) == []


def test_a_variant_differs_by_student_and_judges_all_alike(source):
    for exercise in filter(lambda each: each.variant, parts.exercises(source)):
        solution, seen = exercise.cells["answer"][0].source, set()
        for student in STUDENTS:
            want = trial.attempt(source, exercise, solution, student).hidden
            seen.add(want)
            for cell in exercise.cells["right"]:
                tried = trial.attempt(source, exercise, cell.source, student)
                assert tried.hidden == want and tried.check.endswith("every check passed"), (cell.id, student, tried)
            for cell in exercise.cells["wrong"]:
                assert trial.attempt(source, exercise, cell.source, student).hidden != want, (cell.id, student)
        assert len(seen) > 2, f"{exercise.name}: nearly the same numbers for everybody"


def test_an_exercise_notebook_has_all_levels_and_kinds(source):
    found = parts.exercises(source)
    assert 4 <= len(found) <= 6
    assert {exercise.level for exercise in found} == {"A", "B", "C"}
    assert any(exercise.variant for exercise in found)
    texts = " ".join(exercise.cells["text"][0].source.lower() for exercise in found)
    assert "estimate first" in texts
    assert "find the error" in texts


def test_a_release_shows_no_solution_and_no_graded_check(source):
    given = parts.release(source, "x")
    text = "\n".join(cell.source for cell in given.cells)
    assert "SOLUTION" not in text and "# expected" not in text
    assert not {parts.part_of(cell) for cell in given.cells} & set(parts.SOURCE_ONLY)
    assert not any(cell.get("outputs") for cell in given.cells)
    for exercise in parts.exercises(source):
        for cell in exercise.cells["hidden"]:
            body = parts.without_expected(cell.source)
            assert body.rstrip().splitlines()[-1].lstrip().startswith("print("), cell.id
            assert not re.search(r"\bassert\b|\bexpect|==", body), f"{cell.id} compares; it should only print"


def test_a_hidden_check_keeps_its_expected_text_to_itself():
    cell = nbformat.v4.new_code_cell("# expected: 4 | 2 x 2\n# expected: 6 | 2 x 3\nprint(f(2))\nprint(f(3))")
    assert parts.expected(cell) == "4\n6"
    assert parts.without_expected(cell.source) == "print(f(2))\nprint(f(3))"


def test_the_stub_of_a_value_leaves_its_none():
    source = "x = None\n### BEGIN SOLUTION about 1 line\nx = 3\n### END SOLUTION"
    assert parts.stub(source, "01.1") == "x = None\n# Your code here, about 1 line."


@pytest.mark.parametrize(("damage", "message"), [
    (lambda nb: nb.cells.pop(), "at least one right cell"),
    (lambda nb: nb.cells[-3].metadata.econ.update(points=7), "its hidden checks have"),
    (lambda nb: nb.cells[-3].update(source="# expected: 1 | by hand\nprint(2)"), "the comment expects"),
])
def test_damage_to_a_source_is_named(damage, message):
    nb = parts.assign(nbformat.from_dict(notebooks.read(SOURCES[0])))
    nb.cells = nb.cells[:next(i for i, cell in enumerate(nb.cells) if parts.part_of(cell) == "right") + 1]
    hidden = max(i for i, cell in enumerate(nb.cells) if parts.part_of(cell) == "hidden")
    nb.cells = nb.cells[:hidden + 1] + [c for c in nb.cells[hidden + 1:] if parts.part_of(c) == "right"][:1]
    nb.cells.insert(hidden + 1, nbformat.v4.new_code_cell("x", metadata={"econ": {"part": "wrong", "name": "n",
                                                                                  "hint": "h"}}))
    assert parts.problems(nb) == []
    damage(nb)
    assert any(message in line for line in parts.problems(nb))


def test_a_changed_check_is_another_release():
    nb = notebooks.read(SOURCES[0])
    before = parts.release_id(nb)
    next(cell for cell in nb.cells if parts.part_of(cell) == "hidden").source += "\n"
    assert parts.release_id(nb) != before


def test_a_change_of_book_toml_reaches_sources_and_releases(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "_toc.yml").write_text("")
    copy = tmp_path / "source" / SOURCES[0].name
    copy.write_text(SOURCES[0].read_text(encoding="utf-8").replace("OWNER/", "someone/"), encoding="utf-8")
    for name, path in (("EXERCISES", tmp_path), ("SOURCE", tmp_path / "source"), ("ROOT", tmp_path),
                       ("SOLUTIONS", tmp_path / "solutions"), ("RELEASES", tmp_path / "releases.json")):
        monkeypatch.setattr(release, name, path)
    assert any("not as `run` leaves it" in line for line in release.check_all())
    assert release.release_all() == []
    assert copy.read_bytes() == SOURCES[0].read_bytes()
    assert (tmp_path / copy.name).read_bytes() == (SOURCES[0].parents[1] / copy.name).read_bytes()
