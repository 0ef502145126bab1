"""Which requests run in the next iteration: first come, first served, by iteration or by batch.

The same loop serves a real model (`batching`) and a simulation of memory alone (`allocation`).
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from econ.kernels.pool import check_count


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and how many tokens it is to get: lengths alone, and how far it has come.

    Raises ValueError for lengths that are not positive whole numbers.
    """

    prompt_tokens: int
    output_tokens: int
    arrival: int = 0  # iteration in which it arrives
    n_generated: int = 0

    def __post_init__(self) -> None:
        check_count("prompt_tokens", self.prompt_tokens)
        check_count("output_tokens", self.output_tokens)
        check_count("arrival", self.arrival, least=0)

    @property
    def n_tokens(self) -> int:
        """Tokens that the cache holds while the next one is computed."""
        return self.prompt_tokens + self.n_generated


class Memory(Protocol):
    """What a scheduler needs to know of a cache: tables of blocks, or contiguous reservations."""

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence that fits alone."""

    def reserve(self, seq: Any, n_tokens: int, spare_blocks: int = 0) -> bool:
        """Room for `n_tokens` tokens in all, with blocks to spare; False, and no change, where there is none."""

    def free(self, seq: Any) -> None:
        """Give back what a sequence holds."""


class Scheduler:
    """Decides before every iteration who takes part; the oldest request always moves on.

    A running request that finds no room for its next token takes that of the newest one, which goes
    back to the head of the queue and is computed again later: preemption by recomputation. To keep
    that rare, a request is let in only if one block stays free for each that runs.
    `continuous=False` lets new requests in only when all old ones have left: static batching.
    `preempt=False` lets a request wait for room instead, and then all may wait for each other.
    Source: scheduling by iteration, yu2022; preemption, kwon2023.
    """

    def __init__(self, memory: Memory, *, max_running: int | None = None, continuous: bool = True,
                 preempt: bool = True) -> None:
        if max_running is not None:
            check_count("max_running", max_running)
        self.memory, self.continuous, self.preempt = memory, continuous, preempt
        self.max_running = max_running or 10**9
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self.n_preempted = 0

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that even the empty cache could not hold."""
        longest = request.prompt_tokens + request.output_tokens - 1  # the last token is never read again
        if longest > self.memory.max_tokens:
            raise ValueError(f"the cache holds {self.memory.max_tokens} tokens, too few for one request of "
                             f"{longest}; use a larger pool or a shorter request")

    def next_batch(self) -> list[Request]:
        """The requests of the next iteration, oldest first, each with room for all of its tokens."""
        stalled = [request for request in tuple(self.running) if not self._make_room(request)]
        if self.continuous or not self.running:
            self._admit()
        return [request for request in self.running if request not in stalled]

    def finish(self, request: Request) -> None:
        """A request has all its tokens: it leaves at once, whatever the others do."""
        self.running.remove(request)
        self.memory.free(request)

    def _make_room(self, request: Request) -> bool:
        while request in self.running and not self.memory.reserve(request, request.n_tokens):
            if not self.preempt:
                return False
            self._preempt(self.running.pop())
        return True

    def _preempt(self, newest: Request) -> None:
        self.memory.free(newest)
        self.waiting.appendleft(newest)
        self.n_preempted += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_running:
            first = self.waiting[0]
            if not self.memory.reserve(first, first.n_tokens, spare_blocks=len(self.running)):
                break
            self.running.append(self.waiting.popleft())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened, iteration by iteration."""

    running: tuple[int, ...]  # requests in the cache
    cached_tokens: tuple[int, ...]  # tokens of those requests
    n_finished: int
    n_preempted: int
    deadlocked: bool  # requests were left, and none of them could move

    @property
    def n_iterations(self) -> int:
        return len(self.running)


def serve(scheduler: Scheduler, requests: Iterable[Request], execute: Callable[[list[Request]], Any] | None = None,
          max_iterations: int | None = None) -> Trace:
    """Run requests until all are finished, none can move, or `max_iterations` have passed.

    In each iteration every request of the batch gets one token: `execute(batch)` computes them, and
    without it only memory is simulated. Raises ValueError for a request that the cache could never hold.
    """
    coming = deque(sorted(requests, key=lambda request: request.arrival))
    for request in coming:
        scheduler.check(request)
    running: list[int] = []
    cached: list[int] = []
    n_finished, deadlocked = 0, False
    for now in itertools.count() if max_iterations is None else range(max_iterations):
        while coming and coming[0].arrival <= now:
            scheduler.waiting.append(coming.popleft())
        batch = scheduler.next_batch()
        if not batch and (not coming or scheduler.running or scheduler.waiting):
            deadlocked = bool(scheduler.running or scheduler.waiting)
            break
        running.append(len(scheduler.running))
        cached.append(sum(request.n_tokens for request in scheduler.running))
        if batch and execute:
            execute(batch)
        n_finished += count_tokens(scheduler, batch)
    return Trace(running=tuple(running), cached_tokens=tuple(cached), n_finished=n_finished,
                 n_preempted=scheduler.n_preempted, deadlocked=deadlocked)


def count_tokens(scheduler: Scheduler, batch: list[Request]) -> int:
    """One more token for each request of the batch; returns how many have all of theirs."""
    for request in batch:
        request.n_generated += 1
    finished = [request for request in batch if request.n_generated == request.output_tokens]
    for request in finished:
        scheduler.finish(request)
    return len(finished)
