"""The simulated clock: traces by hand, the M/D/1 queue, Little's law."""

from itertools import pairwise
from statistics import fmean

import pytest

pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import arrivals  # noqa: E402
from econ.kernels.pool import BlockTables  # noqa: E402
from econ.kernels.scheduling import Request, Scheduler  # noqa: E402


def equal(n, prompt=4, output=1):
    return [Request(prompt_tokens=prompt, output_tokens=output) for _ in range(n)]


def read_1_decode_half(reading, decoding):
    return len(reading) + 0.5 * len(decoding)


def test_a_prompt_waits_for_the_pass_and_holds_up_the_others():
    """A reads from 0 to 1 and decodes to 1.5. B, there since 1.2, reads while A decodes again, to 3.0."""
    a, b = arrivals.run(Scheduler(BlockTables(100)), equal(2, output=3), [0.0, 1.2], read_1_decode_half)
    assert a.token_s == (1.0, 1.5, 3.0) and b.token_s == (3.0, 3.5, 4.0)
    assert (a.ttft_s, a.gaps_s, a.tpot_s) == (1.0, [0.5, 1.5], 1.0)
    assert b.ttft_s == pytest.approx(1.8)


def test_the_clock_jumps_over_idle_time_and_order_is_by_arrival():
    late, early = arrivals.run(Scheduler(BlockTables(100), max_running=1), equal(2), [10.0, 9.5], read_1_decode_half)
    assert early.token_s == (10.5,) and late.token_s == (11.5,)
    assert early.tpot_s == 0.0


def test_a_preempted_request_is_read_again():
    """Three blocks of four. A grows from 3 to 6 tokens; B gives way when both need a second block."""
    read = []

    def pass_s(reading, decoding):
        read.extend(request.n_tokens for request in reading)
        return 1.0

    scheduler = Scheduler(BlockTables(3, block_tokens=4))
    a, b = arrivals.run(scheduler, [*equal(1, 3, 4), *equal(1, 3, 6)], [0.0, 0.0], pass_s)
    assert scheduler.n_preempted == 1 and read == [3, 3, 5]  # B with the two tokens it had
    assert a.token_s == (1, 2, 3, 4) and b.token_s == (1, 2, 5, 6, 7, 8)


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_one_at_a_time_waits_as_the_m_d_1_queue_does(busy):
    """Mean wait of Poisson arrivals at a server that takes 1 s each: busy / (2 (1 - busy)), Pollaczek-Khinchine."""
    n = 40_000
    at = arrivals.poisson_s(busy, n, seed=3)
    served = arrivals.run(Scheduler(BlockTables(4), max_running=1), equal(n), at, lambda read, decode: 1.0)
    assert fmean(one.ttft_s - 1 for one in served) == pytest.approx(busy / (2 * (1 - busy)), rel=0.05)


def test_littles_law_holds_for_those_in_the_system():
    """The mean number inside, seen by looking every 10 ms, is the rate times the mean time inside."""
    n = 400
    at = arrivals.poisson_s(2.0, n, seed=1)
    served = arrivals.run(Scheduler(BlockTables(100)), equal(n, output=4), at, lambda read, decode: 0.1)
    end = max(one.token_s[-1] for one in served)
    looks = [0.01 * i for i in range(int(100 * end))]
    inside = fmean(sum(one.arrival_s <= now < one.token_s[-1] for one in served) for now in looks)
    assert inside == pytest.approx(n / end * fmean(one.token_s[-1] - one.arrival_s for one in served), rel=0.01)


def test_poisson_arrivals():
    at = arrivals.poisson_s(4.0, 50_000, seed=0)
    gaps = [after - before for before, after in pairwise([0.0, *at])]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.02)
    assert fmean(gap > 0.25 for gap in gaps) == pytest.approx(0.3679, abs=0.01)  # 1/e of exponential gaps
    assert arrivals.poisson_s(8.0, 3, seed=5) == pytest.approx([t / 2 for t in arrivals.poisson_s(4.0, 3, seed=5)])


def test_bad_input():
    with pytest.raises(ValueError, match="requests_per_s=0 gives no arrivals"):
        arrivals.poisson_s(0, 3)
    with pytest.raises(ValueError, match="n=0 is not a count"):
        arrivals.poisson_s(1.0, 0)
    with pytest.raises(ValueError, match="does not preempt"):
        arrivals.run(Scheduler(BlockTables(4), preempt=False), equal(1), [0.0], read_1_decode_half)
    with pytest.raises(ValueError, match="the cache holds"):
        arrivals.run(Scheduler(BlockTables(1)), equal(1, prompt=99), [0.0], read_1_decode_half)
    with pytest.raises(ValueError):
        arrivals.run(Scheduler(BlockTables(4)), equal(2), [0.0], read_1_decode_half)
