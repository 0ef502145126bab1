"""Elements moved by attention on the counted memory, equal to the closed forms of Dao et al. 2022."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from econ.kernels import _setup, hbm, timing  # noqa: E402

N, D = 1024, 32
SRAM = (2048, 4096, 8192, 16_384, 32_768, 65_536)  # elements


@pytest.fixture(autouse=True)
def on_one_thread():
    with _setup.one_thread():
        yield


def head(n=N, d=D, dtype=torch.float64):
    random = torch.Generator().manual_seed(n)
    return [torch.randn(n, d, dtype=dtype, generator=random) for _ in range(3)]


def error(found, q, k, v):
    return float((found - F.scaled_dot_product_attention(q[None], k[None], v[None])[0]).abs().max())


def moved(kernel, tensors, *args):
    memory = hbm.HBM()
    kernel(*tensors, memory, *args)
    return memory.moved


@pytest.mark.parametrize(("n", "d"), [(64, 8), (250, 16), (N, D)])
def test_three_kernels_move_the_square_four_times(n, d):
    tensors, memory = head(n, d), hbm.HBM()
    assert error(hbm.standard_on_hbm(*tensors, memory), *tensors) < 1e-13
    assert memory.moved == 4 * n * d + 4 * n * n
    assert memory.loaded == 3 * n * d + 2 * n * n


@pytest.mark.parametrize("sram", SRAM)
@pytest.mark.parametrize("n", [N, 1000])
def test_one_kernel_moves_what_algorithm_1_moves(n, sram):
    tensors, memory = head(n), hbm.HBM()
    assert error(hbm.flash_on_hbm(*tensors, memory, sram), *tensors) < 1e-13
    tiles = math.ceil(n / math.ceil(sram / (4 * D)))
    assert memory.moved == 2 * n * D + tiles * (3 * n * D + 4 * n)


def test_traffic_falls_almost_as_the_chip_grows():
    flash = [moved(hbm.flash_on_hbm, head(), sram) for sram in SRAM[:5]]
    assert -1.05 <= timing.log_log_slope(SRAM[:5], flash) <= -0.85


def test_a_chip_that_is_too_small_makes_tiles_lose():
    standard = moved(hbm.standard_on_hbm, head(512))
    assert moved(hbm.flash_on_hbm, head(512), 1024) > standard > 4 * moved(hbm.flash_on_hbm, head(512), 16_384)


def test_results_come_from_what_was_loaded_and_not_from_a_view():
    memory, x = hbm.HBM(), torch.zeros(4, 2)
    tile = memory.load(x[:2])
    tile += 1
    assert x.sum() == 0 and memory.moved == 4
    memory.store(x[:2], tile)
    assert x.sum() == 4 and (memory.loaded, memory.stored) == (4, 4)


class StoresForFree(hbm.HBM):
    def store(self, x, value):
        x.copy_(value)


class LoadsSumsForFree(hbm.HBM):
    def load(self, x):
        self.loaded += x.numel() if x.shape[1] == D else 0
        return x.clone()


@pytest.mark.parametrize("wrong", [StoresForFree, LoadsSumsForFree])
def test_counting_wrongly_would_be_noticed(wrong):
    tensors, memory = head(), wrong()
    hbm.flash_on_hbm(*tensors, memory, 8192)
    tiles = N // (8192 // (4 * D))
    assert memory.moved != 2 * N * D + tiles * (3 * N * D + 4 * N)


def test_operands_of_torch_operators_are_not_the_traffic_of_tiles():
    """Adding up the inputs and outputs of every operator, as a profiler does, charges tiles on the chip."""
    class Operands(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not func.is_view:
                leaves = tree_leaves((args, kwargs, out))
                self.elements += sum(x.numel() for x in leaves if isinstance(x, torch.Tensor))
            return out

    with Operands() as operands:
        counted = moved(hbm.flash_on_hbm, head(512), 16_384)
    assert operands.elements > 5 * counted


@pytest.mark.parametrize(("change", "message"), [
    (lambda q, k, v: (q[None], k, v, hbm.HBM(), 4096), "are not one head; use [tokens, head_dim]"),
    (lambda q, k, v: (q, k[:5], v, hbm.HBM(), 4096), "k [5, 8]"),
    (lambda q, k, v: (q, k, v.float(), hbm.HBM(), 4096), "v is torch.float32 on cpu"),
    (lambda q, k, v: (q, k, v, hbm.HBM(), 0), "sram_elements=0"),
])
def test_what_does_not_fit_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=".") as refusal:
        hbm.flash_on_hbm(*change(*head(16, 8)))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
