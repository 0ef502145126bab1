"""The grader on notebooks that are honest but come in every shape: what is graded, noted, kept and refused."""

import csv
import json
import os
import stat
import time
import warnings
import zipfile

import bench_grader
import grade
import nbformat
import pytest
from grading import batch, match, parts, probe, reference, report, score, submissions
from grading.sandbox import Limits
from grading_toy import (
    LIMITS,
    NAME,
    SOLUTIONS,
    cell,
    run_batch,
    source,
    square_of,
    submission,
    write_all,
    write_course,
)

FULL = {"99.1": 3, "99.2": 2, "99.3": 2}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The toy course."""
    return write_course(tmp_path_factory.mktemp("course") / "exercises")


@pytest.fixture(scope="module")
def ref(course):
    """Its reference."""
    return reference.load(course, NAME)


# Shapes: name -> what an editor or a student did to a right notebook, and the note that has to say so

def lose_metadata(nb):
    for c in nb.cells:
        c.metadata = nbformat.from_dict({})
    return "metadata is lost"


def lose_metadata_and_ids(nb):
    lose_metadata(nb)
    for number, c in enumerate(nb.cells):
        c.id = f"new-{number}"
    return "metadata and id are lost"


def lose_headings_too(nb):
    lose_metadata_and_ids(nb)
    nb.cells = [c for c in nb.cells if c.cell_type == "code"]
    return "metadata, id and heading are lost"


def reverse(nb):
    nb.cells = nb.cells[::-1]
    return "another order"


def duplicate(nb):
    copy = nbformat.from_dict(cell(nb, "ex99_1_answer"))
    copy.id, copy.source = "copied", parts.stub(cell(source(), "ex99_1_answer").source, "99.1")
    nb.cells.append(copy)
    return "2 answer cells"


def duplicate_ids(nb):
    nb.cells += [nbformat.from_dict(cell(nb, "ex99_3_answer")) for _ in range(2)]
    return "3 answer cells"


def colab(nb):
    for c in nb.cells:
        c.metadata["id"], c.metadata["colab"] = c.id, {"base_uri": "https://localhost:8080/"}
        c.metadata["outputId"] = "5f1c"
        del c["id"]
        if c.cell_type == "code":
            c.execution_count = 7
    nb.metadata["colab"], nb.nbformat_minor = {"provenance": []}, 0
    del nb.metadata["econ"]
    return "release id is lost"


def vscode(nb):
    for number, c in enumerate(nb.cells):
        c.metadata = nbformat.from_dict({"vscode": {"languageId": "python"}} if c.cell_type == "code" else {})
        c.id = f"#W{number}sZmlsZQ=="
    nb.metadata.kernelspec.name = ".venv"
    return "found by its heading"


def old_format(nb):
    lose_metadata(nb)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nbformat.convert(nbformat.from_dict(nb), 3)
    nb.clear()
    nb.update(old)
    return "nbformat 3, converted"


def other_kernel(nb):
    nb.metadata.kernelspec = nbformat.from_dict({"name": "ir", "language": "R", "display_name": "R"})
    return "its kernel is 'R'"


def older_release(nb):
    nb.metadata.econ["release"] = "aaaaaaaaaaaa"
    return "older release aaaaaaaaaaaa; changed since: 99.3"


def unknown_release(nb):
    nb.metadata.econ["release"] = "ffffffffffff"
    return "unknown release"


def lines_as_a_list(nb):
    for c in nb.cells:
        c.source = c.source.splitlines(keepends=True)
    nb.metadata.econ["release"] = ""
    return "release id is lost"


def foreign_answer(nb):
    foreign = nbformat.v4.new_code_cell("def cubes(n):\n    return 0")
    foreign.metadata["nbgrader"] = {"grade_id": "ex98_1_answer"}
    nb.cells.append(foreign)
    return "another notebook: ex98_1"


def edited_check(nb):
    cell(nb, "ex99_1_check").source = "print('99.1: every check passed')"
    return "not yours, graded with the originals: ex99_1_check"


def another_student(nb):
    cell(nb, "student").source = 'STUDENT = "someone-else"'
    return "says STUDENT = 'someone-else'"


SHAPES = [lose_metadata, lose_metadata_and_ids, lose_headings_too, reverse, duplicate, duplicate_ids, colab, vscode,
          old_format, other_kernel, older_release, unknown_release, lines_as_a_list, foreign_answer, edited_check,
          another_student]


@pytest.fixture(scope="module")
def shapes(course, tmp_path_factory):
    """Every shape of a right notebook, an untouched one and a half right one, graded in one batch."""
    folder, notes, notebooks = tmp_path_factory.mktemp("shapes"), {}, {}
    for shape in SHAPES:
        nb = submission(SOLUTIONS, shape.__name__)
        notes[shape.__name__] = shape(nb)
        notebooks[shape.__name__] = nb
    half = {"99.1": "def cubes(n):\n    return 494209 if n == 37 else 36", "99.3": "values = 100"}
    notebooks |= {"untouched": submission({}), "half": submission(half),
                  "right": submission(SOLUTIONS, "right"),
                  "helper": submission(SOLUTIONS | {"99.1": "def cubes(n):\n    return total(n)"}),
                  "raises": submission({"99.1": "def cubes(n):\n    raise ZeroDivisionError(n)", "99.2": "1 +",
                                        "99.3": "values = nothing"})}
    notebooks["helper"].cells.append(nbformat.v4.new_code_cell("def total(n): return sum(i**3 for i in range(n + 1))"))
    graded = run_batch(course, write_all(folder / "in", notebooks), folder / "out")
    return graded, notes


@pytest.mark.parametrize("shape", [shape.__name__ for shape in SHAPES])
def test_a_right_notebook_of_any_shape_scores_full_marks_with_a_note(shapes, shape):
    graded, notes = shapes
    assert graded.points(shape) == FULL
    assert notes[shape] in "; ".join(graded.result(shape)["notes"])


def test_a_plain_right_notebook_has_no_note(shapes):
    assert shapes[0].points("right") == FULL
    assert shapes[0].result("right")["notes"] == []


def test_stubs_score_nothing_and_checks_give_partial_credit(shapes):
    graded, _ = shapes
    assert graded.failed == 0
    assert set(graded.points("untouched").values()) == {0}
    assert graded.result("untouched")["exercises"]["99.1"]["feedback"] == [
        "99.1: not answered yet", "in a graded check your code raises NotImplementedError"]
    assert graded.points("half") == {"99.1": 1, "99.2": 0, "99.3": 2}


def test_a_name_from_a_cell_that_is_not_graded_is_named(shapes):
    graded, _ = shapes
    assert graded.points("helper") == FULL | {"99.1": 0}
    assert graded.result("helper")["notes"] == [
        "the notebook says STUDENT = 'your-id', its path says 'helper': graded as the latter",
        "99.1 uses total, defined only in a cell that is not graded: put imports and helpers into the answer cell"]


def test_feedback_names_the_students_own_errors_and_no_hidden_check(shapes):
    page = (shapes[0].out / "feedback" / NAME / "raises.md").read_text()
    assert "ZeroDivisionError" in page and "SyntaxError" in page and "name 'nothing' is not defined" in page
    for student in ("raises", "half", "untouched", "right"):
        text = (shapes[0].out / "feedback" / NAME / f"{student}.md").read_text()
        for secret in ("37", "494209", "58", "marker_of_the", "2927521", "SOLUTION"):
            assert secret not in text, (student, secret)


def test_tables_have_a_row_for_each_student(shapes, capsys):
    graded, _ = shapes
    assert grade.main(["report", str(graded.out)]) == 0
    assert "| 99.1 Cubes | 3 |" in capsys.readouterr().out
    with (graded.out / f"{NAME}.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(SHAPES) + 5
    assert (rows["half"]["99.1"], rows["half"]["points"], rows["half"]["max_points"]) == ("1", "3", "7")


# Resuming, exit codes, commands

def test_a_graded_submission_is_left_alone_until_it_changes(course, tmp_path, capsys):
    folder = write_all(tmp_path / "in", {"ada": submission(SOLUTIONS, "ada"), "bad": "{"})
    command = ["--exercises", str(course), "grade", str(folder), "--out", str(tmp_path / "out")]
    assert grade.main(command) == 1
    first = capsys.readouterr().out
    assert "ada.ipynb: 7 of 7" in first and "bad.ipynb: NOT GRADED: is not JSON" in first
    (folder / "bad.ipynb").unlink()
    assert grade.main(command) == 0
    assert capsys.readouterr().out == "ada.ipynb: as before, 7 of 7\n"
    write_all(folder, {"ada": submission({}, "ada")})
    assert grade.main([*command, "--notebook", NAME]) == 0
    assert "ada.ipynb: 0 of 7" in capsys.readouterr().out


@pytest.mark.parametrize("command", [
    ["grade", "nowhere", "--out", "x"], ["report", "nowhere"], ["release", "01_x", "x"],
    ["grade", "{}", "--out", "x", "--notebook", "01_x"], ["grade", "{}", "--out", "x"]])
def test_bad_usage_is_2(course, tmp_path, command, capsys):
    filled = [str(tmp_path) if part == "{}" else part for part in command]
    assert grade.main(["--exercises", str(course), *filled]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_release_copies_what_students_receive(course, ref, tmp_path, capsys):
    assert grade.main(["--exercises", str(course), "release", NAME, str(tmp_path / "class")]) == 0
    assert f"release {ref.release}, 7 points" in capsys.readouterr().out
    assert (tmp_path / "class" / f"{NAME}.ipynb").read_bytes() == (course / f"{NAME}.ipynb").read_bytes()


# Whose it is, and what cannot be read

def write_zip(path, entries, links=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
        for name, target in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return path


TEXT = json.dumps(submission(SOLUTIONS))


@pytest.mark.parametrize(("names", "students"), [
    (["ada.ipynb", "bob.ipynb"], ["ada", "bob"]), (["ada/99_toy.ipynb", "bob/x/99_toy.ipynb"], ["ada", "bob"]),
    (["class/ada.ipynb", "class/bob.ipynb"], ["ada", "bob"]), (["99_toy_ada.ipynb"], ["ada"]),
    (["ada/99_toy.ipynb", "ada/notes.ipynb"], ["ada", "ada"]), (["ada/x/99_toy.ipynb"], ["ada"]),
    (["toy-ada/exercises/99_toy.ipynb", "toy-bob/exercises/99_toy.ipynb"], ["toy-ada", "toy-bob"]),
    (["hand-in/ada/99_toy.ipynb", "hand-in/bob/99_toy.ipynb", "__MACOSX/ada/._99_toy.ipynb"], ["ada", "bob"]),
])
def test_the_student_comes_from_the_path(tmp_path, names, students):
    write_zip(tmp_path / "all.zip", [(name, TEXT) for name in names])
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        archive.extractall(tmp_path / "folder")
    for path in (tmp_path / "all.zip", tmp_path / "folder"):
        assert [found.student for found in submissions.find(path, [NAME])] == students


def test_odd_entries_of_a_zip_are_refused_one_by_one(tmp_path):
    bomb = b" " * (submissions.FILE_BYTES + 1)
    path = write_zip(tmp_path / "all.zip", [
        ("good.ipynb", TEXT), ("../escape.ipynb", TEXT), ("/abs.ipynb", TEXT), ("a\\..\\b.ipynb", TEXT),
        ("bomb.ipynb", bomb), ("inner.zip", b"PK")], links=[("link.ipynb", "/etc/passwd")])
    found = {s.place: s.problem for s in submissions.find(path, [NAME])}
    assert found.pop("good.ipynb") == ""
    assert len(found) == 6 and all(found.values()), found
    assert "leaves the zip" in found["../escape.ipynb"] and "link" in found["link.ipynb"]
    assert "20 MB" in found["bomb.ipynb"] and "zip inside the zip" in found["inner.zip"]


def test_a_zip_entry_that_lies_about_its_size_is_cut(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "all.zip", [("bomb.ipynb", b" " * (submissions.FILE_BYTES + 10)), ("b.ipynb", TEXT)])
    monkeypatch.setattr(submissions, "_entry_problem", lambda info, at: "")
    found = {s.place: s for s in submissions.find(path, [NAME])}
    assert found["bomb.ipynb"].data == b"" and "larger than" in found["bomb.ipynb"].problem


def test_links_and_strange_files_of_a_folder_are_refused(tmp_path):
    folder = write_all(tmp_path / "in", {"ada": TEXT})
    (folder / "link.ipynb").symlink_to("ada.ipynb")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.ipynb")
    write_zip(folder / "more.zip", [("bob.ipynb", TEXT)])
    found = {s.place: s.problem for s in submissions.find(folder, [NAME])}
    assert found == {"ada.ipynb": "", "link.ipynb": "is a link, not a file", "pipe.ipynb": "is no ordinary file",
                     "more.zip": "is a zip inside the submissions: unpack it first"}


@pytest.mark.parametrize(("data", "message"), [
    (b"", "not JSON"), (b"{", "not JSON"), (b"\xff\xfe\x00", "not JSON"), (b"[" * 200_000, "not JSON"),
    (b"[]", "no object"), (b'{"nbformat": 4}', "no list of cells"),
    (b'{"nbformat": 4, "cells": {}}', "no list of cells"),
    (b'{"nbformat": 3}', "converted"), (b'{"nbformat": 99, "cells": []}', "converted"),
    (b'{"nbformat": "x" }', "converted"), (b'{"nbformat": 4, "cells": [' + b"1," * 6000 + b"1]}", "more than 5,000"),
])
def test_what_is_no_notebook_is_named_in_one_line(data, message):
    with pytest.raises(ValueError, match=message) as error:
        submissions.parse(data)
    assert len(str(error.value).splitlines()) == 1


def test_cells_of_any_kind_are_read_or_left_out(ref):
    odd = [1, None, {}, {"cell_type": "code", "source": {"a": 1}, "metadata": []},
           {"cell_type": "code", "source": ["a = ", 3, "1"], "id": 7, "metadata": {"nbgrader": "x"}},
           {"cell_type": "code", "source": "x" * 300_000, "id": "ex99_1_answer"}]
    metadata = {"econ": [], "kernelspec": 1}
    parsed = submissions.parse(json.dumps({"nbformat": 4, "cells": odd, "metadata": metadata}).encode())
    assert [c.source for c in parsed.cells] == ["", "", "a = 1", ""]
    assert "a cell of 300,000 characters was left out (ex99_1_answer)" in parsed.notes
    assert match.match(ref, parsed, "ada").sources == {"99.1": ""}


def test_half_characters_are_replaced(ref):
    data = json.dumps(submission({"99.1": "x = '\ud800'"}, "\udcff")).encode()
    parsed = submissions.parse(data)
    text = reference.grafted(ref, match.match(ref, parsed, "ada").sources, "ada", {})
    assert "x = '?'" in text and text.encode()


def test_two_files_for_one_notebook_are_graded_only_if_one_has_its_name(tmp_path, course, capsys):
    for name in (f"ada/{NAME}.ipynb", "ada/copy.ipynb", "bob/one.ipynb", "bob/two.ipynb"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(TEXT)
    graded = run_batch(course, tmp_path / "in", tmp_path / "out")
    assert graded.result("ada")["place"] == f"ada/{NAME}.ipynb" and graded.result("ada")["points"] == 7
    assert graded.result("bob")["problem"] == "several files for one notebook of one student, keep one: " \
                                              "bob/one.ipynb, bob/two.ipynb"
    assert graded.failed == 1


def test_numbers_of_a_students_own_differ_by_path(shapes):
    assert square_of("right") != square_of("half")
    assert shapes[0].points("another_student")["99.2"] == 2


# Small parts

def test_a_grafted_notebook_holds_no_solution_and_expected_text_only_as_outputs(ref):
    nb = nbformat.reads(reference.grafted(ref, {"99.1": "mine = 1"}, "ada", ref.expected()), as_version=4)
    text = "\n".join(c.source for c in nb.cells)
    assert "mine = 1" in text and "STUDENT = 'ada'" in text and "SOLUTION" not in text
    assert "494209" not in text and "side**2" not in text
    assert {c.id for c in nb.cells if c.outputs} == set(ref.expected())


def test_a_message_that_repeats_a_hidden_check_is_not_shown(ref):
    secret = score.hidden_words(ref, match.Answers(sources=SOLUTIONS, notes=()))
    assert secret == {"log2", "marker_of_the_hidden_check"}
    assert "not shown" in score.tidy("print(cubes(marker_of_the_hidden_check))", secret)
    assert score.tidy("name 'x' is not defined\x1b[0m", secret) == "name 'x' is not defined [0m"


def test_a_made_up_exception_is_not_named():
    assert score.builtin_error("ValueError") == "ValueError"
    assert score.builtin_error("print(cubes(58))") == "an exception of its own"
    assert score.builtin_error("print") == "an exception of its own"


@pytest.mark.parametrize("text", ["\n", "#", "# ", " \n", "-", "%\n", "x = "])
def test_no_cell_keeps_the_grader_busy(ref, text):
    def seconds(count):
        nb = submission({"99.1": text * count})
        nb.cells.append(nbformat.v4.new_markdown_cell(text * count))
        parsed, start = submissions.parse(json.dumps(nb).encode()), time.perf_counter()
        match.match(ref, parsed, "ada")
        return time.perf_counter() - start

    assert min(seconds(20_000) for _ in range(3)) < 10 * min(seconds(4_000) for _ in range(3))    # 25 if quadratic


def test_one_student_cannot_fill_the_graders_memory(tmp_path):
    large = b"{" + b" " * (submissions.FILE_BYTES - 2) + b"}"
    entries = [(f"mallory/{number}.ipynb", large) for number in range(8)]
    entries += [(f"small/{number:04d}.ipynb", b"{}") for number in range(1_200)]
    found = submissions.find(write_zip(tmp_path / "all.zip", [*entries, ("ada/99_toy.ipynb", TEXT)]), [NAME])
    held = {student: sum(len(s.data) for s in found if s.student == student) for student in ("mallory", "ada")}
    assert held["mallory"] <= submissions.STUDENT_BYTES + submissions.FILE_BYTES and held["ada"] == len(TEXT)
    assert found[-1].problem == "more than 64 MB of one student"


def test_other_files_of_a_repository_do_not_count(tmp_path):
    folder = tmp_path / "in" / "toy-ada"
    for name in ("exercises", "chapters", "exercises/source", ".git"):
        write_all(folder / name, {NAME: submission(SOLUTIONS if name == "exercises" else {}, "toy-ada")})
    write_all(tmp_path / "in" / "toy-bob", {NAME: submission({}, "toy-bob")})
    (folder / "data").mkdir()
    for number in range(21_000):
        (folder / "data" / str(number)).touch()
    tasks = [task for s in submissions.find(tmp_path / "in", [NAME]) for task in batch.sort(s, [NAME], None)]
    assert [task.submission.place for task in batch.unique(tasks)] == [
        "toy-ada/exercises/99_toy.ipynb", "toy-bob/99_toy.ipynb"]


def test_feedback_with_points_only_has_no_text_of_a_students_code(tmp_path):
    checks = {"ex99_1_hidden_1": {"points": 1, "max_points": 1}}
    exercise = {"title": "Cubes", "points": 1, "max_points": 1, "checks": checks, "feedback": ["c.u.b.e.s.(.3.7.)"]}
    result = {"student": "ada", "notebook": NAME, "status": "graded", "points": 1, "max_points": 1, "notes": [],
              "exercises": {"99.1": exercise}}
    whole, points = report.feedback(result), report.feedback(result, points_only=True)
    assert "c.u.b" in whole and "c.u.b" not in points
    assert "1 of 1 graded checks right" in points


def test_the_probe_sees_a_file_and_a_folder_that_can_be_read(tmp_path):
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "all.zip").touch()
    found = [probe.reads(str(tmp_path / name)) for name in ("full", "full/all.zip", "empty", "none")]
    assert found == [True, True, False, False]


def test_a_pattern_finds_the_student_in_a_longer_name(tmp_path):
    path = write_zip(tmp_path / "all.zip", [("toy-ada/99_toy.ipynb", TEXT), ("bob/99_toy.ipynb", TEXT)])
    assert [s.student for s in submissions.find(path, [NAME], grade.one_group("toy-(.+)"))] == ["bob", "ada"]


@pytest.mark.parametrize(("pattern", "message"), [
    ("toy-.+", "one pair of parentheses"), ("(", "no regular expression")])
def test_a_pattern_that_cannot_find_a_student_is_refused(pattern, message, capsys):
    with pytest.raises(SystemExit) as ended:
        grade.main(["grade", "hand-ins", "--out", "results", "--student", pattern])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_names_that_terminals_and_file_systems_take_amiss(tmp_path):
    path = write_zip(tmp_path / "all.zip", [("ada\nbob: 7 of 7.ipynb", TEXT), ("Jose\u0301.ipynb", TEXT)])
    assert {s.student for s in submissions.find(path, [NAME])} == {"ada?bob: 7 of 7", "José"}
    report.save(tmp_path, {"student": "\U00020000" * 63, "notebook": NAME, "status": "not graded", "problem": "x"})
    assert len(report.kept(tmp_path)) == 1


def test_a_reference_that_was_not_run_is_refused(ref):
    hidden = nbformat.from_dict(ref.exercises[0].cells["hidden"][0])
    hidden.outputs = []
    with pytest.raises(ValueError, match="run tools/release.py run"):
        reference.stored(hidden)


def test_students_ids_become_harmless_names(tmp_path):
    names = ["ada", "../../etc/x", "=1+1", "a b", "", "ü"]
    assert len({report.safe(name) for name in names}) == len(names)
    assert not any("/" in report.safe(name) or report.safe(name).startswith(".") for name in names)
    assert report._harmless("=HYPERLINK(1)") == "'=HYPERLINK(1)" and report._harmless(3) == 3


def test_limits_reach_the_operating_system():
    assert LIMITS.resources()["RLIMIT_AS"] == 2 * LIMITS.memory_bytes
    assert LIMITS.resources()["RLIMIT_CPU"] == 60


# Everything, once

@pytest.mark.long
def test_solutions_of_every_notebook_earn_full_marks_and_stubs_nothing(tmp_path):
    for notebook in reference.names(grade.HERE):
        ref = reference.load(grade.HERE, notebook)
        for student, part in (("ada", "answer"), ("untouched", "")):
            nb = parts.release(ref.source, notebook)
            answers = {f"{e.grade_id}_answer": e.cells[part][0].source for e in ref.exercises if part}
            for c in nb.cells:
                c.source = answers.get(c.id, c.source)
            (tmp_path / "in" / student).mkdir(parents=True, exist_ok=True)
            nbformat.write(nb, tmp_path / "in" / student / f"{notebook}.ipynb")
    graded = run_batch(grade.HERE, tmp_path / "in", tmp_path / "out", limits=Limits())
    assert graded.failed == 0
    for result in report.kept(graded.out):
        assert result["points"] == (result["max_points"] if result["student"] == "ada" else 0), result["place"]


@pytest.mark.long
def test_two_hundred_submissions_are_graded(capsys):
    assert bench_grader.main(["--n", "200"]) == 0
    assert "200 submissions to" in capsys.readouterr().out
