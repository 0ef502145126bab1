"""claim, claim_between and expect: what they print, and every way in which they must fail."""

from fractions import Fraction

import pytest

from econ.check import ClaimError, claim, claim_between, expect, in_base_units, parse

pytestmark = pytest.mark.core


@pytest.mark.parametrize("value, text", [
    (671_088_640, "671 MB"), (671_088_640, "671.1 MB"), (671_088_640, "640 MiB"), (671_088_640, "0.671 GB"),
    (0.29474, "0.29 s"), (6.9973, "7.0x"), (6.9973, "7x"), (0.0377, "3.8 %"), (0.0377, "3.8%"),
    (1.7051, "$1.71"), (291_493_478_662_144, "291.49 TFLOP"), (989e12 / 3.35e12, "295 FLOP/B"),
    (70_553_706_496, "70.6 B params"), (70_553_706_496, "70,553,706,496 params"), (2048, "2,048 tokens"),
    (0.000146, "146 us"), (0.000146, "146 µs"), (3.35e12, "3.35\u00a0TB/s"), (-0.021, "-2.1 %"),
    (2.5, "$2.50/h"), (0.0, "0 %"), (64, "64"),
])
def test_claim_accepts_the_rounded_value(value, text, capsys):
    claim(value, text, "quantity")
    assert capsys.readouterr().out == f"quantity: {text}\n"


@pytest.mark.parametrize("value, text", [
    (671_088_640, "672 MB"), (671_088_640, "671.0 MB"), (671_088_640, "671 MiB"), (671_088_640, "671 GB"),
    (0.29474, "0.30 s"), (0.29474, "0.29 ms"), (0.0377, "3.7 %"), (2048, "2,049 tokens"), (-671e6, "671 MB"),
    (1e-9, "0.10 %"),
])
def test_claim_rejects_a_wrong_digit_or_unit(value, text):
    with pytest.raises(ClaimError, match="the text says"):
        claim(value, text, "quantity")


@pytest.mark.parametrize("value, good, bad", [
    (Fraction(5, 2), "2 s", "3 s"), (Fraction(7, 2), "4 s", "3 s"), (0.125, "0.12 s", "0.13 s"),
    (0.375, "0.38 s", "0.37 s"), (2.675, "2.67 s", "2.68 s"),  # the float 2.675 lies just below 2.675
])
def test_rounding_is_half_to_even_of_the_exact_value(value, good, bad):
    claim(value, good, "half")
    with pytest.raises(ClaimError):
        claim(value, bad, "half")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_fails(value):
    with pytest.raises(ClaimError, match="the value is"):
        claim(value, "671 MB", "quantity")
    with pytest.raises(ClaimError):
        claim_between(value, 0, 1, "quantity")


@pytest.mark.parametrize("text", [
    "671 mb", "671 MBit", "≈ 671 MB", "about 671 MB", "MB", "", "1,23 MB", "6_71 MB", "671 MB 640 MiB",
    "$5 GB", "1e3 B",
])
def test_text_that_is_not_one_quantity_is_refused(text):
    with pytest.raises(ValueError):
        claim(671_088_640, text, "quantity")


def test_an_error_shows_value_and_text():
    with pytest.raises(ClaimError, match=r"cache: the value is 671 MB \(671088640 in base units\).* 672 MB"):
        claim(671_088_640, "672 MB", "cache")


def test_parse_keeps_the_printed_digits():
    assert [str(parse(text)[0]) for text in ("7.0x", "1,000.50 GB", "$0.950")] == ["7.0", "1000.50", "0.950"]
    assert in_base_units("2 KiB") == 2048
    assert in_base_units("3.8 %") == Fraction(38, 1000)


def test_claim_takes_numpy_scalars():
    numpy = pytest.importorskip("numpy")
    claim(numpy.float64(0.29474), "0.29 s", "time")
    expect(numpy.float64(1.0) < 2, "numpy comparisons are truth values")


def test_a_band_prints_its_bounds_and_never_the_value(capsys):
    claim_between(123.456e9, "5 GB/s", "500 GB/s", "bandwidth")
    claim_between(0.5, 0.2, 0.9, "share")
    assert capsys.readouterr().out == "bandwidth: between 5 GB/s and 500 GB/s\nshare: between 0.2 and 0.9\n"


@pytest.mark.parametrize("value", [4.9e9, 501e9])
def test_a_value_outside_the_band_fails(value):
    with pytest.raises(ClaimError, match="outside 5 GB/s to 500 GB/s"):
        claim_between(value, "5 GB/s", "500 GB/s", "bandwidth")


def test_an_empty_band_is_refused():
    with pytest.raises(ValueError, match="smaller bound first"):
        claim_between(1, 2, 2, "share")


def test_expect(capsys):
    expect(1 < 2, "one is less than two")
    assert capsys.readouterr().out == "ok: one is less than two\n"
    with pytest.raises(ClaimError, match="not so: two is less"):
        expect(2 < 1, "two is less than one")


@pytest.mark.parametrize("condition", ["swapped", 1, 0.5, None, [True]])
def test_expect_refuses_what_could_never_fail(condition):
    with pytest.raises(ValueError, match="True or False"):
        expect(condition, "message")
