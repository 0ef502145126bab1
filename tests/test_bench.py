"""Speed, as ratios within one run; what the benchmark computes is right at any speed."""

import bench
import pytest


def test_arrays_are_the_scalar_calls_to_twelve_digits():
    placed, points = bench.sweep(4_000)
    assert bench.worst_error(placed, points, samples=50) <= 1e-12


def test_long_arrays_are_cut_and_joined():
    placed, points = bench.sweep(4 * 40_000)  # more than two slices each
    assert bench.worst_error(placed[:1], points[:1], samples=100) <= 1e-12


@pytest.mark.timing
def test_promises_as_ratios():
    """A point of an array costs less than a fiftieth of a decode step; a comparison of all GPUs fewer than 20,000."""
    results, _ = bench.measure(400_000)
    took = {r.name: r.took_s for r in results}
    unit = took["decode, one number"]
    assert took["cost, each point of an array"] < unit / 50
    assert took["compare all GPUs, counts and TP"] < 20_000 * unit
    assert took["cost, one number"] < 10 * unit and took["request of 300 tokens, one number"] < 20 * unit
