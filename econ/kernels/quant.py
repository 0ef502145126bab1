"""Weight-only quantisation: 8 and 4 bits a weight in plain torch, and torch's own kernels where they exist.

Weights are stored small and multiplied in bf16, so that a product reads fewer bytes and does the same
arithmetic. Shapes stand in comments: a weight is [N, K], N outputs of K inputs; B vectors; G groups a row.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from econ.kernels._setup import Device, pick_device
from econ.kernels.pool import check_count
from econ.kernels.timing import time_median

STACK_BYTES = 2**28  # weights of one format together, far beyond every cache


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes in each byte, the first one in the upper half.  uint8 [2n] -> [n], on the last axis

    >>> pack_nibbles(torch.tensor([1, 2, 15, 0], dtype=torch.uint8)).tolist()
    [18, 240]
    """
    return codes[..., ::2] << 4 | codes[..., 1::2]


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The reverse of `pack_nibbles`.  uint8 [n] -> [2n], on the last axis"""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A matrix [N, K] in integer codes.

    weight = (code - zero) * scale

    int8: zero is 0, one scale a row. int4: a scale and a zero of 4 bits for each group of a row.
    """

    name: str  # "int8" or "int4", as in econ.precision
    codes: Tensor  # int8 [N, K], or uint8 [N, K / 2]
    scales: Tensor  # bf16 [N, G]
    zeros: Tensor | None  # uint8, two a byte, rows one after the other

    @property
    def bytes(self) -> int:
        """Bytes stored: codes, scales and zeros."""
        return sum(t.nbytes for t in (self.codes, self.scales, self.zeros) if t is not None)

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """Codes [N, G, K / G] and zeros [N, G, 1], each one a number."""
        groups = self.scales.shape
        if self.zeros is None:
            return self.codes.unflatten(1, (groups[1], -1)), self.codes.new_zeros(*groups, 1)
        zeros = unpack_nibbles(self.zeros)[:groups.numel()].view(*groups, 1)
        return unpack_nibbles(self.codes).unflatten(1, (groups[1], -1)), zeros

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights that the codes stand for.  [N, K]"""
        codes, zeros = self.unpacked()
        return ((codes.float() - zeros) * self.scales.float()[..., None]).flatten(1).to(dtype)


def quantize_int8(weight: Tensor) -> Quantized:
    """Symmetric 8-bit codes, one scale a row.  weight [N, K]

    scale = largest magnitude of the row / 127; each weight is off by at most half a scale.
    Raises ValueError for anything but a matrix of floating-point numbers.
    """
    _check_weight(weight)
    wide = weight.float()
    scales = (wide.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30).bfloat16()  # [N, 1]
    codes = (wide / scales.float()).round().clamp(-127, 127).to(torch.int8)
    return Quantized(name="int8", codes=codes, scales=scales, zeros=None)


def quantize_int4(weight: Tensor, group: int = 128) -> Quantized:
    """Asymmetric 4-bit codes, a scale and a zero for each `group` weights of a row.  weight [N, K]

    scale = (largest - smallest) / 15, with 0 between them; each weight is off by about half a scale at most.
    Raises ValueError for anything but a matrix whose rows divide into even groups.
    """
    _check_weight(weight)
    check_count("group", group, least=2)
    if weight.shape[1] % group or group % 2:
        raise ValueError(f"rows of {weight.shape[1]} weights do not divide into groups of {group}; "
                         "use an even divisor, such as 32 or 128")
    wide = weight.float().unflatten(1, (-1, group))  # [N, G, group]
    low, high = wide.amin(-1, keepdim=True).clamp(max=0), wide.amax(-1, keepdim=True).clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-30).bfloat16()  # [N, G, 1]
    zeros = (-low / scales.float()).round().clamp(0, 15)
    codes = ((wide / scales.float()).round() + zeros).clamp(0, 15).to(torch.uint8)
    flat = F.pad(zeros.to(torch.uint8).flatten(), (0, zeros.numel() % 2))
    return Quantized(name="int4", codes=pack_nibbles(codes.flatten(1)), scales=scales[..., 0],
                     zeros=pack_nibbles(flat))


QUANTIZERS = {"int8": quantize_int8, "int4": quantize_int4}


def linear(x: Tensor, weight: Quantized) -> Tensor:
    """Expand the weights, then multiply: right everywhere, and slow, for it writes what it saved.

    x [B, K] -> [B, N]. Raises ValueError for vectors of another length.
    """
    wide = weight.dequantized(x.dtype)
    _check_input(x, wide.shape[1])
    return F.linear(x, wide)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A matrix in the layout of torch's own kernel, which expands the codes on their way to the product."""

    name: str  # "bf16", "int8" or "int4"
    weight: Tensor
    scales: Tensor  # bf16, [N] for int8; [G, N, 2] with the value of code 8 for int4; none for bf16
    group: int

    @property
    def bytes(self) -> int:
        """Bytes that one product reads: int4 keeps its zeros in 16 bits here, not in 4."""
        return self.weight.nbytes + self.scales.nbytes

    def linear(self, x: Tensor) -> Tensor:
        """x [B, K] bf16 -> [B, N]. Raises ValueError for vectors of another format or length."""
        if x.dtype != torch.bfloat16:
            raise ValueError(f"the vectors are {x.dtype}; these kernels multiply torch.bfloat16")
        if self.name == "bf16":
            _check_input(x, self.weight.shape[1])
            return F.linear(x, self.weight)
        if self.name == "int8":
            _check_input(x, self.weight.shape[1])
            return torch._weight_int8pack_mm(x, self.weight, self.scales)
        _check_input(x, self.group * self.scales.shape[0])
        kernel = torch._weight_int4pack_mm if x.is_cuda else torch._weight_int4pack_mm_for_cpu
        return kernel(x, self.weight, self.group, self.scales)


def pack(weight: Quantized) -> Packed:
    """Rearrange codes and scales for torch's own kernel; `fused_formats` says where that exists.

    Those operators are private and change between versions: with what they refuse, a RuntimeError of
    torch comes through. On a GPU the layout is unverified here, and `fused_formats` checks it by a product.
    """
    codes, zeros = weight.unpacked()
    group = codes.shape[-1]
    if weight.name == "int8":
        return Packed(name="int8", weight=weight.codes, scales=weight.scales[:, 0].contiguous(), group=group)
    at_code_8 = (8 - zeros[..., 0].float()) * weight.scales.float()  # [N, G]
    scales = torch.stack((weight.scales, at_code_8.bfloat16()), dim=-1).transpose(0, 1).contiguous()  # [G, N, 2]
    if weight.codes.is_cuda:
        tiled = torch._convert_weight_to_int4pack(weight.codes, 8)
    else:
        tiled = torch._convert_weight_to_int4pack_for_cpu(codes.flatten(1).int(), 1)
    return Packed(name="int4", weight=tiled, scales=scales, group=group)


def unquantized(weight: Tensor) -> Packed:
    """A bf16 matrix that is multiplied as it is, to compare with.  weight [N, K]"""
    _check_weight(weight)
    return Packed(name="bf16", weight=weight.bfloat16().contiguous(), scales=weight.new_empty(0), group=weight.shape[1])


def fused_formats(device: Device = None) -> tuple[str, ...]:
    """Which of int8 and int4 torch multiplies by a kernel of its own here, found by trying a small product."""
    device = pick_device(device)
    return tuple(name for name in QUANTIZERS if _agrees(name, device))


def _agrees(name: str, device: torch.device) -> bool:
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 256, generator=random).to(device) for rows in (64, 3))
    quantized, x = QUANTIZERS[name](weight), x.bfloat16()
    try:
        fused = pack(quantized).linear(x).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return relative_error(fused, linear(x.float(), quantized)) < 0.02  # sums of bf16 numbers: about 0.003


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Size of the difference over the size of the exact result, as root mean squares."""
    return float((found - exact).norm() / exact.norm())


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTime:
    """One product of a batch with a weight in one format."""

    name: str
    batch: int
    bytes: int  # of the weight, read once
    time_s: float
    spread_frac: float


def sweep(width: int = 8192, batches: Sequence[int] = (1, 4, 16, 64), device: Device = None,
          repeats: int = 5) -> tuple[FormatTime, ...]:
    """Time a square layer in bf16 and in each fused format: fewer bytes win at batch 1, arithmetic later.

    Every format cycles through copies that exceed the caches together, as the layers of a model do.
    """
    device = pick_device(device)
    tile = torch.randn(width, 256, device=device).bfloat16()
    weight = tile.repeat(1, math.ceil(width / 256))[:, :width]  # the same columns again: time does not depend on it
    rows: list[FormatTime] = []
    for name in ("bf16", *fused_formats(device)):
        layer = pack(QUANTIZERS[name](weight)) if name in QUANTIZERS else unquantized(weight)
        copies = [replace(layer, weight=layer.weight.clone()) for _ in range(math.ceil(STACK_BYTES / layer.bytes))]
        rows += [_time(copies, torch.randn(b, width, device=device).bfloat16(), repeats) for b in batches]
    return tuple(rows)


def _time(copies: list[Packed], x: Tensor, repeats: int) -> FormatTime:
    turn = itertools.cycle(copies)
    timing = time_median(lambda: next(turn).linear(x), repeats, x.device)
    return FormatTime(name=copies[0].name, batch=len(x), bytes=copies[0].bytes, time_s=timing.median_s,
                      spread_frac=timing.spread_frac)


def _check_weight(weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(f"the weight is {weight.dtype} {list(weight.shape)}; use a floating-point matrix [N, K]")


def _check_input(x: Tensor, inputs: int) -> None:
    if x.dim() != 2 or x.shape[1] != inputs:
        raise ValueError(f"the vectors have shape {list(x.shape)}; this weight takes [B, {inputs}]")
