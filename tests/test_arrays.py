"""Array calls against scalar calls, point by point, and the checks that every number passes."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import Deployment, DoesNotFit, forward, load_accelerator, load_model, time_on
from econ.arrays import ceil_div, flag, maximum, minimum, number, where, whole

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENTS = [
    Deployment("llama-3.1-8b", "h100-sxm"), Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4),
    Deployment("deepseek-v3", "h200-sxm", n_gpus=16, weights="fp8", kv="fp8"),
    Deployment("gpt-oss-20b", "l4"),
    Deployment("mixtral-8x7b-v0.1", "a100-sxm-80", n_gpus=4, tp=2, dp=2),
    Deployment("qwen3-next-80b-a3b", "h200-sxm", n_gpus=2), Deployment("jamba-v0.1", "h100-sxm", n_gpus=4),
    Deployment("mamba-2.8b", "l4"), Deployment("glm-5", "b300", n_gpus=8, weights="fp8"),
    Deployment("llama-4-scout-17b-16e", "b200", n_gpus=8), Deployment("gemma-2-9b-it", "h100-sxm", kv="fp8"),
]
WORK = ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "state_bytes", "activation_bytes",
        "bytes",
        "intensity")
STEP = ("time_s", "compute_s", "memory_s", "comm_s", "overhead_s", "flops", "bytes", "mfu_frac", "mbu_frac")
REQUEST = ("ttft_s", "tpot_s", "total_s", "output_tokens_per_s")
MEMORY = tuple(field.name for field in dataclasses.fields(DEPLOYMENTS[0].memory()) if field.name != "fits")


def at(value, index, shape):
    """The value of one grid point; what does not vary along an axis is broadcast."""
    return np.broadcast_to(np.asarray(value), shape)[index]


def agree(names, many, one, index, shape):
    for name in names:
        got, want = at(getattr(many, name), index, shape), getattr(one, name)
        assert got == pytest.approx(want, rel=1e-12, abs=0), name


def grid(*sizes):
    """Column, row and plain array, so that results have to broadcast."""
    shaped = [np.array(size).reshape([-1] + [1] * (len(sizes) - 1 - i)) for i, size in enumerate(sizes)]
    shape = np.broadcast_shapes(*(s.shape for s in shaped))
    return shaped, shape, list(np.ndindex(shape))


counts = st.lists(st.integers(1, 4000), min_size=1, max_size=3)


@given(st.sampled_from(DEPLOYMENTS), st.lists(st.integers(1, 300), min_size=1, max_size=3), counts, counts)
def test_forward(d, batches, lengths, contexts):
    shaped, shape, points = grid(batches, lengths, contexts)
    many = forward(d.model, *shaped)
    for i, j, k in points:
        agree(WORK, many, forward(d.model, batches[i], lengths[j], contexts[k]), (i, j, k), shape)


@given(st.sampled_from(DEPLOYMENTS), st.lists(st.integers(1, 500), min_size=1, max_size=3), counts)
def test_prefill_and_decode(d, batches, lengths):
    shaped, shape, points = grid(batches, lengths)
    for call in (d.prefill, d.decode):
        many = call(*shaped)
        for i, j in points:
            try:
                one = call(batches[i], lengths[j])
            except ValueError:
                assert not at(many.feasible, (i, j), shape) and math.isnan(at(many.time_s, (i, j), shape))
                continue
            assert at(many.feasible, (i, j), shape) and one.feasible is True
            agree(STEP, many, one, (i, j), shape)
            assert at(many.bound, (i, j), shape) == one.bound


@given(st.sampled_from(DEPLOYMENTS), st.lists(st.integers(1, 300), min_size=1, max_size=2),
       st.lists(st.integers(1, 9000), min_size=1, max_size=2),
       st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_request(d, batches, prompts, outputs):
    shaped, shape, points = grid(batches, prompts, outputs)
    many = d.request(*shaped)
    for i, j, k in points:
        try:
            one = d.request(batches[i], prompts[j], outputs[k])
        except ValueError:
            assert not at(many.feasible, (i, j, k), shape)
            assert all(math.isnan(at(getattr(many, name), (i, j, k), shape)) for name in REQUEST)
            continue
        assert at(many.feasible, (i, j, k), shape)
        agree(REQUEST, many, one, (i, j, k), shape)


@given(st.sampled_from(DEPLOYMENTS), st.lists(st.integers(0, 5000), min_size=1, max_size=3),
       st.lists(st.integers(0, 300_000), min_size=1, max_size=3))
def test_memory(d, batches, contexts):
    shaped, shape, points = grid(batches, contexts)
    many = d.memory(*shaped)
    for i, j in points:
        one = d.memory(batches[i], contexts[j])
        agree(MEMORY, many, one, (i, j), shape)
        assert bool(at(many.fits, (i, j), shape)) is one.fits


def test_model_quantities():
    for m in {d.model for d in DEPLOYMENTS}:
        tokens, batch = np.array([0, 1, 127, 128, 129, 9000]), np.array([[1], [7]])
        cache, streamed = m.kv_cache_bytes(tokens, batch, "fp8"), m.streamed_weight_bytes("bf16", tokens)
        for i, t in enumerate(tokens.tolist()):
            assert at(cache, (1, i), (2, tokens.size)) == m.kv_cache_bytes(t, 7, "fp8")
            assert at(streamed, i, tokens.shape) == pytest.approx(m.streamed_weight_bytes("bf16", t), rel=1e-12)


def test_int32_arrays_do_not_overflow():
    """2.9e14 FLOP for one prompt: an int32, and for 32,000 of them an int64, would wrap around."""
    m, batch = load_model("llama-3.3-70b"), np.array([1, 32_000], dtype=np.int32)
    flops = forward(m, batch, new_tokens=np.int32(2048)).flops
    assert flops.dtype == np.float64 and flops[1] == pytest.approx(32_000 * 285_877_808_922_624, rel=1e-12)


def test_scalars_stay_exact_integers():
    work = forward(load_model("llama-3.3-70b"), np.int32(3), np.int64(2048), np.float64(7))
    assert all(isinstance(getattr(work, name), int) for name in WORK if name != "intensity")
    assert work == forward(load_model("llama-3.3-70b"), 3, 2048, 7)


def test_an_infeasible_point_is_nan_and_nothing_else_is():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2)  # 141 GB of weights on 154 GB
    step = d.decode(batch=np.array([1, 64]), context=2048)
    assert step.feasible.tolist() == [True, False]
    assert np.isfinite(step.time_s).tolist() == [True, False]
    assert np.isfinite(step.flops).all() and np.isfinite(step.bytes).all()
    request = d.request(batch=np.array([1, 64]), prompt=2048, output=3)
    assert request.feasible.tolist() == np.isfinite(request.total_s).tolist() == [True, False]
    with pytest.raises(DoesNotFit):
        d.decode(batch=64, context=2048)


def test_a_context_beyond_the_model_is_infeasible_in_an_array():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8)
    assert d.decode(context=np.array([131_071, 131_072])).feasible.tolist() == [True, False]


def test_an_array_leaves_its_argument_alone():
    batch = np.array([1, 2, 3])
    Deployment("llama-3.1-8b", "h100-sxm").decode(batch, 100)
    assert batch.dtype.kind == "i" and batch.tolist() == [1, 2, 3]


def test_a_sweep_is_one_call():
    d = Deployment("llama-3.1-8b", "h100-sxm")
    many = d.decode(np.arange(1, 101), 2048)
    assert many.time_s.shape == (100,) and (np.diff(many.time_s) > 0).all()
    assert time_on(forward(d.model, np.arange(1, 4)), load_accelerator("h100-sxm")).time_s.shape == (3,)


# The helpers.
@given(st.integers(-50, 50), st.integers(1, 20), st.booleans())
def test_helpers_are_the_same_on_numbers_and_arrays(a, b, condition):
    assert ceil_div(a, b) == math.ceil(a / b) == ceil_div(np.array([a]), b)[0]
    assert maximum(a, b) == max(a, b) == maximum(np.array([a]), b)[0] == maximum(a, np.array([b]))[0]
    assert minimum(a, b) == min(a, b) == minimum(np.array([a]), b)[0] == minimum(a, np.array([b]))[0]
    assert where(condition, a, b) == (a if condition else b) == where(np.array([condition]), a, b)[0]


@pytest.mark.parametrize("given_value, value", [
    (3, 3), (3.0, 3), (np.int64(3), 3), (np.float32(3), 3), (np.array(3), 3), (2.5, 2.5),
    (np.float64(2.5), 2.5)])
def test_a_scalar_becomes_a_python_number(given_value, value):
    got = number("batch", given_value)
    assert got == value and type(got) is type(value)


BAD = ["4", b"4", None, True, np.bool_(True), float("nan"), float("inf"), -float("inf"), -1, 10**400, 1e300,
       2j, [1, 2],
       (1,), {}, object(), np.array(["a"]), np.array([True]), np.array([1.0, np.nan]), np.array([np.inf]),
       np.array([1, -1]), np.array([None]), np.array([1j]), np.array("4")]


@pytest.mark.parametrize("bad", BAD, ids=lambda b: repr(b)[:30])
def test_bad_numbers(bad):
    with pytest.raises(ValueError) as error:
        number("batch", bad, minimum=0)
    assert "batch" in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("bad", [4.0, 2.5, "4", None, True, 0, -1, 10**400, np.array([1, 2]), np.float64(4)],
                         ids=lambda b: repr(b)[:30])
def test_bad_whole_numbers(bad):
    with pytest.raises(ValueError, match="n_gpus"):
        whole("n_gpus", bad)


def test_whole_numbers_and_flags():
    assert whole("n", np.int32(8)) == 8 and type(whole("n", np.int32(8))) is int
    assert flag("causal", np.True_) is True and flag("causal", False) is False
    for bad in ("yes", 1, None, np.array([True])):
        with pytest.raises(ValueError, match="causal"):
            flag("causal", bad)


def test_plain_numbers_need_the_standard_library_alone():
    code = ("import sys; before = set(sys.modules); import econ\n"
            "names = [getattr(econ, name) for name in econ.__all__]\n"
            "d = econ.Deployment('gpt-oss-20b', 'h100-sxm'); d.request(2, 100, 5); d.memory(2, 100)\n"
            "loaded = {module.split('.')[0] for module in set(sys.modules) - before} - {'econ'}\n"
            "print(len(names), sorted(loaded - set(sys.stdlib_module_names)))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)
    assert done.stdout.split(maxsplit=1)[1].strip() == "[]" and int(done.stdout.split()[0]) > 20
