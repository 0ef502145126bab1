"""The ledger of the sources: no claim is missing, each has a verdict, and its value stands in its chapter."""

import copy

import ledger
import pytest

TEXTS = ledger.chapter_texts()


def test_every_claim_is_settled():
    assert ledger.problems(ledger.rows(), TEXTS) == []


@pytest.mark.parametrize(("change", "message"), [
    (lambda rows: rows.pop(), "B32: 0 rows"),
    (lambda rows: rows[9].update(value="291.50 TFLOP"), "'291.50 TFLOP' does not stand in chapter 04"),
    (lambda rows: rows[9].update(chapter="99"), "there is no chapter 99"),
    (lambda rows: rows[9].update(verdict="fine"), "verdict 'fine' is none of"),
    (lambda rows: rows[9].update(chapter=""), "a verdict without a chapter"),
])
def test_damage_is_named(change, message):
    rows = copy.deepcopy(ledger.rows())
    change(rows)
    assert any(message in line for line in ledger.problems(rows, TEXTS))


def test_only_techniques_that_have_no_chapter_yet_are_open():
    assert [row["row"] for row in ledger.rows() if not row["chapter"]] == ["B31", "B32"]
