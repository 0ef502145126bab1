"""Two meters that look at what torch executes: FLOPs, and the most memory alive at one time."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


def count_flops(fn: Callable[[], Any]) -> tuple[int, dict[str, int]]:
    """FLOPs of the matrix products that `fn` executes: the total, and the total by operator.

    2 FLOP per multiply-add; attention counts the full new x total square, causal or not.
    Element-wise work (norms, softmax, activations) is not counted: well under 1 % in a large model.
    Works on any device, `meta` included, where nothing is computed and only shapes flow.

    >>> a = torch.empty(2, 3, device="meta")
    >>> count_flops(lambda: a @ a.T)
    (24, {'aten.mm': 24})
    """
    with FlopCounterMode(display=False) as counter:
        fn()
    by_op = {str(op): int(flops) for op, flops in counter.get_flop_counts().get("Global", {}).items()}
    return counter.get_total_flops(), by_op


class _LiveBytes(TorchDispatchMode):
    """Follows every storage that is born while the mode is on, until it dies."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self._see((args, kwargs), born=False)  # what goes in was there before
        out = func(*args, **(kwargs or {}))
        self._see(out, born=True)
        return out

    def _see(self, tree: Any, born: bool) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self.known:
                storage = leaf.untyped_storage()  # views share one
                size = storage.nbytes() if born else 0
                self.known.add(storage._cdata)
                weakref.finalize(storage, self._died, storage._cdata, size)
                self.live += size
                self.peak = max(self.peak, self.live)

    def _died(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def peak_live_bytes(fn: Callable[[], Any]) -> int:
    """Most bytes alive at one time in tensors that `fn` makes; what exists before does not count.

    Exact for tensors that torch's operators return. It does not see what one operator uses inside
    itself, such as the tiles of fused attention. Works on any device, `meta` included.

    >>> x = torch.zeros(1000)
    >>> peak_live_bytes(lambda: ((x + 1) * 2).sum())
    8000
    """
    with _LiveBytes() as meter:
        fn()
    return meter.peak
