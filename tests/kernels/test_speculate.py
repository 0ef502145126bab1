"""Speculation changes how fast tokens come, not which: distributions by chi-square, greedy tokens one by one."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import _setup, llama, speculate  # noqa: E402

VOCAB, DRAFTED, CHAINS = 8, 4, 100_000


@pytest.fixture(autouse=True)
def _one_thread():
    with _setup.one_thread():
        yield


def tables(seed, alike=False):
    """Two random models: target and draft, rows of probabilities. `alike`: every row one row, turned."""
    random = torch.Generator().manual_seed(seed)
    pair = torch.randn(2, VOCAB, VOCAB, generator=random).softmax(-1)
    if alike:
        pair = torch.stack([torch.stack([table[0].roll(i) for i in range(VOCAB)]) for table in pair])
    return pair[0], pair[1]


# --- the distribution ---------------------------------------------------------------------------

def chi_square_z(seed=1):
    """Standard scores of the first token and of the first two tokens against the target's own probabilities."""
    target, draft = tables(seed=5)
    random, start = torch.Generator().manual_seed(seed), torch.zeros(CHAINS, dtype=torch.int64)
    tokens, kept = speculate.chain_round(target, draft, start, DRAFTED, random)
    first = tokens[:, 0]
    again, _ = speculate.chain_round(target, draft, first, DRAFTED, random)
    second = torch.where(kept > 0, tokens[:, 1], again[:, 0])  # of this round where it has two tokens
    expected = target[0].double(), (target[0].double()[:, None] * target).flatten()
    return [z_score(seen, p) for seen, p in zip((first, first * VOCAB + second), expected, strict=True)]


def z_score(seen, probabilities):
    """(chi-square - degrees of freedom) / sqrt(2 degrees of freedom)."""
    expected = probabilities * len(seen)
    assert expected.min() >= 5  # else chi-square does not hold
    chi_square = ((torch.bincount(seen, minlength=len(expected)) - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return float((chi_square - freedom) / math.sqrt(2 * freedom))


def test_tokens_are_distributed_as_the_targets_own():
    assert all(abs(z) < 4 for z in chi_square_z())


@pytest.mark.parametrize(("name", "wrong"), [
    ("residual", lambda p, q: p),  # after a rejection, draw from p itself
    ("residual", lambda p, q: (p - q).abs() / (p - q).abs().sum(-1, keepdim=True)),
    ("verify", lambda drafted, q, p, random: (torch.cat((drafted, drafted[:, :1]), 1),  # keep whatever was drafted
                                              torch.full((len(drafted),), DRAFTED))),
])
def test_a_wrong_rule_would_be_noticed(monkeypatch, name, wrong):
    monkeypatch.setattr(speculate, name, wrong)
    first, both = chi_square_z()
    assert first > 100 and both > 100


@pytest.mark.parametrize("drafted", [1, 4, 8])
def test_tokens_a_round_are_those_of_the_closed_form(drafted):
    """(1 - a**(k + 1)) / (1 - a) for acceptances that are independent and alike (leviathan2023, equation 1)."""
    target, draft = tables(seed=4, alike=True)
    a = float(torch.minimum(target[0], draft[0]).sum())
    assert 0.4 < a < 0.8
    assert speculate.acceptance(target, draft).tolist() == pytest.approx([a] * VOCAB)
    start, random = torch.zeros(CHAINS, dtype=torch.int64), torch.Generator().manual_seed(2)
    _, kept = speculate.chain_round(target, draft, start, drafted, random)
    assert float(kept.double().mean()) + 1 == pytest.approx((1 - a ** (drafted + 1)) / (1 - a), rel=0.01)


def test_equal_models_keep_everything_and_disjoint_ones_nothing():
    random = torch.Generator().manual_seed(0)
    start = torch.zeros(100, dtype=torch.int64)
    same, halves = tables(seed=1)[0], torch.eye(2).repeat_interleave(VOCAB // 2, 1) / (VOCAB // 2)
    assert speculate.chain_round(same, same, start, 3, random)[1].tolist() == [3] * 100
    left, right = (half.repeat(VOCAB, 1) for half in halves)
    tokens, kept = speculate.chain_round(left, right, start, 3, random)
    assert kept.tolist() == [0] * 100 and int(tokens[:, 0].max()) < VOCAB // 2


def test_rounding_leaves_something_to_draw_from():
    p = tables(seed=1)[0]
    assert torch.equal(speculate.residual(p, p), p)  # an all but impossible rejection


# --- the small Llama ----------------------------------------------------------------------------

SHAPE = {"layers": 4, "hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "vocab": 101}
PROMPT = torch.randint(101, (1, 12), generator=torch.Generator().manual_seed(4))


def target(dtype="fp64"):
    return llama.Llama(**SHAPE, dtype=dtype, device="cpu")


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize(("layers", "k"), [(1, 4), (3, 1), (3, 4), (4, 3)])
def test_greedy_speculation_gives_the_targets_own_tokens(dtype, layers, k):
    model = target(dtype)
    found = speculate.generate(model, speculate.first_layers(model, layers), PROMPT, 30, k=k)
    assert torch.equal(found.tokens, model.generate(PROMPT, 30))
    assert found.n_rounds + found.n_kept >= 30  # a token of the target's own in every round
    if layers == 4:  # the draft is the target: all kept
        assert found.kept_frac == 1 and found.n_rounds == math.ceil(30 / (k + 1))


def test_a_better_draft_needs_fewer_rounds():
    model = target()
    rounds = [speculate.generate(model, speculate.first_layers(model, n), PROMPT, 40).n_rounds for n in (1, 3, 4)]
    assert rounds[0] > rounds[1] > rounds[2] == 8


@pytest.mark.parametrize(("owner", "name", "wrong"), [
    (llama.KVCache, "rewind", lambda self, n_tokens: setattr(self, "n_tokens", max(self.n_tokens, n_tokens))),
    (speculate, "verify", lambda drafted, q, p, random: (  # compares each token with the logits after it
        torch.cat((drafted, p[:, -1:].argmax(-1)), 1), (drafted == p[:, 1:].argmax(-1)).long().cumprod(1).sum(1))),
])
def test_stale_caches_and_shifted_logits_would_be_noticed(monkeypatch, owner, name, wrong):
    model = target()
    expected = model.generate(PROMPT, 30)
    monkeypatch.setattr(owner, name, wrong)
    try:
        found = speculate.generate(model, speculate.first_layers(model, 3), PROMPT, 30)
    except ValueError:  # the cache is full of tokens that were not kept
        return
    assert not torch.equal(found.tokens, expected)


def test_sampling_depends_on_the_seed_and_stays_in_the_vocabulary():
    model = target()
    draft = speculate.first_layers(model, 3)
    runs = [speculate.generate(model, draft, PROMPT, 20, temperature=1.0, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].tokens, runs[1].tokens) and not torch.equal(runs[0].tokens, runs[2].tokens)
    assert all(run.tokens.shape == (1, 20) and 0 < run.kept_frac < 1 for run in runs)
    same = speculate.generate(model, model, PROMPT, 20, temperature=0.7)
    assert same.kept_frac == 1


def test_a_draft_shares_the_weights_of_its_model():
    model = target()
    draft = speculate.first_layers(model, 1)
    assert (len(draft.layers), len(model.layers)) == (1, 4)
    assert draft.layers[0] is model.layers[0] and draft.head is model.head


# --- bad input ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("changes", "message"), [
    ({"prompt": PROMPT[0]}, "use [1, S]"), ({"prompt": PROMPT.repeat(2, 1)}, "use [1, S]"),
    ({"new_tokens": 0}, "new_tokens=0"), ({"k": 0}, "k=0"), ({"temperature": -1.0}, "temperature=-1.0"),
    ({"draft": llama.Llama(**SHAPE | {"vocab": 50}, device="cpu")}, "the draft 50"),
])
def test_bad_input_is_refused_in_one_line(changes, message):
    model = target("fp32")
    with pytest.raises(ValueError, match=".") as error:
        speculate.generate(**{"target": model, "draft": model, "prompt": PROMPT, "new_tokens": 4} | changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_wrong_shapes_are_refused_in_one_line():
    random, p = torch.Generator(), torch.full((5, 3, 4), 0.25)
    drafted = torch.zeros(5, 2, dtype=torch.int64)
    for args in ((drafted, p, p), (drafted[0], p[:, :2], p), (drafted, p[:, :2], p[..., :3]), (drafted[:, :0], p, p)):
        with pytest.raises(ValueError, match=r"use \[N, k\], \[N, k, V\] and \[N, k \+ 1, V\]$"):
            speculate.verify(*args, random)
    with pytest.raises(ValueError, match=r"use two of \[V, V\]"):
        speculate.chain_round(p[0], p[0], drafted[:, 0], 2, random)
    with pytest.raises(ValueError, match="the model has 4"):
        speculate.first_layers(target(), 5)
