"""Units against the SI brochure's and the IEC's definitions, and rounding against decimal arithmetic."""

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import units

pytestmark = pytest.mark.core


@pytest.mark.parametrize("unit, size", [
    ("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12), ("KiB", 1024), ("MiB", 1024**2),
    ("GiB", 1024**3), ("TiB", 1024**4), ("GB/s", 10**9), ("TB/s", 10**12), ("GiB/s", 1024**3),
    ("TFLOP/s", 10**12),
    ("TFLOP", 10**12), ("GFLOP", 10**9), ("h", 3600), ("min", 60), ("s", 1), ("B params", 10**9), ("$", 1),
    ("KiB/token", 1024),
])
def test_a_unit_is_what_its_name_says(unit, size):
    assert units.unit_size(unit) == size


def test_units_below_one_are_exact():
    assert units.unit_size("ms") * 1000 == units.unit_size("us") * 10**6 == units.unit_size("ns") * 10**9 == 1
    assert units.unit_size("%") * 100 == 1


def test_constants():
    assert (units.G, units.GIB) == (10**9, 2**30)
    assert units.GIB / units.G == 1.073741824  # the 7.4 % between GiB and GB


@pytest.mark.parametrize("value, unit, digits, text", [
    (671_088_640, "MB", 3, "671 MB"), (671_088_640, "MiB", 3, "640 MiB"),
    (141_107_412_992, "GB", 4, "141.1 GB"),
    (141_107_412_992, "GiB", 4, "131.4 GiB"), (989e12, "TFLOP/s", 3, "989 TFLOP/s"),
    (0.29474, "s", 2, "0.29 s"),
    (0.042122, "ms", 3, "42.1 ms"), (70_553_706_496, "B params", 3, "70.6 B params"), (2.5, "$", 3, "$2.50"),
    (-2.5, "$", 3, "-$2.50"), (0.381, "%", 3, "38.1 %"), (6.9973, "x", 3, "7.00x"), (0, "GB", 3, "0 GB"),
    (295.22, "FLOP/B", 4, "295.2 FLOP/B"), (3.35e12, "GB/s", 3, "3,350 GB/s"),
])
def test_numbers_of_the_book(value, unit, digits, text):
    assert units.fmt(value, unit, digits) == text


@pytest.mark.parametrize("value, digits, text", [
    (0.125, 2, "0.12 s"), (0.375, 2, "0.38 s"), (2.5, 1, "2 s"), (3.5, 1, "4 s"), (-0.125, 2, "-0.12 s"),
    (9.995, 3, "9.99 s"),  # the double nearest to 9.995 lies below it
    (999.96, 4, "1,000 s"), (0.99996, 4, "1.000 s"), (9.9996, 4, "10.00 s"), (99_999.6, 3, "100,000 s"),
])
def test_rounding_is_half_even_of_the_exact_value(value, digits, text):
    assert units.fmt(value, "s", digits) == text


def test_a_count_keeps_every_digit_before_the_point():
    assert units.fmt(70_553_706_496, "params") == "70,553,706,496 params"
    assert units.fmt(10**40 + 7, "B") == f"{10**40 + 7:,} B"


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 9),
       st.sampled_from(["s", "GB", "MiB", "us", "%"]))
def test_a_non_zero_value_never_prints_as_zero_and_is_within_half_a_digit(value, digits, unit):
    number = Decimal(units.fmt(value, unit, digits).split(" ")[0].replace(",", ""))
    exact = Decimal(value) * units.unit_size(unit).denominator / units.unit_size(unit).numerator
    assert number != 0
    assert abs(number / exact - 1) <= Decimal("0.5000001") * Decimal(10) ** (1 - digits)


@given(st.integers(-10**30, 10**30), st.integers(0, 6))
def test_fixed_equals_decimal_rounding(value, decimals):
    want = (Decimal(value) / 1000).quantize(Decimal(1).scaleb(-decimals),
                                            ROUND_HALF_EVEN) if abs(value) < 10**20 else None
    text = units.fixed(value, "kB", decimals)
    assert text.endswith(" kB")
    if want is not None:
        assert Decimal(text[:-3].replace(",", "")) == want


@pytest.mark.parametrize("call, said", [
    (lambda: units.fmt(1, "GBps"), "GBps"), (lambda: units.fmt(1, ["GB"]), "GB"),
    (lambda: units.fmt(float("nan"), "s"), "nan"),
    (lambda: units.fmt(float("inf"), "s"), "inf"), (lambda: units.fmt("12", "s"), "12"),
    (lambda: units.fmt(None, "s"), "None"),
    (lambda: units.fmt(True, "s"), "True"), (lambda: units.fmt(1, "s", digits=0), "0"),
    (lambda: units.fmt(1, "s", digits="3"), "3"),
    (lambda: units.fixed(1, "s", -1), "-1"), (lambda: units.fmt([1, 2], "s"), "[1, 2]"),
    (lambda: units.unit_size(None), "None"),
])
def test_bad_input_is_one_line_that_says_what_was_given(call, said):
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert said in message and "\n" not in message and len(message) < 300
