"""Launch buttons as a reader meets them: a small book is built with the book's own configuration."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import settings

PAGES = ("chapters/01_topic.ipynb", "intro.md", "notation.md")


def build(folder: Path, book: settings.Settings) -> dict[str, str]:
    """Build three pages with _config.yml as book.toml's values make it; the HTML of each source."""
    config = (settings.ROOT / "_config.yml").read_text(encoding="utf-8")
    config = settings.render_config(config, book).replace("execute_notebooks: cache", "execute_notebooks: off")
    (folder / "_config.yml").write_text(re.sub(r"(?m)^(logo|  favicon|bibtex_bibfiles):.*\n", "", config))
    (folder / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n"
                                     "  - file: chapters/01_topic\n  - file: notation\n")
    (folder / "chapters").mkdir()
    for page in PAGES[1:]:
        (folder / page).write_text(f"# {page}\n")
    cells = [nbformat.v4.new_markdown_cell("# Topic"), nbformat.v4.new_code_cell("1 + 1")]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / PAGES[0])
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--keep-going"]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return {page: (folder / "_build/html" / page).with_suffix(".html").read_text(encoding="utf-8") for page in PAGES}


def test_every_notebook_and_only_a_notebook_opens_in_colab(tmp_path):
    html = build(tmp_path, replace(settings.load(), repository="someone/book", edition="v7"))
    found = {page: re.findall(r'href="(https://colab[^"]*)"', text) for page, text in html.items()}
    url = "https://colab.research.google.com/github/someone/book/blob/v7/chapters/01_topic.ipynb"
    assert found == {PAGES[0]: [url], "intro.md": [], "notation.md": []}
    assert all("https://github.com/someone/book/issues/new" in text for text in html.values())


def test_without_a_repository_no_page_has_a_launch_button(tmp_path):
    html = build(tmp_path, replace(settings.load(), repository="OWNER/book"))
    assert not [page for page, text in html.items() if "colab" in text or "launch-buttons" in text or "OWNER" in text]
