"""Times: the arithmetic around the clock exactly, and predictions of the small Llama in bands.

Nothing absolute is asserted. Tests that compare times on this machine carry the `timing` marker.
"""

import statistics

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402

from econ.kernels import _setup, llama, machine, meter, timing  # noqa: E402

SMALL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 64, "vocab": 50}


def test_a_timing_is_a_median_with_its_spread():
    found = timing.Timing.of([4.0, 1.0, 2.0, 3.0, 100.0])
    assert (found.median_s, found.spread_frac, found.runs) == (3.0, 2.0 / 3.0, 5)


def test_short_functions_are_repeated_and_warmed_up(monkeypatch):
    clock = []

    def elapsed_s(fn, device="cpu", calls=1):
        fn()
        clock.append(calls)
        return calls * 1e-4

    monkeypatch.setattr(timing, "elapsed_s", elapsed_s)
    ran = []
    found = timing.time_median(lambda: ran.append(torch.get_num_threads()), repeats=4, device="cpu")
    assert clock == [1, 20, 20, 20, 20]  # 2 ms a run of 0.1 ms calls
    assert found.median_s == pytest.approx(1e-4) and found.runs == 4
    assert len(ran) == 6 and set(ran) == {1}  # one warm-up more than runs, all on one thread


def test_a_budget_stops_early_but_not_before_three_runs():
    assert timing.time_median(lambda: None, repeats=50, device="cpu", budget_s=1e-9).runs == 3
    with pytest.raises(ValueError, match="use 3 or more"):
        timing.time_median(lambda: None, repeats=2)


def test_slopes_and_fits_return_the_constants_that_made_the_data():
    sizes = (100, 200, 400, 800)
    assert timing.log_log_slope(sizes, [5 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    a, b, c = 0.04, 0.0023, 2.1e-6
    points = [(batch, context, a + b * batch + c * batch * context)
              for batch in (4, 16, 64) for context in (64, 768)]
    assert timing.fit_decode(points) == pytest.approx((a, b, c), rel=1e-9)
    with pytest.raises(ValueError, match="2 points"):
        timing.fit_decode(points[:2])


@pytest.mark.parametrize("tied", [False, True])
def test_a_decode_step_streams_every_matrix_but_an_untied_embedding(tied):
    model = llama.Llama(**SMALL, tied=tied, device="cpu")
    streamed = sum(weight.numel() for weight in timing.streamed_matrices(model))
    norms, table = 5 * 32, 50 * 32
    assert streamed == model.n_params - norms - (0 if tied else table)


def test_a_timed_decode_step_attends_context_plus_one(monkeypatch):
    model = llama.Llama(**SMALL, device="cpu")
    lengths = []

    def attend(q, k, v, real=llama.attend):
        lengths.append((q.shape[2], k.shape[2]))
        return real(q, k, v)

    monkeypatch.setattr(llama, "attend", attend)
    timing.time_decode(model, context=11, repeats=3)
    assert set(lengths) == {(1, 12)}
    lengths.clear()
    timing.time_prefill(model, prompt=9, repeats=3)
    assert set(lengths) == {(9, 9)}


# --- comparisons on this machine ----------------------------------------------------------------

@pytest.fixture(scope="module")
def hundred_million():
    return llama.Llama(layers=12, hidden=768, heads=12, kv_heads=4, head_dim=64, ffn=2048, vocab=32_000,
                       tied=True, dtype=_setup.model_dtype())


@pytest.mark.timing
def test_prefill_time_is_its_flops_over_the_matmul_peak(hundred_million):
    prompt = torch.zeros(1, 512, dtype=torch.int64, device=hundred_million.device)
    flops, _ = meter.count_flops(lambda: hundred_million.prefill(prompt))
    predicted_s = flops / machine.matmul_peak(_setup.model_dtype()).per_s
    assert predicted_s == pytest.approx(timing.time_prefill(hundred_million, 512).median_s, rel=0.20)


@pytest.mark.timing
def test_decode_time_is_its_bytes_over_the_bandwidth_of_its_own_matrices(hundred_million):
    weights = sum(weight.nbytes for weight in timing.streamed_matrices(hundred_million))
    kv = hundred_million.new_cache(batch=1, max_tokens=257).bytes
    predicted_s = (weights + kv) / timing.gemv_bytes_per_s(hundred_million)
    assert predicted_s == pytest.approx(timing.time_decode(hundred_million, 256).median_s, rel=0.25)


@pytest.mark.timing
def test_the_cache_saves_most_of_a_step_at_256_tokens(hundred_million):
    without = timing.time_prefill(hundred_million, 256, repeats=3)
    cached = timing.time_decode(hundred_million, 256)
    assert without.median_s / cached.median_s >= 8


@pytest.mark.timing
def test_attention_alone_is_quadratic_without_the_cache_and_linear_with_it():
    def attention_s(new, total):  # every query sees every key: skipping masked tiles would bend the line
        q, k = torch.randn(1, 4, new, 64), torch.randn(1, 4, total, 64)
        return timing.time_median(lambda: F.scaled_dot_product_attention(q, k, k), device="cpu").median_s

    lengths = (512, 1024, 2048, 4096)
    assert timing.log_log_slope(lengths, [attention_s(n, n) for n in lengths]) == pytest.approx(2.0, abs=0.25)
    assert timing.log_log_slope(lengths, [attention_s(1, n) for n in lengths]) == pytest.approx(1.0, abs=0.25)


@pytest.mark.timing
def test_three_constants_predict_steps_they_were_not_fitted_to(hundred_million):
    fitted = ((4, 64), (4, 768), (16, 256), (32, 512), (64, 64))
    held_out = ((8, 256), (16, 64), (32, 64), (16, 768), (32, 256))
    points = [(batch, context, timing.time_decode(hundred_million, context, batch, repeats=3).median_s)
              for batch, context in fitted + held_out]
    a, b, c = timing.fit_decode(points[:len(fitted)])
    errors = [abs((a + b * batch + c * batch * context) / seconds - 1)
              for batch, context, seconds in points[len(fitted):]]
    assert statistics.median(errors) <= 0.10 and max(errors) <= 0.20
