"""Every attention kernel against torch's own and against plain loops, its FLOPs against econ's formulas,
its memory against the formula; and the mistakes that each check must notice."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402

import econ  # noqa: E402
from econ.kernels import _setup, attention, meter, timing  # noqa: E402
from econ.model import Attention  # noqa: E402
from econ.work import scores  # noqa: E402

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


@pytest.fixture(autouse=True)
def on_one_thread():
    with _setup.one_thread():  # small products gain nothing from a second thread
        yield


def qkv(new, total=None, heads=2, kv_heads=None, dim=64, v_dim=None, batch=1, dtype=torch.float64,
        device="cpu"):
    """Random queries, keys and values, the same on every run; on meta their shapes alone."""
    keys = (kv_heads or heads, total or new)
    shapes = [(heads, new, dim), (*keys, dim), (*keys, v_dim or dim)]
    if device == "meta":
        return [torch.empty(batch, *shape, dtype=dtype, device=device) for shape in shapes]
    random = torch.Generator().manual_seed(new)
    return [torch.randn(batch, *shape, dtype=dtype, generator=random) for shape in shapes]


def by_loops(q, k, v, sees=lambda query, key: key <= query):
    """Attention from its definition, one number at a time; `query` is the position of the query's own key."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    new, total, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(new)):
        keys = [j for j in range(total) if sees(total - new + i, j)]
        weights = [math.exp(float(q[b, h, i] @ k[b, h // group, j]) / q.shape[3] ** 0.5) for j in keys]
        mix = sum(w * v[b, h // group, j] for w, j in zip(weights, keys, strict=True))
        out[b, h, i] = mix / sum(weights)
    return out


def error(found, expected):
    return float((found - expected).abs().max())


# --- the same answer ----------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [200, 513, 1024])
def test_plain_and_tiled_equal_torchs_own(n, causal, dtype):
    q, k, v = qkv(n, dtype=dtype)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert error(attention.naive(q, k, v, causal), expected) <= TOLERANCE[dtype]
    for tiles in ((256, 512), (128, 96), (96, 128), (n // 3, 57), (n, 1000)):
        assert error(attention.flash(q, k, v, causal, *tiles), expected) <= TOLERANCE[dtype]


def kernels(heads, kv_heads):
    """The causal kernels by name; those that do not group heads see them repeated."""
    def repeated(kernel):
        group = heads // kv_heads
        return lambda q, k, v: kernel(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))

    return {"naive": repeated(attention.naive), "grouped": attention.grouped_query,
            "flash": repeated(lambda q, k, v: attention.flash(q, k, v, True, 4, 3)),
            "window": repeated(lambda q, k, v: attention.sliding_window(q, k, v, window=99, chunk=4))}


@pytest.mark.parametrize("name", kernels(1, 1))
@pytest.mark.parametrize(("new", "total", "heads", "kv_heads"), [(13, 13, 2, 2), (5, 13, 6, 2), (1, 9, 4, 1)])
def test_causal_kernels_equal_plain_loops_also_after_cached_tokens(name, new, total, heads, kv_heads):
    q, k, v = qkv(new, total, heads, kv_heads, dim=6, v_dim=10, batch=2)
    found = kernels(heads, kv_heads)[name](q, k, v)
    assert found.shape == (2, heads, new, 10)
    assert error(found, by_loops(q, k, v)) < 1e-13


@pytest.mark.parametrize("name", ["naive", "grouped", "flash"])
def test_a_top_left_mask_would_be_noticed(name, monkeypatch):
    monkeypatch.setattr(attention, "lower_right_mask",
                        lambda new, total, device: torch.ones(new, total, dtype=torch.bool).tril())
    q, k, v = qkv(5, 13, dim=6)
    assert error(kernels(1, 1)[name](q, k, v), by_loops(q, k, v)) > 1e-2


@pytest.mark.parametrize("window", [1, 4, 5, 12])
@pytest.mark.parametrize("chunk", [1, 3, 128])
@pytest.mark.parametrize("new", [4, 12])
def test_a_window_counts_the_querys_own_key(window, chunk, new):
    q, k, v = qkv(new, 12, dim=6)
    expected = by_loops(q, k, v, lambda query, key: query - window < key <= query)
    assert error(attention.sliding_window(q, k, v, window, chunk), expected) < 1e-13
    if window < 12:
        assert error(attention.sliding_window(q, k, v, window + 1, chunk), expected) > 1e-2


def test_sharing_heads_in_turn_instead_of_in_groups_would_be_noticed():
    q, k, v = qkv(9, heads=6, kv_heads=2, dim=6)
    right, turns = k.repeat_interleave(3, 1), k.repeat(1, 3, 1, 1)
    expected = by_loops(q, k, v)
    assert error(attention.naive(q, right, v.repeat_interleave(3, 1)), expected) < 1e-13
    assert error(attention.naive(q, turns, v.repeat(1, 3, 1, 1)), expected) > 1e-2


def without_shrinking(state, tile_scores, v):
    largest, total, mix = state
    new_largest = torch.maximum(largest, tile_scores.amax(-1, keepdim=True))
    weights = (tile_scores - new_largest).exp()
    return new_largest, total + weights.sum(-1, keepdim=True), mix + weights @ v


def without_a_maximum(state, tile_scores, v):
    largest, total, mix = state
    weights = tile_scores.exp()
    return largest, total + weights.sum(-1, keepdim=True), mix + weights @ v


def test_forgetting_to_shrink_old_sums_would_be_noticed(monkeypatch):
    q, k, v = qkv(300)
    monkeypatch.setattr(attention, "online_softmax", without_shrinking)
    assert error(attention.flash(q, k, v, tile_k=64), attention.naive(q, k, v)) > 1e-2


def test_large_scores_do_not_overflow(monkeypatch):
    q, k, v = qkv(300, dtype=torch.float32)
    q = 900 * q
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert error(attention.flash(q, k, v, False, 64, 64), expected) < 1e-3  # scores of 1e4 round to 1e-3
    monkeypatch.setattr(attention, "online_softmax", without_a_maximum)
    assert not attention.flash(q, k, v, False, 64, 64).isfinite().all()


def test_in_bf16_the_sums_stay_wide():
    q, k, v = (x.bfloat16() for x in qkv(1024, dtype=torch.float32))
    expected = attention.naive(q.float(), k.float(), v.float())
    found = attention.flash(q, k, v, tile_k=16)  # 64 tiles: sums in bf16 would drift
    assert found.dtype == torch.bfloat16
    assert error(found.float(), expected) < 0.02


def latents(new, total, heads=4, nope=6, rope=2, rank=12, v_dim=5, batch=2, device="cpu"):
    random = torch.Generator(device).manual_seed(total) if device == "cpu" else None
    shapes = [(batch, heads, new, nope + rope), (batch, total, rank + rope), (heads, nope, rank),
              (heads, v_dim, rank)]
    return [torch.randn(*shape, dtype=torch.float64, generator=random, device=device) for shape in shapes]


def latent_by_loops(q, cache, up_k, up_v):
    """Multi-head latent attention by loops: every token's latent is expanded for every head."""
    rank, k, v = up_k.shape[2], [], []
    for token in cache.flatten(0, 1):
        k += [torch.cat((up @ token[:rank], token[rank:])) for up in up_k]
        v += [up @ token[:rank] for up in up_v]
    rows = (*cache.shape[:2], len(up_k), -1)  # [batch, tokens, heads, dim]
    return by_loops(q, *(torch.stack(x).view(rows).transpose(1, 2) for x in (k, v)))


@pytest.mark.parametrize(("new", "total"), [(7, 7), (3, 11), (1, 11)])
def test_latent_attention_absorbed_or_expanded_is_the_same(new, total):
    inputs = latents(new, total)
    expected = latent_by_loops(*inputs)
    assert error(attention.latent_expanded(*inputs), expected) < 1e-12
    assert error(attention.latent_absorbed(*inputs), expected) < 1e-12


def test_the_scale_of_the_wider_absorbed_query_would_be_noticed(monkeypatch):
    inputs, real = latents(3, 11), attention.grouped_query
    monkeypatch.setattr(attention, "grouped_query", lambda q, k, v, causal, scale: real(q, k, v, causal))
    assert error(attention.latent_absorbed(*inputs), latent_by_loops(*inputs)) > 1e-3


# --- FLOPs, to the last one ---------------------------------------------------------------------

def flops(kernel, *args, **kwargs):
    return meter.count_flops(lambda: kernel(*args, **kwargs))[0]


@pytest.mark.parametrize(("new", "context"), [(1, 0), (1, 57), (15, 0), (9, 14)])
def test_flops_are_those_of_econ(new, context):
    shape = Attention(heads=6, kv_heads=2, qk_dim=16, v_dim=24)
    total = context + new
    q, k, v = qkv(new, total, 6, 2, dim=16, v_dim=24, batch=3, device="meta")
    square = 3 * scores(new, context, causal=False) * shape.flops_per_score
    assert flops(attention.grouped_query, q, k, v) == square
    k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
    assert flops(attention.naive, q, k, v) == square
    assert flops(attention.flash, q, k, v, False, 16, 9) == square  # tiles change no FLOP
    half = 3 * scores(new, context) * shape.flops_per_score
    assert flops(attention.flash, q, k, v, True, 1, 1) == half  # tiles of one pair waste nothing
    window = 3 * scores(new, context, window=8) * shape.flops_per_score
    assert flops(attention.sliding_window, q, k, v, 8, chunk=1) == window


def test_tiles_above_the_diagonal_are_skipped():
    q, k, v = qkv(1024, heads=1, device="meta")
    pair = 4 * 64
    assert flops(attention.flash, q, k, v, True, 128, 128) == pair * 128**2 * (8 * 9 / 2)  # 36 of 64 tiles
    assert flops(attention.flash, q, k, v, False, 128, 128) == pair * 1024**2
    assert flops(attention.naive, q, k, v) == pair * 1024**2


@pytest.mark.parametrize(("new", "context", "cheaper"), [(1, 4096, "absorbed"), (300, 0, "expanded")])
def test_flops_of_latent_attention_are_those_of_deepseek_v3(new, context, cheaper):
    model = econ.load_model("deepseek-v3")
    shape = model.layers[0].attention
    rank, rope = shape.latent.rank, shape.latent.rope_dim
    inputs = latents(new, context + new, shape.heads, shape.qk_dim - rope, rope, rank, shape.v_dim, batch=1,
                     device="meta")
    work = econ.forward(model, new_tokens=new, context=context, causal=False)
    formula = sum(op.flops for op in work.operators if op.name in ("scores", "self_attn.kv_b_proj"))
    traced = {name: len(model.layers) * flops(getattr(attention, f"latent_{name}"), *inputs)
              for name in ("absorbed", "expanded")}
    assert traced[cheaper] == formula == min(traced.values()) < max(traced.values())


# --- memory -------------------------------------------------------------------------------------

def peak(kernel, *args, **kwargs):
    return meter.peak_live_bytes(lambda: kernel(*args, **kwargs))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "device"), [(1024, "cpu"), (8192, "meta"), (131_072, "meta")])
def test_plain_attention_holds_the_square_twice(n, device, causal):
    q, k, v = qkv(n, heads=1, dim=32, dtype=torch.float32, device=device)
    square_and_output = 2 * n * n * 4 + n * 32 * 4
    assert peak(attention.naive, q, k, v, causal) == pytest.approx(square_and_output, rel=0.01)


def test_the_score_matrix_of_a_layer_of_the_70b_at_131k_tokens():
    q, k, v = qkv(131_072, heads=64, dim=128, dtype=torch.bfloat16, device="meta")
    assert peak(torch.matmul, q, k.mT) == 64 * 131_072**2 * 2  # 2.199 TB


@pytest.mark.parametrize("kernel", [
    lambda q, k, v: attention.flash(q, k, v, causal=False), attention.flash,
    lambda q, k, v: attention.sliding_window(q, k, v, 128)], ids=["square", "causal", "window"])
def test_tiled_attention_holds_its_output_and_a_constant(kernel):
    peaks = [peak(kernel, *qkv(n, heads=1, dtype=torch.float32, device="meta")) for n in (1024, 2048, 4096)]
    assert peaks[1] - peaks[0] == 1024 * 64 * 4  # 256 B a token
    assert peaks[2] - peaks[1] == 2048 * 64 * 4
    assert peaks[0] - 1024 * 64 * 4 < 4 * (256 * 512 * 4)  # a few tiles


def test_one_tile_as_large_as_the_input_saves_nothing():
    q, k, v = qkv(4096, heads=1, dtype=torch.float32, device="meta")
    assert peak(attention.flash, q, k, v, False, 4096, 4096) > 2 * 4096**2 * 4


def test_memory_of_plain_attention_grows_with_the_square():
    lengths = (1024, 2048, 4096, 8192)
    peaks = [peak(attention.naive, *qkv(n, heads=1, device="meta")) for n in lengths]
    assert timing.log_log_slope(lengths, peaks) == pytest.approx(2.0, abs=0.06)


def test_shared_heads_and_absorbed_latents_are_not_copied_for_every_head():
    q, k, v = qkv(1, 4096, heads=32, kv_heads=4, dim=128, device="meta")
    assert peak(attention.grouped_query, q, k, v) < 0.3 * k.nbytes
    copied = peak(lambda: attention.naive(q, k.repeat_interleave(8, 1), v.repeat_interleave(8, 1)))
    assert copied > 16 * k.nbytes
    inputs = latents(1, 4096, heads=16, nope=64, rope=32, rank=256, v_dim=64, batch=1, device="meta")
    assert inputs[1].shape[2] == 288 and round(16 * (64 + 64) / 288, 1) == 7.1
    assert peak(attention.latent_absorbed, *inputs) < 0.2 * inputs[1].nbytes
    assert peak(attention.latent_expanded, *inputs) > 7 * inputs[1].nbytes


# --- bad input ----------------------------------------------------------------------------------

def bad(message, kernel=attention.naive, **shape):
    q, k, v = qkv(**{"new": 4, "dim": 6} | shape)
    return pytest.param(kernel, [q, k, v], message, id=message)


def changed(message, index, change, kernel=attention.naive):
    latent = kernel in (attention.latent_expanded, attention.latent_absorbed)
    tensors = latents(2, 5) if latent else qkv(4, dim=6)
    tensors[index] = change(tensors[index])
    return pytest.param(kernel, tensors, message, id=message)


@pytest.mark.parametrize(("kernel", "tensors", "message"), [
    bad("2 heads but 1 KV heads; use grouped_query", kv_heads=1),
    bad("6 heads cannot share 4 KV heads", attention.grouped_query, heads=6, kv_heads=4),
    bad("4 queries but 3 keys", attention.flash, total=3),
    bad("4 queries but 2 keys", lambda q, k, v: attention.sliding_window(q, k, v, 8), total=2),
    bad("tile_q=0", lambda q, k, v: attention.flash(q, k, v, tile_q=0)),
    bad("tile_k=1.5", lambda q, k, v: attention.flash(q, k, v, tile_k=1.5)),
    bad("window=0", lambda q, k, v: attention.sliding_window(q, k, v, 0)),
    bad("chunk=-1", lambda q, k, v: attention.sliding_window(q, k, v, 4, chunk=-1)),
    changed("q has shape [2, 4, 6]", 0, lambda q: q[0]),
    changed("k has shape [1, 2, 0, 6]", 1, lambda k: k[:, :, :0]),
    changed("do not fit together; use one batch", 1, lambda k: k[..., :5]),
    changed("k [1, 2, 3, 6], v [1, 2, 4, 6]", 1, lambda k: k[:, :, :3], attention.grouped_query),
    changed("q is torch.float64 on cpu, k is torch.float32 on cpu", 1, lambda k: k.float()),
    changed("v is torch.float64 on meta", 2, lambda v: v.to("meta"), attention.flash),
    changed("up_k [4, 6, 11]", 2, lambda up: up[..., :11], attention.latent_absorbed),
    changed("cache [2, 5, 13]", 1, lambda cache: cache[..., :13], attention.latent_expanded),
    changed("up_v is torch.float32", 3, lambda up: up.float(), attention.latent_absorbed),
])
def test_what_does_not_fit_is_refused_in_one_line(kernel, tensors, message):
    with pytest.raises(ValueError, match=".") as refusal:
        kernel(*tensors)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_whole_numbers_are_refused():
    whole = torch.ones(1, 1, 3, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="use one device and one of fp64, fp32, bf16, fp16"):
        attention.naive(whole, whole, whole)


# --- comparisons on this machine ----------------------------------------------------------------

def seconds(kernel, n, *args):
    q, k, v = qkv(n, heads=1, dtype=torch.float32)
    return timing.time_median(lambda: kernel(q, k, v, *args), repeats=5, device="cpu").median_s


@pytest.mark.timing
def test_skipping_tiles_saves_time():
    assert seconds(attention.flash, 8192, False) / seconds(attention.flash, 8192, True) >= 1.6


@pytest.mark.timing
def test_on_a_cpu_tiles_cost_little_and_are_not_claimed_to_save():
    assert seconds(attention.naive, 4096, False) / seconds(attention.flash, 4096, False) >= 0.75


@pytest.mark.timing
def test_time_grows_with_the_square_or_with_the_length():
    lengths = (1024, 2048, 4096, 8192)
    plain = timing.log_log_slope(lengths, [seconds(attention.naive, n, False) for n in lengths])
    window = timing.log_log_slope(lengths, [seconds(attention.sliding_window, n, 128) for n in lengths])
    assert plain == pytest.approx(2.0, abs=0.2)
    assert window == pytest.approx(1.0, abs=0.25)


@pytest.mark.timing
def test_a_decode_step_on_latents_is_faster_absorbed():
    inputs = [x.float() for x in latents(1, 2048, heads=16, nope=64, rope=32, rank=256, v_dim=64, batch=1)]
    absorbed, expanded = (timing.time_median(lambda: kernel(*inputs), device="cpu").median_s  # noqa: B023
                          for kernel in (attention.latent_absorbed, attention.latent_expanded))
    assert expanded / absorbed >= 5
