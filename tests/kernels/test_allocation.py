"""Scheduling by hand, and how full a cache is under one request stream: published shares in bands."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import allocation, pool  # noqa: E402
from econ.kernels.scheduling import Request, Scheduler, serve  # noqa: E402


def requests(*lengths):
    """Requests from (prompt, output, arrival)."""
    return [Request(prompt_tokens=p, output_tokens=o, arrival=at) for p, o, at in lengths]


# --- scheduling, traced by hand -----------------------------------------------------------------

def test_a_finished_request_makes_room_at_once():
    def trace(continuous):
        scheduler = Scheduler(pool.BlockTables(100), max_running=2, continuous=continuous)
        return serve(scheduler, requests((5, 1, 0), (5, 3, 0), (5, 2, 0)))

    assert trace(continuous=True).running == (2, 2, 2)  # AB BC BC
    assert trace(continuous=False).running == (2, 1, 1, 1, 1)  # AB B B C C


def test_requests_join_when_they_arrive():
    trace = serve(Scheduler(pool.BlockTables(100)), requests((5, 2, 4), (5, 2, 0), (5, 2, 1)))
    assert trace.running == (1, 2, 1, 0, 1, 1) and trace.n_finished == 3
    assert trace.cached_tokens == (5, 6 + 5, 6, 0, 5, 6)


def test_the_newest_makes_room_and_comes_back():
    """Three blocks of four. A holds 3, 4, 5, 6 tokens and leaves; B gives way when both need a second block
    and one is left, then reads 5 tokens again in two blocks, before C, which came later."""
    a, b, c = requests((3, 4, 0), (3, 6, 0), (3, 1, 2))
    batches = []
    trace = serve(Scheduler(pool.BlockTables(3, block_tokens=4)), [a, b, c], lambda batch: batches.append(list(batch)))
    assert batches == [[a, b], [a, b], [a], [a], [b], [b], [b], [b], [c]]
    assert (trace.n_preempted, trace.n_finished, trace.deadlocked) == (1, 3, False)


def test_first_come_first_served():
    """Six blocks: the first takes three, the second needs four, the third would fit and waits its turn."""
    first, second, third = requests((33, 2, 0), (60, 2, 0), (1, 2, 0))
    batches = []
    serve(Scheduler(pool.BlockTables(6)), [first, second, third], lambda batch: batches.append(list(batch)))
    assert batches == [[first], [first], [second, third], [second, third]]


def small_pool(preempt):
    """60 requests on 12 blocks: two rarely fit to their end."""
    stream = allocation.request_stream(60, seed=3, mean_prompt=30, mean_output=60, sigma=0.3)
    memory = pool.BlockTables(12)
    return serve(Scheduler(memory, preempt=preempt), stream), memory


def test_every_request_finishes_in_a_pool_that_is_always_short():
    trace, memory = small_pool(preempt=True)
    assert (trace.n_finished, trace.deadlocked) == (60, False)
    assert trace.n_preempted > 0 and memory.pool.n_free == 12


def test_without_preemption_all_wait_for_each_other():
    trace, memory = small_pool(preempt=False)
    assert trace.deadlocked and trace.n_finished < 60 and trace.running[-1] > 1
    assert memory.pool.n_free == 0  # perfectly full, and nothing moves


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 20)), min_size=1, max_size=12),
       st.integers(10, 30), st.integers(1, 8), st.booleans())
def test_any_stream_that_fits_one_by_one_is_served(lengths, n_blocks, max_running, continuous):
    memory = pool.BlockTables(n_blocks, block_tokens=8)
    scheduler, done = Scheduler(memory, max_running=max_running, continuous=continuous), requests(*lengths)
    trace = serve(scheduler, done)
    assert [r.n_generated for r in done] == [output for _, output, _ in lengths]
    assert max(trace.running) <= max_running and max(trace.cached_tokens) <= 8 * n_blocks
    assert memory.pool.n_free == n_blocks and not memory.tables


# --- contiguous memory --------------------------------------------------------------------------

def exercise(buddy, sizes, drops):
    """Take and drop runs; returns those still taken as (start, end)."""
    held = []
    for size, drop in zip(sizes, drops, strict=True):
        start = buddy.take(size)
        if start is not None:
            held.append((start, start + allocation.power_of_two(size)))
        if drop and held:
            buddy.drop(held.pop(drop % len(held))[0])
        ordered = sorted(held)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered)), "runs overlap"
        assert all(a >= 0 and b <= buddy.size and a % (b - a) == 0 for a, b in held)
        free = sum(size * len(starts) for size, starts in buddy.free_at.items())
        assert free + sum(b - a for a, b in held) == buddy.size
    return held


STEPS = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 9)), min_size=1, max_size=40)


@given(STEPS)
def test_runs_never_overlap_and_join_again(steps):
    buddy = allocation.BuddyAllocator(64)
    for start, _ in exercise(buddy, *zip(*steps, strict=True)):
        buddy.drop(start)
    assert buddy.take(64) == 0


def test_a_run_freed_half_would_be_noticed(monkeypatch):
    def drop(self, start):
        self.free_at[self.taken.pop(start)].add(start)  # never joined with its buddy

    monkeypatch.setattr(allocation.BuddyAllocator, "drop", drop)
    buddy = allocation.BuddyAllocator(64)
    for start, _ in exercise(buddy, [32, 5], [0, 0]):
        buddy.drop(start)
    assert buddy.take(64) is None


def test_fragments_refuse_what_their_sum_would_hold():
    buddy = allocation.BuddyAllocator(16)
    places = [buddy.take(4) for _ in range(4)]
    buddy.drop(places[0])
    buddy.drop(places[2])
    assert buddy.take(8) is None and buddy.take(4) == 0  # 8 places are free, no 8 in a row


# --- shares of the pool -------------------------------------------------------------------------

def test_what_each_policy_reserves():
    """kwon2023, section 6.1: 2,048 places; 32 for an output of 25; the true length."""
    request, = requests((100, 25, 0))
    assert {name: places(request) for name, places in allocation.RESERVATIONS.items()} == {
        "max": 2048, "pow2": 132, "oracle": 125}


@pytest.fixture(scope="module")
def usages():
    return {policy: allocation.simulate(policy) for policy in allocation.POLICIES}


@pytest.mark.parametrize(("policy", "published", "low", "high"), [
    ("max", 0.204, 0.18, 0.28), ("pow2", 0.268, 0.20, 0.32), ("oracle", 0.382, 0.35, 0.45),
    ("paged", 0.963, 0.94, 1.00),
])
def test_shares_of_the_pool_that_hold_tokens(usages, policy, published, low, high):
    """kwon2023, figure 2; the bands are those of another sample of lengths and another queue."""
    assert low < published < high
    assert low <= usages[policy].used_frac <= high
    assert usages[policy].n_finished > 200 and not usages[policy].deadlocked


def test_pages_serve_several_times_as_many_requests(usages):
    """kwon2023, figure 13a: 30.42 against 7.00 requests at a time."""
    paged, reserved = usages["paged"], usages["max"]
    assert reserved.running == 8  # 16,384 / 2,048
    assert paged.running / reserved.running >= 3.5
    assert paged.n_finished / reserved.n_finished >= 3.5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_bands_hold_for_other_samples(seed):
    shares = {policy: allocation.simulate(policy, seed=seed).used_frac for policy in allocation.POLICIES}
    assert 0.18 <= shares["max"] <= 0.28 and 0.20 <= shares["pow2"] <= 0.32
    assert 0.35 <= shares["oracle"] <= 0.45 and shares["paged"] >= 0.94


def test_smaller_blocks_waste_less():
    used = [allocation.simulate("paged", block_tokens=size, n_iterations=1500).used_frac for size in (16, 64, 256)]
    assert used[0] > used[1] > used[2] and used[2] < 0.75


def test_a_full_pool_in_which_nothing_moves_is_reported():
    stuck = allocation.simulate("paged", preempt=False)
    assert stuck.deadlocked and stuck.used_frac > 0.9  # occupancy alone would look like success
    assert stuck.n_finished < allocation.simulate("paged", n_iterations=1000).n_finished / 10


def test_lengths_have_the_means_asked_for():
    stream = allocation.request_stream(20_000)
    prompts, outputs = ([getattr(r, name) for r in stream] for name in ("prompt_tokens", "output_tokens"))
    assert sum(prompts) / 20_000 == pytest.approx(161.31, rel=0.03)
    assert 0.92 < sum(outputs) / 20_000 / 337.99 < 1  # cut at 2,048 in all
    assert max(p + o for p, o in zip(prompts, outputs, strict=True)) <= 2048


# --- bad input ----------------------------------------------------------------------------------

def test_requests_that_can_never_fit_are_refused_before_anything_runs():
    small = requests((10, 1, 0), (30, 4, 5))
    with pytest.raises(ValueError, match="holds 32 tokens, too few for one request of 33"):
        serve(Scheduler(pool.BlockTables(2)), small)
    assert small[0].n_generated == 0


def test_bad_sizes_and_policies_are_refused_in_one_line():
    buddy = allocation.BuddyAllocator(16)
    calls = SimpleNamespace(
        policy=lambda: allocation.simulate("best"), odd=lambda: allocation.BuddyAllocator(12),
        large=lambda: buddy.take(17), twice=lambda: buddy.drop(0), zero=lambda: requests((0, 1, 0)),
        nobody=lambda: Scheduler(pool.BlockTables(2), max_running=0), none=lambda: allocation.request_stream(0))
    messages = {"policy": "use one of max, pow2, oracle, paged", "odd": "use 16", "large": "there are 16 in all",
                "twice": "freed already", "zero": "prompt_tokens=0", "nobody": "max_running=0", "none": "n=0"}
    for name, message in messages.items():
        with pytest.raises(ValueError, match=".") as error:
            getattr(calls, name)()
        assert message in str(error.value) and "\n" not in str(error.value)


def test_the_scheduler_takes_any_memory():
    assert isinstance(allocation.Contiguous("max", 4096).max_tokens, int)
    trace = serve(Scheduler(allocation.Contiguous("max", 4096)), requests((5, 3, 0), (5, 3, 0), (5, 3, 0)))
    assert trace.running == (2, 2, 2, 1, 1, 1)
