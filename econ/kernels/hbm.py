"""A model of a GPU's main memory that counts every element a kernel moves, and attention run on it twice.

Counting the operands of each torch operator would charge tiles that never leave the chip. Here a kernel
says what it loads and what it stores, and computes with nothing else.
"""

import math

from torch import Tensor

from econ.kernels.attention import check_qkv, empty_state, online_softmax
from econ.kernels.llama import _check_sizes


class HBM:
    """A GPU's main memory that counts the elements a kernel loads and stores; what is on chip is free."""

    def __init__(self) -> None:
        self.loaded = self.stored = 0

    @property
    def moved(self) -> int:
        """Elements loaded and stored so far."""
        return self.loaded + self.stored

    def load(self, x: Tensor) -> Tensor:
        """A copy on chip."""
        self.loaded += x.numel()
        return x.clone()

    def store(self, x: Tensor, value: Tensor) -> None:
        """Write a value from the chip over `x`, which may be a slice of an array in memory."""
        self.stored += x.numel()
        x.copy_(value)


def standard_on_hbm(q: Tensor, k: Tensor, v: Tensor, hbm: HBM) -> Tensor:
    """One head's attention in three kernels, each of which loads its inputs and stores its output.

    moved = 4 N d + 4 N^2 elements
    q, k, v [N, d] -> [N, d]

    Raises ValueError unless q, k and v are [N, d] alike. Source: Dao et al. 2022, algorithm 0.
    """
    n, d = _shape(q, k, v)
    scores, weights, out = q.new_empty(n, n), q.new_empty(n, n), v.new_empty(n, d)
    hbm.store(scores, hbm.load(q) @ hbm.load(k).mT * d**-0.5)
    hbm.store(weights, hbm.load(scores).softmax(-1))
    hbm.store(out, hbm.load(weights) @ hbm.load(v))
    return out


def flash_on_hbm(q: Tensor, k: Tensor, v: Tensor, hbm: HBM, sram_elements: int) -> Tensor:
    """One head's attention in one kernel whose tiles fit a chip that holds `sram_elements`.

    moved = 2 N d + T_c (3 N d + 4 N) elements, T_c = N / ceil(sram_elements / 4 d), rounded up
    q, k, v [N, d] -> [N, d]

    Each of T_c tiles of keys and values is loaded once, and all queries, outputs, maxima and sums pass by it.
    Outputs, maxima and sums start as constants, which are not counted. Errors as above.
    Source: Dao et al. 2022, algorithm 1.
    """
    _check_sizes({"sram_elements": sram_elements})
    n, d = _shape(q, k, v)
    cols = math.ceil(sram_elements / (4 * d))
    rows = min(cols, d)
    largest, total, out = memory = empty_state(q, d)
    for j in range(0, n, cols):
        keys, values = hbm.load(k[j:j + cols]), hbm.load(v[j:j + cols])
        for i in range(0, n, rows):
            queries, old_max, old_sum, old = (hbm.load(x[i:i + rows]) for x in (q, *memory))
            state = online_softmax((old_max, old_sum, old * old_sum), queries @ keys.mT * d**-0.5, values)
            hbm.store(largest[i:i + rows], state[0])
            hbm.store(total[i:i + rows], state[1])
            hbm.store(out[i:i + rows], state[2] / state[1])
    return out


def _shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    shapes = [list(x.shape) for x in (q, k, v)]
    if q.dim() != 2 or 0 in q.shape or shapes != shapes[:1] * 3:
        raise ValueError("q {}, k {}, v {} are not one head; use [tokens, head_dim] for all".format(*shapes))
    check_qkv(q[None, None], k[None, None], v[None, None], causal=False)
    return q.shape[0], q.shape[1]
