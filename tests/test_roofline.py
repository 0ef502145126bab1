"""The two ceilings: the book's numbers to the printed digit, and what a roofline may never do."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import attainable_flop_per_s, forward, load_accelerator, load_model, time_on

pytestmark = pytest.mark.core

M, H100 = load_model("llama-3.3-70b"), load_accelerator("h100-sxm")
ARTICLE = forward(M, new_tokens=2048, causal=False, count="article")
STEP = forward(M, context=2048, count="article")  # one decode step


def test_one_imaginary_h100():
    """The article's first numbers: 141 GB would not fit, and nothing here checks that it does."""
    prefill_s = time_on(ARTICLE, H100, dtype="bf16", n=1).time_s
    resident_s = M.weight_bytes("bf16") / H100.hbm_bytes_per_s
    assert f"{prefill_s:.5f}" == "0.29474"
    assert f"{resident_s:.6f}" == "0.042122"
    assert f"{M.streamed_weight_bytes('bf16') / H100.hbm_bytes_per_s:.6f}" == "0.041494"
    assert f"{prefill_s / resident_s:.4f}" == "6.9973"
    assert f"{prefill_s / 4:.5f}" == f"{time_on(ARTICLE, H100, n=4).time_s:.5f}" == "0.07368"


def test_decode_of_the_article():
    step = time_on(forward(M, context=2047, count="article"), H100)
    assert f"{step.compute_s:.8f}" == "0.00014604"
    moved_s = (M.weight_bytes("bf16") + M.kv_cache_bytes(tokens=2048)) / H100.hbm_bytes_per_s
    assert f"{moved_s:.6f}" == "0.042322"
    assert f"{moved_s / step.compute_s:.1f}" == "289.8"
    assert step.bound == "memory" and time_on(ARTICLE, H100).bound == "compute"


@pytest.mark.parametrize("name, dtype, ridge", [
    ("h100-sxm", "bf16", "295.22"), ("h100-sxm", "fp8", "590.7"), ("a100-sxm-80", "bf16", "153.0"),
    ("h200-sxm", "bf16", "206.1"), ("a10", "bf16", "208.3")])
def test_ridge(name, dtype, ridge):
    digits = len(ridge.split(".")[1])
    assert f"{load_accelerator(name).ridge(dtype):.{digits}f}" == ridge


def test_prefill_takes_as_long_as_the_weights_at_302_tokens():
    """The article's ratio of 7 is 2,048 tokens over the ridge: it is 1 at about 302."""
    weights_s = M.weight_bytes("bf16") / 3.35e12
    times = [time_on(forward(M, new_tokens=s, causal=False, count="article"), H100).compute_s for s in (301, 303)]
    assert times[0] < weights_s < times[1]


def test_prompts_shorter_than_the_ridge_are_memory_bound():
    """Weights read once serve 2 FLOP a parameter and token: below about 300 tokens bandwidth is the limit."""
    bound = [time_on(forward(M, new_tokens=s), H100).bound for s in (1, 100, 250, 350, 2048)]
    assert bound == ["memory", "memory", "memory", "compute", "compute"]


def test_no_batch_makes_long_context_decode_compute_bound():
    """A sequence's own cache grows with the batch: past 1,477 tokens decode stays under the ridge for ever."""
    def bounds(context):
        return {time_on(forward(M, batch=b, context=context), H100).bound for b in (1, 64, 4096, 10**6)}

    assert bounds(1600) == {"memory"}
    assert bounds(512) == {"memory", "compute"}

    def idle_s(context):  # a sequence's cache against its arithmetic
        return context * 327_680 / 3.35e12 - forward(M, context=context, count="article").flops / 989e12

    assert idle_s(1476) < 0 < idle_s(1478)  # the two meet at 1,477 tokens


def test_intensity_against_the_ridge_decides():
    for new in (1, 64, 290, 310, 4096):
        work = forward(M, new_tokens=new)
        assert (time_on(work, H100).bound == "compute") == (work.intensity > H100.ridge("bf16"))


def test_attainable():
    assert attainable_flop_per_s(1.0, 989e12, 3.35e12) == 3.35e12
    assert attainable_flop_per_s(295.22, 989e12, 3.35e12) < 989e12 == attainable_flop_per_s(296, 989e12,
                                                                                            3.35e12)


works = st.builds(lambda b, s, c: forward(M, b, s, c), st.integers(1, 512), st.integers(1, 4096),
                  st.integers(0, 9000))
scale = st.floats(0.01, 100)


@given(works, st.integers(1, 64), scale, scale)
def test_a_step_is_consistent(work, n, faster, wider):
    g = dataclasses.replace(H100, peaks={"bf16": 989e12 * faster}, hbm_bytes_per_s=3.35e12 * wider)
    step = time_on(work, g, n=n)
    assert step.time_s == max(step.compute_s, step.memory_s)
    assert step.compute_s * n * 989e12 * faster == pytest.approx(work.flops, rel=1e-12)
    assert step.memory_s * n * 3.35e12 * wider == pytest.approx(work.bytes, rel=1e-12)
    assert (step.flops, step.bytes, step.comm_s, step.overhead_s) == (work.flops, work.bytes, 0, 0)
    assert step.mfu_frac == pytest.approx(step.compute_s / step.time_s, rel=1e-12)
    assert step.mbu_frac == pytest.approx(step.memory_s / step.time_s, rel=1e-12)
    assert max(step.mfu_frac, step.mbu_frac) == 1
    assert step.bound == ("memory" if step.memory_s >= step.compute_s else "compute")
    achieved = work.flops / step.time_s
    assert achieved <= attainable_flop_per_s(work.flops / work.bytes, n * 989e12 * faster,
                                             n * 3.35e12 * wider) * (1 + 1e-12)


@given(works, st.floats(1, 50))
def test_a_faster_machine_is_never_slower(work, times):
    base = time_on(work, H100).time_s
    for change in (dict(peaks={"bf16": 989e12 * times}), dict(hbm_bytes_per_s=3.35e12 * times)):
        assert time_on(work, dataclasses.replace(H100, **change)).time_s <= base
    assert time_on(work, H100, n=2).time_s == pytest.approx(base / 2, rel=1e-12)


@pytest.mark.parametrize("call, said", [
    (lambda: time_on(ARTICLE, H100, dtype="fp7"), "fp7"),
    (lambda: time_on(ARTICLE, H100, dtype=None), "None"),
    (lambda: time_on(ARTICLE, H100, dtype="fp4"), "fp4"), (lambda: time_on(ARTICLE, H100, n=0), "0"),
    (lambda: time_on(ARTICLE, H100, n="2"), "2"), (lambda: time_on(ARTICLE, H100, n=1.5), "1.5"),
    (lambda: time_on(ARTICLE, "h100-sxm"), "h100-sxm"), (lambda: time_on(2.5, H100), "2.5"),
    (lambda: attainable_flop_per_s("1", 989e12, 3.35e12), "1"),
    (lambda: attainable_flop_per_s(1, None, 3.35e12), "None"),
    (lambda: attainable_flop_per_s(float("nan"), 989e12, 3.35e12), "nan"),
    (lambda: attainable_flop_per_s(1, 989e12, -1), "-1"),
])
def test_bad_input(call, said):
    with pytest.raises(ValueError) as error:
        call()
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300
