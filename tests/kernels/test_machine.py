"""This machine's ceilings: the right structure always, and consistent with each other in one run."""

import dataclasses
import json
import math
import time

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import _setup, machine  # noqa: E402

TINY = machine._Sizes(matmul_n=64, stream_bytes=2**16, stack_bytes=2**18, width=128, batches=(1, 2, 4))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(machine, "_CPU", TINY)


def test_measuring_this_machine_gives_a_complete_record_in_a_few_seconds():
    started = time.process_time()
    found = machine.measure(seconds=2.0, device="cpu")
    assert time.process_time() - started < 30  # a runaway, not a speed
    formats = {"fp64", "fp32", "bf16"}
    assert set(found.peak_flop_per_s) == set(found.gemv_bytes_per_s) == formats
    rates = [*found.peak_flop_per_s.values(), *found.gemv_bytes_per_s.values(), found.stream_bytes_per_s]
    assert all(math.isfinite(rate) and rate > 1e6 for rate in rates)
    assert len(found.spread_frac) == len(rates)
    assert all(math.isfinite(spread) and spread >= 0 for spread in found.spread_frac.values())
    assert found.threads == 1 and found.name and found.torch_version == torch.__version__
    assert json.loads(json.dumps(dataclasses.asdict(found)))["device"] == "cpu"


def test_the_roof_is_the_lower_of_two_ceilings():
    found = made_up()
    assert found.ridge("bf16") == 200.0
    assert found.roof_flop_per_s(1.0, "bf16") == 3e9
    assert found.roof_flop_per_s(1000.0, "bf16") == 6e11


def made_up():
    return machine.Machine(name="Example 1000", device="cpu", threads=1, memory_bytes=16 * 10**9,
                           peak_flop_per_s={"bf16": 6e11, "fp32": 1e11}, stream_bytes_per_s=3e9,
                           gemv_bytes_per_s={"bf16": 2e9, "fp32": 2.5e9}, spread_frac={"stream": 0.01},
                           torch_version="0.0", measured_in_s=1.0)


def test_a_machine_becomes_an_accelerator_of_the_book():
    accelerator = made_up().as_accelerator()
    assert accelerator.flop_per_s("bf16") == 6e11 and accelerator.hbm_bytes_per_s == 3e9
    assert accelerator.ridge("bf16") == 200.0 and accelerator.memory_bytes == 16 * 10**9
    assert accelerator.link is None and accelerator.vendor == "Example"
    assert set(accelerator.provenance.values()) == {"measured"}


def test_a_sweep_counts_flops_and_bytes_of_each_layer(tiny):
    points = machine.linear_sweep("fp32", device="cpu", repeats=3)
    assert [point.batch for point in points] == [1, 2, 4]
    assert [point.flops for point in points] == [2 * batch * 128 * 128 for batch in (1, 2, 4)]
    assert [point.bytes for point in points] == [4 * (128 * 128 + 2 * batch * 128) for batch in (1, 2, 4)]
    assert points[0].intensity == pytest.approx(2 * 128 * 128 / 4 / (128 * 128 + 256))
    assert points[2].flop_per_s == points[2].flops / points[2].time_s
    assert machine.linear_sweep(device="cpu", batches=[3], repeats=3)[0].dtype in _setup.DTYPES


def test_weights_of_a_sweep_exceed_the_caches():
    stack = machine._weight_stack("bf16", 1024, torch.device("meta"))
    assert sum(weight.nbytes for weight in stack) >= machine._CPU.stack_bytes
    assert len({id(weight) for weight in stack}) == len(stack) == 128


def test_the_knee_is_where_flat_meets_slope():
    def point(batch):
        return machine.SweepPoint(dtype="bf16", batch=batch, flops=1, bytes=1, time_s=max(1.0, batch / 25),
                                  spread_frac=0.0)

    assert machine.knee_batch([point(batch) for batch in (1, 8, 64, 256)]) == pytest.approx(25.0)


def test_bad_requests_are_refused_in_one_line():
    for call, message in ((lambda: machine.measure(device="meta"), "cannot be timed; use 'cpu' or 'cuda'"),
                          (lambda: machine.measure(seconds=0.1, device="cpu"), "use 0.5 or more"),
                          (lambda: machine.measure(seconds=math.nan, device="cpu"), "use 0.5 or more"),
                          (lambda: machine.matmul_peak("int4", "cpu"), "use fp64, fp32, bf16, fp16"),
                          (lambda: machine.linear_sweep("fp32", [0], "cpu"), "batch=0")):
        with pytest.raises(ValueError, match=".") as error:
            call()
        assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.timing
def test_measuring_takes_under_five_seconds_and_repeats_within_a_tenth():
    found = machine.measure()
    assert found.measured_in_s < 5
    assert sorted(found.spread_frac.values())[len(found.spread_frac) // 2] <= 0.10


@pytest.mark.timing
def test_no_point_of_the_sweep_lies_above_the_roof_of_the_same_run():
    found, points = machine.measure(device="cpu"), machine.linear_sweep(device="cpu")
    shares = [point.flop_per_s / found.roof_flop_per_s(point.intensity, point.dtype) for point in points]
    assert max(shares) <= 1.1
    assert shares[-1] >= 0.9  # and a large batch reaches it


@pytest.mark.timing
def test_the_knee_lies_near_peak_over_gemv_bandwidth():
    dtype = _setup.matmul_dtype("cpu")
    peak, gemv = machine.matmul_peak(dtype, "cpu").per_s, machine.gemv_bandwidth(dtype, "cpu").per_s
    knee = machine.knee_batch(machine.linear_sweep(dtype, device="cpu"))
    flop_per_byte = 2 * knee / _setup.DTYPES[dtype].itemsize
    assert 0.5 <= flop_per_byte / (peak / gemv) <= 2.0
