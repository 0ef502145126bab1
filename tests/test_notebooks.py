"""Notebooks on disk have one format, which tools/notebooks.py writes; its checks are tested here too."""

import subprocess
from dataclasses import replace

import nbformat
import notebooks
import pytest
import settings

CHAPTERS = notebooks.chapters()
DRAFT = """# A chapter

Text of the first cell.
+++
Text of the second cell.
```python
not_a_cell()
```
```{code-cell}
from econ.check import expect
expect(1 < 2, "one is less than two")
```
Between.
```{code-cell}
:tags: [nbval-ignore-output, hide-input]
assert True
```
"""


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_chapter_format(path):
    found = notebooks.problems(path)
    assert not found, "\n".join(found)


def test_book_toml_is_applied():
    assert settings.main(["--check"]) == 0


@pytest.fixture
def draft(tmp_path):
    path = tmp_path / "99_topic.md"
    path.write_text(DRAFT)
    return path


@pytest.fixture
def notebook(draft):
    notebooks.new_command(draft)
    nb = notebooks.read(draft.with_suffix(".ipynb"))
    for count, cell in enumerate(notebooks.code_cells(nb), start=1):
        cell.execution_count = count
    nb.cells += [nbformat.v4.new_code_cell("x = 1", execution_count=4 + i) for i in range(2)]
    return notebooks.normalise(nb)


def problems(nb, tmp_path):
    notebooks.write(nb, tmp_path / "nb.ipynb")
    return "\n".join(notebooks.problems(tmp_path / "nb.ipynb"))


def test_a_draft_comes_back_unchanged(draft, capsys):
    assert notebooks.main(["new", str(draft)]) == 0
    assert notebooks.main(["draft", str(draft.with_suffix(".ipynb"))]) == 0
    assert capsys.readouterr().out == DRAFT


def test_a_draft_becomes_cells(draft):
    notebooks.new_command(draft)
    cells = notebooks.read(draft.with_suffix(".ipynb")).cells
    assert [cell.cell_type for cell in cells] == ["markdown", "markdown", "code", "code", "markdown", "code"]
    assert cells[1].source.endswith("not_a_cell()\n```")
    assert cells[2].source == settings.bootstrap_source() and cells[2].metadata.tags == ["hide-cell"]
    assert cells[5].metadata.tags == ["nbval-ignore-output", "hide-input"]


def test_run_keeps_text_and_drops_images(draft, tmp_path):
    (tmp_path / "econ").symlink_to(settings.ROOT / "econ")
    picture = 'display({"image/png": "aGk=", "text/plain": "a figure"}, raw=True)'
    draft.write_text(DRAFT + "```{code-cell}\nfrom IPython.display import HTML, display\n"
                     f'{picture}\nHTML("<b>bold</b>")\n```\n')
    path = draft.with_suffix(".ipynb")
    assert notebooks.main(["new", str(draft)]) == 0
    assert notebooks.main(["run", str(path)]) == 0
    first = path.read_text()
    outputs = notebooks.read(path).cells[-1].outputs
    assert [sorted(output.data) for output in outputs] == [["text/plain"], ["text/html", "text/plain"]]
    assert "ok: one is less than two" in first
    assert notebooks.main(["run", str(path)]) == 0 and path.read_text() == first


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_a_stream_that_came_in_pieces_is_stored_as_one(notebook, tmp_path):
    value = nbformat.v4.new_output("display_data", data={"text/plain": "x"})
    notebook.cells[-1].outputs = [stream("one\n"), stream("two\n"), value, stream("three\n"), stream("four\n", "log")]
    assert "not as `run` leaves it" in problems(notebook, tmp_path)
    outputs = notebooks.normalise(notebook).cells[-1].outputs
    assert [output.get("text") for output in outputs] == ["one\ntwo\n", None, "three\n", "four\n"]
    assert problems(notebook, tmp_path) == ""


def test_a_failing_cell_is_named_and_the_file_is_left(draft, tmp_path, capsys):
    (tmp_path / "econ").symlink_to(settings.ROOT / "econ")
    draft.write_text(DRAFT.replace("assert True", "assert 1 > 2, 'one is not more than two'"))
    path = draft.with_suffix(".ipynb")
    notebooks.new_command(draft)
    before = path.read_text()
    assert notebooks.main(["run", str(path)]) == 1
    assert path.read_text() == before
    message = capsys.readouterr().err
    assert "99_topic.ipynb: cell 6 failed:" in message and "    | assert 1 > 2" in message
    assert "AssertionError: one is not more than two" in message


def test_a_right_notebook_has_no_problem(notebook, tmp_path):
    assert problems(notebook, tmp_path) == ""


def change_bootstrap(nb):
    notebooks.code_cells(nb)[0].source += "\nimport os"


def add_image(nb):
    data = {"image/png": "aGk=", "text/plain": "x"}
    nb.cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data)]


def add_widget(nb):
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}
    nb.cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data)]


def add_warning(nb):
    nb.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="careful")]


def add_figure(nb):
    data = {"text/plain": "<Figure size 640x480 with 1 Axes>"}
    nb.cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data)]


def repeat_id(nb):
    nb.cells[-1].id = nb.cells[-2].id


def rename_kernel(nb):
    nb.metadata.kernelspec.name = "my-venv"


def keep_timing(nb):
    nb.cells[-1].metadata["execution"] = {"iopub.execute_input": "2026-01-01"}


def forget_to_run(nb):
    nb.cells[-1].execution_count = None


def check_nothing(nb):
    notebooks.code_cells(nb)[2].source = "expect = 1  # expect(True)"


def ignore_too_many(nb):
    nb.cells[-1].source, nb.cells[-1].metadata["tags"] = "assert True", ["nbval-ignore-output"]


def grow(nb):
    nb.cells[-1].source = "#" * 500_000


def leave_a_note(nb):
    nb.cells[0].source += "\nTO" + "DO: finish"


def print_a_path(nb):
    nb.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="/home/someone/book")]


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
@pytest.mark.parametrize("spoil, message", [
    (change_bootstrap, "differs from the template"), (add_image, "not as `run` leaves it"),
    (add_widget, "not as `run` leaves it"), (repeat_id, "not as `run` leaves it"),
    (rename_kernel, "not as `run` leaves it"), (keep_timing, "not as `run` leaves it"),
    (add_warning, "an error or a warning"), (add_figure, "does not end with plt.show()"),
    (forget_to_run, "not executed"), (check_nothing, "checks nothing"),
    (ignore_too_many, "at most a quarter"), (grow, "the limit is 400,000"),
    (leave_a_note, "contains 'TO" + "DO'"), (print_a_path, "contains '/home/s'"),
])
def test_each_rule_is_checked(notebook, tmp_path, spoil, message):
    spoil(notebook)
    assert message in problems(notebook, tmp_path)


def test_the_first_cell_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="set `repository`"):
        exec(settings.bootstrap_source(settings.load()), {})


def test_the_first_cell_finds_a_clone(tmp_path, monkeypatch):
    (tmp_path / "econ").mkdir()
    (tmp_path / "econ" / "units.py").touch()
    (tmp_path / "chapters").mkdir()
    monkeypatch.chdir(tmp_path / "chapters")
    monkeypatch.setattr("sys.path", [])
    names: dict = {}
    exec(settings.bootstrap_source(), names)
    assert names["sys"].path == [str(tmp_path)]


def published(**changes):
    changes = {"repository": "someone/book", "site_url": "https://example.org/"} | changes
    return replace(settings.load(), **changes)


def test_the_first_cell_installs_the_edition_in_colab(tmp_path, monkeypatch):
    commands = []

    def run(command):
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", run)
    exec(settings.bootstrap_source(published(edition="v9")), {})
    exec(settings.bootstrap_source(published(edition="", branch="draft")), {})
    pip = ["-m", "pip", "install", "-q", "--no-deps"]
    assert commands == [[*pip, f"git+https://github.com/someone/book@{ref}"] for ref in ("v9", "draft")]


def test_launch_buttons_need_a_repository():
    text = (settings.ROOT / "_config.yml").read_text(encoding="utf-8")
    with_repository = settings.render_config(text, published())
    assert 'colab_url: "https://colab.research.google.com"' in with_repository
    assert 'url: "https://github.com/someone/book"' in with_repository
    assert f'branch: "{published().edition}"' in with_repository
    without = settings.render_config(with_repository, published(repository="OWNER/book"))
    assert 'colab_url: ""' in without and "use_repository_button: false" in without


def test_a_wrong_setting_is_refused(tmp_path):
    path = tmp_path / "book.toml"
    path.write_text('title = "Book"\n')
    with pytest.raises(ValueError, match="missing or unknown key"):
        settings.load(path)
    text = (settings.ROOT / "book.toml").read_text(encoding="utf-8")
    path.write_text(text.replace(settings.load().repository, "no-slash"))
    with pytest.raises(ValueError, match="is not OWNER/NAME"):
        settings.load(path)
