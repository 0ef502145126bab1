"""The page of questions: every answer is one sentence, leads to a section that exists, and its line of code runs."""

import ast
import re

import contents
import pytest
from settings import ROOT

PAGE = (ROOT / "questions.md").read_text(encoding="utf-8")
QUESTION = re.compile(r"\*\*(?P<text>.+)\*\*\n(?P<answer>.+)\n"
                      r"→ \[(?P<label>.+)\]\((?P<page>.+)\.ipynb#(?P<anchor>.+)\)\n\n"
                      r"```python\n(?P<line>.+)\n# (?P<value>\(.+?\)|\".+?\"|\S+)(?P<unit> .+)?\n```\n")
QUESTIONS = [found.groupdict() for found in QUESTION.finditer(PAGE)]
NAMES: dict = {}
exec(re.search(r"```python\n(import econ\n.*?)```", PAGE, re.S)[1], NAMES)


def anchor(heading):
    """The anchor that the book gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def same(value, written, literal):
    """True where a value equals the written one, a float when it is rounded to the digits written."""
    if isinstance(written, tuple):
        return len(value) == len(written) and all(map(same, value, written, literal.strip("()").split(", ")))
    if isinstance(written, float):
        digits = re.sub(r"[._]", "", literal.split("e")[0]).lstrip("0")
        return float(f"{value:.{len(digits)}g}") == written
    return value == written


def test_every_question_has_the_same_form():
    assert len(QUESTIONS) == PAGE.count("\n**") >= 25
    assert len({question["text"] for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["text"])
def test_a_question_is_answered_in_one_sentence(question):
    assert question["text"].endswith("?")
    assert re.fullmatch(r"[A-Z*].+[^.!?]\.", question["answer"]) and not re.search(r"[.!?] [A-Z]", question["answer"])


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["text"])
def test_a_question_leads_to_a_section_that_exists(question):
    assert question["page"] in contents.chapters()
    texts = [cell.source for cell in contents.chapter(question["page"]).cells if cell.cell_type == "markdown"]
    headings = re.findall(r"(?m)^## (.+)$", "\n".join(texts))
    number, heading = question["label"].split(" · ")
    assert question["page"].startswith(f"chapters/{number}_")
    assert heading in headings and question["anchor"] == anchor(heading)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["text"])
def test_a_line_gives_what_the_page_says(question):
    value = eval(question["line"], NAMES)
    assert same(value, ast.literal_eval(question["value"]), question["value"]), value


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["text"])
def test_a_number_has_a_unit(question):
    assert question["unit"] or question["value"] == "False" or '"' in question["value"]


def test_rounding_is_to_the_digits_written():
    assert same(0.07226, 0.0723, "0.0723") and not same(0.0725, 0.0723, "0.0723")
    assert same((1, 0.5), (1, 0.5), "(1, 0.5)") and not same((1, 0.54), (1, 0.53), "(1, 0.53)")
    assert not same(671_088_641, 671_088_640, "671_088_640") and not same(True, False, "False")


def test_every_chapter_answers_a_question():
    missing = set(contents.chapters()) - {question["page"] for question in QUESTIONS}
    assert not missing, f"questions.md has no question that leads to {', '.join(sorted(missing))}"
