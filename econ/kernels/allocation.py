"""How much of a KV cache holds tokens: contiguous reservations against blocks on demand, one request stream.

Contiguous policies reserve a request's whole space when it is admitted, from a buddy allocator, as the
systems did that kwon2023 compares with; paged memory takes a block when a token needs it.
"""

import math
import random
from collections.abc import Hashable
from dataclasses import dataclass

from econ.kernels.pool import BLOCK_TOKENS, BlockTables, check_count
from econ.kernels.scheduling import Request, Scheduler, serve

POOL_TOKENS = 16_384  # a power of two near the 15.7k places of kwon2023, table 1
MAX_TOKENS = 2048  # the longest sequence of the model served there
MEAN_PROMPT_TOKENS, MEAN_OUTPUT_TOKENS = 161.31, 337.99  # ShareGPT, kwon2023, figure 11


def power_of_two(n: int) -> int:
    """The least power of two that is not below n.

    >>> power_of_two(25), power_of_two(32)
    (32, 32)
    """
    return 1 << (n - 1).bit_length()


class BuddyAllocator:
    """Contiguous memory in powers of two: halves are split off as needed and joined again when both are free.

    Raises ValueError for a size that is not a power of two, for a request larger than all of it, and
    for a place that is freed twice.

    >>> buddy = BuddyAllocator(16)
    >>> buddy.take(5), buddy.take(4), buddy.take(8)  # 5 becomes 8; no 8 in a row are left
    (0, 8, None)
    """

    def __init__(self, size: int) -> None:
        check_count("size", size)
        if size != power_of_two(size):
            raise ValueError(f"size={size} is not a power of two; use {power_of_two(size)}")
        self.size = size
        self.free_at: dict[int, set[int]] = {1 << i: set() for i in range(size.bit_length())}  # by size
        self.free_at[size].add(0)
        self.taken: dict[int, int] = {}  # size of what begins at each place

    def take(self, n: int) -> int | None:
        """Where a run of at least n places begins, or None where no such run is free."""
        if n > self.size:
            raise ValueError(f"{n} places in a row were asked for; there are {self.size} in all")
        wanted = power_of_two(n)
        size = next((s for s in self.free_at if s >= wanted and self.free_at[s]), None)
        if size is None:
            return None
        start = min(self.free_at[size])
        self.free_at[size].remove(start)
        while size > wanted:  # keep the lower half, free the upper
            size //= 2
            self.free_at[size].add(start + size)
        self.taken[start] = size
        return start

    def drop(self, start: int) -> None:
        """Free the run that begins at `start`, and join it with its buddy as long as that is free too."""
        if start not in self.taken:
            raise ValueError(f"nothing is taken at place {start}; it was freed already or never taken")
        size = self.taken.pop(start)
        while size < self.size and start ^ size in self.free_at[size]:
            self.free_at[size].remove(start ^ size)
            start, size = min(start, start ^ size), 2 * size
        self.free_at[size].add(start)


RESERVATIONS = {  # places that a contiguous policy asks for when it admits a request
    "max": lambda request: MAX_TOKENS,  # whatever the model allows
    "pow2": lambda request: request.prompt_tokens + power_of_two(request.output_tokens),
    "oracle": lambda request: request.prompt_tokens + request.output_tokens,  # knows how long answers get
}
POLICIES = (*RESERVATIONS, "paged")


class Contiguous:
    """One run of places for each request, reserved for good when it is admitted."""

    def __init__(self, policy: str, size: int) -> None:
        self.places_for, self.buddy = RESERVATIONS[policy], BuddyAllocator(size)
        self.starts: dict[Hashable, int] = {}

    @property
    def max_tokens(self) -> int:
        return self.buddy.size

    def reserve(self, seq: Request, n_tokens: int, spare_blocks: int = 0) -> bool:
        if seq not in self.starts:
            start = self.buddy.take(self.places_for(seq))
            if start is None:
                return False
            self.starts[seq] = start
        return True

    def free(self, seq: Request) -> None:
        self.buddy.drop(self.starts.pop(seq))


def request_stream(n: int, seed: int = 0, mean_prompt: float = MEAN_PROMPT_TOKENS,
                   mean_output: float = MEAN_OUTPUT_TOKENS, sigma: float = 1.0) -> list[Request]:
    """Requests whose lengths are lognormal with these means, none longer than 2,048 tokens in all.

    The means are those of ShareGPT (kwon2023, figure 11); the shape and its sigma are an assumption.
    The limit lowers the mean output by about 5 %.
    """
    check_count("n", n)
    draw = random.Random(seed)

    def length(mean: float, most: int) -> int:
        return max(1, min(most, round(draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))

    prompts = [length(mean_prompt, MAX_TOKENS // 2) for _ in range(n)]
    return [Request(prompt_tokens=p, output_tokens=length(mean_output, MAX_TOKENS - p)) for p in prompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one policy made of the pool, as means over the iterations after the start."""

    policy: str
    used_frac: float  # places that hold a token / all places
    running: float  # requests served at a time
    n_finished: int
    n_preempted: int
    deadlocked: bool


def simulate(policy: str, *, n_iterations: int = 16_000, seed: int = 0, pool_tokens: int = POOL_TOKENS,
             block_tokens: int = BLOCK_TOKENS, preempt: bool = True) -> Usage:
    """Serve an endless queue from one pool and see how much of it holds tokens.

    used_frac = sum of cached tokens / pool_tokens, mean over iterations

    An iteration gives each running request one token; its duration does not enter. The first eighth,
    in which all requests are young, is left out. Source: kwon2023, figure 2: 20.4 % (max), 26.8 % (pow2),
    38.2 % (oracle), 96.3 % (paged).
    Raises ValueError for a policy that is not one of POLICIES.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r} is unknown; use one of {', '.join(POLICIES)}")
    paged = policy == "paged"
    memory = BlockTables(pool_tokens // block_tokens, block_tokens) if paged else Contiguous(policy, pool_tokens)
    scheduler = Scheduler(memory, preempt=preempt)
    trace = serve(scheduler, request_stream(n_iterations, seed), max_iterations=n_iterations)
    running, cached = (values[len(values) // 8:] for values in (trace.running, trace.cached_tokens))
    return Usage(policy=policy, used_frac=sum(cached) / len(cached) / pool_tokens,
                 running=sum(running) / len(running), n_finished=trace.n_finished,
                 n_preempted=trace.n_preempted, deadlocked=trace.deadlocked)
