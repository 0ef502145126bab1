"""FLOPs and bytes of a pass: a tracer's counts, formulas of papers written out here, direct enumeration."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import econ
from econ import ConfigError, forward, load_model
from econ.work import Split, reach, scores

pytestmark = pytest.mark.core

CONFIGS = Path(__file__).parent / "data" / "configs"
with open(CONFIGS / "truth.csv", encoding="utf-8") as file:
    TRACED = [row for row in csv.DictReader(file) if row["quantity"].startswith("flops_")]
L70 = load_model("llama-3.3-70b")


# The counting conventions, exactly.
@pytest.mark.parametrize("flops, options", [
    (291_372_682_706_944, dict(new_tokens=2048, causal=False)),
    (291_493_478_662_144, dict(new_tokens=2048, causal=False, count="article")),
    (295_794_934_546_432, dict(new_tokens=2048, causal=False, count="article", logits="all")),
    (285_944_944_001_024, dict(new_tokens=2048, count="article")),
    (285_877_808_922_624, dict(new_tokens=2048)),
    (144_374_759_424, dict(context=2048)),
    (144_372_137_984, dict(context=2047)),
    (144_431_120_384, dict(context=2047, count="article")),
])
def test_counting_fixtures(flops, options):
    got = forward(L70, **options).flops
    assert got == flops and isinstance(got, int)


def tflop(**options):
    return forward(L70, new_tokens=2048, causal=False, **options).flops / 1e12


def test_conventions_at_2048_tokens():
    """What each counting convention gives, in TFLOP; the article's is the first."""
    s, d, layers = 2048, 8192, 80
    assert f"{tflop(count='article'):.4f}" == "291.4935"
    assert f"{tflop(count='article', logits='none'):.4f}" == "291.4914"
    assert f"{tflop() + 10 * s * d * layers / 1e12:.4f}" == "291.3861"  # softmax not counted
    assert f"{tflop(count='article', logits='all'):.4f}" == "295.7949"
    assert f"{tflop(count='article', logits='none') / layers:.6f}" == "3.643642"
    n, table = L70.n_params, L70.n_embedding_params
    assert f"{2 * n * s / 1e12:.4f}" == "288.9880" and f"{2 * (n - table) * s / 1e12:.4f}" == "284.6844"
    assert f"{2 * layers * 855_654_400 * s / 1e12:.4f}" == "280.3808"


def test_per_layer_operators_of_the_article():
    work = forward(L70, new_tokens=2048, causal=False, count="article")
    layer = {op.name.split(".")[-1]: op.flops / 80 / 1e12 for op in work.operators}
    assert f"{layer['q_proj']:.6f}" == f"{layer['o_proj']:.6f}" == "0.274878"
    assert f"{layer['k_proj'] + layer['v_proj']:.6f}" == "0.068719"
    assert f"{layer['gate_proj'] + layer['up_proj'] + layer['down_proj']:.6f}" == "2.886218"
    assert layer["scores"] == pytest.approx(2 * 0.068719 + 1.342e-3, abs=2e-6)  # QK^T, AV and softmax
    assert layer["norm, rope"] == pytest.approx(6.711e-5 + 1.007e-4, abs=6e-8)
    assert layer["lm_head"] * 80 == pytest.approx(2.1013e-3, abs=1e-7)


@pytest.mark.parametrize("length, total, full_share, causal_share", [
    (2048, "291.49", "3.81", "1.94"), (8192, "1299.20", "13.67", "7.34"),
    (16_384, "2953.67", "24.06", "13.67"),
    (32_768, "7328.46", "38.78", "24.06"), (65_536, "20341.40", "55.89", "38.78"),
    (131_072, "63420.69", "71.70", "55.89"),
])
def test_other_lengths_and_the_quadratic_share(length, total, full_share, causal_share):
    def pass_over(tokens, causal, logits="none"):
        return forward(L70, new_tokens=tokens, causal=causal, count="article", logits=logits).flops

    assert f"{pass_over(length, False, 'last') / 1e12:.2f}" == total
    for causal, share in ((False, full_share), (True, causal_share)):  # f(2S) - 2 f(S) is twice the S^2 term
        quadratic = (pass_over(2 * length, causal) - 2 * pass_over(length, causal)) / 2
        assert f"{100 * quadratic / pass_over(length, causal, 'last'):.2f}" == share


def test_length_exponent_of_the_article():
    """Doubling the prompt does not quadruple the work: the exponent from 1,059 to 32,803 tokens is 1.1."""
    for causal, exponent in ((False, 1.137), (True, 1.077)):
        low, high = (forward(L70, new_tokens=s, causal=causal, count="article").flops for s in (1059, 32_803))
        assert np.log(high / low) / np.log(32_803 / 1059) == pytest.approx(exponent, abs=5e-4)


def test_prefill_against_decode():
    prefill, decode = forward(L70, new_tokens=2048, causal=False, count="article"), forward(L70, context=2047,
                                                                                            count="article")
    assert f"{prefill.flops / decode.flops:.1f}" == "2018.2"
    causal = forward(L70, new_tokens=2048, count="article")
    assert f"{causal.flops / decode.flops:.1f}" == "1979.8"
    assert f"{decode.flops / 1e12:.5f}" == "0.14443"
    assert scores(2048, 0, causal=False) / scores(1, 2047) == 2048  # what the cache saves in each step
    assert f"{prefill.flops / 141_107_412_992:.0f}" == "2066"  # over the resident weights, as the article
    assert f"{decode.flops / (141_107_412_992 + 671_088_640):.3f}" == "1.019"
    assert round(forward(L70, new_tokens=2048).intensity, 2) == 2046.70


@pytest.mark.parametrize("row", TRACED, ids=lambda r: f"{r['model'].split('/')[-1]}-{r['quantity']}")
def test_flops_equal_a_tracer(row):
    try:
        m = load_model(CONFIGS / f"{row['model'].replace('/', '__')}.json")
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    options = {"flops_prefill64": dict(new_tokens=64, causal=False, logits="all"),
               "flops_prefill8192": dict(new_tokens=8192, causal=False, logits="all"),
               "flops_decode_ctx64": dict(context=64)}[row["quantity"]]
    assert forward(m, **options).flops == float(row["value"])


# Closed forms of the papers, from the published keys alone.
def raw(hub_id):
    return json.loads((CONFIGS / f"{hub_id}.json").read_text(encoding="utf-8"))


def dense_flops(c, batch, new, context):
    """2 FLOP per multiply-add: projections, gated MLP, head once a sequence, QK^T and AV of a causal pass."""
    d, heads = c["hidden_size"], c["num_attention_heads"]
    kv, hd = c["num_key_value_heads"], c.get("head_dim") or d // heads
    linear = 2 * d * heads * hd + 2 * d * kv * hd + 3 * d * c["intermediate_size"]
    pairs = sum(context + i for i in range(1, new + 1))
    layers = c["num_hidden_layers"]
    return 2 * batch * (layers * (new * linear + 2 * pairs * heads * hd) + d * c["vocab_size"])


@pytest.mark.parametrize("hub_id", [
    "meta-llama__Meta-Llama-3.1-8B", "meta-llama__Meta-Llama-3.1-405B", "Qwen__Qwen2.5-7B", "Qwen__Qwen3-32B",
    "mistralai__Mistral-7B-Instruct-v0.3"])
@pytest.mark.parametrize("batch, new, context",
                         [(1, 1, 0), (1, 1, 2048), (3, 77, 0), (2, 64, 1000), (16, 1, 8191)])
def test_dense_models_equal_the_closed_form(hub_id, batch, new, context):
    c = raw(hub_id)
    work = forward(load_model(c), batch=batch, new_tokens=new, context=context)
    per_token = 2 * 2 * c["num_hidden_layers"] * c["num_key_value_heads"] * (
        c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])
    assert work.flops == dense_flops(c, batch, new, context)
    assert work.kv_read_bytes == batch * context * per_token
    assert work.kv_write_bytes == batch * new * per_token
    assert work.state_bytes == 0


@pytest.mark.parametrize("batch, new, context", [(1, 1, 2048), (8, 1, 300), (1, 512, 0)])
def test_mixtral_equals_the_closed_form(batch, new, context):
    d, heads, kv, hd, ffn, vocab, layers = 4096, 32, 8, 128, 14_336, 32_000, 32
    token = 2 * d * heads * hd + 2 * d * kv * hd + 8 * d + 2 * 3 * d * ffn  # two experts and the router
    pairs = sum(context + i for i in range(1, new + 1))
    work = forward(load_model("mixtral-8x7b-v0.1"), batch, new, context)
    assert work.flops == 2 * batch * (layers * (new * token + 2 * pairs * heads * hd) + d * vocab)
    experts = 8 * (1 - 0.75 ** (batch * new))
    layer = 2 * d * heads * hd + 2 * d * kv * hd + 8 * d + 2 * d + experts * 3 * d * ffn
    assert work.weight_bytes == pytest.approx(2 * (layers * layer + d + d * vocab), rel=1e-12)


def v3_linear_per_token():
    """Multiply-adds of a token outside the scores: MLA projections, 3 dense and 58 routed layers, 8 + 1 experts."""
    d, heads, rank, rope, nope, v, q_rank = 7168, 128, 512, 64, 128, 128, 1536
    query = d * q_rank + q_rank * heads * (nope + rope)
    mla = query + d * (rank + rope) + rank * heads * (nope + v) + heads * v * d
    return 61 * mla + 3 * 3 * d * 18_432 + 58 * (9 * 3 * d * 2048 + d * 256)


V3_HEAD = 7168 * 129_280


def test_mla_decode_scores_the_latent_itself():
    """Absorbed: every head scores 512 + 64 elements and sums 512. Expanding 4,096 latents would cost more."""
    work = forward(load_model("deepseek-v3"), context=4096)
    absorbed = 61 * 4097 * 128 * (512 + 64 + 512)
    expanded = 61 * (4097 * 128 * (128 + 64 + 128) + 4096 * 512 * 128 * (128 + 128))
    assert absorbed < expanded
    assert work.flops == 2 * (v3_linear_per_token() + absorbed + V3_HEAD)
    assert work.kv_read_bytes == 4096 * 70_272 and work.kv_write_bytes == 70_272


def test_mla_prefill_expands_heads():
    pairs = 2048 * 2049 // 2
    work = forward(load_model("deepseek-v3"), new_tokens=2048)
    expanded = 61 * pairs * 128 * (128 + 64 + 128)
    assert work.flops == 2 * (2048 * v3_linear_per_token() + expanded + V3_HEAD)


def test_mla_takes_the_cheaper_of_the_two_for_a_chunk():
    """A chunk of 2,048 on 2,048 cached tokens: expanding the cached latents once pays for all its queries."""
    pairs = 2048 * 2048 + 2048 * 2049 // 2
    work = forward(load_model("deepseek-v3"), new_tokens=2048, context=2048)
    expanded = 61 * (pairs * 128 * 320 + 2048 * 512 * 128 * 256)
    absorbed = 61 * pairs * 128 * 1088
    rest = 2048 * v3_linear_per_token() + V3_HEAD
    assert work.flops == 2 * (rest + min(expanded, absorbed)) == 2 * (rest + expanded)


# Scores by direct enumeration.
def enumerate_pairs(new, context, causal, window, chunked):
    if not causal:
        return new * (context + new)
    pairs = 0
    for query in range(context, context + new):  # its position; it sees the keys at positions 0..query
        first = 0 if window is None else query - query % window if chunked else max(0, query - window + 1)
        pairs += query - first + 1
    return pairs


@given(st.integers(0, 60), st.integers(0, 60), st.booleans(), st.one_of(st.none(), st.integers(1, 40)),
       st.booleans())
def test_scores_equal_direct_enumeration(new, context, causal, window, chunked):
    chunked = chunked and window is not None
    assert scores(new, context, causal, window, chunked) == enumerate_pairs(new, context, causal, window,
                                                                            chunked)
    grid = scores(np.array([[float(new)], [new + 3.0]]), np.array([float(context), 7.0]), causal, window,
                  chunked)
    assert grid[0, 0] == enumerate_pairs(new, context, causal, window, chunked)
    assert grid[1, 1] == enumerate_pairs(new + 3, 7, causal, window, chunked)


@given(st.integers(0, 200), st.one_of(st.none(), st.integers(1, 60)), st.booleans())
def test_reach_is_what_the_next_query_sees_but_itself(context, window, chunked):
    chunked = chunked and window is not None
    assert reach(context, window, chunked) == enumerate_pairs(1, context, True, window, chunked) - 1


def test_causal_halves_the_square():
    assert scores(2048, 0) * 2 == scores(2048, 0, causal=False) + 2048


@pytest.mark.parametrize("name, window, heads, dim, sliding, full", [
    ("gpt-oss-20b", 128, 64, 64, 12, 12), ("gemma-3-1b-it", 512, 4, 256, 22, 4),
    ("mistral-7b-v0.1", 4096, 32, 128, 32, 0)])
def test_a_window_bounds_the_scores_and_the_bytes_read(name, window, heads, dim, sliding, full):
    m, context = load_model(name), 10_000
    token = forward(m, context=0).flops - 2 * 2 * heads * dim * (sliding + full)
    work = forward(m, context=context)
    assert work.flops == token + 4 * heads * dim * (sliding * window + full * (context + 1))
    each = m.kv_bytes_per_token() // (sliding + full)
    assert work.kv_read_bytes == each * (sliding * (window - 1) + full * context)
    assert work.kv_write_bytes == m.kv_bytes_per_token()


# Sums and conservation.
MODELS = ["llama-3.3-70b", "qwen3-0.6b", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b", "gemma-2-9b-it",
          "llama-4-scout-17b-16e", "falcon-40b", "qwen3-next-80b-a3b", "jamba-v0.1", "mamba-2.8b", "glm-5"]
sizes = dict(batch=st.integers(1, 64), new_tokens=st.integers(1, 5000), context=st.integers(0, 20_000))
options = dict(causal=st.booleans(), logits=st.sampled_from(["last", "all", "none"]),
               count=st.sampled_from(["matmul", "article"]),
               weights=st.sampled_from([None, "bf16", "fp8", "int4", "q4_k_m"]),
               kv=st.sampled_from([None, "fp8", "bf16"]))


@given(st.sampled_from(MODELS), st.fixed_dictionaries(sizes | options))
def test_operators_add_up_to_the_work(name, given_options):
    work = forward(load_model(name), **given_options)
    for part in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
        assert sum(getattr(op, part) for op in work.operators) == pytest.approx(getattr(work, part),
                                                                                rel=1e-12)
    assert sum(work.flops_by_rate.values()) == pytest.approx(work.flops, rel=1e-12)
    assert work.bytes == work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes + work.state_bytes
    traffic = work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes
    assert work.intensity == pytest.approx(work.flops / traffic, rel=1e-12)
    assert work.activation_bytes > 0


@given(st.sampled_from(["llama-3.1-8b", "gpt-oss-20b", "gemma-2-9b-it", "llama-4-scout-17b-16e"]),
       st.integers(1, 9000), st.integers(1, 9000), st.integers(0, 9000))
def test_a_prompt_in_two_chunks_is_the_same_work(name, first, second, context):
    m = load_model(name)
    whole = forward(m, new_tokens=first + second, context=context, logits="none")
    parts = [forward(m, new_tokens=first, context=context, logits="none"),
             forward(m, new_tokens=second, context=context + first, logits="none")]
    assert sum(p.flops for p in parts) == whole.flops
    assert sum(p.kv_write_bytes for p in parts) == whole.kv_write_bytes


@given(st.sampled_from(MODELS), st.fixed_dictionaries(sizes), st.integers(2, 9))
def test_sequences_are_independent(name, given_sizes, times):
    one = forward(load_model(name), **given_sizes)
    many = forward(load_model(name), **{**given_sizes, "batch": times * given_sizes["batch"]})
    assert many.flops == times * one.flops
    assert many.kv_read_bytes == times * one.kv_read_bytes
    assert many.kv_write_bytes == times * one.kv_write_bytes
    assert one.weight_bytes <= many.weight_bytes  # read once for all; more experts touched


@given(st.sampled_from(MODELS), st.fixed_dictionaries(sizes))
def test_more_work_never_costs_less(name, given_sizes):
    m, base = load_model(name), forward(load_model(name), **given_sizes)
    for key in sizes:
        more = forward(m, **{**given_sizes, key: given_sizes[key] + 1})
        assert more.flops >= base.flops and more.weight_bytes >= base.weight_bytes
        if "llama-4" not in name or key != "context":  # a chunk ends: the next query sees less
            assert more.kv_read_bytes >= base.kv_read_bytes


def test_streamed_weights_are_the_models():
    for name in MODELS:
        m = load_model(name)
        for batch, new in ((1, 1), (7, 3)):
            for recipe in (None, "bf16", "fp8", "q4_0"):
                want = m.streamed_weight_bytes(recipe, tokens=batch * new)
                assert forward(m, batch, new, weights=recipe).weight_bytes == pytest.approx(want, rel=1e-12)


def test_the_dtype_of_the_cache_is_its_own():
    """Quantised weights do not quantise the cache, nor the other way round."""
    base, fp8_weights = forward(L70, context=2048), forward(L70, context=2048, weights="fp8")
    fp8_cache = forward(L70, context=2048, kv="fp8")
    assert base.kv_read_bytes == fp8_weights.kv_read_bytes == 671_088_640 == 2 * fp8_cache.kv_read_bytes
    assert base.weight_bytes == fp8_cache.weight_bytes > fp8_weights.weight_bytes
    assert base.flops == fp8_weights.flops == fp8_cache.flops


@pytest.mark.parametrize("weights, kv, linear, attention", [
    (None, None, "bf16", "bf16"), ("fp8", None, "fp8", "bf16"), ("fp8", "fp8", "fp8", "fp8"),
    ("nvfp4", None, "fp4", "bf16"),
    ("mxfp4", "fp8", "fp4", "fp8"), ("int8", "int8", "bf16", "bf16"), ("int4", None, "bf16", "bf16"),
    ("q4_k_m", None, "bf16", "bf16")])
def test_the_rate_follows_the_format_that_multiplies(weights, kv, linear, attention):
    rates = forward(L70, context=2048, weights=weights, kv=kv).flops_by_rate
    matrices, head, pairs = 2 * 80 * (855_654_400 - 2 * 8192), 2 * 8192 * 128_256, 80 * 2049 * 4 * 8192
    want = dict.fromkeys({"bf16", linear, attention}, 0)
    for rate, flops in ((linear, matrices), ("bf16", head), (attention, pairs)):
        want[rate] += flops
    assert {rate: flops for rate, flops in rates.items() if flops} == want


# What one GPU does under tensor parallelism: the shards add up to the whole plus what is replicated.
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_tp_shards_of_llama_add_up(tp):
    whole, part = forward(L70, 4, 100, 1000), forward(L70, 4, 100, 1000, split=Split(tp=tp))
    norms = 2 * (80 * 2 + 1) * 8192  # replicated on every GPU
    assert tp * part.flops == pytest.approx(whole.flops, rel=1e-12)
    assert tp * part.weight_bytes == pytest.approx(whole.weight_bytes + (tp - 1) * norms, rel=1e-12)
    assert tp * part.kv_read_bytes == pytest.approx(whole.kv_read_bytes, rel=1e-12)
    assert tp * part.kv_write_bytes == pytest.approx(whole.kv_write_bytes, rel=1e-12)


def test_kv_heads_are_replicated_beyond_their_number():
    """16 GPUs, 8 KV heads: each holds one head, its cache and projections; the query side is cut in 16."""
    whole, part = forward(L70, context=2048), forward(L70, context=2048, split=Split(tp=16))
    assert 8 * part.kv_read_bytes == whole.kv_read_bytes
    kv_projections, norms = 2 * 80 * 2 * 1024 * 8192, 2 * (80 * 2 + 1) * 8192
    want = (whole.weight_bytes - kv_projections - norms) / 16 + kv_projections / 8 + norms
    assert part.weight_bytes == pytest.approx(want, rel=1e-12)
    assert 16 * part.flops == pytest.approx(whole.flops + 80 * 2 * 2 * 1024 * 8192, rel=1e-12)


def test_an_mla_latent_is_whole_on_every_gpu():
    m = load_model("deepseek-v3")
    whole, part = forward(m, context=4096), forward(m, context=4096, split=Split(tp=8, experts=8))
    assert part.kv_read_bytes == whole.kv_read_bytes and part.kv_write_bytes == whole.kv_write_bytes


# Bad input.
@pytest.mark.parametrize("options", [
    dict(logits="first"), dict(count="macs"), dict(weights="fp7"), dict(kv="int4"), dict(kv=""), dict(causal="no"),
    dict(batch=-1), dict(batch=True), dict(new_tokens="8"), dict(new_tokens=10**400), dict(context=float("nan")),
    dict(context=None), dict(split=4)])
def test_bad_options(options):
    with pytest.raises(ValueError) as error:
        forward(L70, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_the_table_lists_every_operator_and_the_total():
    work = forward(L70, new_tokens=2048)
    lines = work.table().splitlines()
    assert len(lines) == len(work.operators) + 2 and len({len(line) for line in lines}) == 1
    assert len({op.name for op in work.operators}) == len(work.operators)
    assert "285.9 TFLOP" in lines[-1] and "139.0 GB" in lines[-1]
    assert all(name in work.table() for name in ("q_proj", "scores", "lm_head"))


def test_every_model_has_a_finite_pass():
    for name in econ.models():
        work = forward(load_model(name), batch=2, new_tokens=3, context=5)
        assert 0 < work.flops < 1e16 and 0 < work.bytes < 1e13 and 0 < work.intensity < 1e5
