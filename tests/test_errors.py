"""Every public call with every kind of bad input: a ValueError of one line that says what was given."""

import contextlib
import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import econ
from econ import ConfigError, DoesNotFit, UnknownName, techniques
from econ.cost import break_even_tokens_per_hour, usd_per_mtok

pytestmark = pytest.mark.core

M, G = econ.load_model("llama-3.1-8b"), econ.load_accelerator("h100-sxm")
D, WORK = econ.Deployment(M, G), econ.forward(M)


class Odd:
    """Something that is neither a number nor a text."""

    def __repr__(self):
        return "an odd\nobject"


NOT_NUMBERS = ["8", "", b"8", None, True, [8], (8,), {"a": 8}, {8}, Odd(), 8j, float("nan"), np.nan, np.array(["8"]),
               np.array([None]), np.array([True]), np.array([8, np.nan]), np.bool_(True), np.str_("8")]
OUT_OF_RANGE = [-1, -0.5, float("inf"), -float("inf"), 10**400, 1e308, np.array([1, -1]), np.array([np.inf]),
                np.int64(-1)]
NOT_DTYPES = ["fp7", "", " bf16", 16, True, 2.0, ["bf16"], {"dtype": "bf16"}, b"bf16", Odd(), np.array(["bf16"])]
NOT_NAMES = ["", "gpt-9", "h1000", "../x", "x" * 5000, "a\nb", "\x00"]
NOT_COUNTS = [0, -1, 2.0, 1.5, "2", None, True, [2], np.array([2, 4]), float("nan"), 10**400, Odd()]

NUMERIC = {
    "forward batch": lambda v: econ.forward(M, batch=v), "forward new_tokens": lambda v: econ.forward(M, new_tokens=v),
    "forward context": lambda v: econ.forward(M, context=v), "prefill batch": lambda v: D.prefill(batch=v),
    "prefill prompt": lambda v: D.prefill(prompt=v), "decode batch": lambda v: D.decode(batch=v),
    "decode context": lambda v: D.decode(context=v), "request batch": lambda v: D.request(batch=v),
    "request prompt": lambda v: D.request(prompt=v), "request output": lambda v: D.request(output=v),
    "memory batch": lambda v: D.memory(batch=v), "memory context": lambda v: D.memory(context=v),
    "kv_cache_bytes tokens": lambda v: M.kv_cache_bytes(tokens=v),
    "kv_cache_bytes batch": lambda v: M.kv_cache_bytes(tokens=1, batch=v),
    "state_bytes batch": lambda v: M.state_bytes(batch=v),
    "streamed_weight_bytes tokens": lambda v: M.streamed_weight_bytes(tokens=v),
    "attainable intensity": lambda v: econ.attainable_flop_per_s(v, 1e12, 1e12),
    "attainable peak": lambda v: econ.attainable_flop_per_s(1, v, 1e12),
    "attainable bandwidth": lambda v: econ.attainable_flop_per_s(1, 1e12, v),
    "gpu_mem_frac": lambda v: econ.Deployment(M, G, gpu_mem_frac=v),
    "serve concurrency": lambda v: D.serve(v, 100, 10), "serve prompt": lambda v: D.serve(4, v, 10),
    "serve output": lambda v: D.serve(4, 100, v), "serve cached_frac": lambda v: D.serve(4, 100, 10, cached_frac=v),
    "serve chunk_tokens": lambda v: D.serve(4, 100, 10, chunk_tokens=v),
    "cost usd_per_gpu_hour": lambda v: D.cost(v, 4, 100, 10), "cost concurrency": lambda v: D.cost(2.5, v, 100, 10),
    "cost utilisation_frac": lambda v: D.cost(2.5, 4, 100, 10, utilisation_frac=v),
    "at_rate requests_per_s": lambda v: D.at_rate(v, 100, 10), "compare prompt": lambda v: econ.compare(M, prompt=v),
    "compare output": lambda v: econ.compare(M, output=v), "verify tokens": lambda v: D.verify(4, v, 100),
    "largest_load prompt": lambda v: D.largest_load(v, 10), "frontier output": lambda v: D.frontier(100, v),
    "usd_per_mtok rent": lambda v: usd_per_mtok(v, 700), "usd_per_mtok rate": lambda v: usd_per_mtok(2.5, v),
    "break_even rent": lambda v: break_even_tokens_per_hour(v, 0.5), "break_even price": lambda v:
    break_even_tokens_per_hour(10, v), "acceptance": lambda v: techniques.expected_tokens(v, 4),
    "hit_frac": lambda v: techniques.prefix_saving(D, v, 2.5, 4, 100, 10),
    "link_bytes_per_s": lambda v: techniques.kv_transfer_s(D, 100, v),
    "quantized batch": lambda v: techniques.quantization_speedup(D, "int4", v),
    "pools running": lambda v: techniques.prefill_replicas(D, D, v, 100, 10),
}
DTYPES = {
    "weight_bytes": lambda v: M.weight_bytes(v), "streamed_weight_bytes": lambda v: M.streamed_weight_bytes(v),
    "kv_bytes_per_token": lambda v: M.kv_bytes_per_token(v), "kv_growth": lambda v: M.kv_growth_bytes_per_token(v),
    "kv_cache_bytes": lambda v: M.kv_cache_bytes(1, dtype=v), "forward weights": lambda v: econ.forward(M, weights=v),
    "forward kv": lambda v: econ.forward(M, kv=v), "deployment weights": lambda v: econ.Deployment(M, G, weights=v),
    "deployment kv": lambda v: econ.Deployment(M, G, kv=v), "flop_per_s": lambda v: G.flop_per_s(v),
    "ridge": lambda v: G.ridge(v), "time_on": lambda v: econ.time_on(WORK, G, dtype=v),
}
COUNTS = {
    "n_gpus": lambda v: econ.Deployment(M, G, n_gpus=v), "tp": lambda v: econ.Deployment(M, G, n_gpus=2, tp=v),
    "dp": lambda v: econ.Deployment(M, G, n_gpus=2, dp=v), "pp": lambda v: econ.Deployment(M, G, n_gpus=2, pp=v),
    "ep": lambda v: econ.Deployment("mixtral-8x7b-v0.1", G, n_gpus=2, ep=v),
    "max_running": lambda v: econ.Deployment(M, G, max_running=v),
    "gpus_per_node": lambda v: econ.Deployment(M, G, gpus_per_node=v),
    "time_on n": lambda v: econ.time_on(WORK, G, n=v),
}
NAMES = {
    "load_model": econ.load_model, "load_accelerator": econ.load_accelerator,
    "profile": lambda v: econ.Deployment(M, G, profile=v),
    "deployment model": lambda v: econ.Deployment(v, G), "deployment gpu": lambda v: econ.Deployment(M, v),
}
CASES = [(where, call, value) for calls, values in ((NUMERIC, NOT_NUMBERS + OUT_OF_RANGE), (DTYPES, NOT_DTYPES),
                                                    (NAMES, NOT_NAMES), (COUNTS, NOT_COUNTS))
         for where, call in calls.items() for value in values
         if not (where in ("tp", "max_running", "serve chunk_tokens") and value is None)]  # None is the default there


@pytest.mark.parametrize("where, call, value", CASES, ids=lambda part: repr(part)[:40])
def test_a_bad_value_is_refused_in_one_line(where, call, value):
    with pytest.raises(ValueError) as error:
        call(value)
    message = str(error.value)
    assert message.isprintable() and 10 < len(message) < 300
    assert type(error.value) in (ValueError, ConfigError, UnknownName, DoesNotFit)
    if isinstance(value, int | float | str | bytes | complex) and 0 < len(repr(value)) < 40:
        assert repr(value).strip("'") in message or str(value) in message


@pytest.mark.parametrize("wrong", ["llama-3.1-8b", 8, None, {}, Odd()], ids=lambda w: repr(w)[:20])
def test_an_object_of_the_wrong_kind_is_refused(wrong):
    for call in (lambda: econ.forward(wrong), lambda: econ.time_on(wrong, G), lambda: econ.time_on(WORK, wrong)):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value).isprintable() and "econ." in str(error.value)


@pytest.mark.parametrize("call, nearest", [
    (lambda: econ.load_accelerator("h100-smx"), "h100-sxm"), (lambda: econ.load_accelerator("a100-90gb"), "a100-"),
    (lambda: econ.load_model("llama-3.3-7b"), "llama-3.3-70b"), (lambda: econ.load_model("deepseek-v4"), "deepseek-v3"),
    (lambda: econ.Deployment("lama-3.1-8b", "h100-sxm"), "llama-3.1-8b"),
    (lambda: econ.Deployment("llama-3.1-8b", "h200-smx"), "h200-sxm")])
def test_a_misspelt_name_gets_the_nearest(call, nearest):
    with pytest.raises(UnknownName) as error:
        call()
    assert nearest in str(error.value).split("nearest")[1]


def test_numpy_scalars_are_as_good_as_numbers():
    for kind in (np.int8, np.int32, np.int64, np.uint16, np.float32, np.float64):
        assert D.decode(kind(4), kind(100)) == D.decode(4, 100)
        assert D.memory(kind(4), kind(100)) == D.memory(4, 100)
        assert M.kv_cache_bytes(kind(100), kind(4)) == M.kv_cache_bytes(100, 4)
    for kind in (np.int8, np.int32, np.int64, np.uint16):
        assert econ.Deployment(M, G, n_gpus=kind(4)).decode() == econ.Deployment(M, G, n_gpus=4).decode()
        assert econ.time_on(WORK, G, n=kind(2)) == econ.time_on(WORK, G, n=2)


def test_every_public_function_and_parameter_is_in_the_matrix():
    """A new argument has to be tried with bad values too."""
    options = {"causal", "logits", "count", "split", "link", "flat_bytes", "digits", "unit", "allocation",
               "value"}  # tested elsewhere
    tried = " ".join([*NUMERIC, *DTYPES, *COUNTS, *NAMES, "model accelerator dtype work tp kv weights source name"])
    for call in (econ.forward, econ.time_on, econ.Deployment, econ.Deployment.prefill, econ.Deployment.decode,
                 econ.Deployment.request, econ.Deployment.memory, econ.Deployment.serve, econ.Deployment.cost,
                 econ.Deployment.at_rate, M.weight_bytes, M.streamed_weight_bytes,
                 M.kv_bytes_per_token, M.kv_growth_bytes_per_token, M.kv_cache_bytes, M.state_bytes, econ.load_model,
                 econ.load_accelerator, G.flop_per_s, G.ridge, econ.fmt):
        names = set(inspect.signature(call).parameters) - {"self"} - options
        assert names <= set(tried.split()), (call, names - set(tried.split()))


anything = st.one_of(st.integers(-5, 10**7), st.floats(allow_nan=True, allow_infinity=True), st.text(max_size=5),
                     st.none(),
                     st.booleans(), st.lists(st.integers(), max_size=2), st.integers(-10**40, 10**40))


@given(anything, anything, anything, st.sampled_from([None, "bf16", "fp8", "fp7", 8]))
def test_no_call_ends_in_anything_but_a_value_error(batch, tokens, output, dtype):
    calls = [lambda: econ.forward(M, batch, tokens, output, weights=dtype), lambda: D.decode(batch, tokens),
             lambda: D.prefill(batch, tokens), lambda: D.memory(batch, tokens),
             lambda: D.request(batch, tokens, output),
             lambda: econ.Deployment(M, G, n_gpus=batch, tp=tokens, kv=dtype),
             lambda: M.kv_cache_bytes(batch, tokens, dtype)]
    for call in calls:
        with contextlib.suppress(ValueError):
            call()


@given(st.integers(0, 10**15), st.integers(0, 10**15), st.integers(0, 10**15))
def test_huge_but_finite_sizes_give_finite_work(batch, new_tokens, context):
    for m in (M, econ.load_model("deepseek-v3"), econ.load_model("gpt-oss-20b")):
        for give in (int, np.array):
            work = econ.forward(m, give(batch), give(new_tokens), give(context))
            for field in dataclasses.fields(work):
                value = getattr(work, field.name)
                assert field.name in ("operators", "flops_by_rate") or 0 <= value < 1e70
            assert 0 <= work.intensity < 1e40
