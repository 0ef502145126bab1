"""The documents at the root: cited values have sources, corrections have guards, named files exist."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEYS = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "references.bib").read_text(encoding="utf-8"), re.M))
CLASSES = {"capacity", "cause", "convention", "definition", "omission", "rounding", "scope", "units",
           "wrong phase"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def facts():
    with open(ROOT / "facts.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def corrections():
    lines = [line for line in read("errata.md").splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def in_code(guard):
    return "test_" + guard.replace(" ", "_")


def test_facts_have_the_stated_columns():
    assert list(facts()[0]) == ["id", "value", "unit", "source", "where", "verified", "note"]
    assert len(facts()) > 200


def test_fact_ids_are_unique_and_speakable():
    ids = [row["id"] for row in facts()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in ids)


@pytest.mark.parametrize("row", facts(), ids=lambda row: row["id"])
def test_fact_is_complete(row):
    assert None not in row and re.fullmatch(r"(\d{1,3}(,\d{3})+|\d+)(\.\d+)?", row["value"])
    assert row["source"] in KEYS
    assert row["where"]
    assert row["verified"] in {"yes", "quote", "derived"}


def test_bibliography_entries_are_unique_sorted_and_reachable():
    entries = re.split(r"\n(?=@)", read("references.bib"))[1:]
    keys = [re.match(r"@\w+\{([^,]+),", entry)[1] for entry in entries]
    assert keys == sorted(set(keys))
    for key, entry in zip(keys, entries, strict=True):
        for field in ("author", "title", "year", "url"):
            assert re.search(rf"^  {field} = \{{.+\}},$", entry, re.M), f"{key} lacks {field}"
        assert not re.search(r"arxiv\.org/abs/(?!\d{4}\.\d{5})", entry), key
        if eprint := re.search(r"eprint = \{(.+)\}", entry):
            assert f"https://arxiv.org/abs/{eprint[1]}" in entry, key


@pytest.mark.parametrize("page", ["errata.md", "notation.md"])
def test_citations_are_in_the_bibliography(page):
    groups = re.findall(r"\{cite\}`([^`]+)`", read(page))
    assert groups and {key.strip() for group in groups for key in group.split(",")} <= KEYS


def test_corrections_are_numbered_without_gaps():
    assert [int(row[0]) for row in corrections()] == list(range(1, len(corrections()) + 1))
    assert len(corrections()) >= 25


@pytest.mark.parametrize("row", corrections(), ids=lambda row: row[0])
def test_correction_is_complete(row):
    assert len(row) == 7 and all(row)
    _, source, _, _, factor, cause, _ = row
    assert re.match(r"[AB]\b|\{cite\}`[^`]+`$", source)
    assert factor == "–" or float(factor) >= 1
    assert cause in CLASSES


@pytest.mark.parametrize("row", corrections(), ids=lambda row: row[0])
def test_correction_is_guarded(row):
    guard = row[6]
    if chapter := re.fullmatch(r"chapter (\d+)", guard):
        assert list((ROOT / "chapters").glob(f"{int(chapter[1]):02d}_*.ipynb")), guard
        return
    name = in_code(guard)
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert sum(f"def {name}(" in text for text in sources) == 1, guard


def test_every_errata_test_guards_a_row():
    named = {in_code(row[6]) for row in corrections()}
    assert set(re.findall(r"^def (test_\w+)", read("tests/test_errata.py"), re.M)) <= named


def test_every_cause_class_is_explained():
    intro = read("errata.md").split("## ")[0]
    assert set(re.findall(r"\*\*([a-z ]+)\*\*", intro)) == CLASSES == {row[5] for row in corrections()}


def test_glossary_is_sorted_and_every_term_is_explained():
    body = read("notation.md").split("```{glossary}\n")[1].split("```")[0]
    entries = [entry.split("\n") for entry in body.strip("\n").split("\n\n")]
    terms = [entry[0] for entry in entries]
    assert terms == sorted(set(terms), key=str.casefold)
    assert len(terms) >= 45
    for term, *text in entries:
        assert len(text) == 1 and text[0].startswith("  ") and text[0].rstrip().endswith("."), term


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "econ/data/README.md", "tests/data/README.md"])
def test_named_files_exist(page):
    folder = (ROOT / page).parent
    text = read(page)
    paths = set(re.findall(r"`([\w./-]+(?:/|\.(?:md|py|csv|toml|json|bib|yml)))`", text))
    paths |= set(re.findall(r"\]\(([^)#:]+)\)", text))
    missing = {p for p in paths if p != "config.json" and not ((ROOT / p).exists() or (folder / p).exists())}
    assert paths and not missing


def test_licences_and_citation_name_the_book():
    assert read("LICENSE").startswith("MIT License")
    assert "https://creativecommons.org/licenses/by/4.0/" in read("LICENSE-TEXT")
    citation = read("CITATION.cff")
    assert 'title: "LLM Inference Economics"' in citation
    version = re.search(r'^version = "(.+)"', read("pyproject.toml"), re.M)[1]
    assert f'version: "{version}"' in citation and f"## {version}" in read("CHANGELOG.md")
