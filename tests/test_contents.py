"""The tables of chapters are what _toc.yml and the notebooks say, and the tool notices when they are not."""

import contents
import nbformat
import pytest
from settings import ROOT

INTRO, README = ((ROOT / name).read_text(encoding="utf-8") for name in ("intro.md", "README.md"))


def test_the_tables_of_chapters_are_current():
    found = contents.problems(INTRO, README)
    assert not found, "\n".join(found)


def test_minutes_count_words_and_visible_cells():
    def notebook(visible, *tags):
        code = [nbformat.v4.new_code_cell("1") for _ in range(visible)]
        code += [nbformat.v4.new_code_cell("1", metadata={"tags": [tag]}) for tag in tags]
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("word " * 1_000), *code])

    assert contents.minutes(notebook(12)) == 15   # 5 + 12, to the nearest five
    assert contents.minutes(notebook(13)) == 20
    assert contents.minutes(notebook(12, "hide-cell", "hide-input", "remove-cell")) == 15


def rows(text, pattern):
    return [found[0] for found in pattern.finditer(text)]


@pytest.mark.parametrize("spoil, message", [
    (lambda intro, readme: (intro.replace(rows(intro, contents.INTRO_ROW)[1] + "\n", ""), readme), "intro.md does not"),
    (lambda intro, readme: (intro, "\n".join(reversed(readme.split("\n")))), "README.md does not"),
    (lambda intro, readme: (intro, readme.replace("| 02 | [A", "| 12 | [A")), 'calls chapters/02_'),
    (lambda intro, readme: (intro, readme.replace("[Counting a model]", "[Counting models]")), 'calls chapters/03_'),
    (lambda intro, readme: (contents.INTRO_ROW.sub(lambda m: m[0].replace(f"{m[2]} |", "1 |"), intro), readme),
     "other minutes"),
])
def test_each_rule_is_checked(spoil, message):
    assert message in "\n".join(contents.problems(*spoil(INTRO, README)))
