"""Requests that arrive at random times, served by a `Scheduler` on a simulated clock.

The clock moves by what the caller says a pass takes, so that the same queue can run on any machine's
times; nothing is computed but lengths and waiting.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from econ.kernels.pool import check_count
from econ.kernels.scheduling import Request, Scheduler, count_tokens
from econ.units import shown


def poisson_s(requests_per_s: float, n: int, seed: int = 0) -> list[float]:
    """When each of n requests arrives that come independently of each other, at a mean rate.  [s]

    The gaps are exponential with mean 1 / rate. The same seed gives the same arrivals at every rate, only
    closer together. Raises ValueError for a rate that is not above 0 and for a bad n.

    >>> [round(t, 2) for t in poisson_s(2.0, 3)]
    [0.93, 1.64, 1.91]
    """
    check_count("n", n)
    if not requests_per_s > 0:
        raise ValueError(f"requests_per_s={shown(requests_per_s)} gives no arrivals; use a rate above 0")
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(1.0) / requests_per_s for _ in range(n)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When a request arrived, and when it got each of its tokens."""

    arrival_s: float
    token_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Time to the first token, waiting included."""
        return self.token_s[0] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        """The time between each token and the next."""
        return [after - before for before, after in pairwise(self.token_s)]

    @property
    def tpot_s(self) -> float:
        """Mean gap; 0 for a single token."""
        return fmean(self.gaps_s or [0.0])


def run(scheduler: Scheduler, requests: Sequence[Request], arrivals_s: Sequence[float],
        pass_s: Callable[[list[Request], list[Request]], float]) -> list[Timeline]:
    """Serve requests that arrive at these times, pass by pass, until all have their tokens.

    `pass_s(reading, decoding)` is the time of a pass that reads the prompts of some requests and gives one
    more token to others; all of them have their token at its end. A request that was preempted is read again.
    Raises ValueError for a scheduler that lets requests wait for each other, a request that the cache could
    never hold, and unequal numbers of requests and arrivals.

    >>> from econ.kernels.pool import BlockTables
    >>> two = [Request(prompt_tokens=8, output_tokens=2) for _ in range(2)]
    >>> served = run(Scheduler(BlockTables(4)), two, [0.0, 1.5], lambda read, decode: len(read) + 0.5 * len(decode))
    >>> [one.token_s for one in served]  # the second arrives while the first decodes, and waits for nothing
    [(1.0, 1.5), (2.5, 3.0)]
    """
    if not scheduler.preempt:
        raise ValueError("this scheduler does not preempt, so that all may wait for each other; use preempt=True")
    for request in requests:
        scheduler.check(request)
    coming = deque(sorted(zip(arrivals_s, requests, strict=True), key=lambda pair: pair[0]))
    given: dict[Request, list[float]] = {request: [] for request in requests}
    now, cached = 0.0, set[Request]()
    while coming or scheduler.running or scheduler.waiting:
        while coming and coming[0][0] <= now:
            scheduler.waiting.append(coming.popleft()[1])
        batch = scheduler.next_batch()
        if not batch:
            now = coming[0][0]
            continue
        now += pass_s([r for r in batch if r not in cached], [r for r in batch if r in cached])
        for request in batch:
            given[request].append(now)
        count_tokens(scheduler, batch)
        cached = set(scheduler.running)
    return [Timeline(arrival_s=at, token_s=tuple(given[r])) for at, r in zip(arrivals_s, requests, strict=True)]
