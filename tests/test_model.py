"""Parameters, weight bytes and cache bytes against published totals, papers, sums by hand, a simulation."""

import csv
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import econ
from econ import ConfigError, load_model
from econ.model import touched

pytestmark = pytest.mark.core

CONFIGS = Path(__file__).parent / "data" / "configs"
with open(CONFIGS / "truth.csv", encoding="utf-8") as file:
    TRUTH: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(file):
        TRUTH.setdefault(row["model"], {})[row["quantity"]] = row["value"]


def read(hub_id):
    """The model of a published config, or a skip where its family is refused."""
    try:
        return load_model(CONFIGS / f"{hub_id.replace('/', '__')}.json")
    except ConfigError as refusal:
        pytest.skip(str(refusal))


# Exact totals: the two sources of the book, the reference implementation and the hub.
def test_llama_70b():
    m = load_model("llama-3.3-70b")
    assert m.n_params == 70_553_706_496
    assert m.weight_bytes("bf16") == 141_107_412_992
    assert m.streamed_weight_bytes("bf16") == 139_006_066_688
    assert m.n_params - m.n_embedding_params == 69_503_033_344
    assert m.n_active_params == m.n_params and not m.is_moe
    assert len(m.layers) == 80 and not m.tied
    assert sum(t.n_params for t in m.layers[0].tensors) == 855_654_400
    assert m.state_bytes(batch=64) == 0


@pytest.mark.parametrize("name, total_b, active_b", [
    ("mixtral-8x7b-v0.1", "46.7", "12.9"),  # Mistral AI's announcement, 2023
    ("deepseek-v3", "671.0", "37.6"),  # arXiv 2412.19437 prints 671 and 37; both embeddings included here
    ("gpt-oss-120b", "116.8", None), ("gpt-oss-20b", "20.9", None),  # model card, Table 1
])
def test_published_totals(name, total_b, active_b):
    m = load_model(name)
    assert f"{m.n_params / 1e9:.1f}" == total_b
    assert active_b is None or f"{m.n_active_params / 1e9:.1f}" == active_b


def test_active_parameters_without_the_input_table():
    """gpt-oss's card prints 5.1B and 3.6B active, DeepSeek-V3's report 37B: the lookup does not count."""
    assert [round((m.n_active_params - m.n_embedding_params) / 1e9, 1) for m in
            (load_model("gpt-oss-120b"), load_model("gpt-oss-20b"))] == [5.1, 3.6]
    v3 = load_model("deepseek-v3")
    assert round((v3.n_active_params - v3.n_embedding_params) / 1e9) == 37


@pytest.mark.parametrize("hub_id", sorted(TRUTH))
def test_parameters_equal_the_reference_implementation(hub_id):
    m, truth = read(hub_id), TRUTH[hub_id]
    assert m.n_params == int(truth["params_total_meta"])
    assert m.n_embedding_params == int(truth["params_embed_meta"])
    assert m.tied == bool(int(truth["lm_head_tied_meta"]))
    if "params_active_meta" in truth:
        assert m.n_active_params == int(truth["params_active_meta"])


@pytest.mark.parametrize("hub_id",
                         sorted(k for k, t in TRUTH.items() if "kv_elements_per_token_hf_cache_S64" in t))
def test_cache_elements_equal_the_reference_implementation(hub_id):
    m, truth = read(hub_id), TRUTH[hub_id]
    assert m.kv_cache_bytes(tokens=64,
                            dtype="bf16") == 64 * 2 * float(truth["kv_elements_per_token_hf_cache_S64"])
    assert sum(n for a, n in m.attention_kinds if a.keeps_cache) == int(truth["kv_layers_hf_cache"])


def test_no_published_config_is_refused():
    refused = []
    for hub_id in TRUTH:
        try:
            load_model(CONFIGS / f"{hub_id.replace('/', '__')}.json")
        except ConfigError:
            refused.append(hub_id)
    assert not refused


# Cache bytes a token, typed from the primary source named beside each.
@pytest.mark.parametrize("name, kv_bytes, source", [
    ("deepseek-v3", 70_272, "arXiv 2505.09343 Table 1: 576 * 61 * 2"),
    ("deepseek-r1", 70_272, "the same geometry"),
    ("qwen2.5-72b", 327_680, "arXiv 2505.09343 Table 1: 2 * 8 * 128 * 80 * 2"),
    ("llama-3.1-405b", 516_096, "arXiv 2505.09343 Table 1: 2 * 8 * 128 * 126 * 2"),
    ("llama-3.3-70b", 327_680, "2 * 8 * 128 * 80 * 2"),
    ("llama-3.1-8b", 131_072, "an engine's log: 31,232 tokens in 3.8125 GiB"),
    ("llama-2-7b", 524_288, "a published guide: 4 * 32 * 4096"),
    ("gpt-oss-120b", 73_728, "an engine's log: 36 layers, 8 KV heads of 64"),
    ("qwen3-32b", 262_144, "head_dim 128 is declared; hidden / heads would be 80"),
    ("qwen3-30b-a3b", 98_304, "an engine's log: 96 KiB"),
    ("falcon-7b", 8_192, "one KV head of 64, 32 layers"),
    ("deepseek-v2-lite", 31_104, "arXiv 2405.04434: 15.6 k elements, 576 * 27"),
])
def test_cache_bytes_per_token(name, kv_bytes, source):
    assert load_model(name).kv_bytes_per_token("bf16") == kv_bytes
    assert load_model(name).kv_bytes_per_token("fp8") == kv_bytes // 2
    assert load_model(name).kv_cache_bytes(tokens=1) == kv_bytes


def test_cache_of_the_article():
    m = load_model("llama-3.3-70b")
    assert m.kv_cache_bytes(tokens=2048, batch=1, dtype="bf16") == 671_088_640
    assert m.kv_cache_bytes(tokens=131_072) == 42_949_672_960 == 40 * 2**30
    assert m.weight_bytes("bf16") // m.kv_bytes_per_token("bf16") == 430_625  # crossover at 430,625.6 tokens
    assert round(m.weight_bytes("bf16") / m.kv_bytes_per_token("bf16")) == 430_626
    assert round(m.streamed_weight_bytes("bf16") / m.kv_bytes_per_token("bf16")) == 424_213
    assert round(m.weight_bytes("bf16") / m.kv_cache_bytes(tokens=2048), 1) == 210.3


@pytest.mark.parametrize("name, window, sliding, full", [
    ("gpt-oss-120b", 128, 18, 18), ("gemma-3-1b-it", 512, 22, 4), ("gemma-2-9b-it", 4096, 21, 21),
    ("mistral-7b-v0.1", 4096, 32, 0), ("llama-4-scout-17b-16e", 8192, 36, 12),
])
def test_a_window_layer_holds_at_most_its_window(name, window, sliding, full):
    m = load_model(name)
    each = m.kv_bytes_per_token() // (sliding + full)
    for tokens in (1, window - 1, window, window + 1, 3 * window + 7):
        assert m.kv_cache_bytes(tokens) == each * (full * tokens + sliding * min(tokens, window))
    assert m.kv_growth_bytes_per_token() == each * full


@pytest.mark.parametrize("hub_id, first_window_layer, each", [("Qwen__Qwen1.5-1.8B-Chat", 21, 4096 * 2),
                                                              ("XiaomiMiMo__MiMo-7B-Base", 32, 2048 * 2)])
def test_a_window_that_is_switched_off_does_not_count(hub_id, first_window_layer, each):
    """These configs give a window and a first layer that has it, and say use_sliding_window: false."""
    raw = json.loads((CONFIGS / f"{hub_id}.json").read_text(encoding="utf-8"))
    assert raw["sliding_window"] and raw["max_window_layers"] == first_window_layer
    m = load_model(raw)
    assert m.kv_growth_bytes_per_token() == m.kv_bytes_per_token() == each * len(m.layers)
    switched_on = load_model({**raw, "use_sliding_window": True})
    assert switched_on.kv_growth_bytes_per_token() == each * first_window_layer < each * len(m.layers)


# Recurrent layers keep a state of fixed size, in fp32 unless the config says otherwise, and the last inputs of a
# short convolution in the model's dtype.
@pytest.mark.parametrize("name, state, why", [
    ("jamba-v0.1", 28 * (8192 * 16 * 4 + 8192 * 3 * 2), "d_inner 8192, d_state 16, conv 4; 28 of 32 layers"),
    ("mamba-codestral-7b-v0.1", 64 * (128 * 64 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2), "128 heads, 8 groups"),
    ("qwen3-next-80b-a3b", 36 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2), "32 heads; 36 of 48"),
])
def test_recurrent_state(name, state, why):
    m = load_model(name)
    assert m.state_bytes() == state and m.state_bytes(batch=7) == 7 * state


def test_a_model_without_attention_has_no_cache():
    m = load_model("mamba-2.8b")
    assert m.kv_bytes_per_token() == m.kv_growth_bytes_per_token() == m.kv_cache_bytes(10**6) == 0
    assert m.state_bytes() > 0


# Bytes.
@pytest.mark.parametrize("name, stored_bytes", [
    ("gpt-oss-120b", 65_248_815_744),  # sum over the safetensors headers: mxfp4 experts, 16 bits elsewhere
    ("bloom", 352_494_542_848),  # total_size of the index file
    ("wizardlm-2-8x22b", 281_241_268_224),  # total_size of the index file
])
def test_published_checkpoints(name, stored_bytes):
    assert load_model(name).weight_bytes() == stored_bytes


@pytest.mark.parametrize("name", ["gemma-2b", "llama-3.2-1b", "qwen3-0.6b", "gpt2"])
def test_a_tied_head_is_stored_once_and_read_once(name):
    m = load_model(name)
    assert m.tied
    assert m.weight_bytes("bf16") == 2 * m.n_params
    positions = sum(t.n_params for t in m.embeddings[1:])  # looked up, not read
    assert m.streamed_weight_bytes("bf16") == 2 * (m.n_params - positions)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-7b", "olmo-2-1124-7b"])
def test_an_untied_input_table_is_held_but_not_read(name):
    m = load_model(name)
    assert not m.tied
    assert m.weight_bytes("bf16") - m.streamed_weight_bytes("bf16") == 2 * m.n_embedding_params


# Experts.
def simulate(total, used, tokens, draws=400):
    generator = random.Random(20_250_301)
    reached = [len({e for _ in range(tokens) for e in generator.sample(range(total),
                                                                       used)}) for _ in range(draws)]
    return sum(reached) / draws


@pytest.mark.parametrize("total, used, tokens",
                         [(256, 8, 8), (256, 8, 64), (8, 2, 3), (128, 4, 32), (16, 1, 16)])
def test_touched_experts_agree_with_a_simulation(total, used, tokens):
    assert touched(total, used, tokens) == pytest.approx(simulate(total, used, tokens), rel=0.02)


def test_touched_experts_of_the_ledger():
    assert [round(touched(256, 8, b)) for b in (1, 8, 32, 64)] == [8, 57, 163, 222]
    assert (touched(256, 8, 0), touched(256, 8, 1)) == (0, 8)


def mixtral_bytes(experts_read):
    """8x7B in bf16: attention, router, norms and head, and three matrices of each expert that is read."""
    d, ffn, layers, vocab, kv = 4096, 14_336, 32, 32_000, 1024
    layer = 2 * d * d + 2 * d * kv + 8 * d + 2 * d + experts_read * 3 * d * ffn
    return 2 * (layers * layer + d + d * vocab)


@pytest.mark.parametrize("tokens", [1, 2, 5, 64])
def test_a_pass_reads_the_experts_its_tokens_touch(tokens):
    m = load_model("mixtral-8x7b-v0.1")
    want = mixtral_bytes(8 * (1 - 0.75**tokens))
    assert m.streamed_weight_bytes("bf16", tokens=tokens) == pytest.approx(want, rel=1e-12)
    assert mixtral_bytes(2) <= m.streamed_weight_bytes("bf16", tokens=tokens) < mixtral_bytes(8)
    assert m.weight_bytes("bf16") == mixtral_bytes(8) + 2 * 4096 * 32_000


@given(st.sampled_from(["mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b", "llama-3.1-8b"]),
       st.integers(1, 10**6))
def test_more_tokens_never_read_less_and_never_more_than_all(name, tokens):
    m = load_model(name)
    less, more = m.streamed_weight_bytes(tokens=tokens), m.streamed_weight_bytes(tokens=tokens + 1)
    assert less <= more <= m.weight_bytes()


# The schedule is the only truth: totals are sums over it.
@pytest.mark.parametrize("name", econ.models())
def test_totals_are_sums_over_the_schedule(name):
    m = load_model(name)
    tensors = [t for layer in m.layers for t in layer.tensors] + list(m.outer)
    assert m.n_params == sum(t.n_params for t in tensors)
    assert m.weight_bytes("fp32") == 4 * m.n_params
    assert m.n_active_params <= m.n_params
    assert (m.n_active_params < m.n_params) == m.is_moe
    assert 0 < m.streamed_weight_bytes() <= m.weight_bytes()
    cached = sum(layer.attention.cache_elements for layer in m.layers if layer.attention)
    assert m.kv_bytes_per_token("bf16") == 2 * cached
    assert m.kv_growth_bytes_per_token() <= m.kv_bytes_per_token()


@pytest.mark.parametrize("name", econ.models())
def test_smaller_formats_never_take_more(name):
    m = load_model(name)
    order = ("fp32", "bf16", "q8_0", "q4_k_m", "q4_0")
    sizes = [m.weight_bytes(recipe) for recipe in order]
    assert sizes == sorted(sizes, reverse=True)
    assert m.weight_bytes("fp8") < m.weight_bytes("bf16") and m.weight_bytes("mxfp4") < m.weight_bytes("fp8")
