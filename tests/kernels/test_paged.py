"""The paged cache: attention through a table equals attention over one row of tokens, and blocks add up."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402

from econ.kernels import _setup, paged, pool  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    with _setup.one_thread():
        yield


# --- attention ----------------------------------------------------------------------------------

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 16, 8


def interleaved(dtype, sequences=8, rounds=20):
    """A cache whose sequences grew in turns, so that no table is in order, and the same in plain rows."""
    cache = paged.PagedCache(layers=2, n_blocks=100, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=dtype,
                             block_tokens=BLOCK, device="cpu")
    rows = {i: torch.zeros(2, 1, KV_HEADS, 0, HEAD_DIM, dtype=cache.kv.dtype) for i in range(sequences)}
    for turn in range(rounds):
        for i in range(sequences):
            new = torch.randn(2, 1, KV_HEADS, 1 + (i * turn) % 5, HEAD_DIM, dtype=cache.kv.dtype)
            assert cache.reserve(i, rows[i].shape[3] + new.shape[3])
            for layer in range(2):
                cache.write(layer, i, *(new * (1 - 2 * layer)))  # layer 1 holds the negative of layer 0
            cache.advance(i, new.shape[3])
            rows[i] = torch.cat((rows[i], new), dim=3)
    return cache, rows


def attention_error(dtype):
    """Largest difference from torch's own attention over contiguous keys, for one and for five queries."""
    torch.manual_seed(0)
    cache, rows = interleaved(dtype)
    errors = []
    for i, (k, v) in rows.items():
        total = k.shape[2]
        for new in (1, 5):
            q = torch.randn(1, HEADS, new, HEAD_DIM, dtype=k.dtype)
            mask = torch.ones(new, total, dtype=torch.bool).tril(total - new)
            exact = F.scaled_dot_product_attention(q, -k, -v, mask, enable_gqa=True)[0]
            errors.append((paged.paged_attention(q[0], cache.kv[1], cache.tables[i], total) - exact).abs().max())
    return float(max(errors))


def test_attention_through_the_table_equals_contiguous_attention():
    assert attention_error("fp32") <= 1e-6
    assert attention_error("fp64") <= 1e-13


def test_the_tables_tested_are_fragmented():
    cache, _ = interleaved("fp32")
    jumps = [b - a for table in cache.tables.values() for a, b in zip(table, table[1:], strict=False)]
    assert len(jumps) > 40 and sum(jump == 1 for jump in jumps) < len(jumps) / 10


def test_gathered_keys_and_values_are_those_written():
    cache, rows = interleaved("fp32")
    for i, row in rows.items():
        for layer in range(2):
            assert torch.equal(torch.stack(cache.read(layer, i)), row * (1 - 2 * layer))


def test_a_table_in_order_of_block_numbers_would_be_noticed(monkeypatch):
    monkeypatch.setattr(paged, "zip", lambda starts, table, strict: zip(starts, range(100), strict=False),
                        raising=False)
    assert attention_error("fp64") > 1e-2


def test_a_top_left_mask_would_be_noticed(monkeypatch):
    real = torch.arange
    monkeypatch.setattr(torch, "arange", lambda a, b, **kw: real(a, b, **kw) if b - a == BLOCK else real(b - a, **kw))
    assert attention_error("fp64") > 1e-2


def test_sums_that_are_not_rescaled_would_be_noticed(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exp", lambda x: torch.ones_like(x) if x.shape[-1] == 1 else torch.exp(x))
    assert attention_error("fp64") > 1e-2


def test_scores_too_large_for_exp_stay_finite():
    cache, rows = interleaved("fp32", sequences=1)
    q = 900 * torch.randn(HEADS, 1, HEAD_DIM)
    out = paged.paged_attention(q, cache.kv[0], cache.tables[0], rows[0].shape[3])
    assert out.isfinite().all() and not (q @ rows[0][0, 0, :1].mT).exp().isfinite().all()


def test_bytes_of_the_pool_are_really_allocated():
    cache, _ = interleaved("fp32")
    assert cache.bytes == 2 * 2 * 100 * BLOCK * KV_HEADS * HEAD_DIM * 4


# --- sharing and copy on write ------------------------------------------------------------------

def filled(n_tokens=20, n_blocks=8):
    cache = paged.PagedCache(layers=2, n_blocks=n_blocks, kv_heads=1, head_dim=2, dtype="fp32", device="cpu")
    append(cache, "a", range(n_tokens))
    return cache


def append(cache, seq, numbers):
    """Tokens that can be told apart: key n, value -n, and one more in the next layer."""
    numbers = torch.tensor(list(numbers), dtype=torch.float32)
    k = numbers[None, None, :, None].expand(1, 1, -1, cache.kv.shape[-1])
    assert cache.reserve(seq, cache.n_tokens.get(seq, 0) + len(numbers))
    for layer in range(2):
        cache.write(layer, seq, k + layer, -k - layer)
    cache.advance(seq, len(numbers))


def numbers_of(cache, seq):
    (k, v), (k_next, v_next) = (cache.read(layer, seq) for layer in range(2))
    assert torch.equal(k, -v) and torch.equal(k + 1, k_next) and torch.equal(k_next, -v_next)
    return k[0, 0, :, 0].int().tolist()


def test_a_fork_costs_one_block_and_one_copy_when_it_grows():
    cache = filled()
    cache.fork("a", "b")
    assert cache.pool.n_free == 6 and cache.tables["a"] == cache.tables["b"]
    append(cache, "b", [100])
    assert (cache.pool.n_free, cache.n_copies) == (5, 1)  # the half-filled block alone is copied
    assert cache.tables["a"][0] == cache.tables["b"][0] and cache.tables["a"][1] != cache.tables["b"][1]
    append(cache, "a", [200])
    assert cache.n_copies == 1  # now the only holder, it writes in place
    assert numbers_of(cache, "a") == [*range(20), 200] and numbers_of(cache, "b") == [*range(20), 100]
    cache.free("a")
    cache.free("b")
    assert cache.pool.n_free == 8


def test_full_blocks_are_never_copied():
    cache = filled(n_tokens=32)
    cache.fork("a", "b")
    append(cache, "b", [100])
    assert (cache.pool.n_free, cache.n_copies) == (5, 0)


def test_what_is_stored_already_needs_no_room():
    cache = filled()
    cache.fork("a", "b")
    assert cache.reserve("b", 20) and cache.reserve("b", 3)
    assert (cache.pool.n_free, cache.n_copies) == (6, 0)


class Forks(RuleBasedStateMachine):
    """Random appending, forking and freeing beside lists of plain numbers."""

    def __init__(self):
        super().__init__()
        self.cache = paged.PagedCache(layers=2, n_blocks=10, kv_heads=1, head_dim=1, dtype="fp32",
                                      block_tokens=4, device="cpu")
        self.lists = {}
        self.fresh = iter(range(10**6))

    @rule(seq=st.integers(0, 4), n=st.integers(1, 9))
    def append(self, seq, n):
        start, free = len(self.lists.get(seq, [])), self.cache.pool.n_free
        if self.cache.reserve(seq, start + n):
            new = [next(self.fresh) for _ in range(n)]
            append(self.cache, seq, new)
            self.lists.setdefault(seq, []).extend(new)
        else:
            assert self.cache.pool.n_free == free < -(-n // 4) + 1

    @rule(seq=st.integers(0, 4), n=st.integers(1, 9))
    def reserve_only(self, seq, n):
        if self.cache.reserve(seq, len(self.lists.get(seq, [])) + n):
            self.lists.setdefault(seq, [])

    @precondition(lambda self: 0 < len(self.lists) < 5)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(sorted(self.lists)))
        child = min(set(range(5)) - set(self.lists))
        self.cache.fork(parent, child)
        self.lists[child] = list(self.lists[parent])

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(sorted(self.lists)))
        self.cache.free(seq)
        del self.lists[seq]

    @invariant()
    def contents_are_right(self):
        assert {seq: numbers_of(self.cache, seq) for seq in self.cache.tables} == self.lists

    @invariant()
    def every_holder_is_counted_and_every_other_block_is_free(self):
        held = [block for table in self.cache.tables.values() for block in table]
        refs = self.cache.pool.refs
        assert refs == [held.count(block) for block in range(10)]
        assert sorted(self.cache.pool._free) == [block for block in range(10) if not refs[block]]

    @invariant()
    def tables_are_long_enough(self):
        for seq, table in self.cache.tables.items():
            assert len(set(table)) == len(table) >= -(-self.cache.n_tokens[seq] // 4)

    def teardown(self):
        for seq in list(self.lists):
            self.cache.free(seq)
        assert self.cache.pool.n_free == 10


TestForks = Forks.TestCase


@pytest.mark.parametrize(("owner", "method", "wrong"), [
    (pool.BlockTables, "_shares_last", lambda self, seq: False),  # no copy on write
    (pool.BlockPool, "share", lambda self, block: block),  # a second holder is not counted
    (paged.PagedCache, "_copy", lambda self, source, target: None),  # the copy is empty
    (pool.BlockPool, "drop", lambda self, block: None),  # a leak
])
def test_wrong_bookkeeping_would_be_noticed(monkeypatch, owner, method, wrong):
    monkeypatch.setattr(owner, method, wrong)
    quick = settings(phases=[Phase.generate], max_examples=40, stateful_step_count=30, derandomize=True,
                     database=None, deadline=None, report_multiple_bugs=False)
    with pytest.raises((AssertionError, ValueError)):
        run_state_machine_as_test(Forks, settings=quick)


# --- bad input ----------------------------------------------------------------------------------

def test_double_frees_and_unknown_sequences_are_refused():
    cache = filled()
    block = cache.tables["a"][0]
    cache.free("a")
    with pytest.raises(ValueError, match="sequence 'a' is unknown; it was freed already"):
        cache.free("a")
    with pytest.raises(ValueError, match="block 0 is free already"):
        cache.pool.drop(block)
    with pytest.raises(ValueError, match="use 0 to 7"):
        cache.pool.share(8)
    for call in (lambda: cache.read(0, "a"), lambda: cache.fork("a", "b"), lambda: cache.advance("a", 1),
                 lambda: cache.write(0, "a", torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))):
        with pytest.raises(ValueError, match="'a' is unknown"):
            call()


def test_too_small_pools_and_writes_without_room_are_refused():
    cache = filled(n_tokens=16, n_blocks=2)
    cache.fork("a", "b")
    one = torch.zeros(1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"no place of its own for tokens 16 to 16; call reserve\('a', 17\)"):
        cache.write(0, "a", one, one)
    with pytest.raises(ValueError, match="too few for 17; call reserve first"):
        cache.advance("a", 1)
    assert cache.reserve("a", 17) and not cache.reserve("b", 17)
    assert cache.tables["b"] == [0]  # a refusal changes nothing
    with pytest.raises(ValueError, match="all 2 blocks are held"):
        cache.pool.take()
    with pytest.raises(ValueError, match="'b' exists already"):
        cache.fork("a", "b")


def test_writing_into_a_shared_block_is_refused():
    cache, one = filled(), torch.zeros(1, 1, 1, 2)
    cache.fork("a", "b")
    with pytest.raises(ValueError, match="no place of its own"):
        cache.write(0, "b", one, one)


@pytest.mark.parametrize(("changes", "message"), [
    ({"n_blocks": 0}, "n_blocks=0"), ({"block_tokens": 2.5}, "block_tokens=2.5"), ({"layers": True}, "layers=True"),
    ({"kv_heads": -1}, "kv_heads=-1"), ({"dtype": "int4"}, "fp64, fp32, bf16, fp16"),
])
def test_wrong_sizes_are_refused_in_one_line(changes, message):
    sizes = {"layers": 1, "n_blocks": 4, "kv_heads": 1, "head_dim": 2, "dtype": "fp32", "device": "cpu"}
    with pytest.raises(ValueError, match=".") as error:
        paged.PagedCache(**sizes | changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_wrong_shapes_are_refused():
    cache = filled()
    wrong = torch.zeros(1, 2, 1, 2)
    with pytest.raises(ValueError, match=r"this cache takes \[1, 1, new, 2\]"):
        cache.write(0, "a", wrong, wrong)
    for heads, n_tokens, message in ((3, 4, "3 heads cannot share 2"), (4, 17, "the 16 that the"), (4, 0, "between 1")):
        q, kv = torch.zeros(heads, 1, 8), torch.zeros(2, 4, 8, 2, 8)
        with pytest.raises(ValueError, match=message):
            paged.paged_attention(q, kv, [0, 2], n_tokens)
