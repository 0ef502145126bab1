"""Every number in the text is bound to what the book computes (tools/prose.py says how)."""

import re

import notebooks
import pytest
from prose import PAGES, chapter_problems, contradictions, load_facts, page_problems
from settings import ROOT

CHAPTERS = {f"chapters/{path.name}": notebooks.read(path) for path in notebooks.chapters()}
FACTS = load_facts()


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_number_of_a_chapter_is_bound(name):
    found = [f"{name}: {line}" for line in chapter_problems(CHAPTERS[name], FACTS)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_page_is_bound(name):
    found = [f"{name}: {line}" for line in page_problems(ROOT / name, CHAPTERS, FACTS)]
    assert not found, "\n".join(found)


def test_a_claimed_quantity_has_one_value():
    found = contradictions(CHAPTERS)
    assert not found, "\n".join(found)


def test_every_cited_source_is_in_the_bibliography():
    keys = set(re.findall(r"(?m)^@\w+\{([^,]+),", (ROOT / "references.bib").read_text(encoding="utf-8")))
    texts = [cell.source for nb in CHAPTERS.values() for cell in nb.cells if cell.cell_type == "markdown"]
    texts += [path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")]
    cited = {key.strip() for text in texts for group in re.findall(r"\{cite[\w:]*\}`([^`]*)`", text)
             for key in group.split(",")}
    assert cited | set(FACTS) <= keys, f"not in references.bib: {sorted((cited | set(FACTS)) - keys)}"
