"""Every row of cases.csv has its call: logged sizes within 1 %, claims with their verdict, nothing beats the floor."""

import re

import pytest
from cases import (
    CALLS,
    CLAIMS,
    ELSEWHERE,
    ENGINES_OWN,
    MISSING,
    ROWS,
    SHARES,
    TWO_CONSTANTS,
    batch_rate,
    tokens_for,
    verdict,
)

pytestmark = pytest.mark.core

OF_MEMORY = re.compile("kv_|(?<!used_after_)weights|tokens|pool|blocks|params|file|bpw|conc|max_len|K_size")
KIND = {key: row["kind"] for key, row in ROWS.items()}


def value(key) -> float:
    return float(ROWS[key]["true_value"])


def test_every_row_has_exactly_one_call_or_reason():
    answered = [*CALLS, *CLAIMS, *SHARES, *MISSING, *ENGINES_OWN, *ELSEWHERE]
    assert sorted(answered) == sorted(ROWS)


def test_what_is_left_out_is_little_and_of_the_right_kind():
    memory = {key for key, kind in KIND.items() if kind == "log" and OF_MEMORY.search(key[1])}
    assert set(MISSING) <= memory and len(MISSING) <= 12 and all(MISSING.values())
    assert memory - set(MISSING) <= set(CALLS)
    assert {KIND[key] for key in ENGINES_OWN} == {"log"} and not ENGINES_OWN & memory
    assert {key for key, kind in KIND.items() if kind == "claim"} == set(CLAIMS)
    assert {KIND[key] for key in SHARES} == {"bench"}


@pytest.mark.parametrize("key", sorted(CALLS), ids="-".join)
def test_values(key):
    assert CALLS[key]() == pytest.approx(value(key), rel=0.01)


def test_most_sizes_are_exact():
    exact = [key for key in CALLS if CALLS[key]() == pytest.approx(value(key), rel=5e-4)]
    assert len(exact) >= 28, sorted(set(CALLS) - set(exact))


@pytest.mark.parametrize("key", sorted(CLAIMS), ids="-".join)
def test_verdicts(key):
    assert CLAIMS[key](value(key)) == ROWS[key]["verdict"]


def test_a_verdict_can_be_each_of_three():
    assert [verdict(x, 100, most=150) for x in (101, 90, 140, 151)] == ["right", "wrong", "wrong", "impossible"]
    assert tokens_for(2.50, 0.01) == pytest.approx(69_444, rel=1e-5)


@pytest.mark.parametrize("key", sorted(SHARES), ids="-".join)
def test_nothing_measured_beats_the_floor(key):
    assert 0 < SHARES[key](value(key)) < 1


# Shares of the roof that were worked out in the threads: by hand, from the bytes of all weights alone.
BY_HAND = {key: float(found[1]) for key, row in ROWS.items() if (found := re.match(r"(\d+) % of", row["why"]))}
BY_HAND |= {("P09", "tpot_tp2"): 57, ("P09", "tpot_tp4"): 40, ("P09", "tpot_tp8"): 25, ("P10", "tput_tp1"): 30,
            ("P10", "tput_tp8"): 2}


@pytest.mark.parametrize("key", sorted(BY_HAND), ids="-".join)
def test_shares_are_those_worked_out_by_hand(key):
    assert 100 * SHARES[key](value(key)) == pytest.approx(BY_HAND[key], abs=2.5)


@pytest.mark.parametrize("metric, above", [("B256_128_128", 0.15), ("B32_128_2048", 0.05), ("B32_2048_128", -0.12),
                                           ("B16_2048_2048", 0.04)])
def test_two_efficiencies_predict_a_published_table(metric, above):
    """80 % of the bandwidth and 60 % of the FLOP/s: +15, +5, -12 and +4 %."""
    assert batch_rate(TWO_CONSTANTS, metric) / value(("P15", metric)) - 1 == pytest.approx(above, abs=0.01)


def test_a_constant_per_step_explains_slow_tensor_parallelism():
    """32B on 2, 4 and 8 A100: weights / (tp * bandwidth) + 11.6 ms, within 2 %."""
    for n in (2, 4, 8):
        measured = value(("P09", f"tpot_tp{n}"))
        assert SHARES["P09", f"tpot_tp{n}"](measured) * measured + 11.6 == pytest.approx(measured, rel=0.03)


def test_sixteen_streams_that_are_no_faster_than_four_wait_in_a_queue():
    """The floor of 16 streams is 4 times higher; the card is far from its ridge, so requests queue."""
    four, sixteen = (SHARES["P26", f"p{n}"](value(("P26", f"p{n}"))) for n in (4, 16))
    assert four > 0.5 and sixteen < 0.2
