"""Batches of unequal requests on the paged cache: the tokens each prompt gets alone, with the same FLOPs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the kernels need torch")

import econ  # noqa: E402
from econ.kernels import _setup, batching, llama, meter, scheduling, timing  # noqa: E402
from econ.kernels.pool import BlockPool  # noqa: E402
from econ.kernels.prefix import PrefixStore  # noqa: E402

SMALL = {"layers": 3, "hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "vocab": 101}


@pytest.fixture(autouse=True)
def _one_thread():
    with _setup.one_thread():
        yield


def small(dtype="fp32"):
    return llama.Llama(**SMALL, dtype=dtype, device="cpu")


def workload(n=10, seed=1):
    """Prompts, lengths and arrivals that overlap in every way."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(101) for _ in range(draw.randint(1, 40))] for _ in range(n)]
    return prompts, [draw.randint(1, 24) for _ in prompts], [draw.randint(0, 15) for _ in prompts]


def alone(model, prompts, lengths):
    return [model.generate(torch.tensor([p]), n)[0].tolist() for p, n in zip(prompts, lengths, strict=True)]


# --- one forward pass for several sequences ------------------------------------------------------

def packed_error(model):
    """Largest logit difference from passes one by one: two prompts, a chunk and a token in one batch."""
    tokens = torch.randint(101, (4, 30), generator=torch.Generator().manual_seed(2))
    lengths, cached = (30, 7, 19, 12), (0, 0, 11, 11)
    cache = batching.paged_cache(model, n_blocks=60, block_tokens=4)
    starts = [(i, tokens[i, :n]) for i, n in enumerate(cached) if n]
    batching.forward(model, starts, cache)
    ends = [(i, tokens[i, a:b]) for i, (a, b) in enumerate(zip(cached, lengths, strict=True))]
    exact = torch.cat([model.prefill(tokens[i:i + 1, :n])[:, 0] for i, n in enumerate(lengths)])
    return float((batching.forward(model, ends, cache) - exact).abs().max())


def test_logits_of_a_mixed_batch_equal_those_one_by_one():
    assert packed_error(small("fp64")) < 1e-12
    assert packed_error(small("fp32")) < 1e-5


@pytest.mark.parametrize(("owner", "name", "wrong"), [
    (llama, "lower_right_mask", lambda new, total, device: torch.ones(new, total, dtype=torch.bool).tril()),
    (batching, "rotation", lambda first, *rest: llama.rotation(0, *rest)),  # every chunk begins at position 0
    (batching, "attend", lambda q, k, v: llama.attend(q, k[:, :, -q.shape[2]:], v[:, :, -q.shape[2]:])),  # no past
])
def test_a_wrong_position_mask_or_past_would_be_noticed(monkeypatch, owner, name, wrong):
    monkeypatch.setattr(owner, name, wrong)
    assert packed_error(small("fp64")) > 1e-3


# --- continuous batching ------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("settings", [
    {}, {"max_running": 3}, {"continuous": False, "max_running": 3}, {"n_blocks": 16},
    {"n_blocks": 16, "reuse_prefixes": True},
], ids=str)
def test_every_request_gets_the_tokens_it_gets_alone(dtype, settings):
    model, (prompts, lengths, arrivals) = small(dtype), workload()
    batcher = batching.Batcher(model, **{"n_blocks": 200, "block_tokens": 4} | settings)
    served = batcher.run(prompts, lengths, arrivals)
    assert served.tokens == alone(model, prompts, lengths)
    assert served.trace.n_finished == len(prompts) and not served.trace.deadlocked
    assert (served.trace.n_preempted > 0) == ("n_blocks" in settings)
    if "reuse_prefixes" not in settings:
        assert batcher.cache.pool.n_free == len(batcher.cache.pool.refs)


def test_a_preempted_request_that_trusts_its_old_blocks_would_be_noticed(monkeypatch):
    def reserve(self, seq, n_tokens, spare_blocks=0, real=batching.Batcher.reserve):
        new, found = seq not in self.cache.tables, real(self, seq, n_tokens, spare_blocks)
        if found and new and seq.n_generated:
            self.cache.advance(seq, seq.prompt_tokens)  # others have written there since
        return found

    monkeypatch.setattr(batching.Batcher, "reserve", reserve)
    model, (prompts, lengths, arrivals) = small(), workload()
    served = batching.Batcher(model, n_blocks=16, block_tokens=4).run(prompts, lengths, arrivals)
    assert served.trace.n_finished == len(prompts) and served.tokens != alone(model, prompts, lengths)


def test_without_preemption_the_loop_stops_and_says_so(monkeypatch):
    monkeypatch.setattr(batching, "Scheduler", lambda *args, **kw: scheduling.Scheduler(*args, **kw, preempt=False))
    prompts, lengths = [[1] * 6] * 4, [20] * 4
    served = batching.Batcher(small(), n_blocks=13, block_tokens=4).run(prompts, lengths)
    assert served.trace.deadlocked and any(len(t) < 20 for t in served.tokens)


def test_a_batch_does_the_same_work_in_fewer_passes():
    model, prompts, lengths, traces = small(), workload(3)[0], [2, 5, 3], []
    batched, _ = meter.count_flops(lambda: traces.append(batching.Batcher(model, 200).run(prompts, lengths).trace))
    single, _ = meter.count_flops(lambda: alone(model, prompts, lengths))
    assert batched == single
    assert traces[0].n_iterations == max(lengths)  # each reads the weights once; one by one: sum(lengths) times


def test_continuous_batching_needs_fewer_iterations_than_static():
    prompts, lengths = [[1, 2, 3]] * 12, [4, 24] * 6
    iterations = [batching.Batcher(small(), 100, max_running=4, continuous=c).run(prompts, lengths).trace.n_iterations
                  for c in (True, False)]
    assert iterations[1] == 3 * 24  # the short answers wait for the long ones
    assert iterations[0] <= sum(lengths) / 4 + 24


# --- prefix reuse -------------------------------------------------------------------------------

LONG = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256, "vocab": 211}
KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "vocab_size")


def prompt_of_1024(seed=0):
    tokens = torch.randint(211, (1024,), generator=torch.Generator().manual_seed(seed))
    return tokens[:960], tokens[960:]


def hit_and_miss(model):
    """Logits of the same 1,024 tokens: question behind a shared document, and behind one read for it alone."""
    document, question = prompt_of_1024()
    cache = batching.paged_cache(model, n_blocks=160)
    batching.forward(model, [("document", document)], cache)
    cache.fork("document", "hit")
    hit = batching.forward(model, [("hit", question)], cache)
    batching.forward(model, [("miss", document)], cache)
    miss = batching.forward(model, [("miss", question)], cache)
    return hit, miss, model.prefill(torch.cat((document, question))[None])[0]


def test_a_prefix_hit_changes_no_bit_of_the_logits():
    hit, miss, whole = hit_and_miss(llama.Llama(**LONG, device="cpu"))
    assert (hit - miss).abs().max() == 0.0
    assert (hit - whole).abs().max() < 1e-5  # in one piece the sums may be added in another order


def test_a_prefix_hit_with_a_top_left_mask_would_be_noticed(monkeypatch):
    monkeypatch.setattr(llama, "lower_right_mask",
                        lambda new, total, device: torch.ones(new, total, dtype=torch.bool).tril())
    hit, _, whole = hit_and_miss(llama.Llama(**LONG, device="cpu"))
    assert (hit - whole).abs().max() > 1e-2


def test_a_prefix_hit_saves_its_flops():
    model = llama.Llama(**LONG, device="cpu")
    batcher = batching.Batcher(model, n_blocks=100, reuse_prefixes=True)
    prompt = torch.cat(prompt_of_1024()).tolist()
    again = prompt[:960] + prompt_of_1024(seed=1)[1].tolist()  # another question about the document
    served = []
    miss, hit = (meter.count_flops(lambda p=p: served.append(batcher.run([p], 1)))[0] for p in (prompt, again))
    assert [(s.n_computed, s.n_reused) for s in served] == [(1024, 0), (64, 960)]
    assert served[1].tokens == alone(model, [again], [1])
    assert miss / hit >= 7
    config = dict(zip(KEYS, LONG.values(), strict=True))
    formulas = econ.load_model(config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                                         "tie_word_embeddings": False})
    for flops, new in ((miss, 1024), (hit, 64)):
        assert flops == econ.forward(formulas, new_tokens=new, context=1024 - new, causal=False).flops


def test_requests_share_the_blocks_of_a_common_prefix():
    model, document = small(), [7] * 40
    prompts = [document + [n, n + 1] for n in range(6)]
    batcher = batching.Batcher(model, n_blocks=30, block_tokens=4, reuse_prefixes=True)
    served = batcher.run(prompts, 6, arrivals=range(6))
    assert served.tokens == alone(model, prompts, [6] * 6)
    assert served.n_reused == 5 * 40 and served.n_computed == 42 + 5 * 2 + 6 * 5
    assert served.trace.n_preempted == 0  # six times 12 blocks would not fit in 30


def test_the_last_token_of_a_known_prompt_is_computed_again():
    model, prompt = small(), [3, 1, 4, 1, 5, 9, 2, 6]  # two full blocks
    batcher = batching.Batcher(model, n_blocks=30, block_tokens=4, reuse_prefixes=True)
    runs = [batcher.run([prompt], 5) for _ in range(2)]
    assert runs[0].tokens == runs[1].tokens == alone(model, [prompt], [5])
    assert [run.n_reused for run in runs] == [0, 4]


@pytest.mark.parametrize("new_tokens", [4, 5, 6, 7])
def test_the_next_turn_of_a_conversation_reuses_the_last(new_tokens):
    """The last token of an answer is in no block: it was never read."""
    model, prompt = small(), [3, 1, 4, 1, 5, 9]
    batcher = batching.Batcher(model, n_blocks=30, block_tokens=4, reuse_prefixes=True)
    turn = prompt + batcher.run([prompt], new_tokens).tokens[0] + [7, 8]
    served = batcher.run([turn], 6)
    assert served.tokens == alone(model, [turn], [6])
    assert served.n_reused == (len(prompt) + new_tokens - 1) // 4 * 4


def test_a_request_that_waits_holds_nothing(monkeypatch):
    def iterate(self, requests, real=batching.Batcher._iterate):
        assert set(self.cache.tables) == set(requests)
        real(self, requests)

    monkeypatch.setattr(batching.Batcher, "_iterate", iterate)
    model, prompts = small(), [[7] * 20 + [n] * 9 for n in range(6)]
    batcher = batching.Batcher(model, n_blocks=20, block_tokens=4, reuse_prefixes=True)
    served = batcher.run(prompts, 12, arrivals=range(6))
    assert served.tokens == alone(model, prompts, [12] * 6) and served.trace.n_preempted > 0


@pytest.mark.timing
def test_a_prefix_hit_saves_its_time():
    model = llama.Llama(layers=4, hidden=768, heads=12, kv_heads=4, head_dim=64, ffn=2048, vocab=8_000, tied=True,
                        device="cpu")
    document, question = prompt_of_1024()
    cache = batching.paged_cache(model, n_blocks=200)
    batching.forward(model, [("document", document)], cache)

    def first_token(prefix, rest):
        if prefix:
            cache.fork(prefix, "request")
        batching.forward(model, [("request", rest)], cache)
        cache.free("request")

    miss = timing.time_median(lambda: first_token(None, torch.cat((document, question))), 3, "cpu")
    hit = timing.time_median(lambda: first_token("document", question), 5, "cpu")
    assert miss.median_s / hit.median_s >= 7


# --- the store of prefixes -----------------------------------------------------------------------

def exercise_store(steps):
    """Sequences over two letters come and go; `holds` knows which tokens each block was filled with.

    A sequence that does not `look` computes all of its blocks, as two do that arrive together.
    """
    pool, holds, running = BlockPool(12), {}, []
    store = PrefixStore(pool, block_tokens=2)
    for tokens, look, drop, evict in steps:
        blocks = [pool.share(block) for block in store.match(tokens)] if look else []
        assert [holds[block] for block in blocks] == [tuple(tokens[:2 * i + 2]) for i in range(len(blocks))]
        while len(blocks) < len(tokens) // 2 and (pool.n_free or store.evict()):
            blocks.append(pool.take())
            holds[blocks[-1]] = tuple(tokens[:2 * len(blocks)])
        store.insert(tokens[:2 * len(blocks)], blocks)
        running.append(blocks)
        for block in running.pop(drop % len(running)) if drop else ():
            pool.drop(block)
        for _ in range(evict):
            store.evict()
    for block in (block for blocks in running for block in blocks):
        pool.drop(block)
    while store.evict():
        pass
    assert pool.n_free == 12


STEPS = st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=10), st.booleans(), st.integers(0, 5),
                           st.integers(0, 3)), max_size=25)


@given(STEPS)
def test_stored_blocks_hold_the_tokens_they_are_found_by(steps):
    exercise_store(steps)


def random_steps(seed):
    draw = random.Random(seed)
    return [([draw.randrange(2) for _ in range(draw.randrange(11))], draw.random() < 0.5, draw.randrange(6),
             draw.randrange(4)) for _ in range(25)]


def test_stored_blocks_hold_their_tokens_in_longer_histories():
    for seed in range(200):
        exercise_store(random_steps(seed))


def test_blocks_found_by_their_own_tokens_alone_would_be_noticed(monkeypatch):
    def match(self, tokens):
        return [self.block_of[k] for k in [(None, part) for part in self._full_blocks(tokens)] if k in self.block_of]

    monkeypatch.setattr(PrefixStore, "match", match)
    with pytest.raises(AssertionError):
        for seed in range(50):
            exercise_store(random_steps(seed))


def test_the_least_recently_used_prefix_goes_first():
    pool = BlockPool(4)
    store = PrefixStore(pool, block_tokens=1)
    for tokens in ([1, 2], [3, 4]):
        blocks = [pool.take() for _ in tokens]
        store.insert(tokens, blocks)
        for block in blocks:
            pool.drop(block)
    store.match([1, 2])
    assert store.evict() and store.match([3, 4]) == [2] and store.match([1, 2]) == [0, 1]
    pool.share(0)
    assert [store.evict() for _ in range(3)] == [True, True, False]  # block 0 is in use


# --- bad input ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("prompts", "new_tokens", "arrivals", "message"), [
    ([[1, 2]], [3, 4], None, "1 prompts, 2 lengths and 1 arrivals"),
    ([[]], 3, None, "prompt_tokens=0"), ([[1]], 0, None, "output_tokens=0"), ([[1]], 1, [-1], "arrival=-1"),
    ([[1] * 30], 20, None, "holds 40 tokens, too few for one request of 49"),
    ([[1, 101]], 2, None, "use 0 to 100"),
])
def test_requests_that_do_not_fit_are_refused_in_one_line(prompts, new_tokens, arrivals, message):
    with pytest.raises(ValueError, match=".") as error:
        batching.Batcher(small(), n_blocks=10, block_tokens=4).run(prompts, new_tokens, arrivals)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_batches_that_do_not_fit_are_refused():
    model, two = small(), torch.tensor([1, 2])
    cache = batching.paged_cache(model, n_blocks=2, block_tokens=4)
    for batch, message in (([], "the batch is empty"), ([("a", two), ("a", two)], "stands twice"),
                           ([("a", two[None])], "use .new."), ([("a", two[:0])], "each at least 1"),
                           ([("a", two.repeat(5))], "needs room for 10 tokens, and 2 blocks of 4 are free")):
        with pytest.raises(ValueError, match=message):
            batching.forward(model, batch, cache)
