"""Linear attention, the selective scan and the gated delta rule against plain loops; their work and memory;
and the wrong versions that each check must notice."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402

import econ  # noqa: E402
from econ.kernels import _setup, attention, linear, meter, timing  # noqa: E402


@pytest.fixture(autouse=True)
def on_one_thread():
    with _setup.one_thread():
        yield


def qkv(n, heads=2, dim=6, v_dim=None, batch=2, dtype=torch.float64, device="cpu"):
    """Random queries, keys and values, the same on every run; on meta their shapes alone."""
    shapes = [(batch, heads, n, d) for d in (dim, dim, v_dim or dim)]
    if device == "meta":
        return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    random = torch.Generator().manual_seed(n)
    return [torch.randn(shape, dtype=dtype, generator=random) for shape in shapes]


def by_loops(q, k, v, causal=True):
    """out_i = sum_j w_ij v_j / sum_j w_ij from the definition, one pair at a time."""
    def phi(x):
        return torch.tensor([e + 1 if e > 0 else math.exp(e) for e in x.tolist()], dtype=torch.float64)

    out = torch.zeros_like(v)
    for b, h, i in ((b, h, i) for b in range(len(q)) for h in range(q.shape[1]) for i in range(q.shape[2])):
        seen = range(i + 1 if causal else k.shape[2])
        weights = [float(phi(q[b, h, i]) @ phi(k[b, h, j])) for j in seen]
        out[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
    return out


def error(found, expected):
    return float((found - expected).abs().max())


CAUSAL = {
    "quadratic": linear.quadratic, "parallel": linear.parallel,
    "recurrent": lambda q, k, v: linear.recurrent(q, k, v)[0],
    "chunked by 1": lambda q, k, v: linear.chunked(q, k, v, chunk=1)[0],
    "chunked by 4": lambda q, k, v: linear.chunked(q, k, v, chunk=4)[0],
    "chunked by 64": lambda q, k, v: linear.chunked(q, k, v)[0],
}


# --- linear attention ---------------------------------------------------------------------------

@pytest.mark.parametrize("form", CAUSAL)
@pytest.mark.parametrize("n", [1, 11])
def test_every_form_equals_plain_loops(form, n):
    q, k, v = qkv(n, v_dim=9)
    assert error(CAUSAL[form](q, k, v), by_loops(q, k, v)) < 1e-12


@pytest.mark.parametrize("form", ["quadratic", "parallel"])
def test_without_a_mask_too(form):
    q, k, v = qkv(11, v_dim=9)
    assert error(getattr(linear, form)(q, k, v, causal=False), by_loops(q, k, v, causal=False)) < 1e-12


@pytest.mark.parametrize("form", CAUSAL)
def test_the_forms_agree_on_a_longer_text(form):
    q, k, v = qkv(300, dim=32)
    assert error(CAUSAL[form](q, k, v), linear.quadratic(q, k, v)) < 1e-12
    single = [x.float() for x in (q, k, v)]
    assert error(CAUSAL[form](*single), linear.quadratic(q, k, v)) < 1e-5


def swapped(q, k, v):
    """The version in circulation: query and key exchanged, transposed on the wrong side, never normalised."""
    q, k = linear.feature_map(q), linear.feature_map(k)
    return k @ (q.mT @ v)


def test_the_swapped_version_in_circulation_is_another_function():
    q, k, v = qkv(64, heads=1, dim=8, batch=1)
    expected = linear.parallel(q, k, v, causal=False)
    wrong = swapped(q, k, v)
    assert error(wrong, (linear.feature_map(k) @ linear.feature_map(q).mT) @ v) < 1e-11  # associative, still
    shares = wrong / (linear.feature_map(k) @ linear.feature_map(q).sum(-2, keepdim=True).mT)
    assert (wrong - expected).norm() / expected.norm() > 10  # it sums instead of averaging
    assert (shares - expected).norm() / expected.norm() > 0.2  # and normalising does not mend it
    q_new = q.clone()
    q_new[:, :, 5] += 1  # a query may change its own row alone
    rows = (linear.parallel(q_new, k, v, causal=False) - expected).abs().amax(-1).flatten()
    assert rows.nonzero().flatten().tolist() == [5]
    assert (swapped(q_new, k, v) - wrong).abs().amax(-1).min() > 1e-3  # here it changes them all


@pytest.mark.parametrize("wrong", [F.relu, torch.exp, lambda x: x, lambda x: F.elu(x) + 1.1])
@pytest.mark.parametrize("form", CAUSAL)
def test_another_feature_map_would_be_noticed(form, wrong, monkeypatch):
    q, k, v = qkv(11)
    monkeypatch.setattr(linear, "feature_map", wrong)
    assert not error(CAUSAL[form](q, k, v), by_loops(q, k, v)) < 1e-3  # or not a number at all


def without_normaliser(q, k, v):
    q, k = linear.feature_map(q), linear.feature_map(k)
    return (q @ k.mT).tril() @ v


def state_read_before_it_is_written(q, k, v):
    state, rows = linear.new_state(k, v), []
    q, k = linear.feature_map(q), linear.feature_map(k)
    for t in range(q.shape[2]):
        one = slice(t, t + 1)
        rows.append(q[:, :, one] @ state.kv / (q[:, :, one] @ state.k.mT).clamp(min=1e-9))
        state = linear.State(state.kv + k[:, :, one].mT @ v[:, :, one], state.k + k[:, :, one])
    return torch.cat(rows, dim=2)


def chunks_without_a_state(q, k, v):
    parts = zip(*(x.split(4, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([linear.chunked(*part)[0] for part in parts], dim=2)


@pytest.mark.parametrize("wrong", [
    without_normaliser, state_read_before_it_is_written, chunks_without_a_state, swapped,
    lambda q, k, v: linear.parallel(q, k, v, causal=False)])
def test_a_missing_normaliser_state_or_mask_would_be_noticed(wrong):
    q, k, v = qkv(11)
    assert error(wrong(q, k, v), by_loops(q, k, v)) > 1e-2


@pytest.mark.parametrize("form", CAUSAL)
def test_outputs_are_averages_of_the_values(form):
    q, k, v = qkv(50)
    assert error(CAUSAL[form](q, k, torch.full_like(v, 3.0)), torch.full_like(v, 3.0)) < 1e-12


def test_prefill_by_chunks_and_decode_by_steps_share_a_state():
    q, k, v = qkv(90)
    whole, last = linear.chunked(q, k, v, chunk=16)
    first, state = linear.chunked(*(x[:, :, :70] for x in (q, k, v)), chunk=32)
    rows = [first]
    for t in range(70, 90):
        row, state = linear.recurrent(*(x[:, :, t:t + 1] for x in (q, k, v)), state)
        rows.append(row)
    assert error(torch.cat(rows, dim=2), whole) < 1e-12
    assert error(state.kv, last.kv) < 1e-11 and error(state.k, last.k) < 1e-11


# --- size and work ------------------------------------------------------------------------------

def test_the_state_is_a_square_whatever_the_length():
    texts = [qkv(n, heads=1, dim=64, batch=1, dtype=torch.float32) for n in (1, 100, 5000)]
    states = [linear.chunked(*text)[1] for text in texts]
    assert [state.kv.nbytes for state in states] == [64 * 64 * 4] * 3
    assert [state.k.nbytes for state in states] == [64 * 4] * 3  # the normaliser's sum


@pytest.mark.parametrize(("heads", "tokens"), [(8, 64), (64, 512)])
def test_the_state_of_a_70b_would_equal_the_cache_of_a_short_text(heads, tokens):
    key = torch.empty(1, heads, 1, 128, dtype=torch.bfloat16, device="meta")
    state_bytes = 80 * linear.new_state(key, key).kv.nbytes
    assert state_bytes == econ.load_model("llama-3.3-70b").kv_cache_bytes(tokens=tokens, dtype="bf16")


def flops(form, *args, **kwargs):
    return meter.count_flops(lambda: form(*args, **kwargs))[0]


def test_flops_of_every_form():
    heads, n, d, e = 3, 192, 16, 24
    tensors = qkv(n, heads, d, e, batch=1, device="meta")
    assert flops(linear.quadratic, *tensors) == 2 * heads * n * n * (d + e)
    # one token: write d x e, read d x e, and the normaliser's d
    assert flops(linear.recurrent, *tensors) == 2 * heads * n * (2 * d * e + d)
    assert flops(linear.parallel, *tensors, causal=False) == 2 * heads * n * (2 * d * e + d)
    assert flops(linear.chunked, *tensors, chunk=32) == 2 * heads * n * (2 * d * e + d + 32 * (d + e))


def peak(form, n, dtype=torch.float32):
    tensors = qkv(n, heads=1, dim=64, batch=1, dtype=dtype, device="meta")
    return meter.peak_live_bytes(lambda: form(*tensors))


def test_memory_exponents():
    lengths = (2048, 4096, 8192, 16384)

    def exponent(form):
        return timing.log_log_slope(lengths, [peak(form, n) for n in lengths])

    assert exponent(linear.quadratic) == pytest.approx(2.0, abs=0.06)
    assert exponent(lambda q, k, v: linear.parallel(q, k, v, causal=False)) == pytest.approx(1.0, abs=0.06)


def test_memory_of_the_chunked_form_is_its_output_and_a_constant():
    peaks = [peak(linear.chunked, n) for n in (512, 1024, 2048)]
    assert peaks[1] - peaks[0] == 512 * 64 * 4 and peaks[2] - peaks[1] == 1024 * 64 * 4  # 256 B a token
    assert peaks[0] - 512 * 64 * 4 < 15 * (64 * 64 * 4)  # a few chunks and states


def test_memory_of_the_quadratic_and_of_the_causal_parallel_form():
    assert peak(linear.quadratic, 8192) == pytest.approx(8192**2 * 4, rel=0.02)
    assert peak(linear.parallel, 8192) > 8192 * 64 * 64 * 4  # a state for every token


# --- the selective scan -------------------------------------------------------------------------

def scan_inputs(n, channels=3, state=4, batch=2, dtype=torch.float64, device="cpu"):
    random = torch.Generator(device).manual_seed(n)
    x, b, c = (torch.randn(batch, n, d, dtype=dtype, generator=random) for d in (channels, state, state))
    delta = F.softplus(torch.randn(batch, n, channels, dtype=dtype, generator=random))
    a = -torch.rand(channels, state, dtype=dtype, generator=random).add(0.1)
    return x, delta, a, b, c


def scan_by_sums(x, delta, a, b, c):
    """y_t = sum over s <= t of c_t . (exp(a * the deltas after s) * delta_s x_s b_s): no recurrence."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for s in range(t + 1):
            fade = (delta[:, s + 1:t + 1].sum(1)[..., None] * a).exp()  # [B, channels, state]
            y[:, t] += (c[:, t, None] * fade * b[:, s, None]).sum(-1) * delta[:, s] * x[:, s]
    return y


@pytest.mark.parametrize("associative", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_the_scan_equals_a_sum_over_the_past(n, associative):
    inputs = scan_inputs(n)
    assert error(linear.selective_scan(*inputs, associative=associative), scan_by_sums(*inputs)) < 1e-12


def test_both_scans_agree_on_a_longer_text():
    for dtype, most in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        inputs = scan_inputs(1000, dtype=dtype)
        loop, tree = (linear.selective_scan(*inputs, associative=tree) for tree in (False, True))
        assert error(loop, tree) < most


def merged_the_wrong_way_round(decay, inflow):
    """The tree with a and b of a pair exchanged in the merge: the earlier decay instead of the later."""
    if inflow.shape[1] == 1:
        return inflow
    first, second = slice(0, None, 2), slice(1, None, 2)
    pair = decay[:, first] * inflow[:, first] + inflow[:, second]
    odd = merged_the_wrong_way_round(decay[:, second] * decay[:, first], pair)
    states = torch.empty_like(inflow)
    states[:, 0], states[:, 1::2] = inflow[:, 0], odd
    states[:, 2::2] = decay[:, 2::2] * odd[:, :-1] + inflow[:, 2::2]
    return states


def added_up(decay, inflow):
    return inflow.cumsum(1)


@pytest.mark.parametrize("wrong", [merged_the_wrong_way_round, added_up])
def test_a_wrong_scan_would_be_noticed(wrong, monkeypatch):
    inputs = scan_inputs(8)
    monkeypatch.setattr(linear, "scan_associative", wrong)
    assert error(linear.selective_scan(*inputs, associative=True), scan_by_sums(*inputs)) > 1e-2


def test_without_decay_the_scan_is_linear_attention_without_map_and_normaliser():
    x, delta, a, b, c = scan_inputs(20)
    found = linear.selective_scan(x, torch.ones_like(delta), torch.zeros_like(a), b, c)
    assert error(found, (c @ b.mT).tril() @ x) < 1e-12


# --- the gated delta rule -----------------------------------------------------------------------

def delta_inputs(n, heads=2, dim=5, v_dim=7):
    q, k, v = qkv(n, heads, dim, v_dim)
    random = torch.Generator().manual_seed(n)
    gate, rate = (torch.rand(2, heads, n, dtype=torch.float64, generator=random) for _ in range(2))
    return q, F.normalize(k, dim=-1), v, 0.5 + gate / 2, rate


def delta_by_matrices(q, k, v, gate, rate):
    """S^T = S^T g (1 - r k k^T) + r v k^T, as the paper writes it with columns."""
    out = torch.zeros_like(v)
    for b, h in ((b, h) for b in range(q.shape[0]) for h in range(q.shape[1])):
        state = torch.zeros(v.shape[3], k.shape[3], dtype=torch.float64)
        for t in range(q.shape[2]):
            key, g, r = k[b, h, t], gate[b, h, t], rate[b, h, t]
            erase = torch.eye(len(key), dtype=torch.float64) - r * torch.outer(key, key)
            state = state @ (g * erase) + r * torch.outer(v[b, h, t], key)
            out[b, h, t] = state @ q[b, h, t]
    return out


def test_the_delta_rule_equals_the_papers_matrices():
    inputs = delta_inputs(12)
    assert error(linear.gated_delta_rule(*inputs)[0], delta_by_matrices(*inputs)) < 1e-12
    for index in (3, 4):  # no gate, full rate
        changed = list(inputs)
        changed[index] = torch.ones_like(inputs[index])
        assert error(linear.gated_delta_rule(*changed)[0], delta_by_matrices(*inputs)) > 1e-2


def test_at_full_rate_a_key_returns_the_last_value_written_under_it():
    q, k, v, gate, _ = delta_inputs(6)
    k = k[:, :, :1].expand_as(k)  # the same key six times
    out, state = linear.gated_delta_rule(k, k, v, gate, torch.ones_like(gate))
    assert error(out, v) < 1e-12
    assert error(k[:, :, :1] @ state, v[:, :, -1:]) < 1e-12
    added = (k @ k.mT).tril() @ v  # a state that only adds keeps all six
    assert error(added, v) > 1


def test_flops_of_the_delta_rule():
    q, k, v = qkv(40, 3, 16, 24, batch=1, device="meta")
    gate = torch.empty(1, 3, 40, dtype=torch.float64, device="meta")
    assert flops(linear.gated_delta_rule, q, k, v, gate, gate) == 40 * 3 * 3 * 2 * 16 * 24  # ask, write, read


# --- bad input ----------------------------------------------------------------------------------

def scan_with(**changes):
    inputs = dict(zip(("x", "delta", "a", "b", "c"), scan_inputs(6), strict=True))
    return linear.selective_scan(**inputs | {name: change(inputs[name]) for name, change in changes.items()})


@pytest.mark.parametrize(("call", "message"), [
    (lambda q, k, v: linear.quadratic(q[:, :, :3], k, v), "3 queries but 4 keys"),
    (lambda q, k, v: linear.parallel(q, k[:, :1], v[:, :1]), "2 heads but 1 KV heads"),
    (lambda q, k, v: linear.recurrent(q, k, v.float()), "v is torch.float32"),
    (lambda q, k, v: linear.chunked(q[0], k, v), "q has shape [2, 4, 6]"),
    (lambda q, k, v: linear.chunked(q, k, v, chunk=0), "chunk=0"),
    (lambda q, k, v: linear.recurrent(q, k, v, linear.new_state(k[..., :5], v)), "use new_state(k, v)"),
    (lambda q, k, v: linear.chunked(q, k, v, linear.new_state(k[:1], v[:1])), "the state is [[1, 2, 6, 6]"),
    (lambda q, k, v: linear.gated_delta_rule(q, k, v, q[..., 0], q), "rate [2, 2, 4, 6] do not fit"),
    (lambda q, k, v: scan_with(x=lambda x: x[:, :5]), "x [2, 5, 3], delta [2, 6, 3]"),
    (lambda q, k, v: scan_with(a=lambda a: a.mT), "a [4, 3]"),
    (lambda q, k, v: scan_with(c=lambda c: c[0]), "c [6, 4]: use x and delta"),
    (lambda q, k, v: scan_with(a=lambda a: a.float()), "a is torch.float32; use one floating-point format"),
])
def test_what_does_not_fit_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=".") as refusal:
        call(*qkv(4))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


# --- comparisons on this machine ----------------------------------------------------------------

def exponent(form, inputs, lengths=(1024, 2048, 4096, 8192)):
    medians = []
    for n in lengths:
        tensors = inputs(n)
        medians.append(timing.time_median(lambda: form(*tensors), 5, device="cpu").median_s)  # noqa: B023
    return timing.log_log_slope(lengths, medians)


def one_head(n):
    return qkv(n, heads=1, dim=64, batch=1, dtype=torch.float32)


@pytest.mark.timing
@pytest.mark.parametrize("causal", [False, True])
def test_time_with_the_weights_written_out_is_quadratic(causal):
    assert exponent(lambda *x: linear.quadratic(*x, causal), one_head) == pytest.approx(2.0, abs=0.2)


@pytest.mark.timing
@pytest.mark.parametrize("form", [lambda q, k, v: linear.parallel(q, k, v, causal=False), linear.chunked])
def test_time_re_associated_or_by_chunks_is_linear(form):
    assert exponent(form, lambda n: one_head(4 * n)) == pytest.approx(1.0, abs=0.25)


@pytest.mark.timing
@pytest.mark.parametrize("associative", [False, True])
def test_time_of_the_scan_is_linear(associative):
    found = exponent(lambda *x: linear.selective_scan(*x, associative=associative),
                     lambda n: scan_inputs(n, channels=64, state=16, batch=1, dtype=torch.float32))
    assert found == pytest.approx(1.0, abs=0.25)


@pytest.mark.timing
def test_a_decode_step_costs_the_same_at_any_length_where_a_cache_costs_more():
    q, k, v = (x[:, :, -1:] for x in one_head(1))
    state = linear.new_state(k, v)
    fixed = timing.time_median(lambda: linear.recurrent(q, k, v, state), device="cpu").median_s

    def cached(n):
        keys, values = one_head(n)[1:]
        return timing.time_median(lambda: attention.naive(q, keys, values), device="cpu").median_s

    assert cached(262_144) / cached(16_384) > 5
    assert cached(262_144) > 5 * fixed
