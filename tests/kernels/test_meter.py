"""Both meters against counts done by hand, and with the mistakes they exist to avoid."""

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

from econ.kernels import meter  # noqa: E402

N, D = 1024, 64


def heads(count, device="cpu", new=N):
    return torch.ones(2, count, new, D, device=device)


def naive_attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("q_heads", "kv_heads", "new", "causal"),
                         [(4, 4, N, False), (4, 4, N, True), (6, 2, 1, False)])
def test_attention_is_counted_as_the_full_square(device, q_heads, kv_heads, new, causal):
    q, k = heads(q_heads, device, new), heads(kv_heads, device)
    total, _ = meter.count_flops(
        lambda: F.scaled_dot_product_attention(q, k, k, is_causal=causal, enable_gqa=True))
    assert total == 2 * 2 * 2 * q_heads * new * N * D  # 2 FLOP, 2 products, 2 sequences


def test_without_the_registration_attention_on_a_cpu_counts_nothing(monkeypatch):
    q = heads(1)
    monkeypatch.delitem(flop_registry, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)
    assert meter.count_flops(lambda: F.scaled_dot_product_attention(q, q, q)) == (0, {})


def test_flops_by_operator_add_up():
    x, w = torch.ones(3, 5), torch.ones(7, 5)
    total, by_op = meter.count_flops(lambda: (F.linear(x, w), F.linear(x, w, torch.ones(7)), torch.relu(x)))
    assert by_op == {"aten.mm": 2 * 3 * 5 * 7, "aten.addmm": 2 * 3 * 5 * 7}
    assert total == sum(by_op.values())


def test_a_model_is_within_one_per_cent_of_two_flops_a_parameter_and_token():
    from econ.kernels.llama import Llama
    model = Llama(layers=4, hidden=1024, heads=8, kv_heads=2, head_dim=128, ffn=4096, vocab=32_000,
                  dtype="bf16", device="meta")
    token = torch.zeros(1, dtype=torch.int64, device="meta")
    total, _ = meter.count_flops(lambda: model.decode(token, model.new_cache(1, 1)))
    but_embedding = model.n_params - 32_000 * 1024
    assert total == pytest.approx(2 * but_embedding, rel=0.01)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_peak_of_naive_attention_is_two_score_matrices(device):
    q = torch.ones(1, 1, N, D, device=device)
    assert meter.peak_live_bytes(lambda: naive_attention(q, q, q)) == pytest.approx(2 * N * N * 4, rel=0.01)


def test_peak_of_fused_attention_has_no_score_matrix():
    q = torch.ones(1, 1, N, D)
    assert meter.peak_live_bytes(lambda: F.scaled_dot_product_attention(q, q, q)) < 2 * N * D * 4


def test_memory_that_was_there_before_and_views_do_not_count():
    x = torch.ones(1000)
    assert meter.peak_live_bytes(lambda: x.view(10, 100).t().mul_(2)[3:]) == 0
    assert meter.peak_live_bytes(lambda: [x + 1, x + 2]) == 2 * 4000


def freed_in_a_loop():
    for _ in range(50):
        y = torch.ones(1000)
        y.view(10, 100).add_(1)
        del y


def test_what_has_died_no_longer_counts():
    assert meter.peak_live_bytes(freed_in_a_loop) == 4000


def test_a_meter_that_forgets_no_storage_would_be_noticed(monkeypatch):
    monkeypatch.setattr(meter._LiveBytes, "_died", lambda self, key, size: self.known.discard(key))
    assert meter.peak_live_bytes(freed_in_a_loop) == 50 * 4000


def test_outputs_that_fn_returns_stay_alive():
    assert meter.peak_live_bytes(lambda: torch.ones(1000) * 2) == 8000
