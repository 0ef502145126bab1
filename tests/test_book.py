"""The build tells where it went wrong, and notices a page that is missing."""

import book
import nbformat
import pytest

TRACEBACK = """
reading sources... [ 40%] chapters/01_flops
Traceback (most recent call last):
  ...
------------------
claim(x, "672 MB", "cache")
------------------
Cell In[2], line 1
----> 1 claim(x, "672 MB", "cache")

ClaimError: cache: the value is 671 MB, the text says 672 MB

The above exception was the direct cause of the following exception:
myst_nb.core.execute.base.ExecutionError: {path}
RuntimeError: 
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(book, "HTML", tmp_path / "_build" / "html")
    return tmp_path


def test_every_page_of_the_table_of_contents_has_a_source():
    assert book.pages()[0] == "intro" and len(book.pages()) == len(set(book.pages()))
    for page in book.pages():
        assert any((book.ROOT / f"{page}{suffix}").is_file() for suffix in (".md", ".ipynb")), page


def test_every_chapter_is_in_the_table_of_contents():
    chapters = {f"chapters/{path.stem}" for path in book.notebooks.chapters()}
    assert chapters <= set(book.pages())


def test_a_failing_cell_is_explained(root):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell("x = 1"),
                                         nbformat.v4.new_code_cell('claim(x, "672 MB", "cache")')])
    nbformat.write(nb, root / "01.ipynb")
    assert book.explain(TRACEBACK.format(path=root / "01.ipynb")).splitlines() == [
        "01.ipynb: cell 3 failed:", '    | claim(x, "672 MB", "cache")',
        "    ClaimError: cache: the value is 671 MB, the text says 672 MB"]


def test_a_warning_is_explained():
    output = "reading sources\n/a/chapters/01.ipynb:850002: WARNING: could not find bibtex key\nbuild finished\n"
    assert book.explain(output) == "/a/chapters/01.ipynb: cell 85 line 2: WARNING: could not find bibtex key"


def test_a_missing_page_is_noticed(root, monkeypatch):
    monkeypatch.setattr(book, "pages", lambda: ["intro", "chapters/01"])
    (root / "_build" / "html").mkdir(parents=True)
    (root / "_build" / "html" / "intro.html").touch()
    assert book.missing_pages() == ["chapters/01"]


def test_cached_runs_are_forgotten_when_the_package_changes(root):
    module, cached = root / "econ" / "units.py", root / "_build" / ".jupyter_cache" / "run"
    module.parent.mkdir()
    cached.parent.mkdir(parents=True)
    (root / "requirements.txt").touch()
    for source, kept in (("GB = 1", False), ("GB = 1", True), ("GB = 2", False)):
        module.write_text(source)
        cached.parent.mkdir(exist_ok=True)
        cached.touch()
        book.forget_outdated_runs()
        assert cached.exists() is kept
